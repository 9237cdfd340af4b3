# SPDX-License-Identifier: Apache-2.0
"""From a chosen loop order to a whole schedule: prefetches, partial sums, parallel chunks or parts.

order i, k, j; vector k  ->  reorder(i,k,j) vectorize(k,8,8) prefetch(B,16) parallelize(i)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from jsparse.errors import ScheduleError
from jsparse.ir.index import Assignment
from jsparse.record import record
from jsparse.schedule import directives
from jsparse.schedule.cost import GALLOP
from jsparse.schedule.directives import (
    Collect,
    Directive,
    Gallop,
    Hold,
    Locate,
    Nest,
    Parallelize,
    Precompute,
    Prefetch,
    Reorder,
    Rfactor,
    Schedule,
    Unroll,
    Vectorize,
    Widen,
)
from jsparse.schedule.legality import are_rows, walked_level
from jsparse.schedule.stats import Stats
from jsparse.target import VECTOR_DTYPES, host

AHEAD = 16  # nonzeros between asking for a row and using it
STREAM_AHEAD = 256  # entries between asking for stored ones and using them
EXACT = 1 << 24  # additions of one that a float32 sum still counts
SHORT = 24  # entries of a fiber from which partial sums pay: shorter ones overlap by themselves
LONG = 80  # from which sums in lanes pay: what is left over runs one by one
LINE = 64  # bytes of a cache line
MOST_PARTS = 16  # results of their own that a shared output is summed in
MOST_IN_PARTS = 1 << 22  # elements of them all
LEAST_PART = 1 << 16  # additions in one: under a tenth of a millisecond


@record
class Candidate:
    """A loop order with its vector loop, and what it is predicted to cost in nanoseconds."""

    cost: float
    order: tuple[str, ...]
    vector: tuple[str, int, int] | None
    workspace: str | None
    located: tuple[tuple[str, str], ...] = ()
    held: str | None = None


def finish(
    a: Assignment,
    best: Candidate,
    extents: dict[str, int],
    stats: tuple[Stats, ...],
    pattern: Stats | None = None,
) -> Schedule:
    schedule: list[Directive] = [Reorder(best.order)]
    if best.workspace:
        schedule.append(Precompute(best.workspace))
    schedule += [Locate(name, v) for name, v in best.located]
    known = (*stats, pattern) if pattern is not None else stats
    searched = list(gallops(a, best.order, known, best.located, best.workspace))
    schedule += searched
    if best.vector:
        schedule.append(Vectorize(*best.vector))
        schedule += [Prefetch(*rows) for rows in _scattered_rows(a, best, extents)]
    if best.held:
        schedule.append(Hold(best.held))
    last = best.order[-1] if best.order else None
    reduction = last is not None and last not in a.output.vars
    vector_out = best.vector is not None and best.vector[0] in a.output.vars
    if last is not None and len(a.terms) == 1:
        fan = _inner_fan(a, last, extents, stats)
        lanes = _in_lanes(a, best) if best.vector is None and fan >= LONG else None
        if best.vector is None and (fan < SHORT or lanes):
            schedule += [lanes] if lanes else []
            walked = [x for x in _streams(a, last, stats) if Gallop(x, last) not in searched]
            schedule += [Prefetch(name, STREAM_AHEAD) for name in walked]
        elif (
            reduction
            and not best.held
            and (best.vector is None or (vector_out and best.vector[2] <= 4))
        ):
            schedule.append(Unroll(last, 2 if best.vector and best.vector[2] > 1 else 4))
    nest = Nest(a, best.order, held=best.held)
    repeated = any(not level.unique for x in a.operands for level in x.format.levels)
    in_memory = (nest.first_reduction < nest.complete or repeated) and not best.workspace
    scalar = best.vector is None and a.output.dtype == "float32"
    if scalar and in_memory and _additions(a, extents, stats) > EXACT:
        schedule.append(Widen(a.output.name))
    if splits(a, best.order, best.vector):
        try:
            parallel = Parallelize(best.order[0])
            directives.apply((*schedule, parallel), a)
            schedule.append(parallel)
        except ScheduleError:
            pass
    parts = _parts(a, best, extents, stats)
    if parts > 1:
        schedule.append(Rfactor(best.order[0], parts))
    return tuple(schedule)


def _in_lanes(a: Assignment, best: Candidate) -> Collect | None:
    """A cache line of nonzeros of the innermost reduction at once, if that is possible."""
    size = VECTOR_DTYPES.get(a.output.dtype)
    if size is None:
        return None
    lanes = host().vector_bytes // size
    found = Collect(best.order[-1], lanes, max(1, LINE // host().vector_bytes))
    held = (Hold(best.held),) if best.held else ()
    try:
        directives.apply((Reorder(best.order), *held, found), a)
    except ScheduleError:
        return None
    return found


def gallops(
    a: Assignment,
    order: tuple[str, ...],
    stats: tuple[Stats, ...],
    located: tuple[tuple[str, str], ...] = (),
    workspace: str | None = None,
) -> Iterator[Gallop]:
    """Fibers so much longer than another that they are intersected with that searching in them is
    cheaper than walking them.
    """
    if len(a.terms) > 1:
        return
    for d, v in enumerate(order):
        fans: dict[str, float] = {}
        for x, s in zip(a.stored, stats, strict=False):
            level = walked_level(x, v, order)
            own = x is a.pattern and any(u not in a.output.vars for u in order[: d + 1])
            if level is None or (x.name, v) in located or (own and (workspace or fans)):
                continue  # looked up, or the output's pattern inside of a reduction
            fans[x.name] = s.fan[x.level_vars.index(v)]
        least = min(fans.values(), default=0.0)
        for name, fan in fans.items():
            if fan >= GALLOP * max(least, 1.0) and fan > least:
                directive = Gallop(name, v)
                try:
                    directives.apply((Reorder(order), directive), a)
                except ScheduleError:
                    continue  # its coordinates do not ascend
                yield directive


def splits(a: Assignment, order: tuple[str, ...], vector: tuple[str, int, int] | None) -> bool:
    """Whether the outermost loop can be cut in chunks that keep their vectors."""
    if not order or order[0] not in a.output.vars:
        return False
    return vector is None or vector[0] != order[0] or len(a.moving(order[0])) > 1


def _parts(
    a: Assignment, best: Candidate, extents: dict[str, int], stats: tuple[Stats, ...]
) -> int:
    """How many results of its own a reduction in the outermost loop pays for: few beside the work
    and the cache; 0 where it is none.
    """
    first = best.order[:1]
    if not first or first[0] in a.output.vars or a.sampled or best.located:
        return 0
    if best.vector is not None and best.vector[0] == first[0]:
        return 0
    size = math.prod(float(extents[v]) for v in a.output.vars)
    work = _additions(a, extents, stats)
    if work < LEAST_PART:
        return 0
    room = MOST_IN_PARTS / max(size, 1.0)
    return int(min(work / (4 * max(size, 1.0)), work / LEAST_PART, room, MOST_PARTS))


def _scattered_rows(
    a: Assignment, best: Candidate, extents: dict[str, int]
) -> Iterator[tuple[str, int]]:
    """Dense operands whose rows a sparse loop picks from more than the second-level cache holds,
    and how many entries ahead to ask for them.
    """
    assert best.vector is not None
    sparse = {v for x in a.stored if not x.tied for v in x.sparse_vars}
    scattered = [a.output] if Nest(a, best.order).first_reduction < len(a.output.vars) else []
    for x in (*a.operands, *scattered):
        names = x.level_vars
        rows = are_rows(a, names, best.vector[0])
        if x.format.is_dense and rows and names[0] in sparse:
            size = math.prod(extents[v] for v in names) * VECTOR_DTYPES[a.output.dtype]
            if size > host().l2:
                yield x.name, max(1, AHEAD // math.prod(extents[v] for v in names[1:-1]))


def _inner_fan(a: Assignment, v: str, extents: dict[str, int], stats: tuple[Stats, ...]) -> float:
    """How often the innermost loop, over `v`, runs."""
    fans = [
        s.fan[n]
        for x, s in zip(a.operands, stats, strict=True)
        for n, u in enumerate(x.level_vars)
        if u == v and not x.format.levels[n].full
    ]
    return min(fans, default=extents[v])


def _streams(a: Assignment, v: str, stats: tuple[Stats, ...]) -> Iterator[str]:
    """Operands whose entries are walked along `v` in storage order and do not fit in cache."""
    for x, s in zip(a.operands, stats, strict=True):
        walked = x.level_vars[-1:] == (v,) and not x.format.levels[-1].full
        if walked and s.positions[-1] * 8 > host().l2:
            yield x.name


def _additions(a: Assignment, extents: dict[str, int], stats: tuple[Stats, ...]) -> float:
    """At most how many products are added, to all of the output."""
    total = 0.0
    for term in a.terms:
        most = math.prod(float(extents[v]) for v in a.vars)
        for n in term.factors:
            x = a.operands[n]
            entries = stats[n].positions[-1] if stats[n].positions else 1.0
            most = min(most, entries * math.prod(extents[v] for v in a.vars if v not in x.vars))
        total += most
    return total

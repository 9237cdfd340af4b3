# SPDX-License-Identifier: Apache-2.0
"""The autoscheduler: from an assignment with sizes to a plan, in milliseconds and without search.

All loop orders that agree with the storage order of the sparse operands are scored with
`cost.order_cost`, each with every dense variable that could be the vector loop; the cheapest
wins, ties by name.  Then registers, partial sums and parallelism follow from the nest.  A plan
may read dense operands in another layout: their formats say so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache

from jsparse.errors import ScheduleError
from jsparse.format import Format
from jsparse.ir.index import Access, Assignment
from jsparse.record import record, replace
from jsparse.schedule import cost, directives
from jsparse.schedule.directives import (
    Directive,
    Locate,
    Nest,
    Parallelize,
    Precompute,
    Prefetch,
    Reorder,
    Schedule,
    Unroll,
    Vectorize,
    Widen,
)
from jsparse.schedule.stats import Stats, estimate
from jsparse.target import Target, host

VECTOR_DTYPES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8, "uint32": 4, "uint64": 8}
MAX_ORDERS = 120
MOST_REGISTERS = 8  # accumulators of a vector loop
AHEAD = 16  # nonzeros between asking for a row and using it
STREAM_AHEAD = 256  # entries between asking for stored ones and using them
EXACT = 1 << 24  # additions of one that a float32 sum still counts
SHORT = 24  # entries of a fiber from which partial sums pay: shorter ones overlap by themselves
LONGEST_ROW = 1 << 26  # elements of a dense workspace
PARALLEL = 0.6  # weight of a nest whose outermost loop can be split among threads


@record
class Candidate:
    """A loop order with its vector loop, and what it is predicted to cost in nanoseconds."""

    cost: float
    order: tuple[str, ...]
    vector: tuple[str, int, int] | None
    workspace: str | None
    located: tuple[tuple[str, str], ...] = ()


@record
class Plan:
    """What to run: the assignment (dense formats may be in another mode order) and its schedule."""

    assignment: Assignment
    schedule: Schedule
    candidates: tuple[Candidate, ...] = ()


def precedence(accesses: list[Access]) -> set[tuple[str, str]]:
    """Pairs (outer, inner) that the storage of sparse operands asks for."""
    pairs: set[tuple[str, str]] = set()
    for a in accesses:
        if not a.format.is_dense:
            names = a.level_vars[: max(a.format.sparse_levels) + 1]
            pairs |= {(u, v) for u, v in itertools.combinations(names, 2) if u != v}
    return pairs


def orders(a: Assignment, accesses: list[Access]) -> Iterator[tuple[str, ...]]:
    """Loop orders worth scoring, in a fixed sequence.

    Variables of sparse operands in every order that agrees with their storage (in any order, if
    the operands disagree: levels can be searched).  Variables that only dense operands have come
    last, or one of them at any place: it is the one that could be the vector loop.
    """
    walked = {
        v
        for x in accesses
        if not x.format.is_dense
        for v in x.level_vars[: x.format.ndim - x.format.dense_tail]
    }
    first = tuple(v for v in a.vars if v in walked)
    rest = tuple(v for v in a.vars if v not in walked and v in a.output.vars)
    rest += tuple(v for v in a.vars if v not in walked and v not in a.output.vars)
    before = precedence(accesses)
    found = False
    for order in itertools.islice(topological((), first, before), MAX_ORDERS):
        found = True
        yield from _with_dense(order, rest, a.output.vars)
    if not found:
        for order in itertools.islice(itertools.permutations(first), MAX_ORDERS):
            yield from _with_dense(order, rest, a.output.vars)


def topological(
    done: tuple[str, ...], left: tuple[str, ...], before: set[tuple[str, str]]
) -> Iterator[tuple[str, ...]]:
    if not left:
        yield done
    for v in left:
        if not any((u, v) in before for u in left if u != v):
            yield from topological((*done, v), tuple(u for u in left if u != v), before)


def _with_dense(
    order: tuple[str, ...], rest: tuple[str, ...], out: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """`rest` behind `order`; then with each of its variables last, or outside of the reductions."""
    seen = {(*order, *rest)}
    yield (*order, *rest)
    reduction = next((d for d, v in enumerate(order) if v not in out), len(order))
    for v in rest:
        others = (*order, *(u for u in rest if u != v))
        places = (reduction, len(others)) if v in out else (len(others),)
        for at in places:
            new = (*others[:at], v, *others[at:])
            if new not in seen:
                seen.add(new)
                yield new


def workspace_of(a: Assignment, order: tuple[str, ...], extents: dict[str, int]) -> str | None:
    """The output variable to gather in a row, if the output's pattern and this order allow and
    need it.

    Not if the row would be huge: then the pattern is searched.
    """
    nest = Nest(a, order)
    trailing = tuple(v for v in order[nest.first_reduction :] if v in a.output.vars)
    if len(trailing) != 1 or a.pattern is None or extents[trailing[0]] > LONGEST_ROW:
        return None
    try:
        Precompute(trailing[0]).apply(nest)
    except ScheduleError:
        return None
    return trailing[0]


def located_of(
    a: Assignment, order: tuple[str, ...], extents: dict[str, int]
) -> tuple[tuple[str, str], ...]:
    """Operands whose fibers would be walked again in a loop they do not depend on, while another
    operand has the same variable: look them up instead.
    """
    if len(a.terms) != 1:
        return ()
    depth = {v: d for d, v in enumerate(order)}
    found: list[tuple[str, str]] = []
    ready: dict[str, list[tuple[str, int]]] = {}
    for x in (*a.operands, *([a.pattern] if a.pattern else [])):
        for n, v in enumerate(x.level_vars):
            above = max((depth[u] for u in x.level_vars[:n]), default=-1)
            if not x.format.levels[n].full and above < depth[v]:
                ready.setdefault(v, []).append((x.name, above))
    if all(len(names) < 2 for names in ready.values()):
        return ()
    for x in a.operands:
        for n, v in enumerate(x.level_vars):
            level = x.format.levels[n]
            above = max((depth[u] for u in x.level_vars[:n]), default=-1)
            again = depth[v] - above >= 2
            others = [
                name for name, _ in ready.get(v, []) if (name, v) not in found and name != x.name
            ]
            once = level.unique and x.level_vars.count(v) == 1
            if not level.full and again and once and others and extents[v] <= LONGEST_ROW:
                found.append((x.name, v))
    return tuple(found)


def vector_shape(a: Assignment, v: str, extent: int, target: Target) -> tuple[str, int, int] | None:
    """Lanes and registers for a vector loop over `v`; None if it is too short or the dtype has no
    vectors.
    """
    size = VECTOR_DTYPES.get(a.output.dtype)
    if size is None or extent < 2:
        return None
    lanes = target.vector_bytes // size
    while lanes > extent:
        lanes //= 2
    registers = 1
    while registers * 2 <= MOST_REGISTERS and registers * 2 * lanes <= extent:
        registers *= 2
    return (v, lanes, registers)


def vector_candidates(a: Assignment) -> tuple[str, ...]:
    """Variables that index nothing but dense levels, once in each access, innermost or movable
    there.
    """
    out = []
    accesses = [*a.operands, a.output]
    for v in a.vars:
        ok = True
        for access in accesses:
            if v not in access.vars:
                continue
            movable = access.format.is_dense
            innermost = access.level_vars[-1] == v and access.format.levels[-1].full
            ok &= access.vars.count(v) == 1 and (movable or innermost)
        if ok:
            out.append(v)
    return tuple(out)


def innermost(access: Access, v: str) -> Access:
    """The access with a dense tensor laid out so that `v` is contiguous."""
    if v not in access.vars or not access.format.is_dense or access.level_vars[-1] == v:
        return access
    mode = access.vars.index(v)
    order = (*(m for m in access.format.order if m != mode), mode)
    return replace(access, format=Format(access.format.levels, order, access.format.index))


def relayout(a: Assignment, v: str) -> Assignment:
    return replace(
        a, output=innermost(a.output, v), operands=tuple(innermost(x, v) for x in a.operands)
    )


def moved(a: Assignment, b: Assignment, extents: dict[str, int]) -> float:
    """Elements of dense tensors whose layout differs between the two assignments."""
    total = 0.0
    for x, y in zip((*a.operands, a.output), (*b.operands, b.output), strict=True):
        if x.format != y.format:
            size = 1.0
            for v in x.vars:
                size *= extents[v]
            total += size
    return total


@lru_cache(maxsize=4096)
def plan(
    a: Assignment, sizes: tuple[int, ...], nse: tuple[int, ...], target: Target | None = None
) -> Plan:
    """The plan for an assignment.

    Args: a: what to compute, dense tensors in the layout they have. sizes: extent of each of
      `a.vars`. nse: stored entries of each operand (0 for dense ones), then of the output's own
      pattern if it has one. target: the machine; by default this one.
    """
    target = target or host()
    extents = dict(zip(a.vars, sizes, strict=True))
    stats = tuple(estimate(x, extents, n) for x, n in zip(a.operands, nse, strict=False))
    pattern = estimate(a.pattern, extents, nse[-1]) if a.pattern is not None else None
    ranked = sorted(
        _candidates(a, extents, stats, pattern, target),
        key=lambda c: (c.cost, c.order, c.vector or ("",)),
    )
    best = ranked[0]
    chosen = relayout(a, best.vector[0]) if best.vector else a
    return Plan(chosen, _finish(chosen, best, extents, stats), tuple(ranked[:8]))


def _candidates(
    a: Assignment,
    extents: dict[str, int],
    stats: tuple[Stats, ...],
    pattern: Stats | None,
    target: Target,
) -> Iterator[Candidate]:
    accesses = [*a.operands, *([a.pattern] if a.pattern else [])]
    vectors = [vector_shape(a, v, extents[v], target) for v in vector_candidates(a)]
    options = [None, *[v for v in vectors if v is not None]]
    layouts = {v: relayout(a, v[0]) for v in options if v is not None}
    moves = {v: cost.ELEMENT * moved(a, b, extents) for v, b in layouts.items()}
    for order in orders(a, accesses):
        workspace = workspace_of(a, order, extents)
        located = located_of(a, order, extents)
        for vector in options:
            if (
                vector is not None
                and order[-1] != vector[0]
                and order.index(vector[0]) != _first(a, order)
            ):
                continue
            if vector is not None and (vector[0] not in a.output.vars and order[-1] != vector[0]):
                continue
            if vector is not None and vector[0] == workspace:
                continue
            total = cost.order_cost(a, order, extents, stats, pattern, workspace, vector, located)
            if vector is not None:
                total += moves[vector]
            if order and order[0] in a.output.vars and (vector is None or vector[0] != order[0]):
                total *= PARALLEL
            yield Candidate(total, order, vector, workspace, located)


def _scattered_rows(a: Assignment, best: Candidate, extents: dict[str, int]) -> Iterator[str]:
    """Dense operands whose rows a sparse loop picks from more than the second-level cache holds."""
    assert best.vector is not None
    stored = (*a.operands, *([a.pattern] if a.pattern else []))
    sparse = {v for x in stored for v in x.sparse_vars}
    scattered = [a.output] if Nest(a, best.order).first_reduction < len(a.output.vars) else []
    for x in (*a.operands, *scattered):
        names = x.level_vars
        rows = len(names) == 2 and names[0] in sparse and names[1] == best.vector[0]
        if x.format.is_dense and rows:
            size = extents[names[0]] * extents[names[1]] * VECTOR_DTYPES[a.output.dtype]
            if size > host().l2:
                yield x.name


def _first(a: Assignment, order: tuple[str, ...]) -> int:
    """Depth of the loop just outside of the reductions."""
    return next((d for d, v in enumerate(order) if v not in a.output.vars), len(order)) - 1


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


def _finish(
    a: Assignment, best: Candidate, extents: dict[str, int], stats: tuple[Stats, ...]
) -> Schedule:
    schedule: list[Directive] = [Reorder(best.order)]
    if best.workspace:
        schedule.append(Precompute(best.workspace))
    schedule += [Locate(name, v) for name, v in best.located]
    if best.vector:
        schedule.append(Vectorize(*best.vector))
        schedule += [Prefetch(name, AHEAD) for name in _scattered_rows(a, best, extents)]
    last = best.order[-1] if best.order else None
    reduction = last is not None and last not in a.output.vars
    vector_out = best.vector is not None and best.vector[0] in a.output.vars
    if last is not None and len(a.terms) == 1:
        if best.vector is None and _inner_fan(a, last, extents, stats) < SHORT:
            schedule += [Prefetch(name, STREAM_AHEAD) for name in _streams(a, last, stats)]
        elif reduction and (best.vector is None or (vector_out and best.vector[2] <= 4)):
            schedule.append(Unroll(last, 2 if best.vector and best.vector[2] > 1 else 4))
    complete = max((d for d, v in enumerate(best.order) if v in a.output.vars), default=-1)
    repeated = any(not level.unique for x in a.operands for level in x.format.levels)
    in_memory = (Nest(a, best.order).first_reduction <= complete or repeated) and not best.workspace
    scalar = best.vector is None and a.output.dtype == "float32"
    if scalar and in_memory and _additions(a, extents, stats) > EXACT:
        schedule.append(Widen(a.output.name))
    if (
        best.order
        and best.order[0] in a.output.vars
        and (best.vector is None or best.vector[0] != best.order[0])
    ):
        try:
            parallel = Parallelize(best.order[0])
            directives.apply((*schedule, parallel), a)
            schedule.append(parallel)
        except ScheduleError:
            pass
    return tuple(schedule)


@lru_cache(maxsize=4096)
def pattern_order(a: Assignment, sizes: tuple[int, ...], nse: tuple[int, ...]) -> tuple[str, ...]:
    """The loop order of an assembly: output variables in storage order, reductions where they are
    cheapest.
    """
    extents = dict(zip(a.vars, sizes, strict=True))
    stats = tuple(estimate(x, extents, n) for x, n in zip(a.operands, nse, strict=False))
    stored = a.output.level_vars[: max(a.output.format.sparse_levels) + 1]
    before = precedence(list(a.operands)) | set(itertools.combinations(stored, 2))
    best: tuple[float, tuple[str, ...]] | None = None
    found = list(itertools.islice(topological((), a.vars, before), MAX_ORDERS))
    if not found:  # operands disagree with the output: it decides
        before = set(itertools.combinations(stored, 2))
        found = list(itertools.islice(topological((), a.vars, before), MAX_ORDERS))
    for order in found:
        total = cost.order_cost(replace(a, shares=None), order, extents, stats, None, None, None)
        if best is None or (total, order) < best:
            best = (total, order)
    assert best is not None
    return best[1]


def quick_cost(
    a: Assignment, sizes: tuple[int, ...], nse: tuple[int, ...], limit: float = math.inf
) -> float:
    """Predicted nanoseconds of the best loop order, its innermost loop in vectors if it can be;
    without workspaces.  Something above `limit` where every order is.
    """
    extents = dict(zip(a.vars, sizes, strict=True))
    stats = tuple(estimate(x, extents, n) for x, n in zip(a.operands, nse, strict=False))
    vectors = {v: vector_shape(a, v, extents[v], host()) for v in vector_candidates(a)}
    moves = {v: cost.ELEMENT * moved(a, relayout(a, v), extents) for v in vectors}
    best = math.inf
    for order in orders(a, list(a.operands)):
        last = order[-1] if order else ""
        move, vector = moves.get(last, 0.0), vectors.get(last)
        most = min(best, limit) - move
        total = cost.order_cost(a, order, extents, stats, None, None, vector, limit=most)
        best = min(best, total + move)
    return best

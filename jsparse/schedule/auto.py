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
from jsparse.schedule import cost
from jsparse.schedule.directives import (
    Nest,
    Precompute,
    Reorder,
    Schedule,
)
from jsparse.schedule.finish import Candidate, finish, gallops, splits
from jsparse.schedule.legality import not_held, not_vectorizable
from jsparse.schedule.orders import MAX_ORDERS, orders, precedence, topological
from jsparse.schedule.stats import Stats, estimate
from jsparse.target import VECTOR_DTYPES, Target, host

MOST_REGISTERS = 8  # accumulators of a vector loop
SPARE = 4  # vector registers that are not accumulators
LONGEST_ROW = 1 << 26  # elements of a dense workspace
PARALLEL = 0.6  # weight of a nest whose outermost loop can be split among threads


@record
class Plan:
    """What to run: the assignment (dense formats may be in another mode order) and its schedule."""

    assignment: Assignment
    schedule: Schedule
    candidates: tuple[Candidate, ...] = ()


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
    for x in a.stored:
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
            once = level.unique and x.level_vars.count(v) == 1 and not x.tied
            if not level.full and again and once and others and extents[v] <= LONGEST_ROW:
                found.append((x.name, v))
    return tuple(found)


def vector_shape(
    a: Assignment, v: str, extent: int, target: Target, most: int = MOST_REGISTERS
) -> tuple[str, int, int] | None:
    """Lanes and registers, at most `most`, for a vector loop over `v`; None if it is too short or
    the dtype has no vectors.
    """
    size = VECTOR_DTYPES.get(a.output.dtype)
    if size is None or extent < 2:
        return None
    lanes = target.vector_bytes // size
    while lanes > extent:
        lanes //= 2
    registers = 1
    while registers * 2 <= most and registers * 2 * lanes <= extent:
        registers *= 2
    return (v, lanes, registers)


def vector_candidates(a: Assignment) -> tuple[str, ...]:
    """Variables that can be the vector loop once dense tensors are laid out for it."""
    return tuple(v for v in a.vars if not_vectorizable(a, None, v, movable=True) is None)


def innermost(access: Access, moving: tuple[str, ...]) -> Access:
    """The access with a dense tensor laid out so that what is in `moving` is contiguous."""
    v = next((v for v in moving if v in access.vars), None)
    if v is None or not access.format.is_dense or access.level_vars[-1] == v:
        return access
    mode = access.vars.index(v)
    order = (*(m for m in access.format.order if m != mode), mode)
    return replace(access, format=Format(access.format.levels, order, access.format.index))


def relayout(a: Assignment, v: str) -> Assignment:
    moving = a.moving(v)
    operands = tuple(innermost(x, moving) for x in a.operands)
    return replace(a, output=innermost(a.output, moving), operands=operands)


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

    Args:
      a: what to compute, dense tensors in the layout they have.
      sizes: extent of each of `a.vars`.
      nse: stored entries of each operand (0 for dense ones), then of the output's own pattern if
        it has one.
      target: the machine; by default this one.
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
    return Plan(chosen, finish(chosen, best, extents, stats, pattern), tuple(ranked[:8]))


def _candidates(
    a: Assignment,
    extents: dict[str, int],
    stats: tuple[Stats, ...],
    pattern: Stats | None,
    target: Target,
) -> Iterator[Candidate]:
    accesses = list(a.stored)
    vectors = [vector_shape(a, v, extents[v], target) for v in vector_candidates(a)]
    options = [None, *[v for v in vectors if v is not None]]
    layouts = {v: relayout(a, v[0]) for v in options if v is not None}
    moves = {v: cost.ELEMENT * moved(a, b, extents) for v, b in layouts.items()}
    for order in orders(a, accesses):
        workspace = workspace_of(a, order, extents)
        located = located_of(a, order, extents)
        for vector in options:
            if vector is not None and not _fits(a, order, vector[0]):
                continue
            if vector is not None and vector[0] == workspace:
                continue
            total = cost.order_cost(a, order, extents, stats, pattern, workspace, vector, located)
            if vector is not None:
                total += moves[vector]
            if splits(a, order, vector):
                total *= PARALLEL
            yield Candidate(total, order, vector, workspace, located)
    yield from _held(a, extents, stats, target)


def _held(
    a: Assignment, extents: dict[str, int], stats: tuple[Stats, ...], target: Target
) -> Iterator[Candidate]:
    """Orders with a short output variable of fixed extent inside of the reductions, held in
    registers: each value of the other operands is then loaded once for all of its values.
    """
    held = next((v for v in a.fixed if not_held(a, v) is None), None)
    if held is None or a.fixed[held] > target.registers - SPARE:
        return
    most = (target.registers - SPARE) // a.fixed[held]
    names = [v for v in vector_candidates(a) if v != held]
    vectors = [vector_shape(a, v, extents[v], target, most) for v in names]
    seen = set()
    for whole in orders(a, list(a.operands)):
        order = tuple(v for v in whole if v != held)
        for vector in (None, *[v for v in vectors if v is not None]):
            inner = vector is not None and vector[0] not in a.output.vars
            at = len(order) - inner
            nest = (*order[:at], held, *order[at:])
            first = _first(a, nest)
            fits = [v for v in nest[first + 1 :] if v in a.output.vars] == [held]
            if vector is not None:
                fits &= (nest[-1] if inner else nest[first]) == vector[0]
            if not fits or (nest, vector) in seen:
                continue
            seen.add((nest, vector))
            located = located_of(a, nest, extents)
            total = cost.order_cost(a, nest, extents, stats, None, None, vector, located, held=held)
            if vector is not None:
                total += cost.ELEMENT * moved(a, relayout(a, vector[0]), extents)
            if splits(a, nest, vector):
                total *= PARALLEL
            yield Candidate(total, nest, vector, None, located, held)


def _fits(a: Assignment, order: tuple[str, ...], v: str) -> bool:
    """Whether the loop over `v` can be the vector loop in this order: innermost, or just outside of
    the reductions.  With others that move along: outside of them, and sums held in registers.
    """
    at, out = order.index(v), a.output.vars
    if len(moving := a.moving(v)) > 1:
        held = not any(u in out for u in order[Nest(a, order).first_reduction :])
        return held and v in out and all(at < order.index(u) for u in moving[1:])
    return order[-1] == v or (at == _first(a, order) and v in a.output.vars)


def _first(a: Assignment, order: tuple[str, ...]) -> int:
    """Depth of the loop just outside of the reductions."""
    return next((d for d, v in enumerate(order) if v not in a.output.vars), len(order)) - 1


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


@lru_cache(maxsize=4096)
def pattern_plan(a: Assignment, sizes: tuple[int, ...], nse: tuple[int, ...]) -> Schedule:
    """The schedule of an assembly."""
    order = pattern_order(a, sizes, nse)
    extents = dict(zip(a.vars, sizes, strict=True))
    stats = tuple(estimate(x, extents, n) for x, n in zip(a.operands, nse, strict=False))
    return (Reorder(order), *gallops(a, order, stats))


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

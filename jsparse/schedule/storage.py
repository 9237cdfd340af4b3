# SPDX-License-Identifier: Apache-2.0
"""In which storage order sparse operands should be read: when a conversion pays.

`storage` decides for operands that are co-iterated; `rearrangements` for frozen ones, whose
patterns are converted once.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

from jsparse.format import Format
from jsparse.ir.index import Access, Assignment
from jsparse.levels import Compressed, Level
from jsparse.record import replace
from jsparse.schedule import cost
from jsparse.schedule.auto import located_of, plan, workspace_of
from jsparse.schedule.directives import Nest
from jsparse.schedule.orders import MAX_ORDERS, precedence, topological
from jsparse.schedule.stats import estimate

CONVERT = 25.0  # nanoseconds to sort and move one stored entry into another storage order
PERMUTE = 4.0  # nanoseconds to gather one value in another order, from beyond the caches


@lru_cache(maxsize=4096)
def storage(
    a: Assignment, sizes: tuple[int, ...], nse: tuple[int, ...]
) -> dict[int, tuple[int, ...]]:
    """Sparse operands to convert before they are co-iterated, with the mode order that each
    should be stored in.

    Every loop order is scored as if the operands were stored accordingly, plus the conversion of
    those that are not; so a conversion is made exactly if it costs less than walking an operand
    against its storage.
    """
    extents = dict(zip(a.vars, sizes, strict=True))
    sparse = [n for n, x in enumerate(a.operands) if not x.format.is_dense]
    if not sparse:
        return {}
    inner = {v for n in sparse for v in a.operands[n].vars}
    if a.sampled:
        inner |= set(a.output.vars)
    moving = tuple(v for v in a.vars if v in inner)
    rest = tuple(v for v in a.vars if v not in inner)
    own = estimate(a.pattern, extents, guess(a, extents, nse)) if a.pattern is not None else None
    best: tuple[float, tuple[str, ...], dict[int, tuple[int, ...]]] | None = None
    cheapest = CONVERT * min(nse[n] for n in sparse)
    accesses = list(a.stored)
    as_stored = topological((), moving, precedence(accesses))
    every = itertools.chain(as_stored, itertools.permutations(moving))
    for order in itertools.islice(every, MAX_ORDERS):
        changed: dict[int, tuple[int, ...]] = {}
        operands = list(a.operands)
        total = 0.0
        for n in sparse:
            wanted = stored_as(operands[n], order)
            if wanted != operands[n].format.order:
                changed[n] = wanted
                moved = replace(operands[n].format.appendable, order=wanted)
                operands[n] = replace(operands[n], format=moved)
                rows = (
                    extents[operands[n].vars[wanted[0]]] if operands[n].format.levels[0].full else 0
                )
                total += CONVERT * (nse[n] + rows)
        b = replace(a, operands=tuple(operands))
        stats = tuple(estimate(x, extents, n) for x, n in zip(b.operands, nse, strict=False))
        full = (*order, *rest)
        workspace = workspace_of(b, full, extents)
        located = located_of(b, full, extents)
        total += cost.order_cost(b, full, extents, stats, own, workspace, None, located)
        if a.sampled:
            total += _gathered(b, full, workspace, extents)
        if best is None or (total, order) < best[:2]:
            best = (total, order, changed)
            if not changed and total <= cheapest:  # no conversion can cost less
                break
    return best[2] if best else {}


def stored_as(access: Access, order: tuple[str, ...]) -> tuple[int, ...]:
    """The mode order in which an access would follow the loops; trailing dense levels stay where
    they are.
    """
    fixed = access.format.dense_tail
    head = access.format.order[: access.format.ndim - fixed]
    ranked = sorted(head, key=lambda m: (order.index(access.vars[m]), access.format.order.index(m)))
    return (*ranked, *access.format.order[access.format.ndim - fixed :])


def _gathered(
    a: Assignment, order: tuple[str, ...], workspace: str | None, extents: dict[str, int]
) -> float:
    """What it costs to assemble an output several of whose variables lie inside a reduction: a
    sort of everything.
    """
    first = Nest(a, order).first_reduction
    trailing = [v for v in order[first:] if v in a.output.vars]
    if len(trailing) < 2 and (not trailing or workspace):
        return 0.0
    work = 1.0
    for v in order:
        work *= extents[v]
    return min(work, 1e12) * 1e-3 + 1e5


def guess(a: Assignment, extents: dict[str, int], nse: tuple[int, ...]) -> int:
    """A guess at the entries of a computed output: no more than its size, or than the terms could
    produce.
    """
    size = 1
    for v in a.output.vars:
        size *= max(extents[v], 1)
    most = 0
    for term in a.terms:
        count = 1.0
        seen: set[str] = set()
        for n in term.factors:
            x = a.operands[n]
            if x.format.is_dense:
                continue
            common = 1.0
            for v in set(x.vars) & seen:
                common *= max(extents[v], 1)
            count *= max(nse[n], 1) / common
            seen |= set(x.vars)
        most += int(max(count, 1))
    return max(1, min(size, most))


def rearrangements(
    a: Assignment, sizes: tuple[int, ...], nse: tuple[int, ...], known: tuple[int, ...]
) -> dict[int, Format]:
    """Formats in which operands with a known pattern should be read instead of their own.

    The rearranged pattern is made once, so only gathering the values counts: for a product that
    scatters, the transposed pattern that gathers.
    """
    out: dict[int, Format] = {}
    best = plan(a, sizes, nse).candidates[0].cost
    for n in known:
        x = a.operands[n]
        head = x.format.order[: x.format.ndim - x.format.dense_tail]
        for m in head[1:]:
            order = (m, *(k for k in x.format.order if k != m))
            changed = replace(x.format.appendable.tighten(), order=order)
            if not x.format.levels[-1].branchless and len(head) > 2:
                changed = replace(changed, levels=_compressed_levels(changed))
            operands = tuple(
                replace(y, format=changed) if k == n else y for k, y in enumerate(a.operands)
            )
            total = (
                plan(replace(a, operands=operands), sizes, nse).candidates[0].cost
                + PERMUTE * nse[n]
            )
            if total < best:
                best, out = total, {n: changed}
    return out


def _compressed_levels(f: Format) -> tuple[Level, ...]:
    """Levels for a rearranged tensor of more than two modes: compressed, but for a dense tail."""
    tail = f.dense_tail
    return (*(Compressed() for _ in range(f.ndim - tail)), *f.levels[f.ndim - tail :])

# SPDX-License-Identifier: Apache-2.0
"""Loop orders that are worth scoring: those that agree with the storage of the sparse operands."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from jsparse.ir.index import Access, Assignment

MAX_ORDERS = 120


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
        for v in x.level_vars[: x.format.ndim - x.format.free_tail]
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

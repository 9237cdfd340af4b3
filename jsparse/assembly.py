# SPDX-License-Identifier: Apache-2.0
"""The index arrays of a sparse output from `assemble_p`: count, then fill; or draft, then pack.

count_and_fill(call, Y[i,k] = A[i,j] * B[j,k], [A1_pos, A1_crd, B1_pos, B1_crd]) -> Y1_pos, Y1_crd
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from jsparse.ir.index import PATTERN, Access, Assignment, Term
from jsparse.lower import assemble, draft
from jsparse.operands import Arrays, sizes_of, value_slots
from jsparse.primitive import assemble_p, use_kernel
from jsparse.record import replace
from jsparse.schedule import auto

DRAFT_FROM = 1 << 14  # entries of the operands from which a computed bound is worth a call
ENTRY = 16  # bytes of an entry of a draft at most, about
MOST_DRAFT = 1 << 31  # bytes of a draft: what its entries do not fill is never touched


def eager(*flat: Any, **params: Any) -> Any:
    """`assemble_p` for one element."""
    return assemble_p.bind(*flat, **params, batch=())


def count_and_fill(
    call: Callable[..., Any],
    a: Assignment,
    flat: list[Any],
    work: str,
    capacity: tuple[int, ...] | None,
) -> list[Any]:
    """Count if need be, then fill: what counts a merge also checks its operands, and says where
    chunks start.
    """
    a = a.plain()
    none = (0,) * len(assemble.groups(a))
    if work == "merge":
        (starts,) = call(
            *_indices(a, flat), work=work, assignment=assemble.places(a), count=True, capacity=none
        )
        flat, counts = [*flat, starts], starts
        a = trusted(a)
    elif capacity is None:
        capacity = rearranged_size(a, flat)
    if work != "merge" and capacity is None:
        (counts,) = call(*flat, work=work, assignment=a, count=True, capacity=none)
    if capacity is None:
        capacity = tuple(int(c) for c in np.asarray(counts)[-len(none) :])
    return list(call(*flat, work=work, assignment=a, count=False, capacity=capacity))


@lru_cache(maxsize=4096)
def trusted(a: Assignment) -> Assignment:
    """The assignment whose sparse operands are known to be good."""
    operands = tuple(x if x.format.is_dense else replace(x, trusted=True) for x in a.operands)
    return replace(a, operands=operands)


def rearranged_size(a: Assignment, flat: Arrays) -> tuple[int, ...] | None:
    """The entries of each group where the concrete entries of the only operand move and none
    become one; None where that must be counted.
    """
    source, target = a.operands[0].format, a.output.format
    merges = target.levels[target.sparse_levels[-1]].unique and not source.canonical
    if merges or source.dense_tail or len(assemble.groups(a)) > 1:
        return None
    names = source.array_names()
    at, level = max(
        [(n, at) for n, (at, role) in enumerate(names) if role == "pos"], default=(0, -1)
    )
    if level < 0 or not all(x.branchless for x in source.levels[level + 1 :]):
        return None  # positions of that level are not entries
    if not all(x.full for x in source.levels[:level]):
        return None  # behind its fibers in use `pos` may say anything
    n, most = int(np.asarray(flat[at])[-1]), flat[names.index((level, "crd"))].shape[0]
    return (n,) if 0 <= n <= most else None


def _indices(a: Assignment, flat: Arrays) -> list[Any]:
    """The flat operands of `assemble.places(a)`: without the values of sparse ones."""
    pairs = zip(a.operands, value_slots(a), strict=True)
    slots = [n for x, n in pairs if not x.format.is_dense]
    return [x for n, x in enumerate(flat) if n not in slots]


def draft_and_pack(
    a: Assignment, extents: tuple[int, ...], flat: list[Any], most: int | None
) -> list[Any] | None:
    """The result in one walk, into room for `most` entries, or for a bound that is computed
    (`lower.draft`); None if that is too much.
    """
    a = a.plain()
    call = partial(eager, extents=extents)
    if most is None:
        places = assemble.places(a)
        indices = _indices(a, flat)
        (starts,) = call(*indices, work="bound", assignment=places, count=True, capacity=(0,))
        most, a = int(np.asarray(starts)[-1]), trusted(a)
    wide = a.output.format.index == "int64"
    if most >= 2**31 and not wide or most * ENTRY > MOST_DRAFT:
        return None
    room = 1 << max(most - 1, 0).bit_length()  # few sizes: each compiles a call
    *drafted, table = call(*flat, work="draft", assignment=a, count=False, capacity=(room,))
    values = drafted[-1:] if a.output.dtype != PATTERN else []
    arrays = drafted[: len(drafted) - len(values)]
    exact = (int(np.asarray(table)[-1]),)
    b = _move(a.output)
    packed = eager(
        *(*values, *arrays, table),
        work="pack",
        assignment=b,
        count=False,
        extents=extents[: len(b.vars)],
        capacity=exact,
    )
    return list(packed)


@lru_cache(maxsize=4096)
def _move(output: Access) -> Assignment:
    """Y = D, in the same format."""
    return Assignment(output, (replace(output, name="D", trusted=True),), (Term((0,)),))


def drafts(a: Assignment, extents: tuple[int, ...], flat: Arrays) -> tuple[bool, int | None]:
    """Whether to draft the concrete result of `a`; and entries that it has at most, if that is
    known without looking: else small operands are counted, which saves a call.
    """
    if not use_kernel() or jax.default_backend() != "cpu":
        return False, None
    bare = assemble.bare(a.plain())
    return _worth(bare, extents, sizes_of(bare, flat), DRAFT_FROM)


@lru_cache(maxsize=4096)
def _worth(
    bare: Assignment, extents: tuple[int, ...], sizes: tuple[int, ...], least: int
) -> tuple[bool, int | None]:
    order = auto.pattern_order(bare, extents, sizes)
    if not draft.can_draft(bare, order):
        return False, None
    most = draft.room(bare, order, sizes)
    return most is not None or sum(sizes) >= least, most


def values_fuse(a: Assignment, extents: dict[str, int], flat: Arrays) -> bool:
    """Whether `assemble_p` computes values along with their pattern: where nothing is traced."""
    if not use_kernel():
        return False
    bare = assemble.bare(a.plain())
    order = auto.pattern_order(bare, tuple(extents[v] for v in a.vars), sizes_of(bare, flat))
    return assemble.fuses(a, order, extents)

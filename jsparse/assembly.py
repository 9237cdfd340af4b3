# SPDX-License-Identifier: Apache-2.0
"""The index arrays of a sparse output from `assemble_p`: count, then fill.

count_and_fill(call, Y[i,k] = A[i,j] * B[j,k], [A1_pos, A1_crd, B1_pos, B1_crd]) -> Y1_pos, Y1_crd
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from jsparse.ir.index import Assignment
from jsparse.lower import assemble
from jsparse.primitive import Arrays, assemble_p, sizes_of, use_kernel, value_slots
from jsparse.record import replace
from jsparse.schedule import auto


@partial(jax.jit, static_argnames=("assignment", "work", "count", "extents", "capacity"))
def eager(
    *flat: Any,
    assignment: Assignment,
    work: str,
    count: bool,
    extents: tuple[int, ...],
    capacity: tuple[int, ...],
) -> Any:
    """`assemble_p` outside of a trace."""
    return assemble_p.bind(
        *flat,
        assignment=assignment,
        work=work,
        count=count,
        extents=extents,
        capacity=capacity,
        batch=(),
    )


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
    none = (0,) * len(assemble.groups(a))
    if work == "merge":
        operands = tuple(x if x.format.is_dense else replace(x, trusted=True) for x in a.operands)
        pairs = zip(a.operands, value_slots(a), strict=True)
        slots = [n for x, n in pairs if not x.format.is_dense]
        indices = [x for n, x in enumerate(flat) if n not in slots]
        (starts,) = call(*indices, assignment=assemble.places(a), count=True, capacity=none)
        flat, counts = [*flat, starts], starts
        a = replace(a, operands=operands)
    elif capacity is None:
        (counts,) = call(*flat, assignment=a, count=True, capacity=none)
    if capacity is None:
        capacity = tuple(int(c) for c in np.asarray(counts)[-len(none) :])
    return list(call(*flat, assignment=a, count=False, capacity=capacity))


def values_fuse(a: Assignment, extents: dict[str, int], flat: Arrays) -> bool:
    """Whether `assemble_p` computes values along with their pattern: where nothing is traced."""
    bare = assemble.bare(a)
    order = auto.pattern_order(bare, tuple(extents[v] for v in a.vars), sizes_of(bare, flat))
    return use_kernel() and assemble.fuses(a, order, extents)

# SPDX-License-Identifier: Apache-2.0
"""Flat operands of a kernel: which arrays belong to which access, and whether they fit.

    Y[i,k] = A[i,j]:csr * B[j,k]:dense     flat: A_vals, A1_pos, A1_crd, B_vals

`Batch` is a tuple of axes, outermost first, each a mask that says which flat operands have that
axis in front.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jax.core import ShapedArray

from jsparse.errors import StructureError
from jsparse.format import dtype_name
from jsparse.ir.index import PATTERN, Access, Assignment

Arrays = Sequence[Any]
Batch = tuple[tuple[bool, ...], ...]


def split(a: Assignment, flat: Arrays) -> tuple[list[list[Any]], list[Any]]:
    """Flat operands by access, and the index arrays of the output's own pattern."""
    parts: list[list[Any]] = []
    at = 0
    for access in a.operands:
        n = len(access.format.array_names()) + (access.dtype != PATTERN)
        parts.append(list(flat[at : at + n]))
        at += n
    return parts, list(flat[at:])


def value_slots(a: Assignment) -> list[int | None]:
    """For each operand, where its values are among the flat operands."""
    slots: list[int | None] = []
    at = 0
    for access in a.operands:
        slots.append(at if access.dtype != PATTERN else None)
        at += len(access.format.array_names()) + (access.dtype != PATTERN)
    return slots


def stored(access: Access, arrays: Arrays) -> int:
    """The capacity of a sparse access, from the shapes of its arrays; 0 if it is dense."""
    names = access.format.array_names()
    if not names:
        return 0
    first = 0 if access.dtype == PATTERN else 1
    leaf = max(n for n, (_, role) in enumerate(names) if role == "crd")
    return int(arrays[first + leaf].shape[0])


def depth(batch: Batch, n: int) -> int:
    """How many batch axes flat operand n has in front."""
    return sum(mask[n] for mask in batch)


def unbatched(batch: Batch, flat: Arrays) -> list[Any]:
    """Shapes and dtypes of one element of the batch."""
    return [
        ShapedArray(x.shape[depth(batch, n) :], x.dtype) if depth(batch, n) else x
        for n, x in enumerate(flat)
    ]


def batch_shape(batch: Batch, flat: Arrays) -> tuple[int, ...]:
    """Extents of the batch axes."""
    out = []
    for axis, mask in enumerate(batch):
        n = mask.index(True)
        out.append(flat[n].shape[depth(batch[:axis], n)])
    return tuple(out)


def sizes_of(a: Assignment, flat: Arrays) -> tuple[int, ...]:
    """Stored entries of each operand, then of the output's own pattern: what the scheduler goes
    by.
    """
    parts, own = split(a, flat)
    out = [stored(access, arrays) for access, arrays in zip(a.operands, parts, strict=True)]
    if a.pattern is not None:
        out.append(stored(a.pattern, own))
    return tuple(out)


def output_shape(a: Assignment, extents: tuple[int, ...], flat: Arrays) -> tuple[int, ...]:
    """Shape of the values that `einsum_p` returns."""
    extent = dict(zip(a.vars, extents, strict=True))
    names = a.output.level_vars
    if not a.sampled:
        return tuple(extent[v] for v in names)
    parts, own = split(a, flat)
    if a.shares is not None:
        nse = stored(a.operands[a.shares], parts[a.shares])
    else:
        assert a.pattern is not None
        nse = stored(a.pattern, own)
    tail = a.output.format.dense_tail
    return (nse, *(extent[v] for v in names[len(names) - tail :]))


def check_shapes(a: Assignment, extents: tuple[int, ...], flat: Arrays) -> None:
    """That array lengths fit the extents: together with the checks at run time nothing is read
    out of bounds.
    """
    extent = dict(zip(a.vars, extents, strict=True))
    parts, own = split(a, flat)
    accesses = list(zip(a.operands, parts, strict=True))
    if a.pattern is not None:
        accesses.append((a.pattern, own))
    for access, arrays in accesses:
        check_access(access, extent, arrays)


def check_access(access: Access, extent: dict[str, int], arrays: Arrays) -> None:
    """That a tensor's arrays have the lengths and dtypes that its format asks for."""
    what = f"operand {access.name} ({access.format})"
    arrays = list(arrays)
    values = arrays.pop(0) if access.dtype != PATTERN else None
    names = access.format.array_names()
    by_name = dict(zip(names, arrays, strict=True))
    parents = 1
    for n, (level, v) in enumerate(zip(access.format.levels, access.level_vars, strict=True)):
        nse = by_name[n, "crd"].shape[0] if (n, "crd") in by_name else 0
        if level.fixed not in (None, extent[v]):
            raise StructureError(
                f"{what}, level {n}: extent {extent[v]}, expected {level.fixed} as in the format"
            )
        for role in level.arrays:
            want, got = level.array_size(role, parents, nse), by_name[n, role]
            if got.shape != (want,) or dtype_name(got.dtype) != access.format.index:
                raise StructureError(
                    f"{what}, level {n}: {role} is {got.dtype}{list(got.shape)}, expected "
                    f"{access.format.index}[{want}]; the index arrays do not fit shape and format"
                )
        parents = level.positions(parents, extent[v], nse)
    if values is None:
        return
    known = all(isinstance(s, int) for s in values.shape)
    if dtype_name(values.dtype) != access.dtype or (known and math.prod(values.shape) != parents):
        raise StructureError(
            f"{what}: values are {values.dtype}{list(values.shape)}, expected {access.dtype} "
            f"and {parents} of them"
        )

# SPDX-License-Identifier: Apache-2.0
"""Whether concrete index arrays fit their shape and format."""

from __future__ import annotations

import numpy as np

from jsparse.blocks import split_shape
from jsparse.diagonals import check_offsets
from jsparse.errors import StructureError
from jsparse.format import Format


def validate(
    format: Format, shape: tuple[int, ...], arrays: tuple[np.ndarray, ...], where: str
) -> tuple[bool, bool]:
    """Check concrete index arrays against a format and shape; returns whether they are (ordered,
    unique).

    Raises `StructureError` naming level, index, got and expected.  `ordered`: coordinates ascend
    in each fiber; `unique`: no entry is stored twice (known only if ordered).
    """
    if format.block:
        return validate(format.split, split_shape(shape, format.block), arrays, where)
    by_name = dict(zip(format.array_names(), arrays, strict=True))
    capacity, lo, hi = 1, 0, 1  # positions of the level above: room, and the range in use
    ordered = unique = True
    first = np.ones(1, bool)  # whether a used position above differs from the one before it
    for n, (level, mode) in enumerate(zip(format.levels, format.order, strict=True)):
        what = f"{where}: level {n} ({level}, mode {mode})"
        if level.fixed not in (None, shape[mode]):
            raise StructureError(f"{what}: extent {shape[mode]}, expected {level.fixed}")
        if level.full:
            capacity, lo, hi = capacity * shape[mode], lo * shape[mode], hi * shape[mode]
            first = np.ones(hi - lo if n < max(format.sparse_levels) else 0, bool)
            continue
        crd = by_name[n, "crd"]
        if level.relative:
            check_offsets(crd, shape[mode], shape[format.order[n + 1]], what)
            return True, True
        if (n, "pos") in by_name:
            pos = by_name[n, "pos"]
            _check_pos(pos, capacity, lo, hi, crd.shape[0], what)
            fibers = pos[lo:hi] - pos[lo]
            lo, hi = int(pos[lo]), int(pos[hi])
            starts = np.zeros(hi - lo + 1, bool)
            starts[fibers] = True
            starts = starts[:-1]
        elif level.branchless:
            starts = first
        else:
            children = level.children or 0
            if crd.shape != (capacity * children,):
                raise StructureError(
                    f"{what}: crd has shape {crd.shape}, expected ({capacity * children},)"
                )
            lo, hi = lo * children, hi * children
            starts = np.arange(hi - lo) % children == 0
        capacity = crd.shape[0]
        used = crd[lo:hi]
        bad = np.flatnonzero((used < 0) | (used >= shape[mode]))
        if bad.size:
            k = lo + int(bad[0])
            raise StructureError(
                f"{what}: coordinate {int(crd[k])} at position {k} is out of range, "
                f"expected 0 <= coordinate < {shape[mode]}"
            )
        inner = ~starts[1:]
        same = (used[1:] == used[:-1]) & inner
        ordered &= not bool(np.any((used[1:] < used[:-1]) & inner))
        first = np.concatenate([np.ones(min(used.size, 1), bool), ~same])
        grouped = n + 1 < format.ndim and format.levels[n + 1].branchless
        if not grouped and bool(np.any(same)):
            if n != max(format.sparse_levels):
                raise StructureError(
                    f"{what}: a coordinate occurs twice in one fiber; merge the fibers, or build "
                    f"the array from coordinates with js.coo"
                )
            unique = False
    return ordered, unique and ordered


def _check_pos(pos: np.ndarray, parents: int, lo: int, hi: int, capacity: int, what: str) -> None:
    """That `pos` has an entry for each of `parents` positions, and describes fibers for those in
    [lo, hi).
    """
    if pos.shape != (parents + 1,):
        raise StructureError(f"{what}: pos has shape {pos.shape}, expected ({parents + 1},)")
    if pos[0] != 0:
        raise StructureError(f"{what}: pos[0] is {int(pos[0])}, expected 0")
    down = np.flatnonzero(pos[lo + 1 : hi + 1] < pos[lo:hi])
    if down.size:
        k = lo + int(down[0]) + 1
        raise StructureError(
            f"{what}: pos[{k}] is {int(pos[k])}, less than pos[{k - 1}] = {int(pos[k - 1])}"
        )
    if pos[hi] > capacity:
        raise StructureError(
            f"{what}: pos[{hi}] is {int(pos[hi])}, but there are {capacity} coordinates"
        )

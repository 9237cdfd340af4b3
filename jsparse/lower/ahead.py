# SPDX-License-Identifier: Apache-2.0
"""Fibers that an entry picks from another operand, asked for a few entries before it is their turn.

    for pA1 in A[i]: j = A1_crd[pA1]; for pB1 in B[j]: …
 -> for pA1 in A[i]: prefetch B1_crd[B1_pos[A1_crd[pA1 + 8]]]; …

Rows of a sparse matrix that are picked by another one lie anywhere: without this a product of two
waits for memory at the start of each row.
"""

from __future__ import annotations

from jsparse.ir.loop import ONE, ZERO, Bin, Const, Dim, Do, Expr, Load, Stmt, add, sub
from jsparse.lower.buffers import Binding
from jsparse.lower.cursor import Cursor, Cursors

DISTANCE = 8  # entries
LINE = 16  # elements: a cache line of 32-bit ones


def fibers_ahead(binding: Binding, v: str, c: Cursor, p: Expr, cursors: Cursors) -> list[Stmt]:
    """Prefetches of the fibers that the entry `DISTANCE` after `p` of `c` picks by its `v`."""
    out: list[Stmt] = []
    if c.next_level.relative:  # they follow one another: the hardware sees that by itself
        return out
    last = sub(Dim(c.storage[c.level]["crd"], 0), ONE)
    picked = c.coordinate(Bin("min", add(p, Const(DISTANCE)), last))
    for n, x in cursors.items():
        if x is c or x.next_var != v or not x.next_level.full or x.has is not None:
            continue
        below = x.storage[x.level + 1].arrays if x.level + 1 < len(x.storage) else {}
        if "pos" not in below:
            continue
        s = x.storage[x.level]
        # Entries of another chunk are not checked yet, and `pos` is read here.
        row = Bin("min", Bin("max", picked, ZERO), s.extent)
        start = Load(below["pos"], x.next_level.locate(s, x.lo, row))
        for array in (below["crd"], binding.tensors[n].values):
            if array is not None:
                out.append(Do("prefetch", (array, start, Const(LINE))))
    return out

# SPDX-License-Identifier: Apache-2.0
"""Compressed: the coordinates of each fiber, between pos[p] and pos[p + 1].

    [10 0 20]      pos 0 2 3
    [ 0 0 30]  ->  crd 0 2 2        CSR is (dense, compressed)

Space beyond the last `pos` is capacity: never read, so padding is free.
"""

from __future__ import annotations

from jsparse.ir.loop import INT, ONE, Cast, Expr, Load, add
from jsparse.levels.level import Level, Storage, Tie
from jsparse.record import record


@record
class Compressed(Level):
    kind = "compressed"
    arrays = ("pos", "crd")

    def array_size(self, role: str, parents: int, nse: int) -> int:
        return parents + 1 if role == "pos" else nse

    def positions(self, parents: int, extent: int, nse: int) -> int:
        return nse

    def bounds(self, s: Storage, lo: Expr, hi: Expr, tie: Tie | None = None) -> tuple[Expr, Expr]:
        return Cast(INT, Load(s["pos"], lo)), Cast(INT, Load(s["pos"], hi))

    def coordinate(self, s: Storage, p: Expr, tie: Tie | None = None) -> Expr:
        return Cast(INT, Load(s["crd"], p))


def single(parent: Expr) -> tuple[Expr, Expr]:
    """The interval of the one parent position `parent`."""
    return parent, add(parent, ONE)

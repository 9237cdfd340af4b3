# SPDX-License-Identifier: Apache-2.0
"""Dense: every coordinate of every fiber, in order, without any array.

[10 0 20]      position of coordinate c below parent p:  p * extent + c
"""

from __future__ import annotations

from jsparse.ir.loop import Expr, add, mul
from jsparse.levels.level import Level, Storage, Tie
from jsparse.record import record


@record
class Dense(Level):
    kind = "dense"
    full = True

    def array_size(self, role: str, parents: int, nse: int) -> int:
        raise KeyError(role)

    def positions(self, parents: int, extent: int, nse: int) -> int:
        return parents * extent

    def bounds(self, s: Storage, lo: Expr, hi: Expr, tie: Tie | None = None) -> tuple[Expr, Expr]:
        return mul(lo, s.extent), mul(hi, s.extent)

    def locate(self, s: Storage, parent: Expr, coordinate: Expr) -> Expr:
        return add(mul(parent, s.extent), coordinate)

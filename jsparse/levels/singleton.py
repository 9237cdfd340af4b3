# SPDX-License-Identifier: Apache-2.0
"""Singleton: one coordinate below each position of the level above.

[10 0 20]      crd0 0 0 1
[ 0 0 30]  ->  crd1 0 2 2       COO is (compressed without unique, singleton)
"""

from __future__ import annotations

from jsparse.ir.loop import INT, Cast, Expr, Load
from jsparse.levels.level import Level, Storage, Tie
from jsparse.record import record


@record
class Singleton(Level):
    kind = "singleton"
    branchless = True
    arrays = ("crd",)

    def array_size(self, role: str, parents: int, nse: int) -> int:
        return parents

    def positions(self, parents: int, extent: int, nse: int) -> int:
        return parents

    def bounds(self, s: Storage, lo: Expr, hi: Expr, tie: Tie | None = None) -> tuple[Expr, Expr]:
        return lo, hi

    def coordinate(self, s: Storage, p: Expr, tie: Tie | None = None) -> Expr:
        return Cast(INT, Load(s["crd"], p))

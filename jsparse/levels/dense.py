# SPDX-License-Identifier: Apache-2.0
"""Dense: every coordinate of every fiber, in order, without any array.

[10 0 20]      position of coordinate c below parent p:  p * extent + c

A `size` other than 0 is an extent that the format fixes, as the inner extent of a block: loops over
it then have a constant length.
"""

from __future__ import annotations

from jsparse.ir.loop import Expr, add, mul
from jsparse.levels.level import Level, Storage, Tie
from jsparse.record import record


@record
class Dense(Level):
    size: int = 0

    kind = "dense"
    full = True

    def __str__(self) -> str:
        return f"dense({self.size})" if self.size else "dense"

    @property
    def part(self) -> str:
        return str(self.size)

    @property
    def fixed(self) -> int | None:
        return self.size or None

    def array_size(self, role: str, parents: int, nse: int) -> int:
        raise KeyError(role)

    def positions(self, parents: int, extent: int, nse: int) -> int:
        return parents * extent

    def bounds(self, s: Storage, lo: Expr, hi: Expr, tie: Tie | None = None) -> tuple[Expr, Expr]:
        return mul(lo, s.extent), mul(hi, s.extent)

    def locate(self, s: Storage, parent: Expr, coordinate: Expr) -> Expr:
        return add(mul(parent, s.extent), coordinate)

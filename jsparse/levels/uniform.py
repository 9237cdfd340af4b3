# SPDX-License-Identifier: Apache-2.0
"""Uniform: the same number of coordinates below each position, so that there is no `pos`.

    [10 0 20]      crd  0 2  1 2             uniform(2): position p has the children 2p and 2p + 1
    [ 0 0 30]  ->  values 10 20  0 30        ELL is (dense, uniform)

A fiber with fewer entries is filled up with zeros at coordinates that it does not use; they are
stored like any other.  `uniform(2:4)` is an inner part of a mode in parts of four: 2 of every 4
consecutive coordinates (N:M sparsity; MLIR calls such a level structured).
"""

from __future__ import annotations

from jsparse.errors import FormatError
from jsparse.ir.loop import INT, Cast, Const, Expr, Load, mul
from jsparse.levels.compressed import Compressed
from jsparse.levels.level import Level, Storage, Tie
from jsparse.record import record


@record
class Uniform(Level):
    size: int = 0
    of: int = 0  # the extent, if the format fixes it

    kind = "uniform"
    appended = False
    arrays = ("crd",)

    def __post_init__(self) -> None:
        if self.size < 1 or (self.of and self.of <= self.size):
            raise FormatError(
                f"format: got a level {self}, expected how many coordinates a fiber has, from 1 "
                f"up, as in uniform(8), or of how many it has fewer, as in uniform(2:4)"
            )

    def __str__(self) -> str:
        return f"{self.kind}({self.part})" + self.flags

    @property
    def part(self) -> str:
        return f"{self.size}:{self.of}" if self.of else str(self.size)

    def keeps(self, other: Level) -> bool:
        return other.children == self.size and Level.keeps(self, other)

    @property
    def fixed(self) -> int | None:
        return self.of or None

    @property
    def children(self) -> int | None:
        return self.size

    @property
    def appendable(self) -> Level:
        return Compressed(self.ordered, self.unique)

    def array_size(self, role: str, parents: int, nse: int) -> int:
        return parents * self.size

    def positions(self, parents: int, extent: int, nse: int) -> int:
        return parents * self.size

    def bounds(self, s: Storage, lo: Expr, hi: Expr, tie: Tie | None = None) -> tuple[Expr, Expr]:
        return mul(lo, Const(self.size)), mul(hi, Const(self.size))

    def coordinate(self, s: Storage, p: Expr, tie: Tie | None = None) -> Expr:
        return Cast(INT, Load(s["crd"], p))

# SPDX-License-Identifier: Apache-2.0
"""Diagonal: coordinates relative to those of the dense level below, the same ones for all of them.

    [10 20  0]      crd  0 1                 offsets of the diagonals, ascending: j = i + crd[d]
    [ 0 30 40]  ->  values 10 30 50          position of (d, i):  d * rows + i
    [ 0  0 50]             20 40 __          DIA is (diagonal, dense)

The level ties two variables: once either is bound, the other is iterated by the diagonals that stay
inside of the matrix, a run of them, for offsets ascend.  A place whose coordinate would lie outside
is padding: no loop comes to it.  Where every diagonal is inside, `interior`, all coordinates move
along with the bound one by steps of one, so a loop over that one can run in vectors.
"""

from __future__ import annotations

from jsparse.ir.loop import (
    INT,
    ONE,
    ZERO,
    Bin,
    Call,
    Cast,
    Dim,
    Expr,
    Load,
    Select,
    add,
    sub,
)
from jsparse.levels.level import Level, Storage, Tie
from jsparse.record import record


@record
class Diagonal(Level):
    kind = "diagonal"
    relative = True
    appended = False
    arrays = ("crd",)

    def array_size(self, role: str, parents: int, nse: int) -> int:
        return nse

    def positions(self, parents: int, extent: int, nse: int) -> int:
        return nse

    def bounds(self, s: Storage, lo: Expr, hi: Expr, tie: Tie | None = None) -> tuple[Expr, Expr]:
        count = Dim(s["crd"], 0)
        if tie is None or tie.inner:
            return ZERO, count
        if tie.back:  # 0 <= at - crd < extent
            first, beyond = add(sub(tie.at, tie.extent), ONE), add(tie.at, ONE)
        else:  # 0 <= at + crd < extent
            first, beyond = sub(ZERO, tie.at), sub(tie.extent, tie.at)
        none = Bin("<=", count, ZERO)
        from_start = Bin("or", none, Bin(">=", self._offset(s, ZERO), first))
        to_end = Bin("or", none, Bin("<", self._offset(s, sub(count, ONE)), beyond))
        return (
            Select(from_start, ZERO, Call("lower_bound", (s["crd"], ZERO, count, first))),
            Select(to_end, count, Call("lower_bound", (s["crd"], ZERO, count, beyond))),
        )

    def coordinate(self, s: Storage, p: Expr, tie: Tie | None = None) -> Expr:
        assert tie is not None
        offset = self._offset(s, p)
        return sub(tie.at, offset) if tie.back else add(tie.at, offset)

    def stored(self, coordinate: Expr, tie: Tie | None = None) -> Expr:
        assert tie is not None
        return sub(tie.at, coordinate) if tie.back else sub(coordinate, tie.at)

    def interior(self, s: Storage, back: bool) -> tuple[Expr, Expr]:
        assert s.base is not None
        count = Dim(s["crd"], 0)
        some = Bin(">", count, ZERO)
        least = Select(some, self._offset(s, ZERO), ZERO)
        most = Select(some, self._offset(s, sub(count, ONE)), ZERO)
        if back:
            return Bin("max", ZERO, most), Bin("min", s.extent, add(s.base, least))
        return Bin("max", ZERO, sub(ZERO, least)), Bin("min", s.base, sub(s.extent, most))

    def reach(self, s: Storage, p: Expr) -> tuple[Expr, Expr]:
        assert s.base is not None
        offset = self._offset(s, p)
        return Bin("max", ZERO, sub(ZERO, offset)), Bin("min", s.base, sub(s.extent, offset))

    def damaged(self, s: Storage, p: Expr) -> Expr:
        assert s.base is not None
        offset = self._offset(s, p)
        before = Select(Bin(">", p, ZERO), self._offset(s, sub(p, ONE)), sub(ZERO, s.base))
        return Bin("or", Bin("<=", offset, before), Bin(">=", offset, s.extent))

    def _offset(self, s: Storage, p: Expr) -> Expr:
        return Cast(INT, Load(s["crd"], p))

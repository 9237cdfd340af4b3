# SPDX-License-Identifier: Apache-2.0
"""Cursors: how far the walk of a nest has descended into each tensor.

A[i,j]:csr     i bound    level 1, lo = i, next_var = j, bounds = A1_pos[i] ... A1_pos[i + 1]
               j bound    level 2, lo = pA1
A[i,j]:dia     i bound    level 0, tied to i: next_var = j, bounds = the diagonals inside
               j bound    level 1, lo = pA0, next_var = i, bound before: located at once
"""

from __future__ import annotations

from jsparse.ir.index import Access
from jsparse.ir.loop import ONE, ZERO, Buffer, Expr, Select, add
from jsparse.levels import Level, Storage, Tie
from jsparse.record import record, replace


@record
class Cursor:
    """How far a tensor has been descended: `level` levels are bound, at position `lo` (or
    positions [lo, hi)).
    """

    access: Access
    storage: tuple[Storage, ...]
    required: bool
    level: int = 0
    lo: Expr = ZERO
    hi: Expr | None = None
    has: Expr | None = None
    table: Buffer | None = None  # a row of positions + 1, in which the next level is looked up
    valid: bool = False  # whether `lo` may be read from also where `has` does not hold
    tie: Tie | None = None  # by which a relative next level is entered

    @property
    def complete(self) -> bool:
        return self.level == len(self.access.level_vars)

    @property
    def next_var(self) -> str | None:
        """The variable of the next level; None if there is none, or it waits for a tie."""
        names = self.access.level_vars
        if self.level == len(names) or (self.access.tied and self.tie_vars):
            return None
        return names[self.level + (self.tie is not None and self.tie.back)]

    def tied(self, env: Env, inner: bool = False) -> Cursor:
        """The cursor with the tie that its next level needs, as soon as a variable allows it."""
        if not self.tie_vars:
            return self
        own, base = self.access.tied
        s = self.storage[self.level]
        assert s.base is not None
        if base in env:
            return replace(self, tie=Tie(env[base], s.extent, False, inner))
        return replace(self, tie=Tie(env[own], s.base, True, inner)) if own in env else self

    @property
    def tie_vars(self) -> tuple[str, ...]:
        """The variables of which either could tie the next level."""
        waits = not self.complete and self.tie is None and self.next_level.relative
        return self.access.tied if waits else ()

    @property
    def descends(self) -> bool:
        """Whether coordinates of the next level come in descending order."""
        return self.tie is not None and self.tie.back

    @property
    def next_level(self) -> Level:
        return self.access.format.levels[self.level]

    @property
    def position(self) -> str:
        return f"p{self.access.name}{self.level}"

    @property
    def grouped(self) -> bool:
        """Whether equal coordinates of the next level form one group, whose members the level
        below tells apart.
        """
        levels = self.access.format.levels
        below = self.level + 1
        return not self.next_level.unique and below < len(levels) and levels[below].branchless

    def bounds(self) -> tuple[Expr, Expr]:
        """The positions of the next level below the present one; none where an optional cursor is
        absent.
        """
        s = self.storage[self.level]
        lo, hi = self.next_level.bounds(
            s, self.lo, self.hi if self.hi is not None else add(self.lo, ONE), self.tie
        )
        if self.has is not None:
            lo, hi = Select(self.has, lo, ZERO), Select(self.has, hi, ZERO)
        return lo, hi

    def coordinate(self, p: Expr) -> Expr:
        return self.next_level.coordinate(self.storage[self.level], p, self.tie)

    def down(self, lo: Expr, hi: Expr | None = None, has: Expr | None = None) -> Cursor:
        return Cursor(self.access, self.storage, self.required, self.level + 1, lo, hi, has)

    def settled(self, env: Env) -> Cursor:
        """The cursor below all levels that store every coordinate of a bound variable."""
        c = self
        while c.next_var in env and c.next_level.full and not c.access.tied:
            c = c.down(c.next_level.locate(c.storage[c.level], c.lo, env[c.next_var]), None, c.has)
        return c


Cursors = dict[int, Cursor]
Env = dict[str, Expr]

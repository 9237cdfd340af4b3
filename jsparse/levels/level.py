# SPDX-License-Identifier: Apache-2.0
"""The interface of a level format: one storage layer of a tensor.

A tensor of n modes is stored as n levels, each holding the coordinates of one mode below every
position of the level above.  Positions of a level are consecutive integers; the values sit at the
positions of the last level.

        rows (dense)          position = row number
        columns (compressed)  positions pos[row] … pos[row + 1] - 1, coordinates in crd

A level states properties and emits its own code, so that nothing outside this folder compares
level kinds.  The properties are Chou, Kjolstad and Amarasinghe's ("Format Abstraction for Sparse
Tensor Algebra Compilers", 2018): `full` (every coordinate is stored, and can be located by
arithmetic), `ordered` (coordinates of a fiber ascend), `unique` (no coordinate twice in a fiber),
`branchless` (one child per parent position).  Ours are `relative` (coordinates are stored relative
to those of the full level below, and are the same for all of them) and `appended` (entries can be
put behind those that are there).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from jsparse.ir.loop import Buffer, Expr
from jsparse.record import record


@record
class Storage:
    """Where the generated code finds one level of one tensor: its arrays by role, its extent, its
    number.
    """

    arrays: dict[str, Buffer]
    extent: Expr
    level: int
    base: Expr | None = None  # the extent of the level below, if there is one

    def __getitem__(self, role: str) -> Buffer:
        return self.arrays[role]


@record
class Tie:
    """What is known where a relative level is entered: one of the two coordinates that it ties.

    `extent` is that of the other coordinate; `back` says that the one `at` hand is the level's own,
    so that the base's is sought; `inner` that all stored ones have a place beside it.
    """

    at: Expr
    extent: Expr
    back: bool
    inner: bool = False


@record
class Level(ABC):
    """A level format; equal by kind and properties."""

    ordered: bool = True
    unique: bool = True

    # What the kind is, whatever its flags.
    kind: ClassVar[str] = ""
    full: ClassVar[bool] = False
    branchless: ClassVar[bool] = False
    relative: ClassVar[bool] = False
    appended: ClassVar[bool] = True
    arrays: ClassVar[tuple[str, ...]] = ()

    def __str__(self) -> str:
        return self.kind + self.flags

    @property
    def flags(self) -> str:
        """The text of the promises that it does not make."""
        flags = ("" if self.ordered else "o") + ("" if self.unique else "u")
        return f"(-{flags})" if flags else ""

    @property
    def part(self) -> str:
        """The text of its numbers, if it has any: of an inner part of a split mode."""
        return ""

    def keeps(self, other: Level) -> bool:
        """Whether storage of this level is also storage of `other`: the same kind, with as many
        promises.
        """
        return (
            self.kind == other.kind
            and other.fixed in (None, self.fixed)
            and (self.ordered or not other.ordered)
            and (self.unique or not other.unique)
        )

    @property
    def fixed(self) -> int | None:
        """The extent that the level has in every array of its format, if the format says so."""
        return None

    @property
    def children(self) -> int | None:
        """How many coordinates are stored below each position, if the format says so."""
        return 1 if self.branchless else None

    @property
    def appendable(self) -> Level:
        """A level for the same coordinates to which entries can be appended, if there is one."""
        return self

    @abstractmethod
    def array_size(self, role: str, parents: int, nse: int) -> int:
        """Length of the array `role` for `parents` positions above and capacity `nse` here."""

    @abstractmethod
    def positions(self, parents: int, extent: int, nse: int) -> int:
        """How many positions the level has for `parents` positions above (its capacity, if that
        is `nse`).
        """

    # ------------------------------------------------------------ iterate
    def bounds(self, s: Storage, lo: Expr, hi: Expr, tie: Tie | None = None) -> tuple[Expr, Expr]:
        """First and past-the-last position below the parent positions [lo, hi); of a relative
        level those whose coordinate is inside of its extent, or without a tie all.
        """
        raise NotImplementedError(f"{self.kind} levels are not iterated by position")

    def coordinate(self, s: Storage, p: Expr, tie: Tie | None = None) -> Expr:
        """The coordinate at position p."""
        raise NotImplementedError(f"{self.kind} levels have no stored coordinates")

    def stored(self, coordinate: Expr, tie: Tie | None = None) -> Expr:
        """What the array of coordinates holds for `coordinate`."""
        return coordinate

    def interior(self, s: Storage, back: bool) -> tuple[Expr, Expr]:
        """Of the coordinate that is bound first, where all stored ones have a place beside it; may
        be an empty range, also one that ends before it starts.  Only for relative levels.
        """
        raise NotImplementedError(f"{self.kind} levels are not relative")

    def reach(self, s: Storage, p: Expr) -> tuple[Expr, Expr]:
        """From and to which coordinate of the level below position p has a place.  Only for
        relative levels.
        """
        raise NotImplementedError(f"{self.kind} levels are not relative")

    def damaged(self, s: Storage, p: Expr) -> Expr:
        """Whether what is stored at position p cannot be.  Only for relative levels."""
        raise NotImplementedError(f"{self.kind} levels are not relative")

    # ------------------------------------------------------------- locate
    def locate(self, s: Storage, parent: Expr, coordinate: Expr) -> Expr:
        """The position of `coordinate` below `parent`, by arithmetic; only for full levels."""
        raise NotImplementedError(f"{self.kind} levels are searched, not located")

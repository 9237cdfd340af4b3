# SPDX-License-Identifier: Apache-2.0
"""A sum of products to do: its operands, what the caller wishes, and what inference decided."""

from __future__ import annotations

from typing import Any

from jsparse.array import SparseArray
from jsparse.convert import to
from jsparse.format import Format, as_format
from jsparse.ir.index import Access, Term
from jsparse.record import record, replace
from jsparse.schedule.directives import Schedule
from jsparse.schedule.infer import Output
from jsparse.splitting import Layout


@record
class Problem:
    """A sum of products over named operands: what `einsum`, `add` and friends have in common."""

    text: str  # for messages
    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]
    terms: tuple[Term, ...]


@record
class Wish:
    """What a caller may say of the result and of how to get it; see `einsum`."""

    out_format: Format | str | None = None
    nse: int | None = None
    like: SparseArray | None = None
    schedule: Schedule | None = None


NOTHING = Wish()


@record
class Job:
    """A problem with its operands, promoted and ready to run, and what inference decided.

    `trusted` says whose index arrays need no checks: those that were frozen, also where they
    travel as leaves.  Where modes are split, all is in terms of the split ones but dense operands
    that are not yet promoted; `layout` leads back, and `asked` is the wish in the terms before.
    """

    problem: Problem
    extent: dict[str, int]
    ops: tuple[Any, ...]
    trusted: tuple[bool, ...]
    dtype: Any
    accesses: tuple[Access, ...]
    output: Output
    wish: Wish = NOTHING
    asked: Wish = NOTHING
    layout: Layout | None = None

    @property
    def sparse(self) -> list[int]:
        return [n for n, x in enumerate(self.ops) if isinstance(x, SparseArray)]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.extent[v] for v in self.problem.output)

    def flat(self) -> list[Any]:
        """Operands in the order of `lower.buffers`."""
        return [
            leaf
            for x in self.ops
            for leaf in ((x.data, *x.arrays) if isinstance(x, SparseArray) else (x,))
        ]

    def wrap(self, data: Any, like: SparseArray | None) -> Any:
        """The result from its values: a dense array, or the values with the pattern they were
        sampled at.
        """
        if like is not None:
            return replace(like, data=data)
        if self.output.shares is None:
            return data
        source, names = self.ops[self.output.shares], self.accesses[self.output.shares].vars
        return replace(
            source.transpose(tuple(names.index(v) for v in self.problem.output)), data=data
        )

    def finish(self, y: Any) -> Any:
        """The result `y` in the terms and the format that were asked for."""
        return self.converted(self.layout.result(y) if self.layout is not None else y)

    def converted(self, y: Any) -> Any:
        """The result `y` in the format that was asked for."""
        like, wanted = self.asked.like, self.asked.out_format
        if like is not None and y.format != like.format:  # sampled without its blocks
            return to(y, like.format, nse=like.nse)
        if wanted is None or not isinstance(y, SparseArray):
            return y
        given = self.layout is None and self.output.computed
        wanted = as_format(wanted, y.ndim)
        given &= not wanted.block and wanted.appended
        return y if given else to(y, self.asked.out_format or wanted)

    def origin(self) -> tuple[Problem, tuple[tuple[str, int], ...]]:
        """The problem before the split, and its extents."""
        layout = self.layout
        if layout is None:
            return self.problem, tuple(self.extent.items())
        return replace(self.problem, inputs=layout.inputs, output=layout.output), layout.extent

    def whole(self) -> tuple[Any, ...]:
        """The operands before the split; to be split again."""
        layout = self.layout
        return self.ops if layout is None else tuple(layout.whole(*x) for x in enumerate(self.ops))

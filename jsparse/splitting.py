# SPDX-License-Identifier: Apache-2.0
"""A sum of products over arrays with split modes as one over ordinary arrays.

    Y[i,k] = A[i,j] * B[j,k]         A: csr[4,4]
 -> Y[i,i_in,k] = A[i,j,i_in,j_in] * B[j,j_in,k]

A variable that indexes a split mode becomes two.  Dense operands and a dense result are reshaped,
or filled up where an extent is no multiple of the block.  An operand whose blocks do not fit those
of another sparse operand is converted to the format without blocks first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jsparse.array import SparseArray
from jsparse.blocks import interleaved, join_dense, split_dense
from jsparse.convert import to
from jsparse.record import record

Names = tuple[str, ...]


def has_blocks(x: Any) -> bool:
    return isinstance(x, SparseArray) and bool(x.format.block)


def unblocked(x: Any) -> Any:
    """An operand in the format without blocks."""
    return to(x, x.format.whole) if has_blocks(x) else x


@record
class Layout:
    """How the variables of a problem are split: `sizes` are the blocks of those that are, `extent`
    the extents before.
    """

    sizes: tuple[tuple[str, int], ...]
    extent: tuple[tuple[str, int], ...]
    inputs: tuple[Names, ...]
    output: Names

    def block(self, names: Names) -> tuple[int, ...]:
        """The block of an array that is indexed by `names`."""
        sizes = dict(self.sizes)
        return tuple(sizes.get(v, 1) for v in names)

    def shape(self, names: Names) -> tuple[int, ...]:
        extent = dict(self.extent)
        return tuple(extent[v] for v in names)

    def split(self, names: Names, sparse: bool) -> Names:
        """The variables of the split array: of a sparse one the outer ones first."""
        block = self.block(names)
        parts = (*names, *(inner(v) for v, b in zip(names, block, strict=True) if b != 1))
        return parts if sparse else interleaved(parts, block)

    def extents(self) -> dict[str, int]:
        """Extents after the split."""
        sizes = dict(self.sizes)
        out = {v: -(-n // sizes[v]) if v in sizes else n for v, n in self.extent}
        return out | {inner(v): b for v, b in self.sizes}

    def operand(self, n: int, x: Any) -> Any:
        """Operand n in its split form; sparse ones that are split already stay as they are."""
        block = self.block(self.inputs[n])
        if isinstance(x, SparseArray):
            return x.split()
        return split_dense(x, block) if max(block, default=1) > 1 else x

    def whole(self, n: int, x: Any) -> Any:
        """The inverse of `operand` for sparse operands; dense ones stay as they are."""
        block = self.block(self.inputs[n])
        if not isinstance(x, SparseArray) or max(block, default=1) == 1:
            return x
        return x.join(self.shape(self.inputs[n]), block)

    def result(self, y: Any) -> Any:
        """The result from its split form."""
        shape, block = self.shape(self.output), self.block(self.output)
        if max(block, default=1) == 1:
            return y
        return y.join(shape, block) if isinstance(y, SparseArray) else join_dense(y, shape, block)

    def room(self, nse: int | None) -> int | None:
        """A capacity in entries as one in blocks."""
        return None if nse is None else -(-nse // math.prod(self.block(self.output)))


def inner(v: str) -> str:
    return f"{v}_in"


def agreed(inputs: Sequence[Names], ops: list[Any]) -> tuple[list[Any], dict[str, int]]:
    """Operands whose blocks agree with those of all sparse operands, and the block of each variable
    that is split.
    """
    while True:
        sizes: dict[str, set[int]] = {}
        for names, x in zip(inputs, ops, strict=True):
            if isinstance(x, SparseArray):
                for v, b in zip(names, x.format.block or (1,) * x.ndim, strict=True):
                    sizes.setdefault(v, set()).add(b)
        bad = [
            n
            for n, x in enumerate(ops)
            if has_blocks(x) and any(len(sizes[v]) > 1 for v in inputs[n])
        ]
        if not bad:
            return ops, {v: max(b) for v, b in sizes.items() if max(b) > 1}
        ops = [unblocked(x) if n in bad else x for n, x in enumerate(ops)]

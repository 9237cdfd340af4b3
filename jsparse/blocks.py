# SPDX-License-Identifier: Apache-2.0
"""Split modes: the shape of the split array, and which of its elements are inside of the array.

    shape (5, 8) in blocks of 2 x 4   ->   split shape (3, 2, 2, 4): outer parts, then inner ones

Where an extent is no multiple of its block the last blocks reach beyond the array.  What they hold
there is *padding*: whoever reads it sees zeros, and it has no gradient.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jsparse.contract import contract
from jsparse.format import Format, parse_format
from jsparse.ir.index import Access, Assignment, Term
from jsparse.record import replace


def split_shape(shape: tuple[int, ...], block: tuple[int, ...]) -> tuple[int, ...]:
    """Extents of the outer parts, then of the inner parts of the split modes."""
    outer = tuple(-(-n // b) for n, b in zip(shape, block, strict=True))
    return (*outer, *(b for b in block if b != 1))


def ragged(shape: tuple[int, ...], block: tuple[int, ...]) -> tuple[int, ...]:
    """The modes whose extent is no multiple of the block."""
    return tuple(m for m, (n, b) in enumerate(zip(shape, block, strict=True)) if n % b)


def inside(f: Format, shape: tuple[int, ...], arrays: tuple[Any, ...], pattern: Any) -> Any:
    """Whether each element of the data of an array with split modes is inside of the array and in
    use: booleans of the shape of its data.

    `pattern` is that of the split array if it is frozen: the result is remembered with it.
    """
    n = len(shape)
    inner = {m: n + k for k, m in enumerate(m for m, b in enumerate(f.block) if b != 1)}
    names = tuple(f"v{k}" for k in range(len(f.levels)))
    out = Access("Y", names, f.split, "bool", pattern is not None, pattern)
    operands, flat = [], []
    for k, m in enumerate(ragged(shape, f.block)):
        size = split_shape(shape, f.block)[m]
        at = np.arange(size * f.block[m]).reshape(size, f.block[m])
        dense = parse_format("dense", 2)
        operands.append(Access(f"A{k}_", (names[m], names[inner[m]]), dense, "bool"))
        flat.append(at < shape[m])
    if not operands:  # all that is in use
        operands, flat = [Access("A0_", (), parse_format("dense", 0), "bool")], [np.array(True)]
    a = Assignment(out, tuple(operands), (Term(tuple(range(len(operands)))),))
    extents = dict(zip(names, split_shape(shape, f.block), strict=True))
    if pattern is None:
        return contract(a, extents, [*flat, *arrays])

    def make() -> Any:
        plain = replace(a, output=replace(out, known=None))
        return contract(plain, extents, [*flat, *pattern.device()])

    return pattern.derived(("inside", shape, f), make)


def interleaved(names: tuple[str, ...], block: tuple[int, ...]) -> tuple[str, ...]:
    """The variables of a split array, those of each mode together: the order in which a dense array
    has them once it is reshaped.
    """
    inner = iter(names[len(block) :])
    pairs = zip(names, block, strict=False)
    return tuple(v for name, b in pairs for v in ((name,) if b == 1 else (name, next(inner))))


def split_dense(x: Any, block: tuple[int, ...]) -> Any:
    """A dense array with each mode in two, outer and inner, where the block is not 1; filled up
    with zeros to whole blocks.
    """
    if ragged(x.shape, block):
        x = jnp.pad(x, [(0, -n % b) for n, b in zip(x.shape, block, strict=True)])
    pairs = zip(x.shape, block, strict=True)
    return x.reshape([k for n, b in pairs for k in ((n,) if b == 1 else (n // b, b))])


def join_dense(y: Any, shape: tuple[int, ...], block: tuple[int, ...]) -> Any:
    """The dense array of that shape from its split form; the inverse of `split_dense`."""
    whole = y.reshape([-(-n // b) * b for n, b in zip(shape, block, strict=True)])
    return whole[tuple(slice(n) for n in shape)] if ragged(shape, block) else whole

# SPDX-License-Identifier: Apache-2.0
"""Conversion to formats whose fibers all have one number of coordinates.

    csr, rows of 2, 1 and 2 entries   ->   dense,uniform(2): a zero fills the second row up

The array is converted to compressed fibers first, by the function `convert`; a kernel fills these
up (`lower.fit`), and values follow by a gather, so the conversion is differentiable, and is made
once of a frozen pattern.  Stored zeros count as entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from jsparse.array import Pattern, SparseArray, index_dtype
from jsparse.assembly import eager
from jsparse.concrete import traced
from jsparse.errors import CapacityError, FormatError
from jsparse.format import Format
from jsparse.gather import moved
from jsparse.ir.index import PATTERN, Access, Assignment, Term
from jsparse.primitive import vary_together


def fit(a: SparseArray, target: Format, convert: Callable[..., SparseArray]) -> SparseArray:
    """`a` in the format `target`, whose last sparse level is the one with fibers of one length.

    Raises:
      FormatError: fibers of more coordinates than the mode has.
      CapacityError: a fiber with more entries; under `jit` an error of the program.
    """
    target = target.tighten()
    n = target.sparse_levels[-1]
    size, extent = target.levels[n].children or 0, a.shape[target.order[n]]
    if size > extent:
        raise FormatError(
            f"to: {target.levels[n]} stores {size} different coordinates in each fiber, but mode "
            f"{target.order[n]} has an extent of {extent}; expected at most as many"
        )
    a = convert(a, target.appendable)
    places = size * math.prod(a.shape[m] for m in target.order[:n])
    if all(level.full for level in target.levels[:n]) and index_dtype(a.shape, places) == "int64":
        a, target = convert(a, a.format.with_index("int64")), target.with_index("int64")
    if a.pattern is None:
        *arrays, source = _fitted(a, target)
        return SparseArray(
            moved(a.data, source, source.shape[0], False), tuple(arrays), a.shape, target
        )
    old = a.pattern

    def make() -> tuple[Pattern, Any]:
        *arrays, source = _fitted(a.unfreeze(), target)
        return Pattern(tuple(np.asarray(x) for x in arrays), a.shape, target), source

    new, source = old.derived(("fit", target), make)
    data = moved(a.data, source, source.shape[0], False)
    return SparseArray(data, (), a.shape, target, new)


def _fitted(a: SparseArray, target: Format) -> list[Any]:
    """The index arrays, and the entry that each place takes its value from, or one past all."""
    names = tuple(f"v{m}" for m in range(a.ndim))
    access = Access("A", names, a.format, PATTERN)
    b = Assignment(Access("Y", names, target, PATTERN), (access,), (Term((0,)),))
    extents = tuple(dict(zip(names, a.shape, strict=True))[v] for v in b.vars)
    arrays = list(a.arrays)
    *above, pos, _ = arrays
    call = partial(eager, assignment=b, work="fit", count=False, extents=extents, capacity=())
    if traced(*arrays):
        return [*above, *call(*vary_together(arrays))]
    _check(np.asarray(pos), b)
    with jax.ensure_compile_time_eval():
        return [*above, *call(*arrays)]


def _check(pos: np.ndarray, b: Assignment) -> None:
    """That no concrete fiber has too many entries; those of unused capacity have none."""
    f, level = b.output.format, b.output.format.levels[b.output.format.sparse_levels[-1]]
    counts = np.diff(pos)
    size, most = level.children or 0, int(counts.max(initial=0))
    if most > size and all(x.full for x in f.levels[: f.sparse_levels[-1]]):
        at = int(np.argmax(counts > size))
        what = "row" if f.order[:1] == (0,) and f.sparse_levels[-1] == 1 else "fiber"
        raise CapacityError(
            f"to {f}: {what} {at} has {int(counts[at])} entries, expected at most {size}; the most "
            f"in one are {most}; stored zeros count"
        )

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
import jax.numpy as jnp
import numpy as np
from jax import lax

from jsparse.array import Pattern, SparseArray, index_dtype
from jsparse.concrete import traced
from jsparse.errors import CapacityError, FormatError
from jsparse.format import Format
from jsparse.ir.index import PATTERN, Access, Assignment, Term
from jsparse.primitive import assemble_p, vary_together


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
        return SparseArray(_values(a.data, source), tuple(arrays), a.shape, target)
    old = a.pattern

    def make() -> tuple[Pattern, Any]:
        *arrays, source = _fitted(a.unfreeze(), target)
        return Pattern(tuple(np.asarray(x) for x in arrays), a.shape, target), source

    new, source = old.derived(("fit", target), make)
    return SparseArray(_values(a.data, source), (), a.shape, target, new)


def _fitted(a: SparseArray, target: Format) -> list[Any]:
    """The index arrays, and the entry that each place takes its value from, or one past all."""
    names = tuple(f"v{m}" for m in range(a.ndim))
    access = Access("A", names, a.format, PATTERN)
    b = Assignment(Access("Y", names, target, PATTERN), (access,), (Term((0,)),))
    extents = tuple(dict(zip(names, a.shape, strict=True))[v] for v in b.vars)
    arrays = list(a.arrays)
    *above, pos, crd = arrays
    if traced(*arrays):
        flat = vary_together(arrays)
        crd, source = _bind(*flat, assignment=b, extents=extents)
    else:
        _check(np.asarray(pos), b)
        with jax.ensure_compile_time_eval():
            crd, source = _eager(*arrays, assignment=b, extents=extents)
    return [*above, crd, source]


def _bind(*flat: Any, assignment: Assignment, extents: tuple[int, ...]) -> Any:
    return assemble_p.bind(
        *flat,
        assignment=assignment,
        work="fit",
        count=False,
        extents=extents,
        capacity=(),
        batch=(),
    )


_eager = partial(jax.jit, static_argnames=("assignment", "extents"))(_bind)


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


def _values(data: Any, source: Any) -> Any:
    """The values at their places, zeros where there is no entry."""
    shape = (source.shape[0], *data.shape[1:])
    if 0 in data.shape or 0 in shape:
        return jnp.zeros(shape, data.dtype)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(range(1, data.ndim)), collapsed_slice_dims=(0,), start_index_map=(0,)
    )
    return lax.gather(
        data,
        lax.expand_dims(source, (1,)),
        numbers,
        (1, *data.shape[1:]),
        mode=lax.GatherScatterMode.FILL_OR_DROP,
        fill_value=0,
    )

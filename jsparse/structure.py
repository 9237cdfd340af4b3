# SPDX-License-Identifier: Apache-2.0
"""Operations that move entries without arithmetic: reshape, concatenate, stack, indexing.

They work on coordinates (`convert.coo_parts`) and pack the result in the format of the source;
values follow by a gather, so all are differentiable.  Under `jit` the capacity stays that of the
sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsparse import construct
from jsparse.array import SparseArray, index_dtype
from jsparse.concrete import compact, host, interval, joined, library, on_device, traced
from jsparse.convert import astype, coo_parts, to
from jsparse.errors import FormatError, UnsupportedError
from jsparse.format import Format, parse_format
from jsparse.record import replace


def mode_numbers(axis: Any, ndim: int) -> tuple[int, ...]:
    """`axis` as a tuple of mode numbers, 0 to ndim - 1; None means all."""
    if axis is None:
        return tuple(range(ndim))
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    for x in axes:
        if not -ndim <= x < ndim:
            raise ValueError(f"axis {x} is out of range for {ndim} mode(s)")
    return tuple(x % ndim for x in axes)


def transpose(a: Any, axes: Any = None) -> Any:
    """Modes permuted; the same storage."""
    return a.transpose(axes) if isinstance(a, SparseArray) else jnp.transpose(a, axes)


def _like_source(a: SparseArray, ndim: int) -> Format:
    """The format that a rearranged array gets: the source's kind where it fits the rank, else by
    rank.
    """
    f = a.format.whole
    name = str(f.tighten().with_index("int32")) if f.appended else "csr"
    for kind in (name, "coo" if f.levels[-1].branchless else "csf" if ndim != 2 else "csr"):
        try:
            return parse_format(kind, ndim)
        except FormatError:
            continue
    return parse_format("csf", ndim)


def _from_parts(
    data: Any, coords: list[Any], count: Any, shape: tuple[int, ...], source: SparseArray
) -> Any:
    """An array from coordinates, of which the first `count` are in use, in the format of
    `source`.
    """
    wide = index_dtype(shape, int(data.shape[0]))
    index = "int64" if wide == "int64" or source.format.index == "int64" else "int32"
    pos = interval(count, index)
    coo = (
        parse_format("coo", len(shape))
        .with_index(index)
        .loosen(ordered=False, unique=source.format.canonical)
    )
    out = SparseArray(data, (pos, *[on_device(c, index) for c in coords]), shape, coo)
    ordered = all(source.format.levels[n].ordered for n in source.format.sparse_levels)
    target = _like_source(source, len(shape)).with_index(index)
    target = target.loosen(ordered=ordered, unique=source.format.canonical)
    return to(
        out,
        target,
        nse=out.nse if not traced(pos) and target.sparse_levels == (target.ndim - 1,) else None,
    )


def reshape(a: Any, shape: Any) -> Any:
    """Another shape of the same size, entries in row-major order; one extent may be -1."""
    if not isinstance(a, SparseArray):
        return jnp.reshape(a, shape)
    shape = (shape,) if isinstance(shape, int) else tuple(int(s) for s in shape)
    if shape.count(-1) == 1:
        known = -math.prod(shape)
        if known == 0 or a.size % known:
            raise ValueError(f"reshape: size {a.size} does not divide into {shape}")
        shape = tuple(a.size // known if s == -1 else s for s in shape)
    if math.prod(shape) != a.size or any(s < 0 for s in shape) or not shape:
        raise ValueError(f"reshape: shape {shape} does not hold the {a.size} elements of {a.shape}")
    if shape == a.shape:
        return a
    data, coords, count = coo_parts(a)
    wide = a.size >= 2**31
    if wide:
        index_dtype((a.size,), a.nse)
    flat = library(*coords).zeros(coords[0].shape, "int64" if wide else "int32")
    for c, size in zip(coords, a.shape, strict=True):
        flat = flat * size + host(c)
    out: list[Any] = []
    for size in reversed(shape):
        out.insert(0, flat % max(size, 1))
        flat = flat // max(size, 1)
    return _from_parts(data, out, count, shape, a)


def concatenate(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Arrays joined along an existing mode; the result has the format of the first."""
    parts = [construct.asarray(x) for x in arrays]
    if not parts:
        raise ValueError("concatenate: no arrays")
    first = parts[0]
    axis = mode_numbers(axis, first.ndim)[0]
    for n, x in enumerate(parts):
        same = x.ndim == first.ndim and all(
            s == t for m, (s, t) in enumerate(zip(x.shape, first.shape, strict=True)) if m != axis
        )
        if not same:
            raise ValueError(
                f"concatenate: array {n} has shape {x.shape}, array 0 {first.shape}; axis {axis}"
            )
    dtype = jnp.result_type(*[x.data for x in parts])
    shape = tuple(
        builtin_sum(x.shape[m] for x in parts) if m == axis else s
        for m, s in enumerate(first.shape)
    )
    offset = 0
    datas: list[Any] = []
    columns: list[list[Any]] = [[] for _ in shape]
    valid: list[Any] = []
    for x in parts:
        data, coords, count = coo_parts(astype(x, dtype))
        datas.append(data)
        for m, c in enumerate(coords):
            columns[m].append(host(c) + offset if m == axis else c)
        valid.append(library(count).arange(data.shape[0]) < count)
        offset += x.shape[axis]
    data, coords = joined(datas), [joined(c) for c in columns]
    data, coords, count = compact(data, coords, joined(valid))
    source = (
        first
        if all(x.format.canonical for x in parts)
        else replace(first, format=first.format.loosen(unique=False))
    )
    return _from_parts(data, coords, count, shape, source)


def builtin_sum(values: Any) -> int:
    total = 0
    for v in values:
        total += v
    return total


def stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Arrays of one shape joined along a new mode."""
    parts = [construct.asarray(x) for x in arrays]
    if not parts or len({x.shape for x in parts}) != 1:
        raise ValueError(f"stack: arrays of different shapes {[x.shape for x in parts]}, or none")
    axis = mode_numbers(axis, parts[0].ndim + 1)[0]
    return concatenate([expand_dims(x, axis) for x in parts], axis)


def expand_dims(a: Any, axis: int | tuple[int, ...]) -> Any:
    """New modes of extent 1 at the places `axis` of the result."""
    places = (axis,) if isinstance(axis, int) else tuple(axis)
    places = mode_numbers(places, a.ndim + len(places))
    if len(set(places)) < len(places):
        raise ValueError(f"expand_dims: axes {axis} repeat a place")
    shape = list(a.shape)
    for place in sorted(places):
        shape.insert(place, 1)
    return reshape(a, tuple(shape))


def getitem(a: SparseArray, key: Any) -> Any:
    """`a[key]` for static integers, slices, `...` and None; other indices raise."""
    keys = key if isinstance(key, tuple) else (key,)
    new = [k for k in keys if k is None]
    out = select(a, tuple(k for k in keys if k is not None))
    if not new:
        return out
    shape, at = [], iter(out.shape)
    for k in _expanded(keys, a.ndim):
        if k is None:
            shape.append(1)
        elif isinstance(k, slice):
            shape.append(next(at))
    return reshape(out, tuple(shape))


def _expanded(keys: tuple[Any, ...], ndim: int) -> list[Any]:
    given = [k for k in keys if k is not None and k is not Ellipsis]
    if len(given) > ndim:
        raise IndexError(f"{len(given)} indices for {ndim} mode(s)")
    fill = [slice(None)] * (ndim - len(given))
    if builtin_sum(1 for k in keys if k is Ellipsis) > 1:
        raise IndexError("more than one '...'")
    where = next((n for n, k in enumerate(keys) if k is Ellipsis), None)
    return [*keys, *fill] if where is None else [*keys[:where], *fill, *keys[where + 1 :]]


def select(a: SparseArray, keys: tuple[Any, ...]) -> Any:
    for k in keys:
        if isinstance(k, jax.core.Tracer) or (hasattr(k, "ndim") and k.ndim != 0):
            raise UnsupportedError(
                f"indexing with a {type(k).__name__}: only static integers, slices, '...' and "
                f"None; multiply by a selection matrix, or use todense()"
            )
    full = _expanded(keys, a.ndim)
    if all(isinstance(k, slice) and k == slice(None) for k in full):
        return a
    data, coords, count = coo_parts(a)
    keep = library(count).arange(data.shape[0]) < count
    shape, kept = [], []
    for m, (k, size) in enumerate(zip(full, a.shape, strict=True)):
        c = host(coords[m])
        if isinstance(k, slice):
            start, stop, step = k.indices(size)
            length = len(range(start, stop, step))
            q = (c - start) // step
            keep = keep & (c == start + q * step) & (q >= 0) & (q < length)
            shape.append(length)
            kept.append(q)
        elif isinstance(k, (int, np.integer)) and not isinstance(k, bool):
            if not -size <= k < size:
                raise IndexError(f"index {k} is out of range for mode {m} with extent {size}")
            keep = keep & (c == k % size)
        else:
            raise UnsupportedError(
                f"indexing with {type(k).__name__}: only static integers, slices, '...' and None; "
                f"multiply by a selection matrix, or use todense()"
            )
    if not shape:
        zero = jnp.zeros((), data.dtype)
        return jnp.where(keep, data, zero).sum().astype(data.dtype)
    data, kept, count = compact(data, kept, keep)
    return _from_parts(data, kept, count, tuple(shape), a)

# SPDX-License-Identifier: Apache-2.0
"""NumPy's names for what einsums and structure operations do, and the operators of `SparseArray`.

Elementwise results: sparse * anything is sparse; sparse + sparse is sparse; sparse + dense is
dense.  Duplicates add up before anything that is not linear in them could see them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jsparse import construct, convert
from jsparse.api import Problem, Wish, einsum, evaluate, operand
from jsparse.array import SparseArray, index_dtype, require_sparse
from jsparse.convert import coo_parts, letters, to, todense, traced
from jsparse.errors import EinsumError, FormatError, UnsupportedError
from jsparse.format import Format, parse_format
from jsparse.ir.index import Term


# ------------------------------------------------------------------- products
def matmul(a: Any, b: Any, *, nse: int | None = None) -> Any:
    """Matrix product as `numpy.matmul`: vectors, matrices, and leading modes that batch (and
    broadcast if dense).
    """
    a, b = operand(a, 0, "matmul"), operand(b, 1, "matmul")
    if a.ndim == 0 or b.ndim == 0:
        raise EinsumError("matmul: a scalar operand; use * instead")
    if a.ndim == 1 and b.ndim == 1:
        return einsum("i,i->", a, b)
    if a.ndim == 1:
        return einsum("j,...jk->...k", a, b, nse=nse) if b.ndim > 2 else einsum("j,jk->k", a, b)
    if b.ndim == 1:
        return einsum("...ij,j->...i", a, b, nse=nse) if a.ndim > 2 else einsum("ij,j->i", a, b)
    if a.ndim == 2 and b.ndim == 2:
        return einsum("ij,jk->ik", a, b, nse=nse)
    return einsum("...ij,...jk->...ik", a, b, nse=nse)


def dot(a: Any, b: Any, *, nse: int | None = None) -> Any:
    """As `numpy.dot`: the last mode of `a` with the last but one of `b`; a scalar multiplies."""
    a, b = operand(a, 0, "dot"), operand(b, 1, "dot")
    if a.ndim == 0 or b.ndim == 0:
        return multiply(a, b)
    if b.ndim == 1:
        return tensordot(a, b, ((a.ndim - 1,), (0,)), nse=nse)
    return tensordot(a, b, ((a.ndim - 1,), (b.ndim - 2,)), nse=nse)


def vdot(a: Any, b: Any) -> Any:
    """The sum of conj(a) * b over all modes."""
    a, b = operand(a, 0, "vdot"), operand(b, 1, "vdot")
    if a.shape != b.shape:
        raise EinsumError(f"vdot: shapes {a.shape} and {b.shape} differ")
    names = "".join(letters(a.ndim))
    return einsum(f"{names},{names}->", conj(a), b)


def tensordot(a: Any, b: Any, axes: Any = 2, *, nse: int | None = None) -> Any:
    """As `numpy.tensordot`: sum over the last `axes` modes of `a` and the first of `b`, or over
    given pairs.
    """
    a, b = operand(a, 0, "tensordot"), operand(b, 1, "tensordot")
    if isinstance(axes, int):
        if axes > min(a.ndim, b.ndim):
            raise EinsumError(
                f"tensordot: axes={axes} but the operands have {a.ndim} and {b.ndim} modes"
            )
        axes = (tuple(range(a.ndim - axes, a.ndim)), tuple(range(axes)))
    left, right = ((x,) if isinstance(x, int) else tuple(x) for x in axes)
    if len(left) != len(right):
        raise EinsumError(
            f"tensordot: {len(left)} axes of the first operand, {len(right)} of the second"
        )
    names = letters(a.ndim + b.ndim)
    first, second = list(names[: a.ndim]), list(names[a.ndim :])
    for x, y in zip(left, right, strict=True):
        second[y % b.ndim] = first[x % a.ndim]
    summed = {first[x % a.ndim] for x in left}
    out = [v for v in [*first, *second] if v not in summed]
    return einsum(f"{''.join(first)},{''.join(second)}->{''.join(out)}", a, b, nse=nse)


def outer(a: Any, b: Any, *, nse: int | None = None) -> Any:
    """The outer product of two vectors."""
    return einsum("i,j->ij", a, b, nse=nse)


# ---------------------------------------------------------------- elementwise
def _elementwise(
    a: Any, b: Any, name: str
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], Any, Any]:
    """Variables of both operands and the result under broadcasting; a mode of extent 1 is dropped
    where it broadcasts.
    """
    n = max(a.ndim, b.ndim)
    names = letters(n)
    extent = [1] * n
    for x in (a, b):
        for m, size in enumerate(x.shape, n - x.ndim):
            if extent[m] == 1:
                extent[m] = size
            elif size not in (1, extent[m]):
                raise EinsumError(f"{name}: shapes {a.shape} and {b.shape} do not broadcast")
    out, inputs = [], []
    for which, x in enumerate((a, b)):
        drop = [m for m, size in enumerate(x.shape) if size == 1 and extent[n - x.ndim + m] != 1]
        if drop and isinstance(x, SparseArray):
            x = _index(x, tuple(0 if m in drop else slice(None) for m in range(x.ndim)))
            x = x if isinstance(x, SparseArray) else jnp.asarray(x)
        elif drop:
            x = jnp.squeeze(x, tuple(drop))
        ndim = (a, b)[which].ndim
        inputs.append(tuple(names[n - ndim + m] for m in range(ndim) if m not in drop))
        out.append(x)
    return inputs[0], inputs[1], names, out[0], out[1]


def multiply(a: Any, b: Any, *, nse: int | None = None) -> Any:
    """The elementwise product, broadcasting.  Where only one operand is sparse the result has its
    pattern.
    """
    a, b = operand(a, 0, "multiply"), operand(b, 1, "multiply")
    if a.ndim == 0 or b.ndim == 0:
        return _scale(a, b) if a.ndim else _scale(b, a)
    left, right, names, a, b = _elementwise(a, b, "multiply")
    extent = _extents((left, a), (right, b))
    problem = Problem("multiply", (left, right), names, (Term((0, 1)),))
    return evaluate(problem, extent, [a, b], Wish(nse=nse))


def _scale(a: Any, s: Any) -> Any:
    if not isinstance(a, SparseArray):
        return jnp.multiply(a, todense(s) if isinstance(s, SparseArray) else s)
    return replace(a, data=a.data * s)


def _extents(*parts: tuple[tuple[str, ...], Any]) -> dict[str, int]:
    return {v: size for names, x in parts for v, size in zip(names, x.shape, strict=True)}


def add(a: Any, b: Any, *, nse: int | None = None) -> Any:
    """The elementwise sum: sparse if both are, with the union of the patterns; else dense."""
    return _sum((a, b), (1, 1), "add", nse)


def subtract(a: Any, b: Any, *, nse: int | None = None) -> Any:
    """The elementwise difference; as `add`."""
    return _sum((a, b), (1, -1), "subtract", nse)


def _sum(operands: Sequence[Any], signs: Sequence[int], name: str, nse: int | None = None) -> Any:
    ops = [operand(x, n, name) for n, x in enumerate(operands)]
    dtype = jnp.result_type(*[x.data if isinstance(x, SparseArray) else x for x in ops])
    if dtype == jnp.bool_ and -1 in signs:
        raise TypeError(
            "subtract: boolean operands; JAX has no boolean difference, use != or astype(int)"
        )
    shapes = {x.shape for x in ops}
    if len(shapes) == 1 and all(isinstance(x, SparseArray) for x in ops):
        names = letters(ops[0].ndim)
        terms = tuple(Term((n,), s) for n, s in enumerate(signs))
        problem = Problem(name, (names,) * len(ops), names, terms)
        return evaluate(problem, _extents((names, ops[0])), ops, Wish(nse=nse))
    total = None
    for x, sign in zip(ops, signs, strict=True):
        x = todense(x) if isinstance(x, SparseArray) else jnp.asarray(x)
        if total is None:
            total = x if sign > 0 else -x
        else:
            total = total + x if sign > 0 else total - x
    return total


def divide(a: Any, b: Any) -> Any:
    """A sparse array over a scalar or a dense array that broadcasts to it: on the stored entries
    only.
    """
    a, b = operand(a, 0, "divide"), operand(b, 1, "divide")
    if isinstance(b, SparseArray):
        raise UnsupportedError(
            "divide: a sparse divisor is zero almost everywhere; use its todense()"
        )
    if b.ndim == 0:
        return replace(a, data=a.data / b)
    dtype = jnp.result_type(a.data, b, float)
    return multiply(a.astype(dtype), 1 / jnp.asarray(b, dtype))


def negative(a: Any) -> Any:
    """-a, on the stored entries."""
    return replace(a, data=-a.data) if isinstance(a, SparseArray) else -a


def conj(a: Any) -> Any:
    """The complex conjugate."""
    return replace(a, data=jnp.conj(a.data)) if isinstance(a, SparseArray) else jnp.conj(a)


# ------------------------------------------------------------------ reductions
def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    for x in axes:
        if not -ndim <= x < ndim:
            raise ValueError(f"axis {x} is out of range for {ndim} mode(s)")
    return tuple(x % ndim for x in axes)


def sum(a: Any, axis: Any = None, *, keepdims: bool = False, dtype: Any = None) -> Any:
    """The sum over modes, all by default.  Booleans are counted, as in NumPy."""
    a = require_sparse(a, "sum")
    if dtype is not None or a.dtype == jnp.bool_:
        a = a.astype(dtype or jnp.result_type(int))
    axes = _axes(axis, a.ndim)
    names = letters(a.ndim)
    kept = "".join(v for m, v in enumerate(names) if m not in axes)
    out = einsum(f"{''.join(names)}->{kept}", a)
    if not keepdims:
        return out
    return reshape(out, tuple(1 if m in axes else s for m, s in enumerate(a.shape)))


def mean(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The mean over modes, absent entries counting as zeros."""
    a = require_sparse(a, "mean")
    axes = _axes(axis, a.ndim)
    count = math.prod(a.shape[m] for m in axes)
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        a = a.astype(jnp.result_type(float))
    return sum(a, axis, keepdims=keepdims) / count


# ------------------------------------------------------------------- structure
def transpose(a: Any, axes: Any = None) -> Any:
    """Modes permuted; the same storage."""
    return a.transpose(axes) if isinstance(a, SparseArray) else jnp.transpose(a, axes)


def _like_source(a: SparseArray, ndim: int) -> Format:
    """The format that a rearranged array gets: the source's kind where it fits the rank, else by
    rank.
    """
    name = str(a.format.tighten().with_index("int32"))
    for kind in (name, "coo" if a.format.levels[-1].branchless else "csf" if ndim != 2 else "csr"):
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
    pos = jnp.stack([jnp.zeros((), index), jnp.asarray(count, index)])
    coo = (
        parse_format("coo", len(shape))
        .with_index(index)
        .loosen(ordered=False, unique=source.format.canonical)
    )
    out = SparseArray(data, (pos, *[jnp.asarray(c, index) for c in coords]), shape, coo)
    target = _like_source(source, len(shape)).with_index(index)
    if not source.format.canonical:
        target = target.loosen(unique=False)
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
        index_dtype((a.size,), 0)
    flat = jnp.zeros_like(coords[0], dtype="int64" if wide else "int32")
    for c, size in zip(coords, a.shape, strict=True):
        flat = flat * size + c
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
    axis = _axes(axis, first.ndim)[0]
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
        data, coords, count = coo_parts(x)
        datas.append(data.astype(dtype))
        for m, c in enumerate(coords):
            columns[m].append(c + offset if m == axis else c)
        valid.append(jnp.arange(data.shape[0]) < count)
        offset += x.shape[axis]
    data, coords = jnp.concatenate(datas), [jnp.concatenate(c) for c in columns]
    data, coords, count = _compact(data, coords, jnp.concatenate(valid))
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
    axis = _axes(axis, parts[0].ndim + 1)[0]
    return concatenate([expand_dims(x, axis) for x in parts], axis)


def expand_dims(a: Any, axis: int) -> Any:
    """A new mode of extent 1."""
    axis = _axes(axis, a.ndim + 1)[0]
    return reshape(a, (*a.shape[:axis], 1, *a.shape[axis:]))


def _compact(data: Any, coords: list[Any], keep: Any) -> tuple[Any, list[Any], Any]:
    """Entries with `keep` first, in order; how many there are.  Eagerly the others are dropped."""
    if not traced(data, keep, *coords):
        chosen = np.flatnonzero(np.asarray(keep))
        return data[chosen], [c[chosen] for c in coords], chosen.size
    if not traced(keep, *coords):  # a concrete pattern under a trace: only values are traced
        chosen = np.flatnonzero(np.asarray(keep))
        return data[chosen], [c[chosen] for c in coords], chosen.size
    target = jnp.where(keep, jnp.cumsum(keep) - 1, keep.shape[0])
    source = (
        jnp.zeros(keep.shape[0], jnp.int32)
        .at[target]
        .set(jnp.arange(keep.shape[0], dtype=jnp.int32), mode="drop")
    )
    return data[source], [c[source] for c in coords], jnp.sum(keep)


def getitem(a: SparseArray, key: Any) -> Any:
    """`a[key]` for static integers, slices, `...` and None; other indices raise."""
    keys = key if isinstance(key, tuple) else (key,)
    new = [k for k in keys if k is None]
    out = _index(a, tuple(k for k in keys if k is not None))
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


def _index(a: SparseArray, keys: tuple[Any, ...]) -> Any:
    full = _expanded(keys, a.ndim)
    if all(isinstance(k, slice) and k == slice(None) for k in full):
        return a
    data, coords, count = coo_parts(a)
    keep = jnp.arange(data.shape[0]) < count
    shape, kept = [], []
    for m, (k, size) in enumerate(zip(full, a.shape, strict=True)):
        c = coords[m]
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
    data, kept, count = _compact(data, kept, keep)
    return _from_parts(data, kept, count, tuple(shape), a)


# -------------------------------------------------------------------- operators
def _binary(f: Any, swap: bool = False) -> Any:
    def method(self: SparseArray, other: Any) -> Any:
        return f(other, self) if swap else f(self, other)

    return method


def install() -> None:
    """Give `SparseArray` its operators and conversion methods: `array` is below this layer, so
    they come from here.
    """
    table = {
        "__matmul__": _binary(matmul), "__rmatmul__": _binary(matmul, True),
        "__mul__": _binary(multiply), "__rmul__": _binary(multiply, True),
        "__add__": _binary(add), "__radd__": _binary(add, True),
        "__sub__": _binary(subtract), "__rsub__": _binary(subtract, True),
        "__truediv__": divide, "__neg__": negative, "__pos__": lambda a: a, "__getitem__": getitem,
        "to": to, "todense": todense, "to_scipy": convert.toscipy, "to_bcoo": convert.tobcoo,
        "sum": sum, "mean": mean, "reshape": reshape, "conj": conj,
    }  # fmt: skip
    for name, method in table.items():
        setattr(SparseArray, name, method)


install()

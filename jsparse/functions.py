# SPDX-License-Identifier: Apache-2.0
"""NumPy's names for what einsums do, and the operators of `SparseArray`.

Elementwise results: sparse * anything is sparse; sparse + sparse is sparse; sparse + dense is
dense.  Duplicates add up before anything that is not linear in them could see them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsparse import convert, exchange
from jsparse.api import einsum, evaluate
from jsparse.array import SparseArray, require_sparse
from jsparse.concrete import on_device
from jsparse.convert import letters, to, todense
from jsparse.errors import EinsumError, UnsupportedError
from jsparse.ir.index import Term
from jsparse.job import Problem, Wish
from jsparse.record import replace
from jsparse.solve import operand
from jsparse.structure import getitem, mode_numbers, reshape, select


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
            x = select(x, tuple(0 if m in drop else slice(None) for m in range(x.ndim)))
            x = x if isinstance(x, SparseArray) else on_device(x)
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
    if a.dtype == jnp.bool_:  # entries stored twice are one before they are numbers
        a = a.astype(jnp.result_type(a.data, s))
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
    try:
        np.broadcast_shapes(*(x.shape for x in ops))
    except ValueError:
        text = " and ".join(str(x.shape) for x in ops)
        raise EinsumError(f"{name}: shapes {text} do not broadcast") from None
    total = None
    for x, sign in zip(ops, signs, strict=True):
        x = todense(x) if isinstance(x, SparseArray) else on_device(x)
        if total is None:
            total = x if sign > 0 else -x
        else:
            total = total + x if sign > 0 else total - x
    return total


def _dtype_of(f: Any, *arrays: Any) -> Any:
    """The dtype that a function of `jnp` gives."""
    like = [jax.ShapeDtypeStruct((1,), jax.dtypes.canonicalize_dtype(x.dtype)) for x in arrays]
    scalars = zip(arrays, like, strict=True)
    return jax.eval_shape(f, *[x if x.ndim == 0 else s for x, s in scalars]).dtype


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
    dtype = _dtype_of(jnp.divide, a.data, b)
    return multiply(a.astype(dtype), 1 / jnp.asarray(b, dtype))


def negative(a: Any) -> Any:
    """-a, on the stored entries."""
    return replace(a, data=-a.data) if isinstance(a, SparseArray) else -a


def conj(a: Any) -> Any:
    """The complex conjugate."""
    return replace(a, data=jnp.conj(a.data)) if isinstance(a, SparseArray) else jnp.conj(a)


# ------------------------------------------------------------------ reductions
def sum(a: Any, axis: Any = None, *, keepdims: bool = False, dtype: Any = None) -> Any:
    """The sum over modes, all by default, in the dtype of `jnp.sum`: booleans are counted, small
    integers summed in wider ones.
    """
    a = require_sparse(a, "sum")
    a = a.astype(dtype or _dtype_of(jnp.sum, a.data))
    axes = mode_numbers(axis, a.ndim)
    names = letters(a.ndim)
    kept = "".join(v for m, v in enumerate(names) if m not in axes)
    out = einsum(f"{''.join(names)}->{kept}", a)
    if not keepdims:
        return out
    return reshape(out, tuple(1 if m in axes else s for m, s in enumerate(a.shape)))


def mean(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """The mean over modes, absent entries counting as zeros."""
    a = require_sparse(a, "mean")
    axes = mode_numbers(axis, a.ndim)
    count = math.prod(a.shape[m] for m in axes)
    dtype = _dtype_of(jnp.mean, a.data)
    return sum(a, axis, keepdims=keepdims, dtype=dtype) / jnp.asarray(count, dtype)


# -------------------------------------------------------------------- operators
def _binary(f: Any, swap: bool = False) -> Any:
    def method(self: SparseArray, other: Any) -> Any:
        return f(other, self) if swap else f(self, other)

    return method


def _reshape(self: SparseArray, *shape: Any) -> Any:
    return reshape(self, shape[0] if len(shape) == 1 else shape)


def install() -> None:
    """Give `SparseArray` its operators and conversion methods: `array` is below this layer, so
    they come from here.
    """
    table = {
        "__matmul__": _binary(matmul), "__rmatmul__": _binary(matmul, True),
        "__mul__": _binary(multiply), "__rmul__": _binary(multiply, True),
        "__add__": _binary(add), "__radd__": _binary(add, True),
        "__sub__": _binary(subtract), "__rsub__": _binary(subtract, True),
        "__truediv__": divide, "__rtruediv__": _binary(divide, True),
        "__neg__": negative, "__pos__": lambda a: a, "__getitem__": getitem,
        "to": to, "astype": convert.astype, "todense": todense,
        "to_scipy": exchange.toscipy, "to_bcoo": exchange.tobcoo,
        "sum": sum, "mean": mean, "reshape": _reshape, "conj": conj,
    }  # fmt: skip
    for name, method in table.items():
        setattr(SparseArray, name, method)


install()

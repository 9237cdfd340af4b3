# SPDX-License-Identifier: Apache-2.0
"""`js.grad` and its kin: derivatives in the values of sparse arrays, dynamic ones too.

`jax.grad` refuses the integer leaves of a dynamic array.  Here an argument is differentiated in the
`data` of its sparse arrays and in its other leaves, and the result has the argument's structure: a
gradient of a sparse array is a sparse array with its pattern.  (An optimizer that makes state for
every leaf should be given `A.data`, or frozen arrays, whose only leaf it is.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax

from jsparse.array import SparseArray


def _is_sparse(x: Any) -> bool:
    return isinstance(x, SparseArray)


def _values(tree: Any) -> Any:
    """The tree with the values of its sparse arrays in their place."""
    return jax.tree.map(lambda x: x.data if _is_sparse(x) else x, tree, is_leaf=_is_sparse)


def _rebuilt(tree: Any, values: Any) -> Any:
    """The tree with other values in its sparse arrays, and other leaves."""
    return jax.tree.map(
        lambda x, v: _with(x, v) if _is_sparse(x) else v, tree, values, is_leaf=_is_sparse
    )


def _with(a: SparseArray, data: Any) -> SparseArray:
    return SparseArray(data, a.structure, a.shape, a.format, a.pattern)


def _wrapped(
    transform: Callable[..., Any],
    fun: Callable[..., Any],
    argnums: int | tuple[int, ...],
    options: dict[str, Any],
    rebuild: Callable[[Any, Any], Any],
) -> Callable[..., Any]:
    """`transform` of `fun` in the values of chosen arguments; `rebuild` puts results together."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    @wraps(fun)
    def call(*args: Any, **kwargs: Any) -> Any:
        where = tuple(n % len(args) for n in numbers)
        chosen = tuple(args[n] for n in where)

        def of_values(*values: Any) -> Any:
            full = list(args)
            for n, arg, v in zip(where, chosen, values, strict=True):
                full[n] = _rebuilt(arg, v)
            return fun(*full, **kwargs)

        positions = 0 if isinstance(argnums, int) else tuple(range(len(chosen)))
        out = transform(of_values, argnums=positions, **options)(*(_values(a) for a in chosen))
        return rebuild(out, chosen[0] if isinstance(argnums, int) else chosen)

    return call


def grad(
    fun: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The gradient of a scalar function, as `jax.grad`, in arguments that may hold sparse arrays.

    The gradient of a `SparseArray` is one with the same pattern; duplicates each get the full
    cotangent, stored zeros keep theirs.
    """

    def rebuild(out: Any, chosen: Any) -> Any:
        if has_aux:
            return _like(chosen, out[0], argnums), out[1]
        return _like(chosen, out, argnums)

    return _wrapped(jax.grad, fun, argnums, {"has_aux": has_aux}, rebuild)


def value_and_grad(
    fun: Callable[..., Any], argnums: int | tuple[int, ...] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """The value and the gradient of a scalar function, as `jax.value_and_grad`; see `grad`."""

    def rebuild(out: Any, chosen: Any) -> Any:
        return out[0], _like(chosen, out[1], argnums)

    return _wrapped(jax.value_and_grad, fun, argnums, {"has_aux": has_aux}, rebuild)


def jacfwd(fun: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The Jacobian by forward mode, as `jax.jacfwd`: for a sparse argument in its `data`, an array
    of shape (*output, nse).  A sparse output is differentiated in its `data`.
    """
    return _jacobian(jax.jacfwd, fun, argnums)


def jacrev(fun: Callable[..., Any], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """The Jacobian by reverse mode, as `jax.jacrev`; see `jacfwd`."""
    return _jacobian(jax.jacrev, fun, argnums)


def _jacobian(
    transform: Callable[..., Any], fun: Callable[..., Any], argnums: int | tuple[int, ...]
) -> Callable[..., Any]:
    @wraps(fun)
    def values_only(*args: Any, **kwargs: Any) -> Any:
        return _values(fun(*args, **kwargs))

    return _wrapped(transform, values_only, argnums, {}, lambda out, _: out)


def _like(chosen: Any, grads: Any, argnums: int | tuple[int, ...]) -> Any:
    """Gradients of values in the structure of the arguments."""
    if isinstance(argnums, int):
        return _rebuilt(chosen, grads)
    return tuple(_rebuilt(a, g) for a, g in zip(chosen, grads, strict=True))

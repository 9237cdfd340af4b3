# SPDX-License-Identifier: Apache-2.0
"""Arrays made up: random ones, identities, diagonals."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsparse.array import SparseArray
from jsparse.concrete import traced
from jsparse.construct import coo, shape_of
from jsparse.convert import to
from jsparse.errors import StructureError, UnsupportedError
from jsparse.format import Format


def random(
    key: Any, shape: Any, density: float = 0.01, format: Format | str = "csr", dtype: Any = None
) -> SparseArray:
    """A random array with round(density * size) distinct coordinates and standard normal values.

    Args:
      key: a concrete JAX random key; the pattern has a static size, so it cannot be traced.
      shape: extent of each mode.
      density: fraction of stored entries, 0 to 1.
      format: format of the result.
      dtype: inexact dtype of the values; by default JAX's default float.
    """
    shape = shape_of(shape, None, "random")
    if traced(key):
        raise UnsupportedError("random: the key is traced; make the array outside of jit")
    if not 0 <= density <= 1:
        raise StructureError(f"random: density is {density}, expected 0 to 1")
    if not hasattr(key, "dtype"):
        raise StructureError(
            f"random: the key is a {type(key).__name__}, expected jax.random.key(seed)"
        )
    size = int(np.prod(shape, dtype=object))
    nse = round(density * size)
    bits = key if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.key_data(key)
    rng = np.random.default_rng([int(b) for b in np.asarray(bits).reshape(-1)])
    if size < 2**63:
        flat = (
            np.sort(rng.choice(size, nse, replace=False, shuffle=False))
            if nse
            else np.zeros(0, np.int64)
        )
        coords = np.unravel_index(flat, shape)
    else:
        raise StructureError(f"random: shape {shape} has more than 2^63 elements")
    data = jax.random.normal(key, (nse,), dtype or jnp.result_type(float))
    return to(coo(data, coords, shape), format)


def eye(
    n: int, m: int | None = None, k: int = 0, format: Format | str = "csr", dtype: Any = None
) -> SparseArray:
    """Ones on diagonal k of an n × m matrix (m = n by default)."""
    n, m = shape_of((n, n if m is None else m), 2, "eye")
    i = np.arange(max(0, -k), max(0, min(n, m - k)))
    ones = jnp.ones(i.size, dtype or jnp.result_type(float))
    return to(coo(ones, (i, i + k), (n, m)), format)


def diags(
    diagonals: Any, offsets: Any = 0, shape: Any = None, format: Format | str = "csr"
) -> SparseArray:
    """A matrix from its diagonals, as `scipy.sparse.diags_array`: one array and an offset, or a
    sequence of each.
    """
    if np.ndim(offsets) == 0:
        diagonals, offsets = [diagonals], [offsets]
    rows, cols, values = [], [], []
    if not hasattr(diagonals, "__len__") or any(np.ndim(d) > 1 for d in diagonals):
        raise StructureError("diags: expected one array for each offset")
    diagonals = [jnp.atleast_1d(jnp.asarray(d)) for d in diagonals]
    if len(diagonals) != len(offsets):
        raise StructureError(f"diags: {len(diagonals)} diagonals but {len(offsets)} offsets")
    n = max((len(d) + abs(int(k)) for d, k in zip(diagonals, offsets, strict=True)), default=0)
    shape = (n, n) if shape is None else shape_of(shape, 2, "diags")
    for d, k in zip(diagonals, offsets, strict=True):
        k = int(k)
        length = max(0, min(shape[0] + min(k, 0), shape[1] - max(k, 0)))
        d = jnp.asarray(d)
        if d.shape != (length,) and d.size != 1:
            raise StructureError(
                f"diags: diagonal {k} has length {d.size}, expected {length} for shape {shape}"
            )
        i = np.arange(length)
        rows.append(i + max(0, -k))
        cols.append(i + max(0, k))
        values.append(jnp.broadcast_to(d.reshape(-1) if d.ndim else d[None], (length,)))
    if not rows:
        raise StructureError("diags: no diagonals")
    return to(
        coo(jnp.concatenate(values), (np.concatenate(rows), np.concatenate(cols)), shape), format
    )

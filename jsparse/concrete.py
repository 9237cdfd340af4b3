# SPDX-License-Identifier: Apache-2.0
"""What is done outside of a trace: on the host, since XLA would compile every operation for every
shape, in some 20 ms each; and which entries of a sparse array are kept.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def traced(*arrays: Any) -> bool:
    return any(isinstance(a, jax.core.Tracer) for a in arrays)


def on_device(x: Any, dtype: Any = None) -> Any:
    """`jnp.asarray`, which compiles a program for each shape of a NumPy array; this does not."""
    if isinstance(x, np.ndarray):
        kind = np.dtype(dtype or x.dtype)
        if (
            np.can_cast(x.dtype, kind, "same_kind")
            and kind.isnative
            and jax.dtypes.canonicalize_dtype(kind) == kind
        ):
            return jax.device_put(np.array(x, kind, order="C"))  # not the caller's memory
    return jnp.asarray(x, dtype)


def library(*arrays: Any) -> Any:
    """`jnp` if an array is traced, else `numpy`."""
    return jnp if traced(*arrays) else np


def host(x: Any) -> Any:
    """A concrete array in NumPy; a traced one as it is."""
    return x if traced(x) else np.asarray(x)


def picked(x: Any, at: Any) -> Any:
    """`x[at]` for concrete places."""
    return x[at] if traced(x) else jax.device_put(np.asarray(x)[at])


def joined(parts: list[Any]) -> Any:
    """Arrays one after another, on the host if all are concrete."""
    return library(*parts).concatenate(parts)


def interval(count: Any, index: Any) -> Any:
    """The `pos` of one fiber with `count` entries."""
    if traced(count):
        return jnp.stack([jnp.zeros((), index), jnp.asarray(count, index)])
    return on_device(np.array([0, count], index))


def compact(data: Any, coords: list[Any], keep: Any) -> tuple[Any, list[Any], Any]:
    """Entries with `keep` first, in order; how many there are.  Eagerly the others are dropped."""
    if not traced(keep, *coords):  # values may be traced
        chosen = np.flatnonzero(np.asarray(keep))
        return picked(data, chosen), [picked(c, chosen) for c in coords], chosen.size
    target = jnp.where(keep, jnp.cumsum(keep) - 1, keep.shape[0])
    source = (
        jnp.zeros(keep.shape[0], jnp.int32)
        .at[target]
        .set(jnp.arange(keep.shape[0], dtype=jnp.int32), mode="drop")
    )
    return data[source], [c[source] for c in coords], jnp.sum(keep)

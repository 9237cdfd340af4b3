# SPDX-License-Identifier: Apache-2.0
"""What is known outside of a trace: whether arrays are concrete, and which entries are kept."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def traced(*arrays: Any) -> bool:
    return any(isinstance(a, jax.core.Tracer) for a in arrays)


def compact(data: Any, coords: list[Any], keep: Any) -> tuple[Any, list[Any], Any]:
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

# SPDX-License-Identifier: Apache-2.0
"""Uniform fibers in plain `jax.numpy`: what `lower.fit` does, for the reference.

fibers 0 3 | 1 | 2 5       uniform(2)  ->  0 3 | 0 1 | 2 5       source 0 1 | 5 2 | 3 4
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from jsparse.ir.index import Assignment


def fitted(a: Assignment, extent: dict[str, Any], flat: Sequence[Any]) -> list[Any]:
    """Uniform fibers, filled up with the least coordinates that they do not use; and the entry that
    each place comes from.  What does not fit is left out.
    """
    access, n = a.operands[0], a.output.format.sparse_levels[-1]
    size = a.output.format.levels[n].children or 0
    by_name = dict(zip(access.format.array_names(), flat, strict=True))
    pos, crd = by_name[n, "pos"], by_name[n, "crd"]
    parents, entries = pos.shape[0] - 1, crd.shape[0]
    end: Any = 1
    for k, (level, v) in enumerate(zip(access.format.levels[:n], access.level_vars, strict=False)):
        end = (
            by_name[k, "pos"][end] if (k, "pos") in by_name else level.positions(end, extent[v], 0)
        )
    pos = pos[jnp.clip(jnp.arange(pos.shape[0]), 0, end)]
    at = jnp.arange(entries, dtype=pos.dtype)
    parent = jnp.clip(jnp.searchsorted(pos, at, side="right") - 1, 0, max(parents - 1, 0))
    valid = at < pos[-1]
    free = size - jnp.diff(pos)
    used = jnp.zeros((parents, size), bool).at[jnp.where(valid, parent, parents), crd]
    unused = ~used.set(True, mode="drop")
    rank = jnp.cumsum(unused, axis=1)  # of unused coordinates, from 1
    fills = unused & (rank <= free[:, None])
    places = jnp.where(fills, jnp.arange(size), 0).reshape(-1)
    source = jnp.full(parents * size, entries)
    if entries and parents:
        before = jnp.minimum(
            rank.at[parent, jnp.clip(crd, 1, size) - 1].get(mode="clip"), free[parent]
        )
        place = at - pos[parent] + jnp.where(crd > 0, before, 0)
        to = jnp.where(valid & (place < size), parent * size + place, parents * size)
        places = places.at[to].set(crd, mode="drop")
        source = source.at[to].set(at, mode="drop")
    return [places, source]

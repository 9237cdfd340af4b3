# SPDX-License-Identifier: Apache-2.0
"""What runs on a CPU without a C++ compiler: the reference, with the errors that kernels raise.

Pure JAX cannot raise, so the verdict goes through a callback: damaged index arrays and sparse
results beyond their capacity are errors here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsparse import reference
from jsparse.errors import CapacityError, StructureError
from jsparse.ir.index import PATTERN, Access, Assignment

Arrays = Sequence[Any]


def einsum(a: Assignment, extents: tuple[int, ...], flat: Arrays) -> Any:
    """`reference.einsum`, failing if an operand's index arrays are damaged."""
    return _guard(reference.einsum(a, extents, flat), _damage(a, extents, flat), ())


def assemble(
    a: Assignment,
    work: str,
    count: bool,
    extents: tuple[int, ...],
    capacity: tuple[int, ...],
    flat: Arrays,
) -> list[Any]:
    """`reference.assemble`, failing also if the result does not fit its capacity."""
    out = reference.assemble(a, work, count, extents, capacity, flat)
    bad = _damage(a, extents, flat)
    if count:
        return [_guard(x, bad, ()) for x in out]
    if work == "fit":
        words = "a fiber has {0} entries, expected at most {1} as in the format"
        level = a.output.format.levels[a.output.format.sparse_levels[-1]]
        most = jnp.max(jnp.diff(flat[-2]), initial=0)
        return [_guard(x, bad, (most,), (level.children or 0,), words) for x in out]
    if work == "merge":
        counts = flat[-1][-len(capacity) :]  # the last starts are the totals
    else:
        counts = reference.assemble(a, work, True, extents, capacity, flat)[0]
    needed = tuple(counts)
    return [_guard(x, bad, needed, capacity) for x in out]


TOO_FEW = "a sparse result needs {0} entries but its capacity is {1}; pass nse={0} or more"


def _guard(
    y: Any,
    bad: Any,
    needed: tuple[Any, ...],
    capacity: tuple[int, ...] = (),
    words: str = TOO_FEW,
) -> Any:
    """`y`, once the host has seen that nothing is wrong."""

    def verdict(bad: Any, *needed: Any) -> Any:
        if bad >= 0:
            raise StructureError(
                f"operand {int(bad)}: its index arrays are damaged or belong to another shape"
            )
        for n, room in zip(needed, capacity, strict=True):
            if n > room:
                raise CapacityError(words.format(int(n), room))
        return np.zeros((), np.int32)

    shape = jax.ShapeDtypeStruct((), np.int32)
    numbers = [n.astype(jnp.int32) for n in needed]
    ok = jax.pure_callback(verdict, shape, bad, *numbers, vmap_method="sequential")
    return jnp.where(ok == 0, y, jnp.zeros_like(y))


def _damage(a: Assignment, extents: tuple[int, ...], flat: Arrays) -> Any:
    """The number of the first operand whose index arrays lead out of bounds, or -1."""
    extent = dict(zip(a.vars, extents, strict=True))
    worst = jnp.int32(-1)
    accesses = list(a.stored)
    arrays = list(flat)
    parts = []
    for access in accesses:
        if access.dtype != PATTERN:
            arrays.pop(0)
        names = access.format.array_names()
        parts.append(dict(zip(names, arrays[: len(names)], strict=True)))
        del arrays[: len(names)]
    for n, (access, part) in reversed(list(enumerate(zip(accesses, parts, strict=True)))):
        if part and not access.trusted:
            worst = jnp.where(_is_damaged(access, part, extent), jnp.int32(n), worst)
    return worst


def _is_damaged(access: Access, part: dict[tuple[int, str], Any], extent: dict[str, int]) -> Any:
    bad: Any = False
    end: Any = 1  # positions in use of the level above
    for n, (level, v) in enumerate(zip(access.format.levels, access.level_vars, strict=True)):
        if level.full:
            end = end * extent[v]
            continue
        crd = part[n, "crd"]
        if level.relative:
            below = extent[access.level_vars[n + 1]]
            return jnp.any((crd <= -below) | (crd >= extent[v])) | jnp.any(crd[1:] <= crd[:-1])
        if (n, "pos") in part:
            pos = part[n, "pos"]
            used = jnp.arange(1, pos.shape[0]) <= end
            bad |= (pos[0] != 0) | jnp.any((pos[1:] < pos[:-1]) & used)
            end = pos[jnp.clip(end, 0, pos.shape[0] - 1)]
            bad |= end > crd.shape[0]
        else:
            end = level.positions(end, 0, 0)
        inside = (crd >= 0) & (crd < extent[v])
        bad |= jnp.any(~inside & (jnp.arange(crd.shape[0]) < end))
    return bad

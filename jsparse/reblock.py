# SPDX-License-Identifier: Apache-2.0
"""Conversions from and to formats with split modes.

    same blocks        the split arrays are converted: blocks move as a whole
    from blocks        every element of a block becomes an entry; padding is left out
    to blocks          every entry becomes an element of the block around it; the rest is zeros

All come down to conversions of arrays without blocks, by the function `convert`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsparse.array import Pattern, SparseArray
from jsparse.blocks import ragged, split_shape
from jsparse.concrete import compact, host, interval, library, on_device, traced
from jsparse.errors import CapacityError
from jsparse.format import Format, parse_format
from jsparse.record import replace

Convert = Callable[..., SparseArray]


def to(a: SparseArray, target: Format, nse: int | None, convert: Convert) -> SparseArray:
    """`a` in the format `target`; one of the two has blocks.  `nse` counts entries, also those that
    are stored in blocks.
    """
    room = None if nse is None else -(-nse // math.prod(target.block))
    if nse is not None and not target.appended:
        raise CapacityError(f"to: {target} has no capacity, got nse={nse}; leave it out")
    n = target.ndim
    dense = all(x.full for f in (a.format, target) for x in f.levels[n:])
    if a.format.block == target.block and not dense:
        return convert(a.split(), target.split, nse=room).join(a.shape, target.block)
    if a.format.block == target.block:
        return _moved(a, target, room, convert)
    if a.pattern is not None:
        return _carried(a, target, nse, convert)
    entries = _entries(a, convert)
    if not target.block:
        return convert(entries, target, nse=nse)
    pos, *crds = entries.structure
    block = target.block
    crds = [host(c) for c in crds]
    outer = [on_device(c // b) for c, b in zip(crds, block, strict=True)]
    inner = [on_device(c % b) for c, b in zip(crds, block, strict=True) if b != 1]
    shape = split_shape(a.shape, block)
    split = _loose(len(shape), entries.format.index, entries.format.levels[-1].unique)
    places = SparseArray(entries.data, (pos, *outer, *inner), shape, split)
    return convert(places, target.split, nse=room).join(a.shape, block)


def _moved(a: SparseArray, target: Format, room: int | None, convert: Convert) -> SparseArray:
    """Blocks stored in another order, and their elements if the target has these in another."""
    n = a.ndim
    have, want = a.format.order[n:], target.order[n:]
    levels, order = (*target.levels[:n], *a.format.levels[n:]), (*target.order[:n], *have)
    out = convert(a.split(), Format(levels, order, target.index), nse=room)
    if have != want:
        lead = out.data.ndim - len(have)
        axes = (*range(lead), *(lead + have.index(m) for m in want))
        f = out.format
        format = Format((*f.levels[:n], *target.levels[n:]), target.order, f.index)
        out = replace(out._relabel(out.shape, format), data=jnp.transpose(out.data, axes))
    return out.join(a.shape, target.block)


def _loose(ndim: int, index: str, unique: bool) -> Format:
    return parse_format("coo", ndim).with_index(index).loosen(ordered=False, unique=unique)


def _entries(a: SparseArray, convert: Convert) -> SparseArray:
    """Every entry of `a` with its coordinates, in storage order."""
    s = a.split()
    unique = a.format.canonical
    c = convert(s, _loose(s.ndim, s.format.index, unique))
    if not a.format.block:
        return c
    pos, *crds = c.structure
    crds = [host(c) for c in crds]
    inner = iter(crds[a.ndim :])
    pairs = zip(crds, a.format.block, strict=False)
    coords = [c if b == 1 else c * b + next(inner) for c, b in pairs]
    data = c.data
    if ragged(a.shape, a.format.block):
        keep = library(pos, *coords).arange(data.shape[0]) < host(pos)[-1]
        for x, n in zip(coords, a.shape, strict=True):
            keep = keep & (x < n)
        data, coords, count = compact(data, coords, keep)
        pos = interval(count, pos.dtype)
    structure = (pos, *[on_device(x, pos.dtype) for x in coords])
    return SparseArray(data, structure, a.shape, _loose(a.ndim, a.format.index, unique))


def _carried(a: SparseArray, target: Format, nse: int | None, convert: Convert) -> SparseArray:
    """The conversion of a frozen array: made once, of the numbers of its values; they follow."""
    if not a.format.canonical:
        a = convert(a, a.format.tighten())
    pattern = a.pattern
    assert pattern is not None
    shape = a.data.shape
    size = math.prod(shape)

    def make() -> tuple[Pattern, Any]:
        index = "int32" if size < 2**31 - 1 else "int64"
        numbers = on_device(np.arange(1, size + 1, dtype=index).reshape(shape))
        t = to(SparseArray(numbers, pattern.device(), a.shape, a.format), target, nse, convert)
        source = np.asarray(t.data) - 1
        new = Pattern(tuple(np.asarray(x) for x in t.structure), a.shape, t.format)
        return new, on_device(np.where(source < 0, size, source))

    new, source = pattern.derived(("reblock", target, nse), make)
    if size == 0:  # jnp.take would drop axes
        data = jnp.zeros(source.shape, a.dtype)
    elif traced(a.data):
        data = jnp.take(a.data.reshape(-1), source, mode="fill", fill_value=0)
    else:
        held = np.append(np.asarray(a.data), np.zeros((), a.dtype))
        data = jax.device_put(held[host(source)])
    return SparseArray(data, (), a.shape, new.format, new)

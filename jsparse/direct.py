# SPDX-License-Identifier: Apache-2.0
"""A primitive on concrete arrays: its kernel is called on their memory, without a program of XLA's.

How large a sparse result is turns out when it is counted, so a program for its sizes would seldom
run twice, and costs 20 ms or more to trace and compile.  A kernel serves all sizes.  Sizes that do
come again are left to a program (`OFTEN`): JAX dispatches that in 0.02 ms, where handing an array
over by `jax.device_put` takes 0.15 ms.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray

from jsparse import ffi, pipeline
from jsparse.codegen import build

OFTEN = 8  # calls with the same sizes, after which a program is worth its compilation
SELDOM = 2  # the same where arrays are large
LARGE = 1 << 20  # bytes of all operands
ALIGN = 64  # bytes: memory that is not aligned so would be copied on its way to JAX

Known = tuple[pipeline.Spec, Sequence[ShapedArray]]

_calls: Counter[Any] = Counter()
_MOST_CALLS = 1 << 14


def run(
    flat: Sequence[Any], params: dict[str, Any], kernel: Callable[..., Known]
) -> list[Any] | None:
    """The results of a primitive, or None where a program should do it: on other devices than one
    CPU, for sizes that come often, or if JAX is to look for NaNs.

    `kernel` says for operands of given types which one runs and what it returns.  Raises
    `jax.errors.JaxRuntimeError` as the program would.
    """
    if jax.config.jax_debug_nans or jax.config.jax_debug_infs:
        return None
    avals = [ShapedArray(x.shape, x.dtype) for x in flat]
    key = (tuple(avals), *params.items())
    if len(_calls) > _MOST_CALLS:
        _calls.clear()
    _calls[key] += 1
    most = OFTEN if sum(x.nbytes for x in flat) < LARGE else SELDOM
    if _calls[key] > most or not all(_on_one_cpu(x) for x in flat):
        return None
    spec, types = kernel(*avals)
    args = [np.ascontiguousarray(x) for x in flat]
    results = [_room(t.shape, np.dtype(t.dtype)) for t in types]
    ffi.call(build.submit(pipeline.text(spec)), spec.recipe(), params["extents"], args, results)
    place = next((x.sharding for x in flat if getattr(x, "committed", False)), None)
    return [_device_array(x, place) for x in results]


def _on_one_cpu(x: Any) -> bool:
    if not isinstance(x, jax.Array):
        return isinstance(x, np.ndarray)
    devices: list[Any] = list(x.sharding.device_set)
    return len(devices) == 1 and devices[0].platform == "cpu"


def _room(shape: tuple[int, ...], dtype: Any) -> Any:
    """An uninitialised array that JAX takes over without a copy."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGN, np.uint8)
    start = -memory.ctypes.data % ALIGN
    return memory[start : start + size].view(dtype).reshape(shape)


def _device_array(x: Any, place: Any) -> Any:
    wide = x.dtype.kind in "iufc" and x.dtype.itemsize >= 8
    with jax.enable_x64(True) if wide else nullcontext():  # counts are 64-bit in any case
        return jax.device_put(x, place)

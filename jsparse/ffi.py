# SPDX-License-Identifier: Apache-2.0
"""The one place that touches ``jax.ffi``: targets of the extension, and their lowering.

A program holds a custom call ``jsparse_cpu(operands) {key, recipe, extents}``. When XLA
instantiates it, the extension looks for the kernel ``key`` and, if the process has not loaded it
yet, asks the resolver for its shared object::

    trace ── lower_cpu ──▶ custom call ──instantiate──▶ resolver(key, recipe) -> path ──▶ dlopen
                                       ──execute──────▶ kernel(context, args, results, extents)

``key`` is a content hash and never a pointer, ``recipe`` is text that suffices to build the kernel
again: so a program that comes back from ``jax.export`` or from XLA's persistent cache finds its
kernel in another process.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import jax.ffi
import numpy as np
from jax.interpreters import mlir

from jsparse import _xla_ffi, partitioner

CPU_TARGET = "jsparse_cpu"

Resolver = Callable[[str, str], str]

_PLATFORMS = {CPU_TARGET: "cpu"}
_lock = threading.Lock()
_registered = False


def register(resolver: Resolver) -> Resolver | None:
    """Makes the targets known to JAX, once a process, and sets who finds kernels.

    To be called when the package is imported, not when something is first lowered: an exported
    program runs without lowering anything. Before a backend exists JAX queues the registration,
    after that it takes effect at once.

    Args:
        resolver: ``(key, recipe) -> path`` of a shared object with the symbol ``jsparse_kernel``.
            It is called from XLA's threads, several at once, also for the same key, and may block.
            What it raises becomes the message of the error that the program's compilation ends
            with.

    Returns:
        The resolver that was set before, or None.
    """
    global _registered
    previous = _xla_ffi.set_resolver(resolver)
    with _lock:
        if not _registered:
            for target, handlers in _xla_ffi.registrations().items():
                jax.ffi.register_ffi_target(target, handlers, platform=_PLATFORMS[target])
                partitioner.register(target)
            _registered = True
    return previous


def lower_cpu(
    ctx: Any, *operands: Any, key: str, recipe: str, extents: tuple[int, ...], rule: str = ""
) -> Sequence[Any]:
    """A lowering rule: the custom call of kernel ``key`` on ``operands``.

    Args:
        ctx: the ``LoweringRuleContext`` that JAX hands to a rule; it knows the result types.
        operands: MLIR values, dense and row-major.
        key: content hash of the kernel, hexadecimal.
        recipe: JSON text from which the resolver can build the kernel again.
        extents: numbers that the kernel reads at run time, possibly none.
        rule: how the call may be cut across devices, as an attribute of Shardy; possibly empty.

    Returns:
        One MLIR value for each result.
    """
    extra = {"sdy.sharding_rule": mlir.ir.Attribute.parse(rule)} if rule else None
    lower = jax.ffi.ffi_lowering(CPU_TARGET, extra_attributes=extra)
    return lower(ctx, *operands, key=key, recipe=recipe, extents=np.array(extents, np.int64))


def call(
    key: str,
    recipe: str,
    extents: Sequence[int],
    args: Sequence[np.ndarray],
    results: Sequence[np.ndarray],
) -> None:
    """Runs kernel ``key`` on arrays of the host, row-major, and fills ``results``.

    Raises `jax.errors.JaxRuntimeError` with the words that a program would fail with.
    """
    groups = ([(x.ctypes.data, x.shape) for x in group] for group in (args, results))
    fault = _xla_ffi.call(key, recipe, extents, *groups)
    if fault:
        raise jax.errors.JaxRuntimeError(fault)


def export_checks() -> list[Any]:
    """The `disabled_checks` that `jax.export.export` needs for a program with jsparse's kernels.

    JAX asks for consent to custom calls whose stability it does not know. Ours carry what it takes
    to build their kernels again, in another process and for another machine.
    """
    return [jax.export.DisabledSafetyCheck.custom_call(target) for target in _PLATFORMS]

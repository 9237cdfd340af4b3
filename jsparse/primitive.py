# SPDX-License-Identifier: Apache-2.0
"""The two primitives: what they take and return, and how they are lowered.

`einsum_p` computes the values of an assignment: a dense array, or values at a given pattern.
`assemble_p` computes index arrays, which have no derivative.  Operands travel flat, in the order of
`lower.buffers`; `extents` are those of `assignment.vars`.

`batch` is a tuple of axes, outermost first, each a mask that says which flat operands have that
axis in front: the kernel runs once for each element, on shifted base pointers.  All results have
every batch axis.  Derivatives and batching are in `rules`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir, xla
from jax.sharding import NamedSharding, PartitionSpec

from jsparse import config, direct, fallback, ffi, partition, pipeline, reference
from jsparse.codegen import build
from jsparse.ir.index import PATTERN, Assignment
from jsparse.lower import assemble, draft, fit
from jsparse.operands import (
    Arrays,
    Batch,
    batch_shape,
    check_shapes,
    output_shape,
    sizes_of,
    stored,
    unbatched,
)
from jsparse.schedule import auto
from jsparse.schedule.directives import Reorder, Schedule

einsum_p = Primitive("jsparse_einsum")
assemble_p = Primitive("jsparse_assemble")
assemble_p.multiple_results = True
Observer = Callable[[str, Assignment, pipeline.Spec, tuple[auto.Candidate, ...]], None]
_observer: ContextVar[Observer | None] = ContextVar("jsparse_observer", default=None)


def observe(
    kind: str,
    a: Assignment,
    spec: Callable[[], pipeline.Spec],
    candidates: tuple[auto.Candidate, ...],
) -> None:
    observer = _observer.get()
    if observer is not None:
        observer(kind, a, spec(), candidates)


def set_observer(observer: Observer | None) -> Observer | None:
    """Have `observer` told of every kernel planned in this context (`js.explain`); returns the
    one before.
    """
    before = _observer.get()
    _observer.set(observer)
    return before


# ------------------------------------------------------------------ result types
def _mesh(x: Any) -> Any:
    """The mesh of an operand's type, or None."""
    mesh = getattr(getattr(x, "sharding", None), "mesh", None)
    return None if mesh is None or mesh.empty else mesh


def result_types(
    spec: pipeline.Spec, shapes: list[tuple[Any, ...]], dtype: str, operands: Arrays
) -> list[ShapedArray]:
    """The types of results: inside `shard_map` they vary over the axes that the operands vary over;
    on an explicitly sharded mesh they are sharded where `partition.rule` lets them.
    """
    mesh = next((m for m in map(_mesh, operands) if m is not None), None)
    if mesh is None:
        return [ShapedArray(shape, jnp.dtype(dtype)) for shape in shapes]
    cuts: list[list[Any]] = [[None] * len(shape) for shape in shapes]
    given = [x.sharding.spec for x in operands]
    if any(name is not None for cut in given for name in cut):
        rule = partition.rule(spec, [x.shape for x in operands], shapes)
        cuts = partition.propagated(rule, given)
    varying = [x.mat for x in operands if not x.mat.empty]
    options = {"manual_axis_type": varying[0]} if varying else {}
    return [
        ShapedArray(
            shape,
            jnp.dtype(dtype),
            sharding=NamedSharding(mesh, PartitionSpec(*cut)),
            **options,
        )
        for shape, cut in zip(shapes, cuts, strict=True)
    ]


def vary_together(operands: Arrays) -> list[Any]:
    """Operands of one call inside `shard_map`, varying over the same axes: what is replicated is
    cast, so that its cotangent is summed over the devices.
    """
    axes = [getattr(jax.typeof(x), "mat", None) for x in operands]
    union = frozenset().union(*(a.varying for a in axes if a is not None))
    if not union:
        return list(operands)
    out = []
    for x, a in zip(operands, axes, strict=True):
        missing = union - a.varying if a is not None else frozenset()
        out.append(jax.lax.pcast(x, tuple(sorted(missing)), to="varying") if missing else x)
    return out


# ------------------------------------------------------------------ lowerings
_warned = False


def use_kernel() -> bool:
    """Whether to lower to a generated kernel; warns once if there is no compiler."""
    global _warned
    backend = config.get().backend
    if backend == "reference":
        return False
    if build.compiler() is not None or backend == "kernel":
        return True
    if not _warned:
        _warned = True
        warnings.warn(f"jsparse runs on its slow pure-JAX path: {build.NO_COMPILER}", stacklevel=2)
    return False


def _lower_spec(ctx: Any, operands: Arrays, spec: pipeline.Spec, extents: tuple[int, ...]) -> Any:
    """The custom call of a kernel, whose compilation starts now, in the background."""
    key = build.submit(pipeline.text(spec))
    numbers = tuple(int(e) if isinstance(e, (int, np.integer)) else -1 for e in extents)
    rule = _sharding_rule(ctx, spec)
    return ffi.lower_cpu(ctx, *operands, key=key, recipe=spec.recipe(), extents=numbers, rule=rule)


def _sharding_rule(ctx: Any, spec: pipeline.Spec) -> str:
    """How XLA may cut the call across devices; nothing for one device or symbolic shapes."""
    shapes = [[x.shape for x in avals] for avals in (ctx.avals_in, ctx.avals_out)]
    known = all(isinstance(n, int) for group in shapes for shape in group for n in shape)
    if not known or getattr(ctx.module_context.axis_context, "num_devices", 2) == 1:
        return ""
    return partition.rule(spec, *shapes).attribute()


def _einsum_reference(
    *flat: Any, assignment: Assignment, schedule: Schedule, extents: tuple[int, ...], batch: Batch
) -> Any:
    def one(*flat: Any) -> Any:
        return reference.einsum(assignment, extents, flat)

    return mapped(one, batch)(*flat)


def mapped(f: Callable[..., Any], batch: Batch) -> Callable[..., Any]:
    """`f` over every batch axis, outermost first."""
    for mask in reversed(batch):
        f = jax.vmap(f, [0 if m else None for m in mask])
    return f


def _einsum_cpu(
    ctx: Any,
    *operands: Any,
    assignment: Assignment,
    schedule: Schedule,
    extents: tuple[int, ...],
    batch: Batch,
) -> Any:
    if not use_kernel():
        params = {
            "assignment": assignment,
            "schedule": schedule,
            "extents": extents,
            "batch": batch,
        }
        return _einsum_fallback(ctx, *operands, **params)
    if not _readable(assignment, extents):
        params = {"assignment": assignment, "schedule": schedule}
        return _einsum_default(ctx, *operands, **params, extents=extents, batch=batch)
    spec = pipeline.Spec(assignment.plain(), schedule, batch=batch)
    return _lower_spec(ctx, operands, spec, extents)


def _readable(a: Assignment, extents: tuple[int, ...]) -> bool:
    """Whether a kernel can learn every extent: symbolic ones from the shapes of dense operands."""
    dense = {v for x in a.operands if x.format.is_dense and x.dtype != PATTERN for v in x.vars}
    sizes = zip(a.vars, extents, strict=True)
    return all(v in dense or isinstance(size, (int, np.integer)) for v, size in sizes)


def _einsum_abstract(
    *flat: Any, assignment: Assignment, schedule: Schedule, extents: tuple[int, ...], batch: Batch
) -> Any:
    one = unbatched(batch, flat)
    check_shapes(assignment, extents, one)
    shape = (*batch_shape(batch, flat), *output_shape(assignment, extents, one))
    spec = pipeline.Spec(assignment, schedule, batch=batch)
    return result_types(spec, [shape], assignment.output.dtype, flat)[0]


def _einsum_checked(
    *flat: Any, assignment: Assignment, schedule: Schedule, extents: tuple[int, ...], batch: Batch
) -> Any:
    return mapped(lambda *one: fallback.einsum(assignment, extents, one), batch)(*flat)


def _einsum_kernel(*flat: Any, **params: Any) -> direct.Known:
    """The kernel that does it, and the types of its results."""
    a = params["assignment"].plain()
    spec = pipeline.Spec(a, params["schedule"], batch=params["batch"])
    return spec, [_einsum_abstract(*flat, **params)]


def _now(primitive: Primitive, kernel: Callable[..., direct.Known]) -> Callable[..., Any]:
    """The primitive outside of a trace: by its kernel, or by a program.  Neither is to keep a
    pattern alive.
    """

    def run(*flat: Any, **params: Any) -> Any:
        params["assignment"] = params["assignment"].plain()
        out = direct.run(flat, params, partial(kernel, **params)) if use_kernel() else None
        if out is None:
            return xla.apply_primitive(primitive, *flat, **params)
        return out if primitive.multiple_results else out[0]

    return run


_einsum_default = mlir.lower_fun(_einsum_reference, multiple_results=False)
_einsum_fallback = mlir.lower_fun(_einsum_checked, multiple_results=False)
einsum_p.def_abstract_eval(_einsum_abstract)
einsum_p.def_impl(_now(einsum_p, _einsum_kernel))
mlir.register_lowering(einsum_p, _einsum_default)
mlir.register_lowering(einsum_p, _einsum_cpu, platform="cpu")


def _assemble_abstract(
    *flat: Any,
    assignment: Assignment,
    work: str,
    count: bool,
    extents: tuple[int, ...],
    capacity: tuple[int, ...],
    batch: Batch,
) -> Any:
    one = unbatched(batch, flat)
    check_shapes(assemble.bare(assignment), extents, one)
    observe(
        f"pattern, {work}{', count' if count else ''}",
        assignment,
        lambda: _assemble_spec(assignment, work, count, extents, one),
        (),
    )
    lead = batch_shape(batch, flat)
    spec = pipeline.Spec(assignment, (), work, count, batch)
    if count:
        return result_types(spec, [(*lead, assemble.count_size(assignment, work))], "int64", flat)
    if work == "fit":
        shape = (*lead, fit.places(assignment, one[-2].shape[0] - 1))
        return result_types(spec, [shape] * 2, assignment.output.format.index, flat)
    extent = dict(zip(assignment.vars, extents, strict=True))
    room = assemble.room(assignment, capacity)
    out: list[int] = []
    parents = 1
    for n, (level, v) in enumerate(
        zip(assignment.output.format.levels, assignment.output.level_vars, strict=True)
    ):
        nse = room.get(n, 0)
        out += [level.array_size(role, parents, nse) for role in level.arrays]
        parents = level.positions(parents, extent[v], nse)
    if work == "sort":
        access = assignment.operands[0]
        source = stored(access, one)
        for v in access.level_vars[access.format.ndim - access.format.dense_tail :]:
            source *= extent[v]
        out += [source, capacity[-1] + 1]
    index = assignment.output.format.index
    types = result_types(spec, [(*lead, size) for size in out], index, flat)
    if assignment.output.dtype != PATTERN:  # only where nothing is traced or sharded
        types.append(ShapedArray((capacity[-1],), jnp.dtype(assignment.output.dtype)))
    if work == "draft":
        types.append(ShapedArray((draft.TABLE,), jnp.dtype("int64")))
    return types


def _assemble_spec(
    assignment: Assignment,
    work: str,
    count: bool,
    extents: tuple[int, ...],
    flat: Arrays,
    batch: Batch = (),
) -> pipeline.Spec:
    schedule: Schedule = (Reorder(assignment.vars),)
    if work in ("merge", "bound", "draft"):
        bare = assemble.bare(assignment)
        schedule = auto.pattern_plan(bare, extents, sizes_of(bare, flat))
    return pipeline.Spec(assignment, schedule, work, count, batch)


def _assemble_kernel(*flat: Any, capacity: tuple[int, ...], **what: Any) -> direct.Known:
    """The kernel that does it, and the types of its results."""
    types = _assemble_abstract(*flat, capacity=capacity, **what)
    return _assemble_spec(**what | {"flat": unbatched(what["batch"], flat)}), types


def _assemble_cpu(ctx: Any, *operands: Any, **params: Any) -> Any:
    if not use_kernel():
        return _assemble_fallback(ctx, *operands, **params)
    a, extents, batch = params["assignment"], params["extents"], params["batch"]
    one = unbatched(batch, ctx.avals_in)
    spec = _assemble_spec(a, params["work"], params["count"], extents, one, batch)
    return _lower_spec(ctx, operands, spec, extents)


def _assemble_by(assemble: Callable[..., Any]) -> Callable[..., Any]:
    """The primitive in JAX: by `reference`, or by `fallback`, which checks."""

    def program(
        *flat: Any,
        assignment: Assignment,
        work: str,
        count: bool,
        extents: tuple[int, ...],
        capacity: tuple[int, ...],
        batch: Batch,
    ) -> Any:
        def one(*flat: Any) -> Any:
            return assemble(assignment, work, count, extents, capacity, flat)

        return mapped(one, batch)(*flat)

    return program


_assemble_default = mlir.lower_fun(_assemble_by(reference.assemble), multiple_results=True)
_assemble_fallback = mlir.lower_fun(_assemble_by(fallback.assemble), multiple_results=True)
assemble_p.def_abstract_eval(_assemble_abstract)
assemble_p.def_impl(_now(assemble_p, _assemble_kernel))
mlir.register_lowering(assemble_p, _assemble_default)
mlir.register_lowering(assemble_p, _assemble_cpu, platform="cpu")

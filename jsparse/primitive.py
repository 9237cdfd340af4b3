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

import math
import warnings
from collections.abc import Callable, Sequence
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

from jsparse import config, fallback, ffi, partition, pipeline, reference
from jsparse.codegen import build
from jsparse.errors import StructureError
from jsparse.format import dtype_name
from jsparse.ir.index import PATTERN, Access, Assignment
from jsparse.lower import assemble, draft
from jsparse.schedule import auto
from jsparse.schedule.directives import Reorder, Schedule

einsum_p = Primitive("jsparse_einsum")
assemble_p = Primitive("jsparse_assemble")
assemble_p.multiple_results = True

Arrays = Sequence[Any]
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


# ------------------------------------------------------------------- operands
def split(a: Assignment, flat: Arrays) -> tuple[list[list[Any]], list[Any]]:
    """Flat operands by access, and the index arrays of the output's own pattern."""
    parts: list[list[Any]] = []
    at = 0
    for access in a.operands:
        n = len(access.format.array_names()) + (access.dtype != PATTERN)
        parts.append(list(flat[at : at + n]))
        at += n
    return parts, list(flat[at:])


def value_slots(a: Assignment) -> list[int | None]:
    """For each operand, where its values are among the flat operands."""
    slots: list[int | None] = []
    at = 0
    for access in a.operands:
        slots.append(at if access.dtype != PATTERN else None)
        at += len(access.format.array_names()) + (access.dtype != PATTERN)
    return slots


def stored(access: Access, arrays: Arrays) -> int:
    """The capacity of a sparse access, from the shapes of its arrays; 0 if it is dense."""
    names = access.format.array_names()
    if not names:
        return 0
    first = 0 if access.dtype == PATTERN else 1
    leaf = max(n for n, (_, role) in enumerate(names) if role == "crd")
    return int(arrays[first + leaf].shape[0])


Batch = tuple[tuple[bool, ...], ...]  # for each axis, outermost first: which flat operands have it


def depth(batch: Batch, n: int) -> int:
    """How many batch axes flat operand n has in front."""
    return sum(mask[n] for mask in batch)


def unbatched(batch: Batch, flat: Arrays) -> list[Any]:
    """Shapes and dtypes of one element of the batch."""
    return [
        ShapedArray(x.shape[depth(batch, n) :], x.dtype) if depth(batch, n) else x
        for n, x in enumerate(flat)
    ]


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


def batch_shape(batch: Batch, flat: Arrays) -> tuple[int, ...]:
    """Extents of the batch axes."""
    out = []
    for axis, mask in enumerate(batch):
        n = mask.index(True)
        out.append(flat[n].shape[depth(batch[:axis], n)])
    return tuple(out)


def sizes_of(a: Assignment, flat: Arrays) -> tuple[int, ...]:
    """Stored entries of each operand, then of the output's own pattern: what the scheduler goes
    by.
    """
    parts, own = split(a, flat)
    out = [stored(access, arrays) for access, arrays in zip(a.operands, parts, strict=True)]
    if a.pattern is not None:
        out.append(stored(a.pattern, own))
    return tuple(out)


def output_shape(a: Assignment, extents: tuple[int, ...], flat: Arrays) -> tuple[int, ...]:
    """Shape of the values that `einsum_p` returns."""
    extent = dict(zip(a.vars, extents, strict=True))
    names = a.output.level_vars
    if not a.sampled:
        return tuple(extent[v] for v in names)
    parts, own = split(a, flat)
    if a.shares is not None:
        nse = stored(a.operands[a.shares], parts[a.shares])
    else:
        assert a.pattern is not None
        nse = stored(a.pattern, own)
    tail = a.output.format.dense_tail
    return (nse, *(extent[v] for v in names[len(names) - tail :]))


def check_shapes(a: Assignment, extents: tuple[int, ...], flat: Arrays) -> None:
    """That array lengths fit the extents: together with the checks at run time nothing is read
    out of bounds.
    """
    extent = dict(zip(a.vars, extents, strict=True))
    parts, own = split(a, flat)
    accesses = list(zip(a.operands, parts, strict=True))
    if a.pattern is not None:
        accesses.append((a.pattern, own))
    for access, arrays in accesses:
        check_access(access, extent, arrays)


def check_access(access: Access, extent: dict[str, int], arrays: Arrays) -> None:
    """That a tensor's arrays have the lengths and dtypes that its format asks for."""
    what = f"operand {access.name} ({access.format})"
    arrays = list(arrays)
    values = arrays.pop(0) if access.dtype != PATTERN else None
    names = access.format.array_names()
    by_name = dict(zip(names, arrays, strict=True))
    parents = 1
    for n, (level, v) in enumerate(zip(access.format.levels, access.level_vars, strict=True)):
        nse = by_name[n, "crd"].shape[0] if (n, "crd") in by_name else 0
        if level.fixed not in (None, extent[v]):
            raise StructureError(
                f"{what}, level {n}: extent {extent[v]}, expected {level.fixed} as in the format"
            )
        for role in level.arrays:
            want, got = level.array_size(role, parents, nse), by_name[n, role]
            if got.shape != (want,) or dtype_name(got.dtype) != access.format.index:
                raise StructureError(
                    f"{what}, level {n}: {role} is {got.dtype}{list(got.shape)}, expected "
                    f"{access.format.index}[{want}]; the index arrays do not fit shape and format"
                )
        parents = level.positions(parents, extent[v], nse)
    if values is None:
        return
    known = all(isinstance(s, int) for s in values.shape)
    if dtype_name(values.dtype) != access.dtype or (known and math.prod(values.shape) != parents):
        raise StructureError(
            f"{what}: values are {values.dtype}{list(values.shape)}, expected {access.dtype} "
            f"and {parents} of them"
        )


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


_einsum_default = mlir.lower_fun(_einsum_reference, multiple_results=False)
_einsum_fallback = mlir.lower_fun(_einsum_checked, multiple_results=False)
einsum_p.def_abstract_eval(_einsum_abstract)
einsum_p.def_impl(partial(xla.apply_primitive, einsum_p))
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
    order: tuple[str, ...] = assignment.vars
    if work in ("merge", "bound", "draft"):
        bare = assemble.bare(assignment)
        order = auto.pattern_order(bare, extents, sizes_of(bare, flat))
    return pipeline.Spec(assignment, (Reorder(order),), work, count, batch)


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
assemble_p.def_impl(partial(xla.apply_primitive, assemble_p))
mlir.register_lowering(assemble_p, _assemble_default)
mlir.register_lowering(assemble_p, _assemble_cpu, platform="cpu")

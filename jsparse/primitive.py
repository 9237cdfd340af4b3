# SPDX-License-Identifier: Apache-2.0
"""The two primitives, and their rules.

`einsum_p` computes the values of an assignment: a dense array, or values at a given pattern.  It is closed under
differentiation: its derivative in an operand is the same assignment with that operand's tangent, and its transpose is the
assignment with output and operand exchanged, sampled at the operand's pattern if that is sparse.  `assemble_p` computes
index arrays, which have no derivative.

Operands travel flat, in the order of `lower.buffers`; `extents` are those of `assignment.vars`.

vmap over values adds an index variable: a batched dense operand gets one more mode, values over a shared pattern one more
dense level below the leaf.  vmap over index arrays adds an axis to `batch`: a mask that says which operands have that axis
in front; the kernel then runs once for each element, on shifted base pointers.  Results have every batch axis.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla

from jsparse import config, ffi, pipeline, reference
from jsparse.codegen import build
from jsparse.errors import InternalError
from jsparse.format import Format, parse_format
from jsparse.ir.index import PATTERN, Access, Assignment, Term, operand_name
from jsparse.levels import Dense
from jsparse.lower import assemble
from jsparse.schedule import auto
from jsparse.schedule.directives import Reorder, Schedule

einsum_p = Primitive("jsparse_einsum")
assemble_p = Primitive("jsparse_assemble")
assemble_p.multiple_results = True

Arrays = Sequence[Any]
Observer = Callable[[str, Assignment, pipeline.Spec, tuple[auto.Candidate, ...]], None]
_observer: ContextVar[Observer | None] = ContextVar("jsparse_observer", default=None)


def _observe(
    kind: str, a: Assignment, spec: Callable[[], pipeline.Spec], candidates: tuple[auto.Candidate, ...]
) -> None:
    observer = _observer.get()
    if observer is not None:
        observer(kind, a, spec(), candidates)


def set_observer(observer: Observer | None) -> Observer | None:
    """Have `observer` told of every kernel planned in this context (`js.explain`); returns the one before."""
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
        ShapedArray(x.shape[depth(batch, n) :], x.dtype) if depth(batch, n) else x for n, x in enumerate(flat)
    ]


def batch_shape(batch: Batch, flat: Arrays) -> tuple[int, ...]:
    """Extents of the batch axes."""
    out = []
    for axis, mask in enumerate(batch):
        n = mask.index(True)
        out.append(flat[n].shape[depth(batch[:axis], n)])
    return tuple(out)


def sizes_of(a: Assignment, flat: Arrays) -> tuple[int, ...]:
    """Stored entries of each operand, then of the output's own pattern: what the scheduler goes by."""
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
    """That array lengths fit the extents: together with the checks at run time nothing is read out of bounds."""
    extent = dict(zip(a.vars, extents, strict=True))
    parts, own = split(a, flat)
    accesses = list(zip(a.operands, parts, strict=True))
    if a.pattern is not None:
        accesses.append((a.pattern, own))
    for access, arrays in accesses:
        check_access(access, extent, arrays)


def check_access(access: Access, extent: dict[str, int], arrays: Arrays) -> None:
    arrays = list(arrays)
    values = arrays.pop(0) if access.dtype != PATTERN else None
    names = access.format.array_names()
    by_name = dict(zip(names, arrays, strict=True))
    parents = 1
    for n, (level, v) in enumerate(zip(access.format.levels, access.level_vars, strict=True)):
        nse = by_name[n, "crd"].shape[0] if (n, "crd") in by_name else 0
        for role in level.arrays:
            want, got = level.array_size(role, parents, nse), by_name[n, role].shape
            if got != (want,):
                raise InternalError(f"{access}: level {n} {role} has shape {got}, expected ({want},)")
        parents = level.positions(parents, extent[v], nse)
    if values is not None:
        size = int(np.prod(values.shape)) if all(isinstance(s, int) for s in values.shape) else parents
        if size != parents:
            raise InternalError(f"{access}: values of shape {values.shape}, expected {parents} positions")


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
    return ffi.lower_cpu(ctx, *operands, key=key, recipe=spec.recipe(), extents=numbers)


def _einsum_reference(
    *flat: Any, assignment: Assignment, schedule: Schedule, extents: tuple[int, ...], batch: Batch
) -> Any:
    def one(*flat: Any) -> Any:
        return reference.einsum(assignment, extents, flat)

    return _mapped(one, batch)(*flat)


def _mapped(f: Callable[..., Any], batch: Batch) -> Callable[..., Any]:
    """`f` over every batch axis, outermost first."""
    for mask in reversed(batch):
        f = jax.vmap(f, [0 if m else None for m in mask])
    return f


def _einsum_cpu(
    ctx: Any, *operands: Any, assignment: Assignment, schedule: Schedule, extents: tuple[int, ...], batch: Batch
) -> Any:
    if not use_kernel():
        params = {"assignment": assignment, "schedule": schedule, "extents": extents, "batch": batch}
        return _einsum_default(ctx, *operands, **params)
    return _lower_spec(ctx, operands, pipeline.Spec(assignment, schedule, batch=batch), extents)


def _einsum_abstract(
    *flat: Any, assignment: Assignment, schedule: Schedule, extents: tuple[int, ...], batch: Batch
) -> Any:
    one = unbatched(batch, flat)
    check_shapes(assignment, extents, one)
    shape = (*batch_shape(batch, flat), *output_shape(assignment, extents, one))
    return ShapedArray(shape, jnp.dtype(assignment.output.dtype))


_einsum_default = mlir.lower_fun(_einsum_reference, multiple_results=False)
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
    check_shapes(assignment, extents, one)
    _observe(f"pattern, {work}", assignment, lambda: _assemble_spec(assignment, work, count, extents, one), ())
    lead = batch_shape(batch, flat)
    groups = assemble.groups(assignment)
    if count:
        return [ShapedArray((*lead, len(groups)), jnp.dtype("int64"))]
    extent = dict(zip(assignment.vars, extents, strict=True))
    room = {level: c for g, c in zip(groups, capacity, strict=True) for level in range(g.first, g.last + 1)}
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
    index = jnp.dtype(assignment.output.format.index)
    return [ShapedArray((*lead, size), index) for size in out]


def _assemble_spec(
    assignment: Assignment, work: str, count: bool, extents: tuple[int, ...], flat: Arrays, batch: Batch = ()
) -> pipeline.Spec:
    order: tuple[str, ...] = assignment.vars
    if work == "merge":
        order = auto.pattern_order(assignment, extents, sizes_of(assignment, flat))
    return pipeline.Spec(assignment, (Reorder(order),), work, count, batch)


def _assemble_cpu(ctx: Any, *operands: Any, **params: Any) -> Any:
    if not use_kernel():
        return _assemble_default(ctx, *operands, **params)
    a, extents, batch = params["assignment"], params["extents"], params["batch"]
    one = unbatched(batch, ctx.avals_in)
    spec = _assemble_spec(a, params["work"], params["count"], extents, one, batch)
    return _lower_spec(ctx, operands, spec, extents)


def _assemble_reference(
    *flat: Any,
    assignment: Assignment,
    work: str,
    count: bool,
    extents: tuple[int, ...],
    capacity: tuple[int, ...],
    batch: Batch,
) -> Any:
    def one(*flat: Any) -> Any:
        return reference.assemble(assignment, work, count, extents, capacity, flat)

    return _mapped(one, batch)(*flat)


_assemble_default = mlir.lower_fun(_assemble_reference, multiple_results=True)
assemble_p.def_abstract_eval(_assemble_abstract)
assemble_p.def_impl(partial(xla.apply_primitive, assemble_p))
mlir.register_lowering(assemble_p, _assemble_default)
mlir.register_lowering(assemble_p, _assemble_cpu, platform="cpu")


# ---------------------------------------------------------------- contraction
def contract(
    a: Assignment, extents: dict[str, int], flat: Arrays, schedule: Schedule | None = None, batch: Batch = ()
) -> Any:
    """Values of an assignment: plans it, lays dense operands out as planned, and binds `einsum_p`.

    Dense operands and a dense result have their modes in order, behind their batch axes; a product of dense operands
    alone is left to XLA.
    """
    if all(x.format.is_dense for x in a.operands) and not a.sampled:
        return _mapped(lambda *flat: _dense(a, extents, flat), batch)(*flat)
    numbers = tuple(extents[v] for v in a.vars)
    candidates: tuple[auto.Candidate, ...] = ()
    if schedule is None:
        sizes = tuple(int(n) if isinstance(n, (int, np.integer)) else 64 for n in numbers)
        plan = auto.plan(a, sizes, sizes_of(a, unbatched(batch, flat)))
        planned, schedule, candidates = plan.assignment, plan.schedule, plan.candidates
    else:
        planned = a
    final = schedule
    _observe("values", planned, lambda: pipeline.Spec(planned, final, batch=batch), candidates)
    operands = list(flat)
    for access, slot in zip(planned.operands, value_slots(planned), strict=True):
        order = access.format.order
        if access.format.is_dense and slot is not None and order != tuple(range(len(order))):
            operands[slot] = _transposed(operands[slot], order, depth(batch, slot))
    numbers = tuple(extents[v] for v in planned.vars)
    y = einsum_p.bind(*operands, assignment=planned, schedule=schedule, extents=numbers, batch=batch)
    order = planned.output.format.order
    if not planned.sampled and order != tuple(range(len(order))):
        y = _transposed(y, tuple(order.index(m) for m in range(len(order))), len(batch))
    return y


def _transposed(x: Any, axes: tuple[int, ...], lead: int) -> Any:
    """`x` with the axes behind the first `lead` permuted."""
    return jnp.transpose(x, (*range(lead), *(lead + m for m in axes)))


def _dense(a: Assignment, extents: dict[str, int], flat: Arrays) -> Any:
    """A sum of products of dense operands, by `jnp.einsum`; a variable that only the output has broadcasts."""
    letters = {v: chr(ord("a") + n) for n, v in enumerate(a.vars)}
    total = None
    for term in a.terms:
        inputs = ",".join("".join(letters[v] for v in a.operands[n].vars) for n in term.factors)
        output = "".join(letters[v] for v in a.output.vars)
        used = {v for n in term.factors for v in a.operands[n].vars}
        extra = [v for v in a.output.vars if v not in used]
        ones = [jnp.ones([extents[v] for v in extra], a.output.dtype)] if extra else []
        inputs += "," + "".join(letters[v] for v in extra) if extra else ""
        y = jnp.einsum(f"{inputs}->{output}", *[flat[n] for n in term.factors], *ones)
        y = -y if term.sign < 0 else y
        total = y if total is None else total + y
    return total


# ------------------------------------------------------------ differentiation
def _einsum_jvp(primals: Arrays, tangents: Arrays, **params: Any) -> tuple[Any, Any]:
    a: Assignment = params["assignment"]
    y = einsum_p.bind(*primals, **params)
    total = None
    for n, slot in enumerate(value_slots(a)):
        if slot is not None and type(tangents[slot]) is not ad.Zero:
            t = _linear(a, params, list(primals), n, slot, tangents[slot])
            total = t if total is None else ad.add_jaxvals(total, t)
    return y, ad.Zero.from_primal_value(y) if total is None else total


def _linear(a: Assignment, params: dict[str, Any], flat: list[Any], n: int, slot: int, values: Any) -> Any:
    """The part of the assignment that is linear in operand n, at other values for it."""
    flat[slot] = values
    if len(a.terms) == 1:
        return einsum_p.bind(*flat, **params)
    term = next(t for t in a.terms if n in t.factors)
    operands = tuple(a.operands[m] for m in term.factors)
    b = Assignment(a.output, operands, (Term(tuple(range(len(operands))), term.sign),))
    extent = dict(zip(a.vars, params["extents"], strict=True))
    slots = [k for m in term.factors for k in _slots(a, m)] + _own_slots(a, len(flat))
    return bind_planned(b, extent, [flat[k] for k in slots], _select(params["batch"], slots))


def _slots(a: Assignment, n: int) -> list[int]:
    """Where operand n's arrays are among the flat operands."""
    at = 0
    for access in a.operands[:n]:
        at += len(access.format.array_names()) + (access.dtype != PATTERN)
    return list(range(at, at + len(a.operands[n].format.array_names()) + (a.operands[n].dtype != PATTERN)))


def _own_slots(a: Assignment, total: int) -> list[int]:
    """Where the index arrays of the output's own pattern are."""
    count = len(a.pattern.format.array_names()) if a.pattern is not None else 0
    return list(range(total - count, total))


def _select(batch: Batch, slots: list[int]) -> Batch:
    return tuple(tuple(mask[k] for k in slots) for mask in batch)


def bind_planned(a: Assignment, extents: dict[str, int], flat: Arrays, batch: Batch = ()) -> Any:
    """`contract` of an assignment whose dense tensors are in storage order: operands and result."""
    operands = list(flat)
    plain = []
    for access, slot in zip(a.operands, value_slots(a), strict=True):
        order = access.format.order
        if access.format.is_dense and slot is not None and order != tuple(range(len(order))):
            back = tuple(order.index(m) for m in range(len(order)))
            operands[slot] = _transposed(operands[slot], back, depth(batch, slot))
            access = replace(access, format=parse_format("dense", len(order)))
        plain.append(access)
    output, order = a.output, a.output.format.order
    moved = output.format.is_dense and order != tuple(range(len(order)))
    if moved:
        output = replace(output, format=parse_format("dense", len(order)))
    y = contract(replace(a, output=output, operands=tuple(plain)), extents, operands, batch=_used(batch))
    if any(not any(mask) for mask in batch):
        raise InternalError("a batch axis that no operand has")
    return _transposed(y, order, len(batch)) if moved else y


def _used(batch: Batch) -> Batch:
    return tuple(mask for mask in batch if any(mask))


def _einsum_transpose(ct: Any, *flat: Any, **params: Any) -> list[Any]:
    a: Assignment = params["assignment"]
    out: list[Any] = [None] * len(flat)
    if type(ct) is ad.Zero:
        return out
    extent = dict(zip(a.vars, params["extents"], strict=True))
    for n, slot in enumerate(value_slots(a)):
        if slot is not None and ad.is_undefined_primal(flat[slot]):
            out[slot] = _cotangent(a, extent, list(flat), n, ct, params["batch"])
    return out


def _cotangent(
    a: Assignment, extent: dict[str, int], flat: list[Any], n: int, ct: Any, batch: Batch
) -> Any:
    """Output and operand n exchanged: the cotangent of its values, sampled at its pattern if it is sparse."""
    term = next(t for t in a.terms if n in t.factors)
    target = a.operands[n]
    if a.shares is not None:
        source, slots = a.operands[a.shares], _slots(a, a.shares)[1:]
        seed_format = source.format.transpose(tuple(source.vars.index(v) for v in a.output.vars))
        trusted = source.trusted
    else:
        seed_format, slots, trusted = a.output.format, _own_slots(a, len(flat)), a.output.trusted
    others = [m for m in term.factors if m != n]
    seed = Access("ct", a.output.vars, seed_format, a.output.dtype, trusted)
    accesses = [seed, *(a.operands[m] for m in others)]
    slots = slots + [k for m in others for k in _slots(a, m)]
    same = a.shares == n and set(target.vars) == set(a.output.vars)
    if not target.format.is_dense and not same:
        slots += _slots(a, n)[1:]
    shares = 0 if same and not target.format.is_dense else None
    renamed = tuple(replace(x, name=operand_name(k)) for k, x in enumerate(accesses))
    output = replace(target, name="Y", dtype=a.output.dtype)
    b = Assignment(output, renamed, (Term(tuple(range(len(renamed))), term.sign),), shares)
    masks = tuple((True, *mask) for mask in _select(batch, slots))
    y = bind_planned(b, extent, [ct, *(flat[k] for k in slots)], masks)
    own = value_slots(a)[n]
    summed = tuple(axis for axis, mask in enumerate(batch) if not mask[own])  # type: ignore[index]
    return y.sum(summed).astype(y.dtype) if summed else y


ad.primitive_jvps[einsum_p] = _einsum_jvp
ad.primitive_transposes[einsum_p] = _einsum_transpose


def _assemble_jvp(primals: Arrays, tangents: Arrays, **params: Any) -> tuple[Any, Any]:
    out = assemble_p.bind(*primals, **params)
    return out, [ad.Zero.from_primal_value(y) for y in out]


ad.primitive_jvps[assemble_p] = _assemble_jvp


# -------------------------------------------------------------------- batching
def _einsum_batch(flat: Arrays, dims: Sequence[Any], **params: Any) -> tuple[Any, int]:
    a: Assignment = params["assignment"]
    values = {slot for slot in value_slots(a) if slot is not None}
    if any(d is not None and k not in values for k, d in enumerate(dims)):
        operands, mask = _front(flat, dims)
        return einsum_p.bind(*operands, **{**params, "batch": (mask, *params["batch"])}), 0
    return _batch_values(a, list(flat), list(dims), params)


def _front(flat: Arrays, dims: Sequence[Any]) -> tuple[list[Any], tuple[bool, ...]]:
    """Batched operands with that axis in front, and which they are."""
    operands = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(flat, dims, strict=True)]
    return operands, tuple(d is not None for d in dims)


def _batch_values(a: Assignment, flat: list[Any], dims: list[Any], params: dict[str, Any]) -> tuple[Any, int]:
    """A fresh variable on what is batched: the first mode of dense tensors, a dense level below the leaf of sparse."""
    batch: Batch = params["batch"]
    size = next(x.shape[d] for x, d in zip(flat, dims, strict=True) if d is not None)
    b = next(f"b{k}" for k in range(len(a.vars) + 1) if f"b{k}" not in a.vars)
    operands = []
    for n, (access, slot) in enumerate(zip(a.operands, value_slots(a), strict=True)):
        if slot is None:
            operands.append(access)
            continue
        lead = depth(batch, slot)
        if dims[slot] is None and n == a.shares:  # the output has as many values: it shares the pattern, so it must fit
            flat[slot], dims[slot] = jnp.broadcast_to(flat[slot][..., None], (*flat[slot].shape, size)), -1
        if dims[slot] is None:
            operands.append(access)
        elif access.format.is_dense:
            flat[slot] = jnp.moveaxis(flat[slot], dims[slot], lead)
            operands.append(replace(access, vars=(b, *access.vars), format=_lead(access.format)))
        else:
            flat[slot] = jnp.moveaxis(flat[slot], dims[slot], -1)
            operands.append(replace(access, vars=(*access.vars, b), format=_tail(access.format)))
    out = a.output
    if a.sampled:
        output = replace(out, vars=(*out.vars, b), format=_tail(out.format))
    else:
        output = replace(out, vars=(b, *out.vars), format=_lead(out.format))
    new = Assignment(output, tuple(operands), a.terms, a.shares)
    extent = {**dict(zip(a.vars, params["extents"], strict=True)), b: size}
    y = bind_planned(new, extent, flat, batch)
    return (y, y.ndim - 1) if a.sampled else (y, len(batch))


def _lead(f: Format) -> Format:
    """A dense format with one more mode in front."""
    return Format((Dense(), *f.levels), (0, *(m + 1 for m in f.order)), f.index)


def _tail(f: Format) -> Format:
    """A format with one more dense level below the leaf, storing a new last mode."""
    return Format((*f.levels, Dense()), (*f.order, f.ndim), f.index)


def _assemble_batch(flat: Arrays, dims: Sequence[Any], **params: Any) -> tuple[list[Any], list[int]]:
    operands, mask = _front(flat, dims)
    out = assemble_p.bind(*operands, **{**params, "batch": (mask, *params["batch"])})
    return out, [0] * len(out)


batching.primitive_batchers[einsum_p] = _einsum_batch
batching.primitive_batchers[assemble_p] = _assemble_batch

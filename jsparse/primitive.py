# SPDX-License-Identifier: Apache-2.0
"""The two primitives, and their rules.

`einsum_p` computes the values of an assignment: a dense array, or values at a given pattern.  It is closed under
differentiation: its derivative in an operand is the same assignment with that operand's tangent, and its transpose is the
assignment with output and operand exchanged, sampled at the operand's pattern if that is sparse.  `assemble_p` computes
index arrays, which have no derivative.

Operands travel flat, in the order of `lower.buffers`; `extents` are those of `assignment.vars`.
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
from jax.interpreters import ad, mlir, xla

from jsparse import config, ffi, pipeline, reference
from jsparse.codegen import build
from jsparse.errors import InternalError
from jsparse.format import parse_format
from jsparse.ir.index import PATTERN, Access, Assignment, Term, operand_name
from jsparse.lower import assemble
from jsparse.schedule import auto
from jsparse.schedule.directives import Reorder, Schedule

einsum_p = Primitive("jsparse_einsum")
assemble_p = Primitive("jsparse_assemble")
assemble_p.multiple_results = True

Arrays = Sequence[Any]
Observer = Callable[[str, Assignment, pipeline.Spec, tuple[auto.Candidate, ...]], None]
_observer: ContextVar[Observer | None] = ContextVar("jsparse_observer", default=None)


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
    key = build.submit(pipeline.text(spec))
    numbers = tuple(int(e) if isinstance(e, (int, np.integer)) else -1 for e in extents)
    return ffi.lower_cpu(ctx, *operands, key=key, recipe=spec.recipe(), extents=numbers)


def _einsum_reference(*flat: Any, assignment: Assignment, schedule: Schedule, extents: tuple[int, ...]) -> Any:
    return reference.einsum(assignment, extents, flat)


def _einsum_cpu(ctx: Any, *operands: Any, assignment: Assignment, schedule: Schedule, extents: tuple[int, ...]) -> Any:
    if not use_kernel():
        return _einsum_default(ctx, *operands, assignment=assignment, schedule=schedule, extents=extents)
    return _lower_spec(ctx, operands, pipeline.Spec(assignment, schedule), extents)


def _einsum_abstract(*flat: Any, assignment: Assignment, schedule: Schedule, extents: tuple[int, ...]) -> Any:
    check_shapes(assignment, extents, flat)
    return ShapedArray(output_shape(assignment, extents, flat), jnp.dtype(assignment.output.dtype))


_einsum_default = mlir.lower_fun(_einsum_reference, multiple_results=False)
einsum_p.def_abstract_eval(_einsum_abstract)
einsum_p.def_impl(partial(xla.apply_primitive, einsum_p))
mlir.register_lowering(einsum_p, _einsum_default)
mlir.register_lowering(einsum_p, _einsum_cpu, platform="cpu")


def _assemble_abstract(
    *flat: Any, assignment: Assignment, work: str, count: bool, extents: tuple[int, ...], capacity: tuple[int, ...]
) -> Any:
    check_shapes(assignment, extents, flat)
    observer = _observer.get()
    if observer is not None:
        spec = _assemble_spec(assignment, work, count, extents, flat)
        observer(f"pattern, {work}", assignment, spec, ())
    groups = assemble.groups(assignment)
    if count:
        return [ShapedArray((len(groups),), jnp.dtype("int64"))]
    extent = dict(zip(assignment.vars, extents, strict=True))
    room = {level: c for g, c in zip(groups, capacity, strict=True) for level in range(g.first, g.last + 1)}
    out = []
    parents = 1
    index = jnp.dtype(assignment.output.format.index)
    for n, (level, v) in enumerate(
        zip(assignment.output.format.levels, assignment.output.level_vars, strict=True)
    ):
        nse = room.get(n, 0)
        out += [ShapedArray((level.array_size(role, parents, nse),), index) for role in level.arrays]
        parents = level.positions(parents, extent[v], nse)
    if work == "sort":
        access = assignment.operands[0]
        source = stored(access, flat)
        for v in access.level_vars[access.format.ndim - access.format.dense_tail :]:
            source *= extent[v]
        out += [ShapedArray((source,), index), ShapedArray((capacity[-1] + 1,), index)]
    return out


def _assemble_spec(assignment: Assignment, work: str, count: bool, extents: tuple[int, ...], flat: Arrays) -> pipeline.Spec:
    order: tuple[str, ...] = assignment.vars
    if work == "merge":
        order = auto.pattern_order(assignment, extents, sizes_of(assignment, flat))
    return pipeline.Spec(assignment, (Reorder(order),), work, count)


def _assemble_cpu(ctx: Any, *operands: Any, **params: Any) -> Any:
    if not use_kernel():
        return _assemble_default(ctx, *operands, **params)
    a, extents = params["assignment"], params["extents"]
    spec = _assemble_spec(a, params["work"], params["count"], extents, ctx.avals_in)
    return _lower_spec(ctx, operands, spec, extents)


def _assemble_reference(
    *flat: Any, assignment: Assignment, work: str, count: bool, extents: tuple[int, ...], capacity: tuple[int, ...]
) -> Any:
    return reference.assemble(assignment, work, count, extents, capacity, flat)


_assemble_default = mlir.lower_fun(_assemble_reference, multiple_results=True)
assemble_p.def_abstract_eval(_assemble_abstract)
assemble_p.def_impl(partial(xla.apply_primitive, assemble_p))
mlir.register_lowering(assemble_p, _assemble_default)
mlir.register_lowering(assemble_p, _assemble_cpu, platform="cpu")


# ---------------------------------------------------------------- contraction
def contract(
    a: Assignment, extents: dict[str, int], flat: Arrays, schedule: Schedule | None = None
) -> Any:
    """Values of an assignment: plans it, lays dense operands out as planned, and binds `einsum_p`.

    Dense operands and a dense result have their modes in order; a product of dense operands alone is left to XLA.
    """
    if all(x.format.is_dense for x in a.operands) and not a.sampled:
        return _dense(a, flat)
    numbers = tuple(extents[v] for v in a.vars)
    candidates: tuple[auto.Candidate, ...] = ()
    if schedule is None:
        sizes = tuple(int(n) if isinstance(n, (int, np.integer)) else 64 for n in numbers)
        plan = auto.plan(a, sizes, sizes_of(a, flat))
        planned, schedule, candidates = plan.assignment, plan.schedule, plan.candidates
    else:
        planned = a
    observer = _observer.get()
    if observer is not None:
        observer("values", planned, pipeline.Spec(planned, schedule), candidates)
    parts, own = split(a, flat)
    for n, access in enumerate(planned.operands):
        order = access.format.order
        if access.format.is_dense and order != tuple(range(len(order))):
            parts[n][0] = jnp.transpose(parts[n][0], order)
    operands = [x for part in parts for x in part] + own
    numbers = tuple(extents[v] for v in planned.vars)
    y = einsum_p.bind(*operands, assignment=planned, schedule=schedule, extents=numbers)
    order = planned.output.format.order
    if not planned.sampled and order != tuple(range(len(order))):
        y = jnp.transpose(y, [order.index(m) for m in range(len(order))])
    return y


def _dense(a: Assignment, flat: Arrays) -> Any:
    """A sum of products of dense operands, by `jnp.einsum`."""
    letters = {v: chr(ord("a") + n) for n, v in enumerate(a.vars)}
    total = None
    for term in a.terms:
        inputs = ",".join("".join(letters[v] for v in a.operands[n].vars) for n in term.factors)
        output = "".join(letters[v] for v in a.output.vars)
        used = {v for n in term.factors for v in a.operands[n].vars}
        if set(a.output.vars) <= used:
            y = jnp.einsum(f"{inputs}->{output}", *[flat[n] for n in term.factors])
        else:
            raise InternalError(f"a term of {a} lacks variables of the output")
        y = -y if term.sign < 0 else y
        total = y if total is None else total + y
    return total


# ------------------------------------------------------------ differentiation
def _einsum_jvp(primals: Arrays, tangents: Arrays, **params: Any) -> tuple[Any, Any]:
    a: Assignment = params["assignment"]
    y = einsum_p.bind(*primals, **params)
    total = None
    slots = value_slots(a)
    for n, slot in enumerate(slots):
        if slot is None or type(tangents[slot]) is ad.Zero:
            continue
        t = _with_values(a, params, list(primals), n, tangents[slot])
        total = t if total is None else ad.add_jaxvals(total, t)
    if total is None:
        total = ad.Zero.from_primal_value(y)
    return y, total


def _with_values(a: Assignment, params: dict[str, Any], flat: list[Any], n: int, values: Any) -> Any:
    """The part of the assignment that is linear in operand n, at other values for it."""
    term = next(t for t in a.terms if n in t.factors)
    if len(a.terms) == 1:
        flat[value_slots(a)[n]] = values  # type: ignore[index]
        return einsum_p.bind(*flat, **params)
    return _term(a, params["extents"], flat, term, {n: values})


def _term(a: Assignment, extents: tuple[int, ...], flat: list[Any], term: Term, values: dict[int, Any]) -> Any:
    """One term of a sum as an einsum of its own."""
    parts, own = split(a, flat)
    for n, x in values.items():
        parts[n][0] = x
    operands = tuple(a.operands[n] for n in term.factors)
    extent = dict(zip(a.vars, extents, strict=True))
    b = Assignment(a.output, operands, (Term(tuple(range(len(operands))), term.sign),))
    return bind_planned(b, extent, [x for n in term.factors for x in parts[n]] + own)


def bind_planned(a: Assignment, extents: dict[str, int], flat: Arrays) -> Any:
    """`einsum_p` of an assignment whose dense operands are in storage order already, under a schedule for it."""
    parts, own = split(a, flat)
    inverse = []
    for access, part in zip(a.operands, parts, strict=True):
        order = access.format.order
        if access.format.is_dense and order != tuple(range(len(order))):
            part[0] = jnp.transpose(part[0], [order.index(m) for m in range(len(order))])
            access = replace(access, format=parse_format("dense", len(order)))
        inverse.append(access)
    output = a.output
    order = output.format.order
    moved = output.format.is_dense and order != tuple(range(len(order)))
    if moved:
        output = replace(output, format=parse_format("dense", len(order)))
    b = replace(a, output=output, operands=tuple(inverse))
    y = contract(b, extents, [x for part in parts for x in part] + own)
    return jnp.transpose(y, order) if moved else y


def _einsum_transpose(ct: Any, *flat: Any, **params: Any) -> list[Any]:
    a: Assignment = params["assignment"]
    slots = value_slots(a)
    out: list[Any] = [None] * len(flat)
    if type(ct) is ad.Zero:
        return out
    extent = dict(zip(a.vars, params["extents"], strict=True))
    for n, slot in enumerate(slots):
        if slot is not None and ad.is_undefined_primal(flat[slot]):
            out[slot] = _cotangent(a, extent, list(flat), n, ct)
    return out


def _cotangent(a: Assignment, extent: dict[str, int], flat: list[Any], n: int, ct: Any) -> Any:
    """Output and operand n exchanged: the cotangent of its values, sampled at its pattern if it is sparse."""
    parts, own = split(a, flat)
    term = next(t for t in a.terms if n in t.factors)
    target = a.operands[n]
    if a.shares is not None:
        source, arrays = a.operands[a.shares], parts[a.shares][1:]
        axes = tuple(source.vars.index(v) for v in a.output.vars)
        seed_format = source.format.transpose(axes)
        trusted = source.trusted
    else:
        seed_format, arrays, trusted = a.output.format, own, a.output.trusted
    seed = Access("ct", a.output.vars, seed_format, a.output.dtype, trusted)
    others = [m for m in term.factors if m != n]
    accesses = [seed, *(a.operands[m] for m in others)]
    renamed = tuple(replace(x, name=operand_name(k)) for k, x in enumerate(accesses))
    output = replace(target, name="Y", dtype=a.output.dtype)
    operands: list[Any] = [ct, *arrays]
    for m in others:
        operands += parts[m]
    shares = None
    if not target.format.is_dense:
        same = a.shares == n and set(target.vars) == set(a.output.vars)
        shares = 0 if same else None
        if not same:
            operands += parts[n][1:]
    b = Assignment(output, renamed, (Term(tuple(range(len(renamed))), term.sign),), shares)
    missing = [v for v in b.vars if v not in extent]
    assert not missing
    return bind_planned(b, extent, operands)


ad.primitive_jvps[einsum_p] = _einsum_jvp
ad.primitive_transposes[einsum_p] = _einsum_transpose


def _assemble_jvp(primals: Arrays, tangents: Arrays, **params: Any) -> tuple[Any, Any]:
    out = assemble_p.bind(*primals, **params)
    return out, [ad.Zero.from_primal_value(y) for y in out]


ad.primitive_jvps[assemble_p] = _assemble_jvp

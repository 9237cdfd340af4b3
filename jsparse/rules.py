# SPDX-License-Identifier: Apache-2.0
"""Derivatives and batching of the primitives: rewrites of the notation.

out[o] = sum A1[x1] * ... * An[xn]      multilinear in the values; index arrays have no derivative
jvp        one einsum for each operand with a tangent: the same assignment at other values
transpose  output and operand exchanged: Ak'[xk] = sum out'[o] * product of the others, sampled at
           the pattern of Ak if that is sparse (SpMM -> SDDMM, and transposed SpMM)
vmap       over values: a fresh variable, the first mode of what is dense, a dense level below the
           leaf of what is sparse; over index arrays: one more axis of `batch`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching

from jsparse.array import Pattern
from jsparse.contract import bind_planned, guessed
from jsparse.convert import rearranged
from jsparse.format import Format
from jsparse.gather import taken
from jsparse.ir.index import PATTERN, Access, Assignment, Term, operand_name
from jsparse.levels import Dense
from jsparse.operands import Arrays, Batch, depth, sizes_of, unbatched, value_slots
from jsparse.primitive import assemble_p, einsum_p
from jsparse.record import replace
from jsparse.schedule import storage


def zero_like(y: Any) -> Any:
    """A symbolic zero tangent for `y`."""
    return ad.Zero(jax.typeof(y).to_tangent_aval())


def _einsum_jvp(primals: Arrays, tangents: Arrays, **params: Any) -> tuple[Any, Any]:
    a: Assignment = params["assignment"]
    y = einsum_p.bind(*primals, **params)
    total = None
    for n, slot in enumerate(value_slots(a)):
        if slot is not None and type(tangents[slot]) is not ad.Zero:
            t = _linear(a, params, list(primals), n, slot, tangents[slot])
            total = t if total is None else ad.add_jaxvals(total, t)
    return y, zero_like(y) if total is None else total


def _linear(
    a: Assignment, params: dict[str, Any], flat: list[Any], n: int, slot: int, values: Any
) -> Any:
    """The part of the assignment that is linear in operand n, at other values for it."""
    flat[slot] = values
    if len(a.terms) == 1:
        return einsum_p.bind(*flat, **params)
    term = next(t for t in a.terms if n in t.factors)
    operands = tuple(a.operands[m] for m in term.factors)
    one = replace(a.output, exact=False)  # fewer terms than its pattern was computed for
    b = Assignment(one, operands, (Term(tuple(range(len(operands))), term.sign),))
    extent = dict(zip(a.vars, params["extents"], strict=True))
    slots = [k for m in term.factors for k in _slots(a, m)] + _own_slots(a, len(flat))
    return bind_planned(b, extent, [flat[k] for k in slots], _select(params["batch"], slots))


def _slots(a: Assignment, n: int) -> list[int]:
    """Where operand n's arrays are among the flat operands."""
    at = 0
    for access in a.operands[:n]:
        at += len(access.format.array_names()) + (access.dtype != PATTERN)
    return list(
        range(at, at + len(a.operands[n].format.array_names()) + (a.operands[n].dtype != PATTERN))
    )


def _own_slots(a: Assignment, total: int) -> list[int]:
    """Where the index arrays of the output's own pattern are."""
    count = len(a.pattern.format.array_names()) if a.pattern is not None else 0
    return list(range(total - count, total))


def _select(batch: Batch, slots: list[int]) -> Batch:
    return tuple(tuple(mask[k] for k in slots) for mask in batch)


def _einsum_transpose(ct: Any, *flat: Any, **params: Any) -> list[Any]:
    a: Assignment = params["assignment"]
    out: list[Any] = [None] * len(flat)
    if type(ct) is ad.Zero:
        return out
    extent = dict(zip(a.vars, params["extents"], strict=True))
    for n, slot in enumerate(value_slots(a)):
        if slot is not None and ad.is_undefined_primal(flat[slot]):
            y = _cotangent(a, extent, list(flat), n, ct, params["batch"])
            out[slot] = _placed(y, flat[slot].aval)
    return out


def _placed(y: Any, operand: Any) -> Any:
    """A cotangent as the operand's type says that it is sharded, on an explicitly sharded mesh."""
    want, got = operand.sharding, jax.typeof(y).sharding
    return y if want.mesh.empty or want.spec == got.spec else jax.sharding.reshard(y, want)


def _cotangent(
    a: Assignment, extent: dict[str, int], flat: list[Any], n: int, ct: Any, batch: Batch
) -> Any:
    """Output and operand n exchanged: the cotangent of its values, sampled at its pattern if it
    is sparse.
    """
    term = next(t for t in a.terms if n in t.factors)
    target = a.operands[n]
    if a.shares is not None:
        source, slots = a.operands[a.shares], _slots(a, a.shares)[1:]
        axes = tuple(source.vars.index(v) for v in a.output.vars)
        seed_format, trusted, known = source.format.transpose(axes), source.trusted, source.known
        if axes != tuple(range(len(axes))):
            known = None  # it is the pattern of the array that this one is a transpose of
    else:
        seed_format, slots = a.output.format, _own_slots(a, len(flat))
        trusted, known = a.output.trusted, a.output.known
    others = [m for m in term.factors if m != n]
    if a.shares in others:  # values at the same positions: one operand, also if it has duplicates
        slot = value_slots(a)[a.shares or 0]
        assert slot is not None
        ct = ct * _aligned(flat[slot], slot, batch)
        others.remove(a.shares)
    seed = Access("ct", a.output.vars, seed_format, a.output.dtype, trusted, known)
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
    b, arrays = restored(b, extent, [ct, *(flat[k] for k in slots)], masks)
    y = bind_planned(b, extent, arrays, masks)
    own = value_slots(a)[n]
    summed = tuple(axis for axis, mask in enumerate(batch) if not mask[own])  # type: ignore[index]
    return y.sum(summed).astype(y.dtype) if summed else y


def _aligned(x: Any, slot: int, batch: Batch) -> Any:
    """Operand `slot` with an axis of extent 1 for each batch axis that it lacks."""
    for axis, mask in enumerate(batch):
        if not mask[slot]:
            x = jnp.expand_dims(x, axis)
    return x


def _restorable(x: Access, known: Pattern) -> bool:
    """Whether an operand's values follow a permutation of its pattern's entries: no dense level
    below the leaf but that of a batch.
    """
    batched = x.format.ndim - known.format.ndim
    plain = x.format.canonical and x.dtype != PATTERN and known.format.dense_tail == 0
    return plain and x.format.dense_tail == batched


def restored(
    a: Assignment, extent: dict[str, int], flat: list[Any], batch: Batch
) -> tuple[Assignment, list[Any]]:
    """The assignment reading operands with a known pattern in the storage order that is best for
    it.  Duplicates stay as they are.
    """
    known = tuple(
        n
        for n, x in enumerate(a.operands)
        if isinstance(x.known, Pattern) and _restorable(x, x.known)
    )
    if not known:
        return a, flat
    sizes = guessed(extent[v] for v in a.vars)
    nse = sizes_of(a, unbatched(batch, flat))
    for n, target in storage.rearrangements(a.plain(), sizes, nse, known).items():
        x = a.operands[n]
        tail = x.format.dense_tail
        base = x.known
        assert isinstance(base, Pattern)
        short = Format(
            target.levels[: target.ndim - tail], target.order[: target.ndim - tail], target.index
        )
        pattern, perm, _, inside = rearranged(base, short)
        slots = _slots(a, n)
        if batch and len(pattern.arrays) != len(slots) - 1:  # other levels: `batch` would not fit
            continue
        lead = depth(batch, slots[0])
        values = taken(flat[slots[0]], perm, lead, inside=inside)
        flat = [*flat[: slots[0]], values, *pattern.device(), *flat[slots[-1] + 1 :]]
        operands = list(a.operands)
        operands[n] = replace(x, format=target, known=pattern if not tail else None)
        a = replace(a, operands=tuple(operands))
    return a, flat


ad.primitive_jvps[einsum_p] = _einsum_jvp
ad.primitive_transposes[einsum_p] = _einsum_transpose


def _assemble_jvp(primals: Arrays, tangents: Arrays, **params: Any) -> tuple[Any, Any]:
    out = assemble_p.bind(*primals, **params)
    return out, [zero_like(y) for y in out]


ad.primitive_jvps[assemble_p] = _assemble_jvp


# -------------------------------------------------------------------- batching
def _einsum_batch(flat: Arrays, dims: Sequence[Any], **params: Any) -> tuple[Any, int]:
    a: Assignment = params["assignment"]
    slots = value_slots(a)
    values = {slot for slot in slots if slot is not None}
    dense = {slot for slot, x in zip(slots, a.operands, strict=True) if x.format.is_dense}
    batched = {k: d for k, d in enumerate(dims) if d is not None}
    known = all(isinstance(flat[k].shape[d], int) for k, d in batched.items())
    # A kernel learns a symbolic extent from a dense operand, or from an axis in front.
    if not batched.keys() <= values or not (known or batched.keys() & dense):
        operands, mask = _front(flat, dims)
        return einsum_p.bind(*operands, **{**params, "batch": (mask, *params["batch"])}), 0
    return _batch_values(a, list(flat), list(dims), params)


def _front(flat: Arrays, dims: Sequence[Any]) -> tuple[list[Any], tuple[bool, ...]]:
    """Batched operands with that axis in front, and which they are."""
    operands = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(flat, dims, strict=True)]
    return operands, tuple(d is not None for d in dims)


def _batch_values(
    a: Assignment, flat: list[Any], dims: list[Any], params: dict[str, Any]
) -> tuple[Any, int]:
    """A fresh variable on what is batched: the first mode of dense tensors, a dense level below
    the leaf of sparse.
    """
    batch: Batch = params["batch"]
    size = next(x.shape[d] for x, d in zip(flat, dims, strict=True) if d is not None)
    b = next(f"b{k}" for k in range(len(a.vars) + 1) if f"b{k}" not in a.vars)
    operands = []
    for n, (access, slot) in enumerate(zip(a.operands, value_slots(a), strict=True)):
        if slot is None:
            operands.append(access)
            continue
        lead = depth(batch, slot)
        if (
            dims[slot] is None and n == a.shares
        ):  # the output has as many values: it shares the pattern, so it must fit
            flat[slot], dims[slot] = (
                jnp.broadcast_to(flat[slot][..., None], (*flat[slot].shape, size)),
                -1,
            )
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


def _assemble_batch(
    flat: Arrays, dims: Sequence[Any], **params: Any
) -> tuple[list[Any], list[int]]:
    operands, mask = _front(flat, dims)
    out = assemble_p.bind(*operands, **{**params, "batch": (mask, *params["batch"])})
    return out, [0] * len(out)


batching.primitive_batchers[einsum_p] = _einsum_batch
batching.primitive_batchers[assemble_p] = _assemble_batch

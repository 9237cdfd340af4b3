# SPDX-License-Identifier: Apache-2.0
"""Values of an assignment: plan it, lay dense operands out as planned, bind the primitive.

contract(Y[i,k] = A[i,j] * B[j,k], extents, [A_vals, A1_pos, A1_crd, B_vals]) -> Y_vals
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jsparse import pipeline
from jsparse.errors import InternalError
from jsparse.format import parse_format
from jsparse.ir.index import Assignment
from jsparse.operands import Arrays, Batch, depth, sizes_of, unbatched, value_slots
from jsparse.primitive import einsum_p, mapped, observe, result_types, vary_together
from jsparse.record import replace
from jsparse.schedule import auto
from jsparse.schedule.directives import Schedule


def contract(
    a: Assignment,
    extents: dict[str, int],
    flat: Arrays,
    schedule: Schedule | None = None,
    batch: Batch = (),
) -> Any:
    """Values of an assignment: plans it, lays dense operands out as planned, and binds `einsum_p`.

    Dense operands and a dense result have their modes in order, behind their batch axes; a
    product of dense operands alone is left to XLA.
    """
    if all(x.format.is_dense for x in a.operands) and not a.sampled:
        return mapped(lambda *flat: _dense(a, extents, flat), batch)(*flat)
    numbers = tuple(extents[v] for v in a.vars)
    candidates: tuple[auto.Candidate, ...] = ()
    if schedule is None:
        plan = auto.plan(a.plain(), guessed(numbers), sizes_of(a, unbatched(batch, flat)))
        planned = _knowing(plan.assignment, a)
        schedule, candidates = plan.schedule, plan.candidates
    else:
        planned = a
    final = schedule
    observe(
        "values", planned, lambda: pipeline.Spec(planned.plain(), final, batch=batch), candidates
    )
    operands = list(flat)
    for access, slot in zip(planned.operands, value_slots(planned), strict=True):
        order = access.format.order
        if access.format.is_dense and slot is not None and order != tuple(range(len(order))):
            operands[slot] = transposed(operands[slot], order, depth(batch, slot))
    numbers = tuple(extents[v] for v in planned.vars)
    y = einsum_p.bind(
        *vary_together(operands),
        assignment=planned,
        schedule=schedule,
        extents=numbers,
        batch=batch,
    )
    order = planned.output.format.order
    if not planned.sampled and order != tuple(range(len(order))):
        y = transposed(y, tuple(order.index(m) for m in range(len(order))), len(batch))
    return y


def guessed(extents: Iterable[Any]) -> tuple[int, ...]:
    """Extents as numbers to plan with: 64 for those that are symbolic in `jax.export`."""
    return tuple(int(n) if isinstance(n, (int, np.integer)) else 64 for n in extents)


def _knowing(planned: Assignment, a: Assignment) -> Assignment:
    """The planned assignment with the patterns that `a` knows."""
    pairs = zip(planned.operands, a.operands, strict=True)
    operands = tuple(replace(x, known=y.known) for x, y in pairs)
    return replace(planned, output=replace(planned.output, known=a.output.known), operands=operands)


def transposed(x: Any, axes: tuple[int, ...], lead: int) -> Any:
    """`x` with the axes behind the first `lead` permuted."""
    return jnp.transpose(x, (*range(lead), *(lead + m for m in axes)))


def _dense(a: Assignment, extents: dict[str, int], flat: Arrays) -> Any:
    """A sum of products of dense operands, by `jnp.einsum`; a variable that only the output has
    broadcasts.
    """
    place = _place(a, extents, flat)
    if len(a.terms) == 1 and len(a.operands) == 2 and a.terms[0].sign > 0:
        y = _dot(a, flat, place)
        if y is not None:
            return y
    letters = {v: chr(ord("a") + n) for n, v in enumerate(a.vars)}
    total = None
    for term in a.terms:
        inputs = ",".join("".join(letters[v] for v in a.operands[n].vars) for n in term.factors)
        output = "".join(letters[v] for v in a.output.vars)
        used = {v for n in term.factors for v in a.operands[n].vars}
        extra = [v for v in a.output.vars if v not in used]
        ones = [jnp.ones([extents[v] for v in extra], a.output.dtype)] if extra else []
        inputs += "," + "".join(letters[v] for v in extra) if extra else ""
        factors = [flat[n] for n in term.factors]
        y = jnp.einsum(f"{inputs}->{output}", *factors, *ones, out_sharding=place)
        y = -y if term.sign < 0 else y
        total = y if total is None else total + y
    return total


def _place(a: Assignment, extents: dict[str, int], flat: Arrays) -> NamedSharding | None:
    """The sharding of a dense result on an explicitly sharded mesh, where JAX would ask for it."""
    types = [jax.typeof(x) for x in flat]
    if all(name is None for t in types for name in t.sharding.spec):
        return None
    shape = tuple(extents[v] for v in a.output.vars)
    return result_types(pipeline.Spec(a), [shape], a.output.dtype, types)[0].sharding


def _dot(a: Assignment, flat: Arrays, place: NamedSharding | None) -> Any:
    """A product of two dense operands as one `dot_general`, which traces several times faster than
    `jnp.einsum`; None if it is not one.
    """
    x, y = (list(operand.vars) for operand in a.operands)
    out = list(a.output.vars)
    both = [v for v in x if v in y]
    free = [[v for v in names if v not in both] for names in (x, y)]
    plain = all(len(set(names)) == len(names) for names in (x, y))
    if not plain or not set(free[0] + free[1]) <= set(out) or a.output.dtype == "bool":
        return None
    batch, summed = ([v for v in both if (v in out) == keep] for keep in (True, False))
    if set(out) - set(batch + free[0] + free[1]):
        return None

    def places(group: list[str]) -> tuple[list[int], list[int]]:
        return [x.index(v) for v in group], [y.index(v) for v in group]

    order = batch + free[0] + free[1]
    if place is not None:
        cuts = dict(zip(out, place.spec, strict=True))
        place = NamedSharding(place.mesh, PartitionSpec(*[cuts[v] for v in order]))
    numbers = (places(summed), places(batch))
    result = jax.lax.dot_general(flat[0], flat[1], numbers, out_sharding=place)
    return result if order == out else jnp.transpose(result, [order.index(v) for v in out])


def bind_planned(a: Assignment, extents: dict[str, int], flat: Arrays, batch: Batch = ()) -> Any:
    """`contract` of an assignment whose dense tensors are in storage order: operands and result."""
    operands = list(flat)
    plain = []
    for access, slot in zip(a.operands, value_slots(a), strict=True):
        order = access.format.order
        if access.format.is_dense and slot is not None and order != tuple(range(len(order))):
            back = tuple(order.index(m) for m in range(len(order)))
            operands[slot] = transposed(operands[slot], back, depth(batch, slot))
            access = replace(access, format=parse_format("dense", len(order)))
        plain.append(access)
    output, order = a.output, a.output.format.order
    moved = output.format.is_dense and order != tuple(range(len(order)))
    if moved:
        output = replace(output, format=parse_format("dense", len(order)))
    y = contract(
        replace(a, output=output, operands=tuple(plain)), extents, operands, batch=_used(batch)
    )
    if any(not any(mask) for mask in batch):
        raise InternalError("a batch axis that no operand has")
    return transposed(y, order, len(batch)) if moved else y


def _used(batch: Batch) -> Batch:
    return tuple(mask for mask in batch if any(mask))

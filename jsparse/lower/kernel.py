# SPDX-License-Identifier: Apache-2.0
"""The kernel of a nest: its buffers, checks, zeroing and scratch around the loops of `loops`."""

from __future__ import annotations

from jsparse.errors import InternalError
from jsparse.ir.index import semiring
from jsparse.ir.loop import (
    ONE,
    ZERO,
    Buffer,
    Cast,
    Const,
    Dim,
    Do,
    Expr,
    For,
    Kernel,
    Load,
    Scratch,
    Stmt,
    Store,
    Var,
    add,
    block,
    mul,
)
from jsparse.lower.buffers import OUTPUT, Binding, Tensor, bind, checks, positions
from jsparse.lower.cursor import Cursor
from jsparse.lower.loops import Einsum
from jsparse.lower.parts import combine
from jsparse.lower.sums import WIDE, adds
from jsparse.schedule.directives import Nest


def lower(nest: Nest) -> Kernel:
    """The kernel of a nest."""
    a = nest.assignment
    binding = bind(a)
    result = Buffer("Y_vals", a.output.dtype, "result", 0)
    target = result
    wide = _scatter_dtype(nest)
    if wide != result.dtype:
        target = Buffer("Y_wide", wide)
    single = len(a.terms) == 1
    walk = Einsum(
        nest.order,
        tuple(t.factors for t in a.terms),
        dict(binding.dims),
        nest,
        binding,
        result,
        target=target,
    )
    walk.exact = a.output.exact
    walk.galloped = nest.galloped
    if nest.parts:
        walk.target = target = Buffer("Y_parts", wide if walk.complete else walk.sum_dtype)
    cursors: dict[int, Cursor] = {}
    for n in sorted(binding.tensors):
        cursors[n] = binding.tensors[n].cursor(required=single or n == OUTPUT)
    if a.shares is not None and not single:
        raise InternalError("an output can share the pattern of a factor of the only term")
    body = walk.visit(0, cursors, {})
    head = binding.declared()
    for t in binding.tensors.values():
        if t.number not in walk.checked:
            head += checks(t, ZERO, ONE)
    before, after = _zeroing(walk, binding)
    head += before
    if not walk.rows_in_chunk:
        head += walk.rows()
    tail: list[Stmt] = list(after)
    if nest.parts:
        tail.append(combine(nest.parts, target, result, semiring(a.output.dtype)[0].text))
    elif target is not result:
        q = Var("q")
        tail.append(
            For(q, ZERO, Dim(result, -1), Store(result, q, Cast(result.dtype, Load(target, q))))
        )
    return Kernel(binding.args, (result,), block(*head, body, *tail))


def _scatter_dtype(nest: Nest) -> str:
    """The dtype in which sums are added in memory: wider than a 16-bit output, and than a float32
    one that is `widened`.
    """
    dtype = nest.assignment.output.dtype
    if not adds(nest) or nest.workspace is not None:
        return dtype
    return "float64" if nest.widened else WIDE.get(dtype, dtype)


def _padding(owner: Tensor, result: Buffer) -> Stmt:
    """Zeros where the coordinates of a relative level leave the matrix: no loop comes there."""
    p, s = Var("p"), owner.storage[0]
    lo, hi = owner.access.format.levels[0].reach(s, p)
    assert s.base is not None

    def place(i: Expr) -> Expr:
        at = add(mul(p, s.base or ZERO), i)
        for below in owner.storage[2:]:
            at = mul(at, below.extent)
        return at

    first, last = place(ZERO), place(s.base)
    before, behind = (result, first, place(lo)), (result, place(hi), last)
    return For(p, ZERO, Dim(s["crd"], 0), block(Do("fill_zero", before), Do("fill_zero", behind)))


def _zeroing(walk: Einsum, binding: Binding) -> tuple[list[Stmt], list[Stmt]]:
    """Fill with zeros what the loops may not reach: all of it before, or after them the capacity
    beyond the entries.
    """
    a = walk.assignment
    result, target = walk.result, walk.target
    if walk.nest.parts:
        return [Scratch(target, mul(Const(walk.nest.parts), Dim(result, -1)))], []
    if target is not result:
        return [Scratch(target, Dim(result, -1), zero=True)], []
    if (walk.adds and walk.nest.workspace is None) or walk.skipped:
        return [Do("fill_zero", (result, ZERO, Dim(result, -1)))], []
    if a.sampled:
        owner = binding.tensors[OUTPUT if a.shares is None else a.shares]
        if a.output.format.relative:
            return [_padding(owner, result)], []
        return [], [Do("fill_zero", (result, positions(owner), Dim(result, -1)))]
    return [], []

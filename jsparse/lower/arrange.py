# SPDX-License-Identifier: Apache-2.0
"""Patterns by sorting: the coordinates of one operand, whatever its order, in another format.

Lists them, sorts them stably by the modes that are out of order, and packs them; also gives the
permutation, and where each new entry starts in it if duplicates are merged.
"""

from __future__ import annotations

from dataclasses import dataclass

from jsparse.errors import InternalError
from jsparse.ir.index import Assignment
from jsparse.ir.loop import (
    INT,
    ONE,
    ZERO,
    Assign,
    Bin,
    Buffer,
    Cast,
    Const,
    Decl,
    Dim,
    Do,
    For,
    If,
    Load,
    Scratch,
    Stmt,
    Store,
    Var,
    add,
    block,
    sub,
)
from jsparse.lower.buffers import Binding, positions
from jsparse.lower.cursor import Cursors, Env
from jsparse.lower.packer import Packer, groups
from jsparse.lower.walk import Walk, block_scope


@dataclass
class List(Walk):
    """The walk of one operand that lists its coordinates by position."""

    columns: dict[str, Buffer]
    perm: Buffer
    number: int = 0

    def leaf(self, cursors: Cursors, env: Env) -> Stmt:
        n = Var("listed")
        p = cursors[self.number].lo
        stores = [Store(b, p, Cast(b.dtype, env[v])) for v, b in self.columns.items()]
        return block(*stores, Store(self.perm, n, Cast(self.perm.dtype, p)), Assign(n, add(n, ONE)))


def sort_modes(a: Assignment) -> int:
    """How many leading output levels must be sorted by: the rest is in order once these are."""
    source, target = a.operands[0], a.output
    if not any(target.format.levels[n].ordered for n in target.format.sparse_levels):
        return 0
    if not all(source.format.levels[n].ordered for n in source.format.sparse_levels):
        return target.format.ndim
    for m in range(target.format.ndim + 1):
        head, tail = target.level_vars[:m], target.level_vars[m:]
        if tuple(v for v in source.walk_vars if v not in head) == tail:
            return m
    raise InternalError("unreachable: sorting by every mode always suffices")


def lower(
    a: Assignment, binding: Binding, packer: Packer, at: int, count: bool
) -> tuple[list[Stmt], tuple[Buffer, ...]]:
    """The statements, and the results beside the output's index arrays, which start at `at`."""
    source = binding.tensors[0]
    target = a.output
    index = target.format.index
    n = Var("listed")
    perm = Buffer("Y_perm", index, "result", at)
    start = Buffer("Y_start", index, "result", at + 1)
    head: list[Stmt] = []
    room = positions(source)
    if count:
        perm = Buffer("perm", index)
        head.append(Scratch(perm, room))
    columns = {v: Buffer(f"{v}_crd", index) for v in target.level_vars}
    head += [Scratch(b, room) for b in columns.values()]
    head.append(Decl(n, ZERO, mutable=True))
    listing = List(source.access.walk_vars, ((0,),), dict(packer.extents), columns, perm)
    head.append(block_scope(listing.visit(0, {0: source.cursor(required=True)}, {})))
    for v in reversed(target.level_vars[: sort_modes(a)]):
        head.append(Do("sort_by", (perm, columns[v], n)))
    q = Var("q")
    p = Var("p")
    here: Env = {v: Var(v) for v in target.level_vars}
    body: list[Stmt] = [Decl(p, Cast(INT, Load(perm, q)))]
    body += [Decl(Var(v), Cast(INT, Load(b, p))) for v, b in columns.items()]
    merge = target.format.levels[max(target.format.sparse_levels)].unique
    body.append(packer.append_sorted(target.level_vars, here, {}, Bin("==", q, ZERO), merge))
    last = groups(a)[-1]
    if not count:
        fits = Bin("<=", packer.count(last), sub(Dim(start, 0), ONE))
        body.append(If(fits, Store(start, packer.count(last), Const(1, index), "+")))
        head.append(Do("fill_zero", (start, ZERO, Dim(start, -1))))
    body += [Assign(Var(f"{v}_last"), Var(v)) for v in target.level_vars]
    head += [Decl(Var(f"{v}_last"), ZERO, mutable=True) for v in target.level_vars]
    head.append(For(q, ZERO, n, block(*body)))
    if not count:
        beyond = Store(perm, q, Cast(index, Dim(perm, 0)))
        head += [For(q, n, Dim(perm, 0), beyond), Do("copy_scan", (start, sub(Dim(start, 0), ONE)))]
    return head, () if count else (perm, start)

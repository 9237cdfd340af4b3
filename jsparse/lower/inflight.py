# SPDX-License-Identifier: Apache-2.0
"""Several nonzeros of an innermost reduction in flight: with a partial sum each, or in lanes.

for p in steps of 2: Y_sum += A[p] * x[j_0]; Y_sum_1 += A[p+1] * x[j_1]        unroll(j,2)
for p in steps of 2: Y_v0 += A[p:p+2] * (x[j_0], x[j_1])                       collect(j,2,1)
for what is left: Y_sum += A[p] * x[j]
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from jsparse.ir.index import semiring
from jsparse.ir.loop import (
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
    Expr,
    For,
    Load,
    Neg,
    Pack,
    Splat,
    Stmt,
    Var,
    add,
    block,
    mul,
    sub,
    type_of,
)
from jsparse.lower.ahead import fibers_ahead
from jsparse.lower.buffers import OUTPUT
from jsparse.lower.cursor import Cursor, Cursors, Env
from jsparse.lower.registers import Registers
from jsparse.lower.walk import block_scope


@dataclass
class InFlight(Registers):
    """A walk that has several nonzeros of one fiber in flight."""

    target: Buffer = field(kw_only=True)  # where sums are added: the result, or a wider scratch
    # Where the cursors of each visited nonzero are, while these are collected.
    places: list[Cursors] | None = field(default=None, kw_only=True)

    def in_flight(self, d: int, n: int, count: int, cursors: Cursors, env: Env) -> Stmt:
        """The loop over a fiber, `count` nonzeros at a time, each with its own partial sum."""
        c, v, p = cursors[n], self.order[d], Var(cursors[n].position)
        copies: list[Stmt] = []
        for k in range(count):
            self.copy = k
            vk, pk = Var(f"{v}_{k}" if k else v), add(p, Const(k))
            body = self.visit(d + 1, {**cursors, n: c.down(pk)}, {**env, v: vk})
            early = self.rows_ahead if k else self.ahead
            head = Decl(vk, c.coordinate(pk)), *early(d, c, pk, cursors)
            copies.append(block_scope(block(*head, body)))
        self.copy = 0
        return self.in_steps(d, n, count, block(*copies), cursors, env)

    def in_steps(self, d: int, n: int, count: int, body: Stmt, cursors: Cursors, env: Env) -> Stmt:
        """`body` for every `count` nonzeros of a fiber, and single ones for what is left."""
        c, v, p = cursors[n], Var(self.order[d]), Var(cursors[n].position)
        lo, hi = c.bounds()
        start, main, end = (Var(f"{c.position}_{x}") for x in ("begin", "main", "end"))
        rest = self.visit(d + 1, {**cursors, n: c.down(p)}, {**env, v.name: v})
        whole = mul(Bin("/", sub(end, start), Const(count)), Const(count))

        def loop(a: Expr, b: Expr) -> Stmt:
            return block(
                Decl(start, a),
                Decl(end, b),
                Decl(main, add(start, whole)),
                For(p, start, main, body, count),
                For(p, main, end, block(Decl(v, c.coordinate(p)), rest)),
            )

        return block_scope(self.interval(d, lo, hi, loop, c, cursors))

    def collected(self, d: int, n: int, cursors: Cursors, env: Env) -> Stmt:
        """The loop over a fiber, its nonzeros in lanes."""
        assert self.nest.collect is not None
        _, lanes, registers = self.nest.collect
        c, v, p = cursors[n], self.order[d], Var(cursors[n].position)
        plus = semiring(self.assignment.output.dtype)[0].text
        body = self.stream(d, c, p)
        for u, total in enumerate(self.partial_sums()):
            at = [add(p, Const(u * lanes + k)) for k in range(lanes)]
            names = [Var(f"{v}_{u * lanes + k}") for k in range(lanes)]
            body += [Decl(x, c.coordinate(pk)) for x, pk in zip(names, at, strict=True)]
            places: list[Cursors] = []
            self.places = places
            for x, pk in zip(names, at, strict=True):
                self.visit(d + 1, {**cursors, n: c.down(pk)}, {**env, v: x})
            self.places = None
            body.append(Assign(total, Bin(plus, total, self.product(n, lanes, places))))
        return self.in_steps(d, n, lanes * registers, block(*body), cursors, env)

    def product(self, walked: int, lanes: int, places: list[Cursors]) -> Expr:
        """The only term at `lanes` nonzeros of an operand, which stores its values one after the
        other.
        """
        times = semiring(self.assignment.output.dtype)[1]
        value: Expr | None = None
        for n in self.assignment.terms[0].factors:
            buffer = self.binding.tensors[n].values
            if buffer is None or n in self.outside:
                continue
            if n == walked:
                factor: Expr = Load(buffer, places[0][n].lo, lanes)
                factor = factor if buffer.dtype == self.base else Cast(self.base, factor)
            else:
                loads = [self.factors.get(n) or self.load(n, at, 0) for at in places]
                same = all(x == loads[0] for x in loads)
                factor = loads[0] if same else Pack(tuple(loads))
            value = factor if value is None else Bin(times.text, value, factor)
        if value is None:
            value = Const(times.identity, self.base)
        value = Splat(value, lanes) if type_of(value)[1] == 1 else value
        return Neg(value) if self.assignment.terms[0].sign < 0 else value

    def stream(self, d: int, c: Cursor, at: Expr) -> list[Stmt]:
        """Prefetch entries that later fibers of `c` hold, a cache line of each array."""
        out: list[Stmt] = []
        for name, distance in self.nest.prefetch:
            if name == c.access.name and d + 1 == len(self.order):
                tensor = next(t for t in self.binding.tensors.values() if t.access.name == name)
                for x in (tensor.values, c.storage[c.level]["crd"]):
                    if x is not None:
                        out.append(Do("prefetch", (x, add(at, Const(distance)), ONE)))
        return out

    def ahead(self, d: int, c: Cursor, p: Expr, cursors: Cursors) -> list[Stmt]:
        """Prefetch what is walked later, and the rows which that picks."""
        return [*self.stream(d, c, p), *self.rows_ahead(d, c, p, cursors)]

    def rows_ahead(self, d: int, c: Cursor, p: Expr, cursors: Cursors) -> list[Stmt]:
        """Prefetch rows that an entry some nonzeros further on will read, or add to."""
        out = fibers_ahead(self.binding, self.order[d], c, p, cursors)
        vector = self.nest.vector
        for name, distance in self.nest.prefetch:
            if vector is None:
                continue
            rows, few = self.rows_of(name, self.order[d], cursors)
            if rows is None:
                continue
            last = sub(Dim(c.storage[c.level]["crd"], 0), ONE)
            row = mul(c.coordinate(Bin("min", add(p, Const(distance)), last)), Const(few))
            k = vector[0]
            width = (self.lanes.registers if self.lanes else vector[2]) * vector[1]
            for n in range(few):
                start = mul(add(row, Const(n)), self.extents[k])
                start = add(start, Var(k) if self.lanes else ZERO)
                out.append(Do("prefetch", (rows, start, Const(width))))
        return out

    def rows_of(self, name: str, v: str, cursors: Cursors) -> tuple[Buffer | None, int]:
        """The buffer of a dense matrix whose rows are chosen by `v`, if this is where they are, and
        how many each value chooses.
        """
        a = self.assignment
        n = next((m for m, x in enumerate(a.operands) if x.name == name), OUTPUT)
        names = a.output.level_vars if n == OUTPUT else a.operands[n].level_vars
        few = math.prod(a.fixed[u] for u in names[1:-1])
        if n == OUTPUT:
            return (self.target if names[:1] == (v,) else None), few
        here = cursors[n].next_var == v and not cursors[n].level
        return (self.binding.tensors[n].values if here else None), few

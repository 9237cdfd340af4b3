# SPDX-License-Identifier: Apache-2.0
"""Sums in registers: accumulators around the reductions of a nest, and what is added to them.

    acc = 0; the reduction loops; store acc

There is an accumulator for each vector register, for each partial sum (`unroll`), and for each
value of a held variable (`hold`), whose loop is spelled out where it stands:

    forall i, j, a, b: Y[i,a] += A[i,j,a,b] * x[j,b]        hold(a), of extent 2
 -> for i: Y_sum_a0 = Y_sum_a1 = 0
      for pA1 …: for b: Y_sum_a0 += A[pA1,0,b] * x[j,b]; Y_sum_a1 += A[pA1,1,b] * x[j,b]
      Y[i,0] = Y_sum_a0; Y[i,1] = Y_sum_a1
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from jsparse.ir.index import semiring
from jsparse.ir.loop import (
    Assign,
    Bin,
    Cast,
    Const,
    Decl,
    Expr,
    HSum,
    Splat,
    Stmt,
    Var,
    block,
    type_of,
)
from jsparse.lower.cursor import Cursors, Env
from jsparse.lower.products import Lanes, Products
from jsparse.lower.sums import tree
from jsparse.lower.walk import block_scope


@dataclass
class Registers(Products):
    """A walk that adds up in accumulators where its reductions are innermost."""

    copy: int = field(default=0, kw_only=True)  # the partial sum that the emitted body adds to
    place: str = field(default="", kw_only=True)  # names the value of the held variable, in it

    @cached_property
    def complete(self) -> int:
        """Depth at which all output variables are bound, but for the held one."""
        return self.nest.complete

    @cached_property
    def sum_dtype(self) -> str:
        """The dtype of accumulators."""
        scalar = self.nest.vector is None
        held = self.nest.held is not None
        loops = len(self.order) - self.complete - held
        return "float64" if self.base == "float32" and scalar and loops > 1 else self.base

    @property
    def reduced_lanes(self) -> bool:
        """Whether the vector loop is a reduction."""
        vector = self.nest.vector
        return vector is not None and vector[0] not in self.assignment.output.vars

    def write(self, values: list[Expr], cursors: Cursors, env: Env) -> Stmt:
        """Store, or add, the values at the output's position."""
        raise NotImplementedError

    def held_values(self) -> list[tuple[str, Env]]:
        """For each value of the held variable, what names it and its binding; else just one."""
        v = self.nest.held
        if v is None:
            return [("", {})]
        return [(f"_{v}{n}", {v: Const(n)}) for n in range(self.assignment.fixed[v])]

    def spell(self, d: int, cursors: Cursors, env: Env) -> Stmt:
        """The loop over the held variable, written out."""
        bodies = []
        for place, bound in self.held_values():
            self.place = place
            bodies.append(block_scope(self.visit(d + 1, cursors, {**env, **bound})))
        self.place = ""
        return block(*bodies)

    def accumulate(self, d: int, cursors: Cursors, env: Env) -> Stmt:
        """acc = 0; the reduction loops; store acc."""
        lanes, before = self.lanes, self.outside
        self.outside = before | self.constant(d, cursors, env)
        body = super().inside(d, cursors, env)
        self.lanes = lanes
        out = self.summed(body, cursors, env)
        self.outside = before
        return out

    def constant(self, d: int, cursors: Cursors, env: Env) -> frozenset[int]:
        """Operands of the only term with one value in all loops from `d` on, A_ij in the sum of
        A_ij B_ik C_jk over k: they are multiplied with the sum of the others.
        """
        if len(self.assignment.terms) != 1:
            return frozenset()
        bound = {**env, **self.held_values()[0][1]}
        found = set()
        for n in self.assignment.terms[0].factors:
            names = self.assignment.operands[n].vars
            c = cursors[n].settled(bound)
            summed = not set(self.order[d:]).isdisjoint(set(names) - {self.nest.held})
            if not summed and c.complete and c.has is None and n not in self.factors:
                found.add(n)
        return frozenset(found)

    def scaled(self, totals: list[Expr], cursors: Cursors, env: Env) -> list[Expr]:
        """Finished sums times the operands that are outside of them."""
        times = semiring(self.assignment.output.dtype)[1].text
        for n in sorted(self.outside):
            if self.binding.tensors[n].values is None:
                continue
            at = {n: cursors[n].settled(env)}
            for u, total in enumerate(totals):
                factor = self.load(n, at, u)
                dtype = type_of(total)[0]
                factor = factor if type_of(factor)[0] == dtype else Cast(dtype, factor)
                totals[u] = Bin(times, factor, total)
        return totals

    def summed(self, body: Stmt, cursors: Cursors, env: Env) -> Stmt:
        """`body`, which adds to accumulators, between their declaration and their use."""
        op = semiring(self.assignment.output.dtype)[0]
        zero = Const(op.identity, self.sum_dtype)
        copies = range(self.nest.unroll[1] if self.nest.unroll else 1)
        head: list[Stmt] = []
        stores: list[Stmt] = []
        for place, bound in self.held_values():
            self.place = place
            sums = [self.accumulators(c, self.lanes) for c in copies]
            partial = self.partial_sums()
            for acc in [acc for group in (*sums, partial) for acc in group]:
                start = Splat(zero, acc.lanes) if acc.lanes > 1 else zero
                head.append(Decl(acc, start, mutable=True))
            totals = [tree([s[u] for s in sums], op.text) for u in range(len(sums[0]))]
            if partial:
                totals = [Bin(op.text, totals[0], HSum(tree(partial, op.text), op.text))]
            totals = self.scaled(totals, cursors, {**env, **bound})
            stores.append(self.write(totals, cursors, {**env, **bound}))
        self.place = ""
        return block_scope(block(*head, body, *stores))

    def accumulators(self, copy: int, lanes: Lanes | None) -> list[Var]:
        suffix = f"{self.place}_{copy}" if copy else self.place
        if lanes is None:
            return [Var(f"Y_sum{suffix}", self.sum_dtype)]
        return [
            Var(f"Y_sum{u}{suffix}", self.sum_dtype, lanes.lanes) for u in range(lanes.registers)
        ]

    def partial_sums(self) -> list[Var]:
        """The vectors that a reduction in lanes adds to."""
        vector = self.nest.vector if self.reduced_lanes else self.nest.collect
        if vector is None:
            return []
        _, lanes, registers = vector
        return [Var(f"Y_v{u}{self.place}", self.sum_dtype, lanes) for u in range(registers)]

    def added(self, values: list[Expr]) -> list[Stmt]:
        """`values` added to the accumulators."""
        op = semiring(self.assignment.output.dtype)[0]
        if self.lanes and self.reduced_lanes:
            sums = self.partial_sums()[: self.lanes.registers]
        else:
            sums = self.accumulators(self.copy, self.lanes)
        out: list[Stmt] = []
        for acc, value in zip(sums, values, strict=True):
            value = Cast(acc.dtype, value) if type_of(value)[0] != acc.dtype else value
            out.append(Assign(acc, Bin(op.text, acc, value)))
        return out

# SPDX-License-Identifier: Apache-2.0
"""What the terms of a nest add at one place: products of loaded values, in lanes or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from jsparse.ir.index import Assignment, semiring
from jsparse.ir.loop import (
    Bin,
    Cast,
    Const,
    Decl,
    Expr,
    Load,
    Neg,
    Splat,
    Stmt,
    Var,
    add,
    type_of,
)
from jsparse.lower.buffers import Binding
from jsparse.lower.cursor import Cursors, Env
from jsparse.lower.sums import WIDE, masked
from jsparse.lower.walk import ABSENT, Walk
from jsparse.record import record
from jsparse.schedule.directives import Nest


@record
class Lanes:
    """A vector loop in progress: `registers` times `lanes` consecutive values of `var`, from its
    bound value on, and of the other variables of `moving`, which move along by steps of one.
    """

    var: str
    lanes: int
    registers: int
    moving: frozenset[str]


@dataclass
class Products(Walk):
    """A walk that knows the value of each term where it is."""

    nest: Nest
    binding: Binding
    lanes: Lanes | None = field(default=None, kw_only=True)
    # Operands whose value is in a variable.
    factors: dict[int, Var] = field(default_factory=dict, kw_only=True)
    # Operands that are multiplied with the finished sum instead.
    outside: frozenset[int] = field(default=frozenset(), kw_only=True)

    @cached_property
    def assignment(self) -> Assignment:
        return self.nest.assignment

    @cached_property
    def base(self) -> str:
        """The dtype products are computed in."""
        dtype = self.assignment.output.dtype
        return WIDE.get(dtype, dtype)

    def values(self, cursors: Cursors, env: Env) -> tuple[list[Stmt], list[Expr]]:
        """What the terms add here: one expression, or one for each register of a vector loop."""
        registers = self.lanes.registers if self.lanes else 1
        head: list[Stmt] = []
        scalars: dict[int, Expr] = {}
        product = semiring(self.assignment.output.dtype)[1]
        plus = semiring(self.assignment.output.dtype)[0]
        single = len(self.assignment.terms) == 1
        if single and registers > 1:
            for n in self.assignment.terms[0].factors:
                known = n in self.factors or n in self.outside
                known |= self.binding.tensors[n].values is None
                if not self.is_vector(n) and not known:
                    var = Var(f"{self.assignment.operands[n].name}_val", self.base)
                    head.append(Decl(var, self.load(n, cursors, 0)))
                    scalars[n] = var
        out: list[Expr] = []
        terms = [(t, self.present(t.factors, cursors)) for t in self.assignment.terms]
        terms = [(t, present) for t, present in terms if present != ABSENT]
        for u in range(registers):
            total: Expr | None = None
            for term, present in terms:
                value: Expr | None = None
                for n in term.factors:
                    if self.binding.tensors[n].values is None or n in self.outside:
                        continue
                    factor = self.factors.get(n) or scalars.get(n) or self.load(n, cursors, u)
                    value = factor if value is None else Bin(product.text, value, factor)
                if value is None:
                    value = Const(product.identity, self.base)
                if term.sign < 0:
                    value = Neg(value)
                if self.lanes and type_of(value)[1] == 1:
                    value = Splat(value, self.lanes.lanes)
                if present is not None:
                    valid = all(cursors[n].has is None or cursors[n].valid for n in term.factors)
                    value = masked(present, value, Const(plus.identity, self.base), valid)
                total = value if total is None else Bin(plus.text, total, value)
            assert total is not None
            out.append(total)
        return head, out

    def is_vector(self, n: int) -> bool:
        names = self.assignment.operands[n].vars
        return self.lanes is not None and not self.lanes.moving.isdisjoint(names)

    def load(self, n: int, cursors: Cursors, u: int) -> Expr:
        buffer = self.binding.tensors[n].values
        assert buffer is not None
        index = cursors[n].lo
        lanes = 1
        if self.lanes and self.is_vector(n):
            index, lanes = add(index, Const(u * self.lanes.lanes)), self.lanes.lanes
        value: Expr = Load(buffer, index, lanes)
        return value if buffer.dtype == self.base else Cast(self.base, value)

# SPDX-License-Identifier: Apache-2.0
"""The vector loop of a nest: blocks of lanes, and what is left over.

    for i: S   ->   for i in steps of 32: S in 8 registers of 4 lanes; in steps of 4: S; for i: S

Variables that a relative level ties to that of the loop move along with it by steps of one, so what
they index lies in consecutive places, too:

    for i: for pA0 in A: j = i + A0_crd[pA0]: Y[i] += A[pA0,i] * B[j]
 -> for i in steps of 4: for pA0 in A: j = i + A0_crd[pA0]: Y[i:i+4] += A[pA0,i:i+4] * B[j:j+4]
"""

from __future__ import annotations

from dataclasses import dataclass

from jsparse.ir.loop import (
    ZERO,
    Bin,
    Const,
    Decl,
    Expr,
    For,
    Select,
    Stmt,
    Var,
    add,
    block,
    mul,
    sub,
)
from jsparse.lower.cursor import Cursor, Cursors, Env
from jsparse.lower.products import Lanes, Products


@dataclass
class Vectors(Products):
    """A walk that can run one of its loops in lanes."""

    def vector(self, d: int, cursors: Cursors, env: Env) -> Stmt:
        """The vector loop: of all values, or of those in the interior of a relative level that ties
        another variable to this one.
        """
        assert self.nest.vector is not None
        name = self.nest.vector[0]
        c = next((c for c in cursors.values() if name in c.tie_vars), None)

        def loop(a: Expr, b: Expr) -> Stmt:
            if c is None:
                return self.blocks(d, a, b, cursors, env)
            return self.parts(d, c, a, b, cursors, env)

        return self.interval(d, ZERO, self.extents[name], loop, None, cursors)

    def parts(self, d: int, c: Cursor, a: Expr, b: Expr, cursors: Cursors, env: Env) -> Stmt:
        """Single values before the interior, blocks, single values behind it.

        Chunks are cut between blocks: a compiler may round sums in lanes in another way than single
        ones, and which of the two a value is must not depend on the number of threads.
        """
        assert self.nest.vector is not None
        name, lanes, registers = self.nest.vector
        v, inner, outer = Var(name), Var(f"{name}_inner"), Var(f"{name}_outer")
        begin, end, step = Var(f"{name}_begin"), Var(f"{name}_end"), Const(lanes * registers)
        lo, hi = c.next_level.interior(c.storage[c.level], back=name == c.access.tied[0])

        def between(x: Expr) -> Expr:
            whole = mul(Bin("/", sub(x, inner), step), step)
            outside = Bin("or", Bin("<=", x, inner), Bin(">=", x, outer))
            return Select(outside, x, add(inner, whole))

        first, last = Var(f"{name}_first"), Var(f"{name}_last")
        inside = {n: x.tied({name: v}, inner=True) for n, x in cursors.items()}
        single = self.visit(d + 1, cursors, {**env, name: v})
        return block(
            Decl(inner, Bin("min", lo, self.extents[name])),
            Decl(outer, Bin("max", inner, hi)),
            Decl(begin, between(a)),
            Decl(end, between(b)),
            Decl(first, Bin("min", Bin("max", begin, inner), end)),
            Decl(last, Bin("max", first, Bin("min", outer, end))),
            For(v, begin, first, single),
            self.blocks(d, first, last, inside, env),
            For(v, last, end, single),
        )

    def blocks(self, d: int, lo: Expr, hi: Expr, cursors: Cursors, env: Env) -> Stmt:
        """Blocks of lanes x registers, then of lanes, then single values."""
        assert self.nest.vector is not None
        name, lanes, registers = self.nest.vector
        v, n = Var(name), sub(hi, lo)
        moving = frozenset(self.assignment.moving(name))
        stmts: list[Stmt] = []
        start: Expr = lo
        for count, step in ((registers, lanes * registers), (1, lanes), (1, 1)):
            if count == 1 and step == lanes and registers == 1 and stmts:
                continue
            self.lanes = Lanes(name, lanes, count, moving) if step > 1 else None
            stop = hi if step == 1 else Var(f"{name}_{step}")
            if isinstance(n, Const):
                stop = add(lo, Const(int(n.value) // step * step))
                if stop == start:
                    continue
            elif step > 1:
                whole = mul(Bin("/", n, Const(step)), Const(step))
                stmts.append(Decl(Var(f"{name}_{step}"), add(lo, whole)))
            body = self.visit(d + 1, cursors, {**env, name: v})
            stmts.append(For(v, start, stop, body, step))
            start = stop
        self.lanes = None
        return block(*stmts)

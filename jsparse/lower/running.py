# SPDX-License-Identifier: Apache-2.0
"""Values at a pattern that holds just the coordinates which the loops reach, in their order:
their position is a running counter, and the pattern's coordinates are not read.

    for i: pP1 = P1_pos[i]; merge A[i,:] and B[i,:]: Y_vals[pP1] = A + B; pP1++
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jsparse.ir.loop import ONE, Assign, Decl, If, Stmt, Var, add, block
from jsparse.lower.buffers import OUTPUT
from jsparse.lower.cursor import Cursors, Env
from jsparse.lower.walk import Walk


@dataclass
class Running(Walk):
    """A walk whose output's innermost level, if `exact`, is counted instead of walked."""

    exact: bool = field(default=False, init=False)
    skipped: bool = field(default=False, init=False)  # whether some outputs may not be visited
    counter: Var | None = field(default=None, init=False)

    def loop(self, d: int, cursors: Cursors, env: Env) -> Stmt:
        its = self.iterators(d, cursors)
        c = its.pop(OUTPUT, None)
        required = sum(x.required for x in its.values())
        counts = self.exact and d > 0 and required != 1 and self.zips(d, its)
        if not counts or c is None or c.grouped or c.level + 1 < c.access.format.ndim:
            return super().loop(d, cursors, env)
        p, (lo, _) = Var(c.position), c.bounds()
        skipped, self.counter = self.skipped, p
        merge = self.intersection if required else self.union2
        body = merge(d, its, {**cursors, OUTPUT: c.down(p)}, env)
        self.skipped, self.counter = skipped, None
        return block(Decl(p, lo, mutable=True), body)

    def inside(self, d: int, cursors: Cursors, env: Env) -> Stmt:
        body = super().inside(d, cursors, env)
        if self.counter is None or d < len(self.order):
            return body
        reached = self.reached(cursors)
        step = block(body, Assign(self.counter, add(self.counter, ONE)))
        return step if reached is None else If(reached, step)

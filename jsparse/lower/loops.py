# SPDX-License-Identifier: Apache-2.0
"""A nest to loop IR: the values of a dense output, or of an output sampled at a pattern.

    forall i, k, j: Y[i,k] += A[i,j] * B[j,k]     vectorize(k,8,2)
 -> for i: for k in steps of 16: Y0 = Y1 = 0 for pA1 in A1_pos[i] … A1_pos[i + 1]: j =
      A1_crd[pA1]; Y0 += A[pA1] * B[j,k:k+8]; Y1 += A[pA1] * B[j,k+8:k+16] Y[i,k:k+8] = Y0;
      Y[i,k+8:k+16] = Y1

Sums.  Where reductions are innermost the sum is kept in accumulators and stored once; otherwise
it is added in memory. 16-bit floats accumulate in float32.  A float32 scalar that is summed over
several loops accumulates in float64; within one long loop it has several partial sums (`unroll`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

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
    Expr,
    For,
    Load,
    Scratch,
    Stmt,
    Store,
    Var,
    While,
    add,
    block,
    mul,
    type_of,
)
from jsparse.lower import parts
from jsparse.lower.buffers import OUTPUT
from jsparse.lower.chunks import CHUNKS_PER_THREAD, ROWS_PER_THREAD, Cut, starts_with
from jsparse.lower.cursor import Cursor, Cursors, Env
from jsparse.lower.inflight import InFlight
from jsparse.lower.running import Running
from jsparse.lower.sums import adds, position_row
from jsparse.lower.vectors import Vectors
from jsparse.lower.walk import block_scope
from jsparse.record import replace

MOST_SPELLED = 16  # entries of a fiber that are written out


@dataclass
class Einsum(Running, InFlight, Vectors):
    """The walk of a nest, with accumulators, vector lanes, partial sums, a row workspace and
    parallel chunks.
    """

    result: Buffer
    row: Buffer | None = None  # the workspace, while it is being filled
    rows_in_chunk: bool = False  # whether each chunk has rows of its own
    checked: set[int] = field(default_factory=set)  # tensors whose index arrays the chunks check
    gapless: int = 0  # how many outer loops visit every position, one after the other
    running: Cursor | None = None  # whose position runs on from row to row

    # ---------------------------------------------------------------- facts
    @cached_property
    def reducing(self) -> int:
        """Depth of the outermost reduction."""
        return self.nest.first_reduction

    @cached_property
    def adds(self) -> bool:
        """Whether the output is visited more than once, and so added to."""
        return adds(self.nest)

    @cached_property
    def owner(self) -> int | None:
        """The cursor whose entries are the output's, if it is sampled."""
        shares = self.assignment.shares
        return shares if shares is not None else OUTPUT if self.assignment.sampled else None

    def guarded(self) -> None:
        self.skipped = True

    # ------------------------------------------------------------- structure
    def inside(self, d: int, cursors: Cursors, env: Env) -> Stmt:
        for n, c in cursors.items():
            if c.table is None and (c.access.name, c.next_var) in self.nest.located:
                return self.spread(n, d, cursors, env)
        if self.nest.workspace and d == self.reducing and self.row is None:
            return self.gather(d, cursors, env)
        if d == self.complete and d < len(self.order) and (d or not self.nest.parts):
            return self.accumulate(d, cursors, env)
        for n, c in cursors.items():
            if self.invariant(n, d, c):
                return self.hoist(n, d, cursors, env)
        return super().inside(d, cursors, env)

    def invariant(self, n: int, d: int, c: Cursor) -> bool:
        """Whether operand n has one value in the loops from `d` on, and these add to memory: then
        a compiler must not keep it in a register by itself.
        """
        if not (self.adds and 0 < d < len(self.order)) or n == OUTPUT or n in self.factors:
            return False
        if n in self.outside:
            return False
        known = self.binding.tensors[n].values is not None and c.complete and c.has is None
        return known and not self.is_vector(n) and len(self.terms) == 1

    def hoist(self, n: int, d: int, cursors: Cursors, env: Env) -> Stmt:
        var = Var(f"{self.assignment.operands[n].name}_val", self.base)
        self.factors[n] = var
        body = self.inside(d, cursors, env)
        del self.factors[n]
        return block_scope(block(Decl(var, self.load(n, cursors, 0)), body))

    def iterators(self, d: int, cursors: Cursors) -> Cursors:
        """Inside a reduction the output's pattern is searched, not walked: it would be walked
        again each time.
        """
        its = super().iterators(d, cursors)
        if d >= self.reducing and len(its) > 1 and OUTPUT in its:
            del its[OUTPUT]
        return its

    def loop(self, d: int, cursors: Cursors, env: Env) -> Stmt:
        v = self.order[d]
        its = self.iterators(d, cursors)
        if its and v in self.assignment.output.vars and self.row is None and self.owner not in its:
            self.skipped = True
        if self.nest.held == v:
            return self.spell(d, cursors, env)
        if self.nest.vector and self.nest.vector[0] == v:
            return self.vector(d, cursors, env)
        return super().loop(d, cursors, env)

    def interval(
        self,
        d: int,
        lo: Expr,
        hi: Expr,
        loop: Callable[[Expr, Expr], Stmt],
        driver: Cursor | None,
        cursors: Cursors,
        together: tuple[Cursor, ...] = (),
    ) -> Stmt:
        name = self.nest.parallel
        if d == 0 and self.running is not None:
            loop = self.started(self.running, loop)
        if d or name is None:
            return loop(lo, hi)
        tensors = list(self.binding.tensors.values())
        head = self.rows()
        self.rows_in_chunk = True
        if driver is None:
            self.checked |= {t.number for t in tensors if starts_with(t, name)}
        most = ROWS_PER_THREAD if head else CHUNKS_PER_THREAD
        cut = Cut(name, self.order[1:], driver, cursors, self.extents, tensors, most, together)
        if not self.nest.parts:
            return cut.parallel(lo, hi, lambda a, b: block(*head, loop(a, b)))
        head += parts.begin(self.target, self.result, Var("chunk"), self.adds)

        def part(a: Expr, b: Expr) -> Stmt:
            inner = loop(a, b) if self.complete else self.summed(loop(a, b), cursors, {})
            return block(*head, inner)

        return replace(cut, given=Const(self.nest.parts)).parallel(lo, hi, part)

    def driven(self, d: int, n: int, its: Cursors, cursors: Cursors, env: Env) -> Stmt:
        count = (
            self.nest.unroll[1] if self.nest.unroll and self.nest.unroll[0] == self.order[d] else 1
        )
        c = its[n]
        if self.is_short(d, c, its):
            return self.spelled_fiber(d, n, count, cursors, env)
        if self.nest.collect and self.nest.collect[0] == self.order[d]:
            return self.collected(d, n, cursors, env)
        if count == 1 and self.runs_on(d, c, its, cursors):
            return self.run_on(d, n, cursors, env)
        if count == 1 or len(its) > 1 or c.grouped or d + 1 < len(self.order):
            self.leaves_out(d, len(its) > 1 or c.hi is not None or c.grouped)
            loop = super().driven(d, n, its, cursors, env)
            return block(*self.stream(d, c, c.bounds()[0]), loop)
        return self.in_flight(d, n, count, cursors, env)

    def is_short(self, d: int, c: Cursor, its: Cursors) -> bool:
        """Whether the innermost loop is over a fiber of few entries, as many as the format says."""
        size = 0 if c.next_level.branchless else c.next_level.children or 0
        alone = len(its) == 1 and c.hi is None and c.has is None
        return 0 < size <= MOST_SPELLED and alone and 0 < d == len(self.order) - 1

    def spelled_fiber(self, d: int, n: int, count: int, cursors: Cursors, env: Env) -> Stmt:
        """The entries of a short fiber one after the other, adding to `count` sums in turns: no
        loop that could end anywhere, and so no branch to be mispredicted.
        """
        c = cursors[n]
        v, p, lo = Var(self.order[d]), Var(c.position), c.bounds()[0]
        out: list[Stmt] = []
        for k in range(c.next_level.children or 0):
            self.copy = k % count
            body = self.visit(d + 1, {**cursors, n: c.down(p)}, {**env, v.name: v})
            head = Decl(p, add(lo, Const(k))), Decl(v, c.coordinate(p))
            early = self.ahead if k == 0 else self.rows_ahead
            out.append(block_scope(block(*head, *early(d, c, p, cursors), body)))
        self.copy = 0
        return block(*out)

    def full(self, d: int, its: Cursors, cursors: Cursors, env: Env) -> Stmt:
        self.leaves_out(d, bool(its))
        return super().full(d, its, cursors, env)

    def leaves_out(self, d: int, some: bool) -> None:
        """Note whether the loop at depth `d` leaves out positions."""
        self.gapless = d + 1 if not some and (d == 0 or self.gapless == d) else min(self.gapless, d)

    def runs_on(self, d: int, c: Cursor, its: Cursors, cursors: Cursors) -> bool:
        """Whether the fibers of `c` are walked one after the other without a gap."""
        alone = all(x is c or x.access.format.is_dense for x in cursors.values())
        stored = 0 < d == c.level == len(self.order) - 1 and self.order == c.access.level_vars
        fibers = self.gapless == d and c.hi is None and not c.grouped
        return alone and stored and fibers and len(its) == 1 and self.nest.vector is None

    def run_on(self, d: int, n: int, cursors: Cursors, env: Env) -> Stmt:
        """The loop over a fiber that goes on from where the last fiber ended.

        A row's position is then known without waiting for `pos`: SpMV with ten entries in each
        row takes 0.8 of the time.
        """
        c = cursors[n]
        v, p, end = Var(self.order[d]), Var(c.position), Var(c.position + "_end")
        body = self.visit(d + 1, {**cursors, n: c.down(p)}, {**env, v.name: v})
        step = block(Decl(v, c.coordinate(p)), body, Assign(p, add(p, ONE)))
        self.running = c
        return block(Decl(end, c.bounds()[1]), *self.stream(d, c, p), While(Bin("<", p, end), step))

    def started(
        self, c: Cursor, loop: Callable[[Expr, Expr], Stmt]
    ) -> Callable[[Expr, Expr], Stmt]:
        """`loop` over rows, with the position of its first entry before it."""

        def whole(a: Expr, b: Expr) -> Stmt:
            start = a
            for n in range(1, c.level + 1):
                start = c.access.format.levels[n].bounds(c.storage[n], start, b)[0]
            return block(Decl(Var(c.position), start, mutable=True), loop(a, b))

        return whole

    # ---------------------------------------------------------------- values
    def leaf(self, cursors: Cursors, env: Env) -> Stmt:
        if self.places is not None:
            self.places.append(cursors)
            return block()
        head, values = self.values(cursors, env)
        if self.complete == len(self.order):
            return block(*head, self.write(values, cursors, env))
        return block(*head, *self.added(values))

    def write(self, values: list[Expr], cursors: Cursors, env: Env) -> Stmt:
        """Store, or add, the values at the output's position."""
        plus = semiring(self.assignment.output.dtype)[0].text
        target = self.row or self.target
        index = self.position(cursors, env)
        if self.nest.parts and self.row is None:
            index = add(parts.START, index)
        out: list[Stmt] = []
        lanes = self.lanes if self.lanes and self.lanes.var in self.assignment.output.vars else None
        for u, value in enumerate(values):
            if type_of(value)[0] != target.dtype:
                value = Cast(target.dtype, value)
            at = add(index, Const(u * lanes.lanes)) if lanes else index
            out.append(
                Store(target, at, value, plus if self.adds else "", lanes.lanes if lanes else 1)
            )
        return block(*out)

    def position(self, cursors: Cursors, env: Env) -> Expr:
        a = self.assignment
        if self.row is not None:
            assert self.nest.workspace is not None
            return env[self.nest.workspace]
        if a.shares is not None:
            return cursors[a.shares].settled(env).lo
        if a.sampled:
            return cursors[OUTPUT].lo
        index: Expr = ZERO
        for v in a.output.level_vars:
            index = add(mul(index, self.extents[v]), env[v])
        return index

    # ------------------------------------------------------------- workspace
    def spread(self, n: int, d: int, cursors: Cursors, env: Env) -> Stmt:
        """Write the positions of operand n's fiber, plus one, into a row; go on looking them up."""
        c = cursors[n]
        assert c.next_var is not None
        table = position_row(c.access.name, c.next_var)
        p = Var(f"{c.position}_at")
        lo, hi = c.bounds()
        fill: Stmt = For(p, lo, hi, Store(table, c.coordinate(p), add(p, ONE)))
        if d == 0:  # the same for every chunk: made before the loops
            fill = block(Scratch(table, self.extents[c.next_var], zero=True), fill)
        return block(fill, self.inside(d, {**cursors, n: replace(c, table=table)}, env))

    def rows(self) -> list[Stmt]:
        """Memory for the rows of the nest: sums, and positions."""
        out: list[Stmt] = []
        if self.nest.workspace:
            row = Buffer(f"w_{self.nest.workspace}", self.base)
            out.append(Scratch(row, self.extents[self.nest.workspace], zero=True))
        for name, v in self.nest.located:
            first = next(x for x in self.assignment.operands if x.name == name).level_vars[0]
            if v != first:  # a fiber of the root is spread where `spread` meets it
                out.append(Scratch(position_row(name, v), self.extents[v], zero=True))
        return out

    def gather(self, d: int, cursors: Cursors, env: Env) -> Stmt:
        """The output's row: zeros where it has entries; then the sums, anywhere; then the
        entries' values.  Where sums are just at the entries, zeros are left behind for the next.
        """
        k = self.nest.workspace
        assert k is not None
        c = cursors[OUTPUT]
        p, v = Var(c.position), Var(k)
        lo, hi = c.bounds()
        row = Buffer(f"w_{k}", self.base)
        clear = Store(row, v, Const(0, self.base))
        value: Expr = Load(row, v)
        if self.base != self.result.dtype:
            value = Cast(self.result.dtype, value)
        without = {n: x for n, x in cursors.items() if n != OUTPUT}
        self.row = row
        produce = self.inside(d, without, env)
        here, store = Decl(v, c.coordinate(p)), Store(self.result, p, value)
        if self.exact:
            return block(block_scope(produce), For(p, lo, hi, block(here, store, clear)))
        before = For(p, lo, hi, block(here, clear))
        return block(before, block_scope(produce), For(p, lo, hi, block(here, store)))

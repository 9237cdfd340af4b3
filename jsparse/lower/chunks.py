# SPDX-License-Identifier: Apache-2.0
"""The outermost loop in chunks for several threads.

    for i: S   ->   parallel chunk: [begin, end) = a part with its share of the nonzeros; for i: S

    while entries of A or B are left: i = ...   ->   parallel chunk: [begin, end) = a part of i such
      that A and B have their share of entries there; start A and B at begin, ...

Each chunk checks the index arrays that it reads, where the loop splits them.
"""

from __future__ import annotations

from collections.abc import Callable

from jsparse.ir.loop import (
    INT,
    ONE,
    ZERO,
    Bin,
    Buffer,
    Call,
    Cast,
    Const,
    Decl,
    Expr,
    Load,
    Parallel,
    Stmt,
    Threads,
    Var,
    add,
    block,
    mul,
    sub,
)
from jsparse.lower.buffers import Tensor, checks
from jsparse.lower.cursor import Cursor, Cursors, Env
from jsparse.record import record

GRAIN = 1 << 15  # multiply-adds in a chunk: some 10 to 50 microseconds
CHUNKS_PER_THREAD = 64  # what a chunk checks is still in cache when it is used
ROWS_PER_THREAD = 8  # chunks where each has a workspace
FIBER = 8  # guessed entries in a fiber that the loop does not split


@record
class Cut:
    """How to cut the loop over `var`: over its values, of which maybe only those are visited that
    the fibers `together` store, or over the positions of `driver`.
    """

    var: str
    inner: tuple[str, ...]
    driver: Cursor | None
    cursors: Cursors
    extents: Env
    tensors: list[Tensor]
    parts: int  # chunks for each thread at most
    together: tuple[Cursor, ...] = ()
    limit: int | None = None  # chunks at most
    given: Expr | None = None  # how many chunks, if that is decided elsewhere

    def parallel(self, lo: Expr, hi: Expr, loop: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """`loop` over parts of [lo, hi) with about equal work; few parts if there is little."""
        root = self.root()
        weights = below(root) if root is not None else None
        most = Bin("min", mul(Threads(), Const(self.parts)), sub(hi, lo))
        if self.limit is not None:
            most = Bin("min", most, Const(self.limit))
        work = Bin("/", self.work(lo, hi, root), Const(GRAIN))
        chunk, chunks = Var("chunk"), Var("chunks")
        begin, end = Var("begin"), Var("end")
        body: list[Stmt] = [
            Decl(begin, self.boundary(lo, hi, chunk, weights)),
            Decl(end, self.boundary(lo, hi, add(chunk, ONE), weights)),
        ]
        if self.driver is None:
            for t in self.tensors:
                if starts_with(t, self.var):
                    body += checks(t, begin, end, 1)
        body.append(loop(begin, end))
        return block(
            Decl(chunks, self.given or Bin("max", ONE, Bin("min", work, most))),
            Parallel(chunk, chunks, block(*body)),
        )

    def root(self) -> Cursor | None:
        """The tensor whose fibers the loop walks: the driver, or the first with a `pos` below."""
        if self.driver is not None:
            return self.driver
        if self.together:
            return self.together[0]
        return next((c for c in self.cursors.values() if self.weighed(c)), None)

    def weighed(self, c: Cursor) -> bool:
        """Whether `c` has a fiber for each value of the variable."""
        return c.next_var == self.var and c.next_level.full and below(c) is not None

    def visited(self, lo: Expr, hi: Expr, root: Cursor | None) -> list[tuple[Cursor, Expr, Expr]]:
        """Tensors whose entries the loops walk for all that is known, and their positions."""
        if self.together:
            return [(c, *c.bounds()) for c in self.together]
        if root is None or self.driver is not None:
            return [] if root is None else [(root, lo, hi)]
        same = [c for c in self.cursors.values() if set(c.access.vars) == set(root.access.vars)]
        return [(c, lo, hi) for c in same if self.weighed(c)]

    def work(self, lo: Expr, hi: Expr, root: Cursor | None) -> Expr:
        """Multiply-adds, as far as can be told before the loop."""
        work: Expr = ZERO if self.together else sub(hi, lo)
        for c, first, last in self.visited(lo, hi, root):
            work = add(work, sub(last, first)) if self.together else work
            work = add(work, entries(below(c), first, last))
        sparse = {v for t in self.tensors for v in t.access.sparse_vars}
        for v in self.inner:
            if root is None or v not in root.access.vars:
                work = mul(work, Const(FIBER) if v in sparse else self.extents[v])
        return work

    def boundary(self, lo: Expr, hi: Expr, k: Expr, weights: Buffer | None) -> Expr:
        """Where part `k` starts."""
        at: Expr
        if self.together:
            fibers = [(c.storage[0]["crd"], below(c) or ZERO, *c.bounds()) for c in self.together]
            return Call("share", (k, Var("chunks"), hi, *[x for f in fibers for x in f]))
        if weights is not None:
            at = Call("balance", (weights, lo, hi, k, Var("chunks")))
        else:
            at = Call("even", (lo, hi, k, Var("chunks")))
        if self.driver is not None and self.driver.grouped:
            at = Call("group_start", (self.driver.storage[0]["crd"], at, lo, hi))
        return at


def below(c: Cursor) -> Buffer | None:
    """Where the entries below each position of a tensor's first level start, if they vary."""
    return c.storage[1].arrays.get("pos") if len(c.storage) > 1 else None


def entries(pos: Buffer | None, lo: Expr, hi: Expr) -> Expr:
    """How many there are below the positions [lo, hi)."""
    return ZERO if pos is None else sub(Cast(INT, Load(pos, hi)), Cast(INT, Load(pos, lo)))


def starts_with(t: Tensor, var: str) -> bool:
    """Whether a loop over the values of `var` splits this tensor: its first level is full."""
    a = t.access
    return bool(a.format.sparse_levels) and a.level_vars[0] == var and a.format.levels[0].full

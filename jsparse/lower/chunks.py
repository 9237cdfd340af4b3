# SPDX-License-Identifier: Apache-2.0
"""The outermost loop in chunks for several threads.

    for i: S   ->   parallel chunk: [begin, end) = a part with its share of the nonzeros; for i: S

Each chunk checks the index arrays that it reads, where the loop splits them.
"""

from __future__ import annotations

from collections.abc import Callable

from jsparse.ir.loop import (
    INT,
    ONE,
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
    """How to cut the loop over `var`: over its values, or over the positions of `driver`."""

    var: str
    inner: tuple[str, ...]
    driver: Cursor | None
    cursors: Cursors
    extents: Env
    tensors: list[Tensor]
    parts: int  # chunks for each thread at most
    limit: int | None = None  # chunks at most
    given: Expr | None = None  # how many chunks, if that is decided elsewhere

    def parallel(self, lo: Expr, hi: Expr, loop: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """`loop` over parts of [lo, hi) with about equal work; few parts if there is little."""
        root = self.root()
        weights = root.storage[1].arrays.get("pos") if root and len(root.storage) > 1 else None
        most = Bin("min", mul(Threads(), Const(self.parts)), sub(hi, lo))
        if self.limit is not None:
            most = Bin("min", most, Const(self.limit))
        work = Bin("/", self.work(lo, hi, root, weights), Const(GRAIN))
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
        for c in self.cursors.values():
            if c.next_var == self.var and len(c.storage) > 1 and "pos" in c.storage[1].arrays:
                return c
        return None

    def work(self, lo: Expr, hi: Expr, root: Cursor | None, weights: Buffer | None) -> Expr:
        """Multiply-adds, as far as can be told before the loop."""
        work: Expr = sub(hi, lo)
        if weights is not None:
            work = add(work, sub(Cast(INT, Load(weights, hi)), Cast(INT, Load(weights, lo))))
        sparse = {v for t in self.tensors for v in t.access.sparse_vars}
        for v in self.inner:
            if root is None or v not in root.access.vars:
                work = mul(work, Const(FIBER) if v in sparse else self.extents[v])
        return work

    def boundary(self, lo: Expr, hi: Expr, k: Expr, weights: Buffer | None) -> Expr:
        """Where part `k` starts."""
        if weights is not None:
            at: Expr = Call("balance", (weights, lo, hi, k, Var("chunks")))
        else:
            at = Call("even", (lo, hi, k, Var("chunks")))
        if self.driver is not None and self.driver.grouped:
            at = Call("group_start", (self.driver.storage[0]["crd"], at, lo, hi))
        return at


def starts_with(t: Tensor, var: str) -> bool:
    """Whether a loop over the values of `var` splits this tensor: its first level is full."""
    a = t.access
    return bool(a.format.sparse_levels) and a.level_vars[0] == var and a.format.levels[0].full

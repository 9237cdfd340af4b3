# SPDX-License-Identifier: Apache-2.0
"""Patterns of uniform fibers: compressed ones, filled up to a number of coordinates.

    fibers 0 3 | 1 | 2 5       uniform(2)  ->  0 3 | 0 1 | 2 5       source 0 1 | 5 2 | 3 4

What fills a fiber up are the least coordinates that it does not use.  So they, and the entries
before the last of them, sit at the place in the fiber that equals their coordinate, and one merge
in order writes them all.  The source of a place is the entry that is there, or past all of them.
"""

from __future__ import annotations

from jsparse.ir.index import Assignment
from jsparse.ir.loop import (
    FIBER,
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
    Expr,
    For,
    If,
    Kernel,
    Load,
    Raise,
    Stmt,
    Store,
    Var,
    add,
    block,
    mul,
    sub,
)
from jsparse.lower.assemble import head_of
from jsparse.lower.buffers import OUTPUT, bind
from jsparse.record import record


@record
class Fiber:
    """One fiber of `size` places: the next entry `q` of those before `end`, and how many zeros are
    still needed to fill it up.
    """

    pos: Buffer
    crd: Buffer  # of the compressed fibers
    places: Buffer  # the coordinates in the uniform ones
    source: Buffer
    level: int
    size: int

    def body(self, p: Var) -> Stmt:
        """Fiber p; a fault if it has more entries than places."""
        q, end, spare, t = Var("q"), Var("q_end"), Var("spare"), Var("t")
        size, place = Const(self.size), Var("place")
        absent = Bin("or", Bin(">=", q, end), Bin("!=", Cast(INT, Load(self.crd, q)), t))
        filled = block(*self.put(place, t, Dim(self.crd, 0)), Assign(spare, sub(spare, ONE)))
        entry = block(*self.put(place, Cast(INT, Load(self.crd, q)), q), Assign(q, add(q, ONE)))
        step = If(Bin("and", Bin(">", spare, ZERO), absent), filled, entry)
        over = Raise(FIBER, OUTPUT, self.level, p, sub(end, q), size)
        return block(
            Decl(q, Cast(INT, Load(self.pos, p)), mutable=True),
            Decl(end, Cast(INT, Load(self.pos, add(p, ONE)))),
            Decl(spare, sub(size, sub(end, q)), mutable=True),
            If(Bin("<", spare, ZERO), over),
            For(t, ZERO, size, block(Decl(place, add(mul(p, size), t)), step)),
        )

    def put(self, place: Expr, coordinate: Expr, source: Expr) -> list[Stmt]:
        pairs = (self.places, coordinate), (self.source, source)
        return [Store(b, place, Cast(b.dtype, x)) for b, x in pairs]


def places(a: Assignment, fibers: int) -> int:
    """How many coordinates the last sparse level of the output has."""
    n = a.output.format.sparse_levels[-1]
    return a.output.format.levels[n].array_size("crd", fibers, 0)


def lower(a: Assignment) -> Kernel:
    """The kernel: `a` has one operand, in the output's format but for its last sparse level, which
    is compressed.  Results: the coordinates of that level, and where each comes from.
    """
    binding = bind(a)
    n, index = a.output.format.sparse_levels[-1], a.output.format.index
    source = binding.tensors[0]
    places = Buffer(f"Y{n}_crd", index, "result", 0)
    origin = Buffer("Y_source", index, "result", 1)
    own, size = source.storage[n], a.output.format.levels[n].children
    assert size is not None
    fiber = Fiber(own["pos"], own["crd"], places, origin, n, size)
    lo: Expr = ZERO
    hi: Expr = ONE
    for level, s in zip(a.operands[0].format.levels[:n], source.storage, strict=False):
        lo, hi = level.bounds(s, lo, hi)
    p, place, fibers = Var("p"), Var("place"), Var("fibers")
    beyond = block(*fiber.put(place, ZERO, Dim(own["crd"], 0)))
    body = block(
        *head_of(binding, set()),
        Decl(fibers, hi),
        For(p, ZERO, fibers, fiber.body(p)),
        For(place, mul(fibers, Const(size)), Dim(places, 0), beyond),
    )
    return Kernel(binding.args, (places, origin), body)

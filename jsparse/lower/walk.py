# SPDX-License-Identifier: Apache-2.0
"""Co-iteration: walks the index variables of a nest in order and emits the loops that visit the
stored coordinates.

Each tensor has a `Cursor` that descends one level when that level's variable is bound.  At a loop
over `v` the cursors whose next level stores coordinates of `v` are the *iterators*; the lattice
of what must be visited (Kjolstad et al., "The Tensor Algebra Compiler", 2017) comes down to three
kinds of loop:

    full     no iterator is required and some term covers every coordinate: for v in 0 … extent - 1
    driven   a required iterator drives, the others advance to it: for p in fiber: v = crd[p]; …
    union    only optional iterators: while any is left: v = min(crd …); …

Two iterators of the innermost variable are merged without branches that depend on the data:
`while both are left: v = min(a, b); …; p += a <= b; q += b <= a`, then what is left of either.
A follower that the schedule says to `gallop` is searched from where it is instead.  A loop that is
cut into chunks starts every iterator at its chunk by search.

A cursor is *required* if nothing can be written where it has no entry: a factor of the only term,
or the pattern of the output.  Otherwise it is *optional* and carries a flag `has`; below a
coordinate that it lacks its fibers are empty, so one body serves all combinations.  A cursor
whose next variable is already bound catches up at once: full levels by arithmetic, others by
search, so any loop order is correct, whatever the storage order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from jsparse.errors import InternalError
from jsparse.ir.loop import (
    BOOL,
    INT,
    ONE,
    ZERO,
    Assign,
    Bin,
    Break,
    Call,
    Cast,
    Const,
    Decl,
    Expr,
    For,
    If,
    Load,
    Select,
    Stmt,
    Var,
    While,
    add,
    block,
    both,
    sub,
)
from jsparse.lower.cursor import Cursor, Cursors, Env
from jsparse.record import replace

LAST = Const(2**63 - 1)  # past every coordinate
ABSENT = Const(False, BOOL)


@dataclass
class Walk:
    """The loops over `order`.  `terms` are products of cursor numbers; `extents` maps variables
    to expressions.

    Subclasses say what happens at each depth by overriding `inside` and `leaf`.
    """

    order: tuple[str, ...]
    terms: tuple[tuple[int, ...], ...]
    extents: Env
    one_of: frozenset[Expr] = field(default=frozenset(), init=False)
    """Flags of which at least one holds, by the loop around."""
    galloped: tuple[tuple[str, str], ...] = field(default=(), init=False)
    """(access, variable) whose fibers are so long that they are searched from where they are."""

    # ------------------------------------------------------------- overridden
    def leaf(self, cursors: Cursors, env: Env) -> Stmt:
        """The innermost statement."""
        raise NotImplementedError

    def inside(self, d: int, cursors: Cursors, env: Env) -> Stmt:
        """The nest from loop `d` on, with every cursor as far down as the bound variables allow."""
        return self.leaf(cursors, env) if d == len(self.order) else self.loop(d, cursors, env)

    def guarded(self) -> None:
        """Told when the statement below may be skipped for some coordinates."""

    # ------------------------------------------------------------------- walk
    def visit(self, d: int, cursors: Cursors, env: Env) -> Stmt:
        """Let cursors catch up with the bound variables, then go on at depth `d`."""
        if any([c.access.tied for c in cursors.values()]):
            cursors = {n: c.tied(env) for n, c in cursors.items()}
        for n, c in cursors.items():
            if c.next_var in env:
                return self.catch_up(n, d, cursors, env)
        return self.inside(d, cursors, env)

    def catch_up(self, n: int, d: int, cursors: Cursors, env: Env) -> Stmt:
        c = cursors[n]
        v = env[c.next_var or ""]

        def go_on(c2: Cursor) -> Stmt:
            return self.visit(d, {**cursors, n: c2}, env)

        if c.next_level.full:
            return go_on(c.down(c.next_level.locate(c.storage[c.level], c.lo, v), None, c.has))
        self.guarded()
        lo, hi = c.bounds()
        p, end = Var(c.position), Var(c.position + "_end")
        if c.table is not None:  # entries of other fibers lie outside of [lo, hi)
            inside = Bin("and", Bin(">=", p, lo), Bin("<", p, hi))
            return block(Decl(p, sub(Load(c.table, v), ONE)), If(inside, go_on(c.down(p))))
        if not c.next_level.ordered or (not c.next_level.unique and not c.grouped):
            if not c.required:
                raise InternalError(f"{c.access} is optional but cannot be searched")
            body = If(
                Bin("==", c.coordinate(p), v), go_on(c.down(p, add(p, ONE) if c.grouped else None))
            )
            return For(p, lo, hi, body)
        crd = c.storage[c.level]["crd"]
        key = c.next_level.stored(v, c.tie)
        head = [Decl(end, hi), Decl(p, Call("lower_bound", (crd, lo, end, key)))]
        found = Bin("and", Bin("<", p, end), Bin("==", c.coordinate(p), v))
        group = Call("lower_bound", (crd, p, end, add(v, ONE))) if c.grouped else None
        if c.required:
            return block(*head, If(found, go_on(c.down(p, group))))
        has = Var(f"has_{c.access.name}{c.level}", BOOL)
        return block(*head, Decl(has, found), go_on(c.down(p, group, has)))

    def iterators(self, d: int, cursors: Cursors) -> Cursors:
        v = self.order[d]
        its = {
            n: c
            for n, c in cursors.items()
            if c.next_var == v and not c.next_level.full and c.table is None
        }
        while len(its) > 1:  # those that descend cannot be merged: they are searched
            n = next((n for n, c in its.items() if c.descends), None)
            if n is None:
                break
            del its[n]
        return its

    def loop(self, d: int, cursors: Cursors, env: Env) -> Stmt:
        its = self.iterators(d, cursors)
        required = [n for n, c in its.items() if c.required]
        if required:
            if d > 0 and len(required) == 2 and self.zips(d, its):
                return self.intersection(d, its, cursors, env)
            return self.driven(d, self.driver(required, its), its, cursors, env)
        alive = [t for t in self.terms if all(n in cursors for n in t)]
        if its and all(any(n in its for n in t) for t in alive):
            return (self.union2 if self.zips(d, its) else self.union)(d, its, cursors, env)
        return self.full(d, its, cursors, env)

    def driver(self, required: list[int], its: Cursors) -> int:
        """The iterator that drives: one that is not searched; the output's pattern (-1) if there,
        else the first operand.
        """
        return min(required, key=lambda n: (self.gallops(its[n]), n))

    def gallops(self, c: Cursor) -> bool:
        """Whether the next level of `c` is searched where it is intersected."""
        return (c.access.name, c.next_var) in self.galloped

    # ------------------------------------------------------- the kinds of loop
    def full(self, d: int, its: Cursors, cursors: Cursors, env: Env) -> Stmt:
        v = Var(self.order[d])
        body = self.follow(its, cursors, v, lambda cs: self.visit(d + 1, cs, {**env, v.name: v}))

        def loop(a: Expr, b: Expr) -> Stmt:
            return block(*self.begin(its, v, a, b), For(v, a, b, body))

        return self.interval(d, ZERO, self.extents[v.name], loop, None, cursors)

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
        """`loop` over [lo, hi): values of the variable, or positions of `driver`.  A subclass may
        run it in parts.  `together`: iterators which visit just the values that they store.
        """
        return loop(lo, hi)

    def driven(self, d: int, n: int, its: Cursors, cursors: Cursors, env: Env) -> Stmt:
        c = its[n]
        v, p, end = Var(self.order[d]), Var(c.position), Var(c.position + "_end")
        others = {m: o for m, o in its.items() if m != n}
        if not c.next_level.ordered:  # its coordinates jump: the others are searched, below
            others = {}
        group = Var(c.position + "_group") if c.grouped else None
        below, inner = c.down(p, group), {**env, v.name: v}
        body = self.follow(
            others, cursors, v, lambda cs: self.visit(d + 1, {**cs, n: below}, inner)
        )
        if group is None:
            step = block(Decl(v, c.coordinate(p)), *self.ahead(d, c, p, cursors), body)
        else:
            step = self.groups(p, group, end, v, c, body)

        def loop(a: Expr, b: Expr) -> Stmt:
            if group is None:
                return For(p, a, b, step)
            return block(Decl(p, a, mutable=True), Decl(end, b), step)

        def part(a: Expr, b: Expr) -> Stmt:
            return block(*self.begin(others, v, a, b), loop(*self.span(c, v, a, b)))

        if others:
            both = (c, *others.values())
            return self.interval(d, ZERO, self.extents[v.name], part, None, cursors, both)
        return self.interval(d, *c.bounds(), loop, c, cursors)

    def ahead(self, d: int, c: Cursor, p: Expr, cursors: Cursors) -> list[Stmt]:
        """What to do early for entries after position `p` of the driver `c`; nothing here."""
        return []

    def groups(self, p: Var, group: Var, end: Var, v: Var, c: Cursor, body: Stmt) -> Stmt:
        """while p < end: the group [p, group) of equal coordinates v, then on to the next."""
        more = both(Bin("<", group, end), Bin("==", c.coordinate(group), v))
        assert more is not None
        return While(
            Bin("<", p, end),
            block(
                Decl(v, c.coordinate(p)),
                Decl(group, add(p, ONE), mutable=True),
                While(more, Assign(group, add(group, ONE))),
                block_scope(body),
                Assign(p, group),
            ),
        )

    def begin(self, its: Cursors, v: Var, a: Expr, b: Expr) -> list[Stmt]:
        """The positions of the iterators `its` before a loop over the values [a, b) of `v`."""
        head: list[Stmt] = []
        for c in its.values():
            if not c.next_level.ordered or (not c.next_level.unique and not c.grouped):
                raise InternalError(f"{c.access} is co-iterated but not ordered and unique")
            lo, hi = self.span(c, v, a, b)
            head += [Decl(Var(c.position), lo, mutable=True), Decl(Var(c.position + "_end"), hi)]
        return head

    def span(self, c: Cursor, v: Var, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        """The positions in the fiber of `c` whose coordinates lie in [a, b)."""
        lo, hi = c.bounds()
        s = c.storage[c.level]
        first = lo if a == ZERO else Call("lower_bound", (s["crd"], lo, hi, a))
        last = hi if b == self.extents[v.name] else Call("lower_bound", (s["crd"], lo, hi, b))
        return first, last

    def follow(
        self, its: Cursors, cursors: Cursors, v: Var, body: Callable[[Cursors], Stmt]
    ) -> Stmt:
        """The body of a loop, with the iterators `its` moved up to `v`."""
        return self._advance(list(its), dict(cursors), v, body)

    def _advance(
        self, todo: list[int], cursors: Cursors, v: Var, body: Callable[[Cursors], Stmt]
    ) -> Stmt:
        if not todo:
            return body(cursors)
        n, *rest = todo
        c = cursors[n]
        q, end, group = Var(c.position), Var(c.position + "_end"), Var(c.position + "_group")
        step: Stmt = While(
            Bin("and", Bin("<", q, end), Bin("<", c.coordinate(q), v)), Assign(q, add(q, ONE))
        )
        if self.gallops(c):
            step = Assign(q, Call("gallop", (c.storage[c.level]["crd"], q, end, v)))
        here = Bin("==", c.coordinate(q), v)
        members = c.grouped

        def grouping(present: Expr | None) -> list[Stmt]:
            if not members:
                return []
            more = both(present, Bin("<", group, end), Bin("==", c.coordinate(group), v))
            assert more is not None
            return [Decl(group, q, mutable=True), While(more, Assign(group, add(group, ONE)))]

        if c.required:
            self.guarded()
            down = c.down(q, group if members else None)
            inner = self._advance(rest, {**cursors, n: down}, v, body)
            return block(
                step, If(Bin(">=", q, end), Break()), If(here, block(*grouping(None), inner))
            )
        has = Var(f"has_{c.access.name}{c.level}", BOOL)
        down = c.down(q, group if members else None, has)
        inner = self._advance(rest, {**cursors, n: down}, v, body)
        return block(step, Decl(has, Bin("and", Bin("<", q, end), here)), *grouping(has), inner)

    def union(self, d: int, its: Cursors, cursors: Cursors, env: Env) -> Stmt:
        v = Var(self.order[d])
        self.guarded()
        any_left: Expr | None = None
        least: Expr = LAST
        flags: list[Stmt] = []
        moves: list[Stmt] = []
        below = dict(cursors)
        for n, c in its.items():
            q, end, group = Var(c.position), Var(c.position + "_end"), Var(c.position + "_group")
            left = Bin("<", q, end)
            any_left = left if any_left is None else Bin("or", any_left, left)
            crd = Select(left, c.coordinate(q), LAST)
            least = crd if least == LAST else Bin("min", least, crd)
            has = Var(f"has_{c.access.name}{c.level}", BOOL)
            flags.append(Decl(has, Bin("and", left, Bin("==", c.coordinate(q), v))))
            after = add(q, ONE)
            if c.grouped:
                more = both(has, Bin("<", group, end), Bin("==", c.coordinate(group), v))
                assert more is not None
                flags += [Decl(group, q, mutable=True), While(more, Assign(group, add(group, ONE)))]
                after = group
            moves.append(If(has, Assign(q, after)))
            below[n] = c.down(q, group if c.grouped else None, has)
        assert any_left is not None
        body = self.visit(d + 1, below, {**env, v.name: v})
        loop = While(any_left, block(Decl(v, least), *flags, block_scope(body), *moves))
        return self.merged(d, its, cursors, loop)

    def merged(self, d: int, its: Cursors, cursors: Cursors, loop: Stmt) -> Stmt:
        """`loop`, which visits what the iterators `its` store, each from where it starts."""
        v = Var(self.order[d])

        def part(a: Expr, b: Expr) -> Stmt:
            return block(*self.begin(its, v, a, b), loop)

        extent = self.extents[v.name]
        return self.interval(d, ZERO, extent, part, None, cursors, tuple(its.values()))

    def zips(self, d: int, its: Cursors) -> bool:
        """Whether the iterators of loop `d` are merged as two sorted lists."""
        plain = all(c.next_level.ordered and c.next_level.unique for c in its.values())
        merged = plain and not any(self.gallops(c) for c in its.values())
        return len(its) == 2 and d + 1 == len(self.order) and merged

    def heads(self, its: Cursors, v: Var) -> tuple[Expr, list[Stmt], list[Expr], list[Stmt]]:
        """To merge two lists: whether both have entries left; declarations of their coordinates;
        whether each is at the smaller of the two; and the steps past that one.
        """
        left: Expr | None = None
        names: list[Var] = []
        decls: list[Stmt] = []
        steps: list[Stmt] = []
        for c in its.values():
            q, end = Var(c.position), Var(c.position + "_end")
            left = both(left, Bin("<", q, end))
            names.append(Var(f"{v.name}_{c.access.name}"))
            decls.append(Decl(names[-1], c.coordinate(q)))
        a, b = names
        here: list[Expr] = [Bin("<=", a, b), Bin("<=", b, a)]
        for c, at in zip(its.values(), here, strict=True):
            q = Var(c.position)
            steps.append(Assign(q, add(q, Cast(INT, at))))
        assert left is not None
        decls.append(Decl(v, Bin("min", a, b)))
        return left, decls, here, steps

    def intersection(self, d: int, its: Cursors, cursors: Cursors, env: Env) -> Stmt:
        v = Var(self.order[d])
        self.guarded()
        left, decls, here, steps = self.heads(its, v)
        below = {**cursors, **{n: c.down(Var(c.position)) for n, c in its.items()}}
        body = self.visit(d + 1, below, {**env, v.name: v})
        both_here = Bin("==", *(s.var for s in decls[:2]))  # type: ignore[union-attr]
        loop = While(left, block(*decls, If(both_here, body), *steps))
        return self.merged(d, its, cursors, loop)

    def union2(self, d: int, its: Cursors, cursors: Cursors, env: Env) -> Stmt:
        v = Var(self.order[d])
        self.guarded()
        left, decls, here, steps = self.heads(its, v)
        below = dict(cursors)
        for (n, c), at in zip(its.items(), here, strict=True):
            has = Var(f"has_{c.access.name}{c.level}", BOOL)
            decls.append(Decl(has, at))
            below[n] = replace(c.down(Var(c.position), None, has), valid=True)
        self.one_of = frozenset(c.has for n, c in below.items() if n in its and c.has is not None)
        inner = {**env, v.name: v}
        body = block_scope(self.visit(d + 1, below, inner))
        loops: list[Stmt] = [While(left, block(*decls, body, *steps))]
        self.one_of = frozenset()
        for n, c in its.items():
            p = Var(c.position + "_rest")
            below = {m: o.down(ZERO, None, ABSENT) for m, o in its.items() if m != n}
            below = {**cursors, **below, n: c.down(p)}
            if any(self.present(t, below) != ABSENT for t in self.terms):
                body = block(Decl(v, c.coordinate(p)), self.visit(d + 1, below, inner))
                loops.append(For(p, Var(c.position), Var(c.position + "_end"), body))
        return self.merged(d, its, cursors, block(*loops))

    def present(self, term: tuple[int, ...], cursors: Cursors) -> Expr | None:
        """Whether every factor of a term has an entry here; None for 'always', ABSENT for never."""
        has = [cursors[n].has for n in term if n in cursors]
        return ABSENT if ABSENT in has else both(*has)

    def reached(self, cursors: Cursors) -> Expr | None:
        """Whether any term has an entry here; None for 'always'."""
        present = [self.present(t, cursors) for t in self.terms]
        if None in present or (self.one_of and self.one_of <= set(present)):
            return None
        out: Expr | None = None
        for p in present:
            if p is not None and p != ABSENT:
                out = p if out is None else Bin("or", out, p)
        return out


def block_scope(body: Stmt) -> Stmt:
    """`body` as a scope of its own, so that its declarations do not meet those around it."""
    return If(Const(True, BOOL), body)

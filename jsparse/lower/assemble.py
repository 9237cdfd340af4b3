# SPDX-License-Identifier: Apache-2.0
"""Patterns: the kernels that compute the index arrays of a sparse output.

Two kinds of work, by the shape of the assignment:

    merge   visits the coordinates of the output in its storage order and appends them.  Output
            variables inside a reduction are gathered in a set and taken out ascending:
                forall i: touched = {k : exists j: A[i,j] and B[j,k]}; append touched
    sort    one operand, any order: lists its coordinates, sorts them stably by the modes that are
            out of order, and packs them; also gives the permutation, and where each new entry
            starts in it if duplicates are merged

and two modes: `count` only counts (so that an eager call can allocate exactly), `fill` writes
within a capacity, and says what was needed if that is too small.
"""

from __future__ import annotations

from dataclasses import dataclass

from jsparse.errors import InternalError
from jsparse.ir.index import PATTERN, Assignment
from jsparse.ir.loop import (
    BOOL,
    CAPACITY,
    INT,
    ONE,
    TRUE,
    ZERO,
    Assign,
    Bin,
    Buffer,
    Call,
    Cast,
    Const,
    Decl,
    Dim,
    Do,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Raise,
    Scratch,
    Stmt,
    Store,
    Var,
    add,
    block,
    mul,
    sub,
)
from jsparse.lower.buffers import OUTPUT, Binding, bind, checks, positions
from jsparse.lower.walk import Cursors, Env, Walk, block_scope

TOUCHED = Buffer("touched", INT, "set")


@dataclass(frozen=True, slots=True)
class Group:
    """A compressed level of the output with the singleton levels below it: they are appended
    together.
    """

    first: int
    last: int


def groups(a: Assignment) -> tuple[Group, ...]:
    """The groups of an output's sparse levels, outermost first."""
    out: list[Group] = []
    for n in a.output.format.sparse_levels:
        if a.output.format.levels[n].branchless:
            out[-1] = Group(out[-1].first, n)
        else:
            out.append(Group(n, n))
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Packer:
    """Appends coordinates to the output's levels.  Without buffers (`count`) it only counts."""

    assignment: Assignment
    extents: Env
    arrays: dict[tuple[int, str], Buffer]

    def count(self, g: Group) -> Var:
        return Var(f"Y{g.first}_count")

    def parent(self, g: Group, env: Env, committed: bool) -> Expr:
        """The position above group `g`; the group above is already appended (`committed`) or
        pending.
        """
        p: Expr = ZERO
        a = self.assignment
        for n in range(g.first):
            level = a.output.format.levels[n]
            if level.full:
                p = add(mul(p, self.extents[a.output.level_vars[n]]), env[a.output.level_vars[n]])
            elif not level.branchless:
                above = next(h for h in groups(a) if h.first == n)
                p = sub(self.count(above), ONE) if committed else self.count(above)
        return p

    def append(self, g: Group, env: Env, committed: bool) -> Stmt:
        """crd[count] = coordinate; one more child for the parent; count += 1."""
        n = self.count(g)
        step = Assign(n, add(n, ONE))
        if not self.arrays:
            return step
        crds = [
            Store(self.arrays[level, "crd"], n, Cast(self.assignment.output.format.index, env[v]))
            for level, v in enumerate(self.assignment.output.level_vars)
            if g.first <= level <= g.last
        ]
        pos = self.arrays[g.first, "pos"]
        above = add(self.parent(g, env, committed), ONE)
        more = Store(pos, above, Const(1, pos.dtype), "+")
        fits = Bin("<", n, Dim(self.arrays[g.first, "crd"], 0))
        return block(If(fits, block(*crds, more)), step)

    def begin(self) -> list[Stmt]:
        out: list[Stmt] = [Decl(self.count(g), ZERO, mutable=True) for g in groups(self.assignment)]
        out += [Do("fill_zero", (b, ZERO, Dim(b, -1))) for b in self.arrays.values()]
        return out

    def finish(self, counts: Buffer | None) -> list[Stmt]:
        out: list[Stmt] = []
        for k, g in enumerate(groups(self.assignment)):
            if counts is not None:
                out.append(Store(counts, Const(k), self.count(g)))
                continue
            pos, room = self.arrays[g.first, "pos"], Dim(self.arrays[g.first, "crd"], 0)
            over = Raise(CAPACITY, OUTPUT, g.first, ZERO, self.count(g), room)
            out.append(If(Bin(">", self.count(g), room), over))
            out.append(Do("copy_scan", (pos, sub(Dim(pos, 0), ONE))))
        return out

    def append_sorted(
        self, names: tuple[str, ...], here: Env, env: Env, first: Expr, merge: bool
    ) -> Stmt:
        """Append the coordinates `names` (the innermost variables) of one of a sorted run of
        entries.

        A group that is not the last is appended where its coordinates, or those above it, changed.
        """
        a = self.assignment
        names_at = {n: v for n, v in enumerate(a.output.level_vars) if v in names}
        own = [g for g in groups(a) if g.last in names_at]
        inner = {**env, **here}
        changed: Expr = first
        seen: set[str] = set()
        out: list[Stmt] = []
        for g in own:
            for level in range(g.last + 1):
                v = names_at.get(level)
                if v is not None and v not in seen:
                    seen.add(v)
                    changed = Bin("or", changed, Bin("!=", here[v], Var(f"{v}_last")))
            last = g == own[-1]
            step = self.append(
                g, inner, committed=g != own[0] or self.parent_committed(g, names_at)
            )
            out.append(step if last and not merge else If(changed, step))
        return block(*out)

    def parent_committed(self, g: Group, names_at: dict[int, str]) -> bool:
        above = [h for h in groups(self.assignment) if h.last < g.first]
        return bool(above) and above[-1].first in names_at


@dataclass
class Merge(Walk):
    """The walk of a pattern in output order."""

    assignment: Assignment
    binding: Binding
    packer: Packer

    @property
    def outputs(self) -> tuple[str, ...]:
        """Output variables that the pattern stores: those up to the last sparse level."""
        a = self.assignment.output
        return a.level_vars[: max(a.format.sparse_levels) + 1]

    @property
    def first_reduction(self) -> int:
        return next((d for d, v in enumerate(self.order) if v not in self.outputs), len(self.order))

    @property
    def trailing(self) -> tuple[str, ...]:
        return tuple(v for v in self.outputs if v in self.order[self.first_reduction :])

    def inside(self, d: int, cursors: Cursors, env: Env) -> Stmt:
        body = (
            self.reduced(d, cursors, env)
            if d == self.first_reduction
            else self.below(d, cursors, env)
        )
        group = self.closing(d)
        if group is None or group == groups(self.assignment)[-1]:
            return body
        below = groups(self.assignment)[groups(self.assignment).index(group) + 1]
        start = Var(f"Y{below.first}_start")
        grew = Bin(">", self.packer.count(below), start)
        commit = self.packer.append(group, env, committed=False)
        return block(Decl(start, self.packer.count(below)), body, If(grew, commit))

    def closing(self, d: int) -> Group | None:
        """The group whose last variable is bound by loop d - 1, in the part where loops follow
        storage order.
        """
        if not 0 < d <= self.first_reduction:
            return None
        level = self.assignment.output.level_vars.index(self.order[d - 1])
        return next((g for g in groups(self.assignment) if g.last == level), None)

    def below(self, d: int, cursors: Cursors, env: Env) -> Stmt:
        return self.leaf(cursors, env) if d == len(self.order) else self.loop(d, cursors, env)

    def reduced(self, d: int, cursors: Cursors, env: Env) -> Stmt:
        """At the first reduction: gather the trailing coordinates in a set, or find out whether
        there is any.
        """
        if d == len(self.order):
            return self.leaf(cursors, env)
        if self.trailing:
            body = self.below(d, cursors, env)
            t, n = Var("t"), Var("touched_count")
            return block(
                Do("set_clear", (TOUCHED,)),
                block_scope(body),
                Decl(n, Call("set_sort", (TOUCHED,))),
                *self.last_vars(),
                For(t, ZERO, n, self.take(t, env)),
            )
        found = Var("found", BOOL)
        body = self.below(d, cursors, env)
        group = groups(self.assignment)[-1]
        append = self.packer.append(group, env, committed=False)
        return block(
            Decl(found, Const(False, BOOL), mutable=True), block_scope(body), If(found, append)
        )

    def last_vars(self) -> list[Stmt]:
        return (
            [Decl(Var(f"{v}_last"), ZERO, mutable=True) for v in self.trailing]
            if len(self.trailing) > 1
            else []
        )

    def take(self, t: Var, env: Env) -> Stmt:
        """Decode key number t and append its coordinates."""
        key = Var("key")
        stmts: list[Stmt] = [Decl(key, Call("set_get", (TOUCHED, t)))]
        rest: Expr = key
        decoded: list[Stmt] = []
        for v in reversed(self.trailing):
            if v == self.trailing[0]:
                decoded.append(Decl(Var(v), rest))
            else:
                decoded.append(Decl(Var(v), Bin("%", rest, self.extents[v])))
                rest = Bin("/", rest, self.extents[v])
        here: Env = {v: Var(v) for v in self.trailing}
        first = Bin("==", t, ZERO)
        stmts += decoded
        if len(self.trailing) == 1:
            group = groups(self.assignment)[-1]
            committed = self.packer.parent_committed(group, {})
            return block(*stmts, self.packer.append(group, {**env, **here}, committed))
        stmts.append(self.packer.append_sorted(self.trailing, here, env, first, merge=False))
        stmts += [Assign(Var(f"{v}_last"), Var(v)) for v in self.trailing]
        return block(*stmts)

    def leaf(self, cursors: Cursors, env: Env) -> Stmt:
        present: Expr = TRUE
        for n, t in self.binding.tensors.items():
            if t.values is not None:  # a dense operand: its zeros are absent
                value: Expr = Load(t.values, cursors[n].lo)
                dtype = t.access.dtype
                if dtype in ("float16", "bfloat16"):
                    value, dtype = Cast("float32", value), "float32"
                present = Bin("!=", value, Const(0, dtype))
        if self.first_reduction == len(self.order):
            action: Stmt = self.packer.append(groups(self.assignment)[-1], env, committed=False)
        elif self.trailing:
            key: Expr = ZERO
            for v in self.trailing:
                key = add(mul(key, self.extents[v]), env[v])
            action = Do("set_insert", (TOUCHED, key))
        else:
            action = Assign(Var("found", BOOL), TRUE)
        alive = self.reached(cursors)
        if alive is not None:
            action = If(alive, action)
        return action if present == TRUE else If(present, action)


@dataclass
class List(Walk):
    """The walk of one operand that lists its coordinates by position."""

    columns: dict[str, Buffer]
    perm: Buffer
    number: int = 0

    def leaf(self, cursors: Cursors, env: Env) -> Stmt:
        n = Var("listed")
        p = cursors[self.number].lo
        stores = [Store(b, p, Cast(b.dtype, env[v])) for v, b in self.columns.items()]
        return block(*stores, Store(self.perm, n, Cast(self.perm.dtype, p)), Assign(n, add(n, ONE)))


def sort_modes(a: Assignment) -> int:
    """How many leading output levels must be sorted by: the rest is in order once these are."""
    source, target = a.operands[0], a.output
    if not any(target.format.levels[n].ordered for n in target.format.sparse_levels):
        return 0
    if not all(source.format.levels[n].ordered for n in source.format.sparse_levels):
        return target.format.ndim
    for m in range(target.format.ndim + 1):
        head, tail = target.level_vars[:m], target.level_vars[m:]
        if tuple(v for v in source.level_vars if v not in head) == tail:
            return m
    raise InternalError("unreachable: sorting by every mode always suffices")


def output_buffers(a: Assignment) -> tuple[Buffer, ...]:
    """The result buffers of a `fill` kernel, in order: the output's index arrays."""
    return tuple(
        Buffer(f"Y{level}_{role}", a.output.format.index, "result", n)
        for n, (level, role) in enumerate(a.output.format.array_names())
    )


def lower(a: Assignment, order: tuple[str, ...], kind: str, count: bool) -> Kernel:
    """The kernel that computes, or counts, the pattern of `a.output`.  `kind` is "merge" or "sort".

    Results of `fill`: the output's index arrays; for "sort" also the permutation and the segment
    starts. Result of `count`: the number of entries of each group, int64.
    """
    binding = bind(a)
    dims: Env = {v: Var(f"{v}_dim") for v in a.vars}
    out = output_buffers(a)
    counts = Buffer("Y_counts", INT, "result", 0) if count else None
    arrays = {} if count else dict(zip(a.output.format.array_names(), out, strict=True))
    packer = Packer(a, dims, arrays)
    head: list[Stmt] = [Decl(Var(f"{v}_dim"), e) for v, e in binding.extents.items()]
    for t in binding.tensors.values():
        if t.number != OUTPUT and t.values is None:
            head += checks(t, ZERO, ONE)
    head += packer.begin()
    results = (counts,) if counts is not None else out
    if kind == "sort":
        body, extra = _sort(a, binding, packer, len(out), count)
        results = results + extra
    else:
        body = _merge(a, order, binding, packer)
    return Kernel(binding.args, results, block(*head, *body, *packer.finish(counts)))


def _merge(a: Assignment, order: tuple[str, ...], binding: Binding, packer: Packer) -> list[Stmt]:
    single = len(a.terms) == 1
    walk = Merge(order, tuple(t.factors for t in a.terms), dict(packer.extents), a, binding, packer)
    tensors = {n: t for n, t in binding.tensors.items() if n != OUTPUT}
    cursors = {n: t.cursor(required=single) for n, t in tensors.items()}
    head: list[Stmt] = []
    if walk.trailing:
        size: Expr = ONE
        for v in walk.trailing:
            size = mul(size, packer.extents[v])
        head.append(Do("set_new", (TOUCHED, size)))
    return [*head, walk.visit(0, cursors, {})]


def _sort(
    a: Assignment, binding: Binding, packer: Packer, at: int, count: bool
) -> tuple[list[Stmt], tuple[Buffer, ...]]:
    source = binding.tensors[0]
    target = a.output
    index = target.format.index
    n = Var("listed")
    perm = Buffer("Y_perm", index, "result", at)
    start = Buffer("Y_start", index, "result", at + 1)
    head: list[Stmt] = []
    room = positions(source)
    if count:
        perm = Buffer("perm", index)
        head.append(Scratch(perm, room))
    columns = {v: Buffer(f"{v}_crd", index) for v in target.level_vars}
    head += [Scratch(b, room) for b in columns.values()]
    head.append(Decl(n, ZERO, mutable=True))
    listing = List(source.access.level_vars, ((0,),), dict(packer.extents), columns, perm)
    head.append(block_scope(listing.visit(0, {0: source.cursor(required=True)}, {})))
    for v in reversed(target.level_vars[: sort_modes(a)]):
        head.append(Do("sort_by", (perm, columns[v], n)))
    q = Var("q")
    p = Var("p")
    here: Env = {v: Var(v) for v in target.level_vars}
    body: list[Stmt] = [Decl(p, Cast(INT, Load(perm, q)))]
    body += [Decl(Var(v), Cast(INT, Load(b, p))) for v, b in columns.items()]
    merge = target.format.levels[max(target.format.sparse_levels)].unique
    body.append(packer.append_sorted(target.level_vars, here, {}, Bin("==", q, ZERO), merge))
    last = groups(a)[-1]
    if not count:
        fits = Bin("<=", packer.count(last), sub(Dim(start, 0), ONE))
        body.append(If(fits, Store(start, packer.count(last), Const(1, index), "+")))
        head.append(Do("fill_zero", (start, ZERO, Dim(start, -1))))
    body += [Assign(Var(f"{v}_last"), Var(v)) for v in target.level_vars]
    head += [Decl(Var(f"{v}_last"), ZERO, mutable=True) for v in target.level_vars]
    head.append(For(q, ZERO, n, block(*body)))
    if not count:
        beyond = Store(perm, q, Cast(index, Dim(perm, 0)))
        head += [For(q, n, Dim(perm, 0), beyond), Do("copy_scan", (start, sub(Dim(start, 0), ONE)))]
    return head, () if count else (perm, start)


def is_pattern(a: Assignment) -> bool:
    return a.output.dtype == PATTERN

# SPDX-License-Identifier: Apache-2.0
"""Patterns: the kernels that compute the index arrays of a sparse output.

Two kinds of work, by the shape of the assignment:

    merge   visits the coordinates of the output in its storage order and appends them.  Output
            variables inside a reduction are gathered in a set and taken out ascending:
                forall i: touched = {k : exists j: A[i,j] and B[j,k]}; append touched
    sort    one operand, any order: `lower.arrange`

and two modes: `count` only counts (so that an eager call can allocate exactly), `fill` writes
within a capacity, and says what was needed if that is too small.

A merge is cut into chunks.  Its `count` says where each chunk starts in each group of levels, and
`fill`, which visits the same coordinates, has each chunk append from there:

    starts = [chunks; starts of chunk 0; starts of chunk 1; ...; totals ...]

An output with a dtype has its values computed by `fill` too, where each is complete when its
coordinate is appended (`fuses`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeVar

from jsparse.ir.index import PATTERN, Assignment, semiring
from jsparse.ir.loop import (
    BOOL,
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
    Do,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Scratch,
    Stmt,
    Store,
    Var,
    add,
    block,
    mul,
    type_of,
)
from jsparse.lower import arrange
from jsparse.lower.ahead import fibers_ahead
from jsparse.lower.buffers import OUTPUT, Binding, bind, checks
from jsparse.lower.chunks import CHUNKS_PER_THREAD, ROWS_PER_THREAD, Cut, starts_with
from jsparse.lower.cursor import Cursor, Cursors, Env
from jsparse.lower.packer import Group, Packer, groups, output_buffers
from jsparse.lower.products import Products
from jsparse.lower.walk import Walk, block_scope
from jsparse.record import replace
from jsparse.schedule.directives import Nest

TOUCHED = Buffer("touched", INT, "set")
MOST_CHUNKS = 256
WIDEST_ROW = 1 << 22  # of a workspace for values, one for each chunk


M = TypeVar("M", bound="Merge")


@dataclass
class Merge(Walk):
    """The walk of a pattern in output order."""

    assignment: Assignment
    binding: Binding
    packer: Packer
    starts: Buffer
    products: Products | None = None  # computes values, if they are asked for
    checked: set[int] = field(default_factory=set)  # tensors whose index arrays the chunks check
    cut: bool = False  # whether the loops are in chunks

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Output variables that the pattern stores: those up to the last sparse level."""
        a = self.assignment.output
        return a.level_vars[: max(a.format.sparse_levels) + 1]

    @cached_property
    def first_reduction(self) -> int:
        return next((d for d, v in enumerate(self.order) if v not in self.outputs), len(self.order))

    @cached_property
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

    # ----------------------------------------------------------------- chunks
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
        if d or not self.first_reduction:
            return loop(lo, hi)
        self.cut = True
        tensors = [t for n, t in self.binding.tensors.items() if n != OUTPUT]
        if driver is None:
            self.checked |= {t.number for t in tensors if starts_with(t, self.order[0])}
        parts = ROWS_PER_THREAD if self.trailing else CHUNKS_PER_THREAD
        chunks = Load(self.starts, ZERO) if self.packer.arrays else None
        cut = Cut(
            *(self.order[0], self.order[1:], driver, cursors, self.extents, tensors, parts),
            together=together,
            limit=MOST_CHUNKS,
            given=chunks,
        )
        return cut.parallel(lo, hi, lambda a, b: self.chunk(Var("chunk"), loop(a, b)))

    def chunk(self, number: Expr, body: Stmt) -> Stmt:
        """A part of the loops: counters and workspaces of its own; where it only counts, how far
        it came.
        """
        head: list[Stmt] = []
        if self.trailing:
            size = self.row_size()
            head.append(Do("set_new", (TOUCHED, size)))
            if self.products is not None:
                head.append(Scratch(self.row, size, zero=True))
        if self.packer.arrays:
            return block(*head, *self.packer.begin(dict(self.at(number))), body)
        ends = self.at(add(number, ONE))
        tail = [Store(self.starts, e.index, self.packer.count(g)) for g, e in ends.items()]
        return block(*head, *self.packer.begin({}), body, *tail)

    def row_size(self) -> Expr:
        """How many entries a row of the trailing variables has at most."""
        size: Expr = ONE
        for v in self.trailing:
            size = mul(size, self.extents[v])
        return size

    def at(self, chunk: Expr) -> dict[Group, Load]:
        """Where a chunk starts in each group."""
        n = len(groups(self.assignment))
        return {
            g: Load(self.starts, add(mul(chunk, Const(n)), Const(k + 1)))
            for k, g in enumerate(groups(self.assignment))
        }

    @property
    def row(self) -> Buffer:
        assert self.products is not None
        return Buffer(f"w_{self.trailing[0]}", self.products.base)

    # ------------------------------------------------------------------ loops
    def ahead(self, d: int, c: Cursor, p: Expr, cursors: Cursors) -> list[Stmt]:
        return fibers_ahead(self.binding, self.order[d], c, p, cursors)

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
            if not self.packer.arrays and len(self.trailing) == 1:
                last = self.packer.count(groups(self.assignment)[-1])
                more = Assign(last, add(last, Call("set_size", (TOUCHED,))))
                return block(Do("set_clear", (TOUCHED,)), block_scope(body), more)
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
            if self.products is None:
                return block(*stmts, self.packer.append(group, {**env, **here}, committed))
            value = self.stored(Load(self.row, key))
            clear = Store(self.row, key, Const(0, self.row.dtype))
            append = self.packer.append(group, {**env, **here}, committed, value)
            return block(*stmts, append, clear)
        stmts.append(self.packer.append_sorted(self.trailing, here, env, first, merge=False))
        stmts += [Assign(Var(f"{v}_last"), Var(v)) for v in self.trailing]
        return block(*stmts)

    def leaf(self, cursors: Cursors, env: Env) -> Stmt:
        present: Expr = TRUE
        for n, t in self.binding.tensors.items():
            if t.values is not None and t.access.format.is_dense:  # its zeros are absent
                x: Expr = Load(t.values, cursors[n].lo)
                dtype = t.access.dtype
                if dtype in ("float16", "bfloat16"):
                    x, dtype = Cast("float32", x), "float32"
                present = Bin("!=", x, Const(0, dtype))
        head: list[Stmt] = []
        value: Expr | None = None
        if self.products is not None:
            self.products.one_of = self.one_of
            head, (value,) = self.products.values(cursors, env)
        if self.first_reduction == len(self.order):
            group = groups(self.assignment)[-1]
            stored = None if value is None else self.stored(value)
            action: Stmt = self.packer.append(group, env, False, stored)
        elif self.trailing:
            key: Expr = ZERO
            for v in self.trailing:
                key = add(mul(key, self.extents[v]), env[v])
            action = Do("set_insert", (TOUCHED, key))
            if value is not None:
                plus = semiring(self.assignment.output.dtype)[0].text
                action = block(Store(self.row, key, value, plus), action)
        else:
            action = Assign(Var("found", BOOL), TRUE)
        action = block(*head, action)
        alive = self.reached(cursors)
        if alive is not None:
            action = If(alive, action)
        return action if present == TRUE else If(present, action)

    def stored(self, value: Expr) -> Expr:
        """A value as the output has it."""
        dtype = self.assignment.output.dtype
        return value if type_of(value)[0] == dtype else Cast(dtype, value)


@lru_cache(maxsize=4096)
def bare(a: Assignment) -> Assignment:
    """The assignment whose output is a pattern only."""
    return replace(a, output=replace(a.output, dtype=PATTERN))


@lru_cache(maxsize=4096)
def places(a: Assignment) -> Assignment:
    """The assignment that only says where entries are: sparse operands without their values."""
    b = bare(a)
    operands = tuple(x if x.format.is_dense else replace(x, dtype=PATTERN) for x in b.operands)
    return replace(b, operands=operands)


def count_size(a: Assignment, kind: str) -> int:
    """How many numbers `count` gives."""
    return len(groups(a)) if kind == "sort" else starts_size(a)


def room(a: Assignment, capacity: tuple[int, ...]) -> dict[int, int]:
    """The capacity of each sparse level, from that of each group."""
    pairs = zip(groups(a), capacity, strict=True)
    return {level: c for g, c in pairs for level in range(g.first, g.last + 1)}


def starts_size(a: Assignment) -> int:
    return 1 + (MOST_CHUNKS + 1) * len(groups(a))


def fuses(a: Assignment, order: tuple[str, ...], extents: dict[str, int]) -> bool:
    """Whether values can be computed along with the pattern, loops in this order."""
    if any(x.format.is_dense or x.dtype == PATTERN for x in a.operands):
        return False
    out, reduced = a.output.level_vars, [v for v in order if v not in a.output.vars]
    inside = order[order.index(reduced[0]) :] if reduced else ()
    trailing = [v for v in out if v in inside]
    if a.output.format.dense_tail or len(trailing) != bool(reduced):
        return False
    return all(extents[v] <= WIDEST_ROW for v in trailing)


def lower(nest: Nest, kind: str, count: bool) -> Kernel:
    """The kernel that computes, or counts, the pattern of a nest's output.  `kind` is "merge" or
    "sort".

    Results of `fill`: the output's index arrays; for "sort" also the permutation and the segment
    starts, for "merge" the values if the output has a dtype.  Result of `count`, int64: for "sort"
    the number of entries of each group, for "merge" the starts of chunks, which `fill` takes as
    its last argument.
    """
    return _merge(nest, count) if kind == "merge" else _sort(nest.assignment, count)


def head_of(binding: Binding, checked: set[int]) -> list[Stmt]:
    """The extents, and the checks of index arrays that no chunk checks."""
    head = binding.declared()
    for t in binding.tensors.values():
        if t.number not in checked and not t.access.format.is_dense:
            head += checks(t, ZERO, ONE)
    return head


def _sort(a: Assignment, count: bool) -> Kernel:
    binding = bind(a)
    dims = binding.dims
    out = output_buffers(a)
    arrays = {} if count else dict(zip(a.output.format.array_names(), out, strict=True))
    packer = Packer(a, dims, arrays)
    body, extra = arrange.lower(a, binding, packer, len(out), count)
    totals: dict[Group, Expr] = {g: packer.count(g) for g in groups(a)}
    head = [*head_of(binding, set()), *packer.begin({}), *packer.prepare()]
    if not count:
        tail = [*packer.capacity(totals), *packer.finish(totals)]
        return Kernel(binding.args, (*out, *extra), block(*head, *body, *tail))
    counts = Buffer("Y_counts", INT, "result", 0)
    tail = [Store(counts, Const(k), n) for k, n in enumerate(totals.values())]
    return Kernel(binding.args, (counts,), block(*head, *body, *tail))


def merge_of(
    kind: type[M],
    nest: Nest,
    starts: Buffer,
    arrays: dict[tuple[int, str], Buffer],
    values: Buffer | None,
) -> M:
    """A walk of the pattern of a nest, or of its values too."""
    a, order = nest.assignment, nest.order
    binding = bind(bare(a))
    dims = binding.dims
    terms = tuple(t.factors for t in a.terms)
    packer = Packer(a, dims, arrays, values, fits=True)
    walk = kind(order, terms, dict(dims), a, binding, packer, starts)
    walk.galloped = nest.galloped
    if values is not None:
        walk.products = Products(order, terms, dict(dims), nest, binding)
    return walk


def walked(walk: Merge) -> Stmt:
    """The loops of a walk, in chunks."""
    tensors = {n: t for n, t in walk.binding.tensors.items() if n != OUTPUT}
    cursors = {n: t.cursor(required=len(walk.terms) == 1) for n, t in tensors.items()}
    body = walk.visit(0, cursors, {})
    return body if walk.cut else walk.chunk(ZERO, body)


def _merge(nest: Nest, count: bool) -> Kernel:
    a = nest.assignment
    out, args = output_buffers(a), bind(bare(a)).args
    values = None
    if a.output.dtype != PATTERN and not count:
        values = Buffer("Y_vals", a.output.dtype, "result", len(out))
    starts = Buffer("Y_starts", INT, *(("result", 0) if count else ("arg", len(args))))
    arrays = {} if count else dict(zip(a.output.format.array_names(), out, strict=True))
    walk = merge_of(Merge, nest, starts, arrays, values)
    body = walked(walk)
    head = head_of(walk.binding, walk.checked)
    if count:
        return counted(walk, head, body)
    totals: dict[Group, Expr] = dict(walk.at(Const(MOST_CHUNKS)))
    head += [*walk.packer.capacity(totals), *walk.packer.prepare()]
    results = (*out, values) if values is not None else out
    tail = walk.packer.finish(totals)
    return Kernel((*args, starts), results, block(*head, body, *tail))


def counted(walk: Merge, head: list[Stmt], body: Stmt) -> Kernel:
    """The kernel of a walk that counts: where each chunk starts, from how far each came."""
    n, k, size = len(groups(walk.assignment)), Var("k"), Const(starts_size(walk.assignment))
    chunks = Store(walk.starts, ZERO, Var("chunks") if walk.cut else ONE)
    total = Store(walk.starts, k, Load(walk.starts, Bin("-", k, Const(n))), "+")
    zero = Do("fill_zero", (walk.starts, ZERO, size))
    scan = For(k, Const(n + 1), size, total)
    return Kernel(walk.binding.args, (walk.starts,), block(*head, zero, body, chunks, scan))

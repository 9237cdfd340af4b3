# SPDX-License-Identifier: Apache-2.0
"""Patterns and values in one pass: a bound on the entries, a draft with gaps, and its packing.

`lower.assemble` walks everything twice, to count and to fill.  Where a bound on the entries of each
chunk is cheap, its loops run once, into arrays that have room for the bound:

    bound   entries that each chunk can have at most: the loops, but for the innermost, whose fibers
            are only measured
    draft   the bound again, then `fill`, where each chunk appends from where the chunks before it
            could end; says where each chunk did end
    pack    moves the chunks together, into arrays of exact size

    row 0 may have 3 + 2 entries, row 1 2 + 2:  crd = 0 1 4 . . | 2 3 5 .   ->   0 1 4 2 3 5

The table of a draft has three columns, each with a number for each chunk and one behind the last:
the first row, where the draft starts, and where the result does.
"""

from __future__ import annotations

from dataclasses import dataclass

from jsparse.errors import InternalError
from jsparse.ir.index import PATTERN, Assignment
from jsparse.ir.loop import (
    CAPACITY,
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
    Do,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Parallel,
    Raise,
    Stmt,
    Store,
    Var,
    add,
    block,
    mul,
    sub,
)
from jsparse.lower.assemble import MOST_CHUNKS, Merge, bare, counted, head_of, merge_of, walked
from jsparse.lower.buffers import OUTPUT, bind
from jsparse.lower.packer import Group, groups, output_buffers
from jsparse.lower.walk import Cursors, Env, block_scope
from jsparse.record import replace

STEPS = ("bound", "draft", "pack")
COLUMN = MOST_CHUNKS + 1
ROWS, DRAFT, EXACT = (1 + k * COLUMN for k in range(3))  # columns of the table
TABLE = 1 + 3 * COLUMN


def can_draft(a: Assignment, order: tuple[str, ...]) -> bool:
    """Whether the pattern of `a` can be drafted, loops in this order.

    The output has one group of sparse levels, below full ones, the chunks are rows, and what is
    reduced lies outside of an output variable: what is appended then is no more than the entries
    in the fibers of the innermost loop.
    """
    out = a.output.format
    own = groups(a)
    if len(own) != 1 or not own[0].first or own[0].last != out.ndim - 1:
        return False
    rows = [x for x in a.operands if order[0] in x.vars]
    split = all(x.level_vars[0] == order[0] and x.format.levels[0].full for x in rows)
    sparse = all(not x.format.is_dense for x in a.operands)
    inner = order[-1] in a.output.vars and a.output.vars != ()
    return bool(rows) and split and sparse and inner and a.output.level_vars[0] == order[0]


def reduces(a: Assignment) -> bool:
    """Whether the bound is not known from the sizes of the operands."""
    return any(not set(a.output.vars) <= set(x.vars) for x in a.operands)


def room(a: Assignment, nse: tuple[int, ...]) -> int:
    """Entries that the result has at most, from those of the operands, if it does not reduce."""
    return sum(min(nse[n] for n in t.factors) for t in a.terms)


@dataclass
class Bound(Merge):
    """The walk that measures the innermost fibers."""

    def inside(self, d: int, cursors: Cursors, env: Env) -> Stmt:
        if d + 1 == len(self.order):
            return self.measure(d, cursors)
        body = self.loop(d, cursors, env)
        if d != self.first_reduction:
            return body
        n, most = self.packer.count(groups(self.assignment)[-1]), Var("most")
        size = self.row_size()
        more = Assign(n, add(n, Bin("min", most, size)))
        return block(Decl(most, ZERO, mutable=True), block_scope(body), more)

    def measure(self, d: int, cursors: Cursors) -> Stmt:
        """The entries of the fibers that the loop `d` would visit: of the smallest that is
        required, else of all.
        """
        its = self.iterators(d, cursors)
        lengths = {n: sub(*reversed(c.bounds())) for n, c in its.items()}
        required = [n for n, c in its.items() if c.required]
        most: Expr = self.extents[self.order[d]]
        if required and all(c.next_level.unique for c in its.values()):
            most = lengths[required[0]]
            for n in required[1:]:
                most = Bin("min", most, lengths[n])
        elif required:
            most = lengths[self.driver(required)]
        elif its and all(any(n in its for n in t) for t in self.terms):
            most = ZERO
            for length in lengths.values():
                most = add(most, length)
        n = self.packer.count(groups(self.assignment)[-1])
        total = Var("most") if self.trailing else n
        return Assign(total, add(total, most))

    def chunk(self, number: Expr, body: Stmt) -> Stmt:
        group = groups(self.assignment)[-1]
        end = self.at(add(number, ONE))[group]
        return block(
            *self.packer.begin({}), body, Store(end.buffer, end.index, self.packer.count(group))
        )


@dataclass
class Draft(Merge):
    """The walk that fills, from where the chunks before could end; it says where it came to."""

    def chunk(self, number: Expr, body: Stmt) -> Stmt:
        group = groups(self.assignment)[-1]
        came = sub(self.packer.count(group), _cell(self.starts, DRAFT, number))
        return block(
            super().chunk(number, body),
            _set(self.starts, ROWS, number, Var("begin")),
            _set(self.starts, EXACT, add(number, ONE), came),
        )

    def at(self, chunk: Expr) -> dict[Group, Load]:
        return {groups(self.assignment)[-1]: _cell(self.starts, DRAFT, chunk)}


@dataclass
class DraftBound(Bound):
    """The bound, in the table of a draft."""

    def at(self, chunk: Expr) -> dict[Group, Load]:
        return {groups(self.assignment)[-1]: _cell(self.starts, DRAFT, chunk)}


def _cell(table: Buffer, column: int, chunk: Expr) -> Load:
    return Load(table, add(chunk, Const(column)))


def _set(table: Buffer, column: int, chunk: Expr, value: Expr) -> Stmt:
    return Store(table, add(chunk, Const(column)), value)


def _scan(table: Buffer, column: int) -> Stmt:
    """Numbers of each chunk, behind where it starts, become where the next one starts."""
    k = Var("k")
    before = Load(table, sub(k, ONE))
    return For(k, Const(column + 1), Const(column + COLUMN), Store(table, k, before, "+"))


def lower_bound(a: Assignment, order: tuple[str, ...]) -> Kernel:
    """Result: int64, the starts of chunks as `count` gives them, each the bound of those before;
    the last is the bound of all.
    """
    starts = Buffer("Y_starts", INT, "result", 0)
    walk = merge_of(Bound, a, order, starts, {}, None)
    body = walked(walk)
    return counted(walk, head_of(walk.binding, walk.checked), body)


def lower_draft(a: Assignment, order: tuple[str, ...]) -> Kernel:
    """Results: the output's index arrays and its values, with gaps, and the table."""
    out = output_buffers(a)
    arrays = dict(zip(a.output.format.array_names(), out, strict=True))
    known = a.output.dtype != PATTERN
    values = (Buffer("Y_vals", a.output.dtype, "result", len(out)),) if known else ()
    table = Buffer("Y_table", INT, "result", len(out) + len(values))
    bound = merge_of(DraftBound, a, order, table, {}, None)
    first = walked(bound)
    trusted = replace(a, operands=tuple(replace(x, trusted=True) for x in a.operands))
    walk = merge_of(Draft, trusted, order, table, arrays, values[0] if known else None)
    second = walked(walk)
    most, room = _cell(table, DRAFT, Const(MOST_CHUNKS)), Dim(out[-1], 0)
    level = groups(a)[-1].first
    body = block(
        *head_of(bound.binding, bound.checked),
        Do("fill_zero", (table, ZERO, Const(TABLE))),
        first,
        Store(table, ZERO, Var("chunks")),
        _scan(table, DRAFT),
        If(Bin(">", most, room), Raise(CAPACITY, OUTPUT, level, ZERO, most, room)),
        *walk.packer.prepare(),
        block_scope(second),
        _set(table, ROWS, Load(table, ZERO), bound.extents[order[0]]),
        _scan(table, EXACT),
    )
    return Kernel(walk.binding.args, (*out, *values, table), body)


def lower_pack(a: Assignment) -> Kernel:
    """Operands: a draft, as lower_draft returns it but values first.  Results: the output's index
    arrays, and its values if it has a dtype.
    """
    binding = bind(bare(a))
    table = Buffer("Y_table", INT, "arg", len(binding.args))
    out, source = output_buffers(a), binding.tensors[0]
    group = groups(a)[-1]
    chunk, n, start, to = Var("chunk"), Var("entries"), Var("draft"), Var("start")
    moves: list[Stmt] = []
    pairs: list[tuple[Buffer, Buffer]] = []
    arrays = dict(zip(a.output.format.array_names(), out, strict=True))
    for level in range(group.first, group.last + 1):
        pairs.append((arrays[level, "crd"], source.storage[level]["crd"]))
    results = out
    if source.values is not None:
        results = (*out, Buffer("Y_vals", a.output.dtype, "result", len(out)))
        pairs.append((results[-1], source.values))
    moves = [Do("copy", (y, to, x, start, n)) for y, x in pairs]
    pos, drafted = arrays[group.first, "pos"], source.storage[group.first]["pos"]
    ends = _ends(a, pos, drafted, chunk, table, start, to)
    total, room = _cell(table, EXACT, Const(MOST_CHUNKS)), Dim(out[-1], 0)
    body = block(
        *[Decl(Var(f"{v}_dim"), e) for v, e in binding.extents.items()],
        If(Bin(">", total, room), Raise(CAPACITY, OUTPUT, group.first, ZERO, total, room)),
        Store(pos, ZERO, Const(0, pos.dtype)),
        Parallel(
            chunk,
            Load(table, ZERO),
            block(
                Decl(start, _cell(table, DRAFT, chunk)),
                Decl(to, _cell(table, EXACT, chunk)),
                Decl(n, sub(_cell(table, EXACT, add(chunk, ONE)), to)),
                *moves,
                *ends,
            ),
        ),
        *[Do("fill_zero", (y, total, Dim(y, 0))) for y, _ in pairs],
    )
    return Kernel((*binding.args, table), results, body)


def _ends(
    a: Assignment, pos: Buffer, drafted: Buffer, chunk: Expr, table: Buffer, start: Var, to: Var
) -> list[Stmt]:
    """Where the fibers of a chunk end: those without entries where the one before does."""
    fibers: Expr = ONE
    for v in a.output.level_vars[1 : groups(a)[-1].first]:
        fibers = mul(fibers, Var(f"{v}_dim"))
    row, last = Var("row"), Var("last")
    here = Cast(INT, Load(drafted, add(row, ONE)))
    end = add(sub(last, start), to)
    step = block(
        Assign(last, Bin("max", last, here)),
        Store(pos, add(row, ONE), Cast(pos.dtype, end)),
    )
    lo = mul(_cell(table, ROWS, chunk), fibers)
    hi = mul(_cell(table, ROWS, add(chunk, ONE)), fibers)
    return [Decl(last, start, mutable=True), For(row, lo, hi, step)]


def lower(a: Assignment, order: tuple[str, ...], kind: str) -> Kernel:
    """The kernel of one of the three steps."""
    match kind:
        case "bound":
            return lower_bound(a, order)
        case "draft":
            return lower_draft(a, order)
        case "pack":
            return lower_pack(a)
    raise InternalError(f"no assembly by {kind!r}")

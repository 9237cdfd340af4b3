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
from jsparse.ir.index import PATTERN, Access, Assignment
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
from jsparse.lower.cursor import Cursors, Env
from jsparse.lower.packer import Group, groups, output_buffers
from jsparse.lower.walk import block_scope
from jsparse.record import replace
from jsparse.schedule.directives import Nest

STEPS = ("bound", "draft", "pack")
COLUMN = MOST_CHUNKS + 1
ROWS, DRAFT, EXACT = (1 + k * COLUMN for k in range(3))  # columns of the table
TABLE = 1 + 3 * COLUMN


def can_draft(a: Assignment, order: tuple[str, ...]) -> bool:
    """Whether the pattern of `a` can be drafted, loops in this order.

    The output has one group of sparse levels, below full ones, chunks are rows of it, and every
    term has a factor whose fibers the innermost loop visits: what is appended is no more than
    their entries.
    """
    out, own = a.output, groups(a)
    if len(own) != 1 or not own[0].first or own[0].last != out.format.ndim - 1:
        return False
    rows = [x for x in a.operands if order[0] in x.vars]
    split = all(x.level_vars[0] == order[0] and x.format.levels[0].full for x in rows)
    sparse = all(not x.format.is_dense for x in a.operands)
    inner = order[-1] in out.vars and out.level_vars[0] == order[0]
    bounded = all(any(_visited(a.operands[n], order) for n in t.factors) for t in a.terms)
    return bool(rows) and split and sparse and inner and bounded


def _visited(x: Access, order: tuple[str, ...]) -> bool:
    """Whether the loops walk an operand in storage order, and the innermost its entries."""
    last = x.format.levels[-1]
    depths = [order.index(v) for v in x.level_vars]
    entries = not last.full and last.unique and x.level_vars[-1] == order[-1]
    return entries and depths == sorted(set(depths))


def room(a: Assignment, order: tuple[str, ...], nse: tuple[int, ...]) -> int | None:
    """Entries that the result has at most, from those of the operands; None if they do not say,
    because a row of one is visited for several entries of another.
    """
    if any(not set(a.output.vars) <= set(x.vars) for x in a.operands):
        return None
    visited = [[n for n in t.factors if _visited(a.operands[n], order)] for t in a.terms]
    return sum(min(nse[n] for n in factors) for factors in visited)


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
        """The entries that the loop `d` would visit at most: of each term the shortest fiber."""
        its = self.iterators(d, cursors)
        total: Expr = ZERO
        for term in self.terms:
            lengths = [sub(*reversed(its[n].bounds())) for n in term if n in its]
            most = lengths[0]
            for length in lengths[1:]:
                most = Bin("min", most, length)
            total = add(total, most)
        count = Var("most") if self.trailing else self.packer.count(groups(self.assignment)[-1])
        return Assign(count, add(count, total))

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


def lower_bound(nest: Nest) -> Kernel:
    """Result: int64, the starts of chunks as `count` gives them, each the bound of those before;
    the last is the bound of all.
    """
    starts = Buffer("Y_starts", INT, "result", 0)
    walk = merge_of(Bound, nest, starts, {}, None)
    body = walked(walk)
    return counted(walk, head_of(walk.binding, walk.checked), body)


def lower_draft(nest: Nest) -> Kernel:
    """Results: the output's index arrays and its values, with gaps, and the table."""
    a, order = nest.assignment, nest.order
    out = output_buffers(a)
    arrays = dict(zip(a.output.format.array_names(), out, strict=True))
    values: Buffer | None = None
    results = out
    if a.output.dtype != PATTERN:
        values = Buffer("Y_vals", a.output.dtype, "result", len(out))
        results = (*out, values)
    table = Buffer("Y_table", INT, "result", len(results))
    bound = merge_of(DraftBound, nest, table, {}, None)
    first = walked(bound)
    trusted = replace(a, operands=tuple(replace(x, trusted=True) for x in a.operands))
    walk = merge_of(Draft, replace(nest, assignment=trusted), table, arrays, values)
    second = walked(walk)
    level = groups(a)[-1].first
    most, given = _cell(table, DRAFT, Const(MOST_CHUNKS)), Dim(arrays[level, "crd"], 0)
    body = block(
        *head_of(bound.binding, bound.checked),
        Do("fill_zero", (table, ZERO, Const(TABLE))),
        first,
        Store(table, ZERO, Var("chunks")),
        _scan(table, DRAFT),
        If(Bin(">", most, given), Raise(CAPACITY, OUTPUT, level, ZERO, most, given)),
        *walk.packer.prepare(),
        block_scope(second),
        _set(table, ROWS, Load(table, ZERO), bound.extents[order[0]]),
        _scan(table, EXACT),
    )
    return Kernel(walk.binding.args, (*results, table), body)


def lower_pack(a: Assignment) -> Kernel:
    """Operands: a draft, as lower_draft returns it but values first.  Results: the output's index
    arrays, and its values if it has a dtype.
    """
    binding = bind(bare(a))
    table = Buffer("Y_table", INT, "arg", len(binding.args))
    out, source, group = output_buffers(a), binding.tensors[0], groups(a)[-1]
    arrays = dict(zip(a.output.format.array_names(), out, strict=True))
    levels = range(group.first, group.last + 1)
    pairs = [(arrays[n, "crd"], source.storage[n]["crd"]) for n in levels]
    results = out
    if source.values is not None:
        values = Buffer("Y_vals", a.output.dtype, "result", len(out))
        results, pairs = (*out, values), [*pairs, (values, source.values)]
    pos, drafted = arrays[group.first, "pos"], source.storage[group.first]["pos"]
    total, given = _cell(table, EXACT, Const(MOST_CHUNKS)), Dim(pairs[0][0], 0)
    move = _moved(a, binding.dims, table, pairs, pos, drafted)
    body = block(
        *head_of(binding, set()),
        If(Bin(">", total, given), Raise(CAPACITY, OUTPUT, group.first, ZERO, total, given)),
        Store(pos, ZERO, Const(0, pos.dtype)),
        Parallel(Var("chunk"), Load(table, ZERO), move),
        *[Do("fill_zero", (y, total, Dim(y, 0))) for y, _ in pairs],
    )
    return Kernel((*binding.args, table), results, body)


def _moved(
    a: Assignment,
    dims: Env,
    table: Buffer,
    pairs: list[tuple[Buffer, Buffer]],
    pos: Buffer,
    drafted: Buffer,
) -> Stmt:
    """A chunk at its place.  Fibers without entries end where the one before does."""
    chunk, n, start, to = Var("chunk"), Var("entries"), Var("draft"), Var("start")
    row, last = Var("row"), Var("last")
    fibers: Expr = ONE
    for v in a.output.level_vars[1 : groups(a)[-1].first]:
        fibers = mul(fibers, dims[v])
    step = block(
        Assign(last, Bin("max", last, Cast(INT, Load(drafted, add(row, ONE))))),
        Store(pos, add(row, ONE), Cast(pos.dtype, add(sub(last, start), to))),
    )
    lo = mul(_cell(table, ROWS, chunk), fibers)
    hi = mul(_cell(table, ROWS, add(chunk, ONE)), fibers)
    return block(
        Decl(start, _cell(table, DRAFT, chunk)),
        Decl(to, _cell(table, EXACT, chunk)),
        Decl(n, sub(_cell(table, EXACT, add(chunk, ONE)), to)),
        *[Do("copy", (y, to, x, start, n)) for y, x in pairs],
        Decl(last, start, mutable=True),
        For(row, lo, hi, step),
    )


def lower(nest: Nest, kind: str) -> Kernel:
    """The kernel of one of the three steps."""
    match kind:
        case "bound":
            return lower_bound(nest)
        case "draft":
            return lower_draft(nest)
        case "pack":
            return lower_pack(nest.assignment)
    raise InternalError(f"no assembly by {kind!r}")

# SPDX-License-Identifier: Apache-2.0
"""The levels of a sparse output as they are filled: groups of levels, counters, appending.

append (i, j):   Y1_crd[Y1_count] = j; Y1_pos[i + 1] = Y1_count + 1; Y1_count++
"""

from __future__ import annotations

from functools import cache

from jsparse.format import Format
from jsparse.ir.index import Assignment
from jsparse.ir.loop import (
    CAPACITY,
    ONE,
    ZERO,
    Assign,
    Bin,
    Buffer,
    Cast,
    Decl,
    Dim,
    Do,
    Expr,
    If,
    Raise,
    Stmt,
    Store,
    Var,
    add,
    block,
    mul,
    sub,
)
from jsparse.lower.buffers import OUTPUT
from jsparse.lower.cursor import Env
from jsparse.record import record


@record
class Group:
    """A compressed level of the output with the singleton levels below it: they are appended
    together.
    """

    first: int
    last: int


def groups(a: Assignment) -> tuple[Group, ...]:
    """The groups of an output's sparse levels, outermost first."""
    return _groups(a.output.format)


@cache
def _groups(f: Format) -> tuple[Group, ...]:
    out: list[Group] = []
    for n in f.sparse_levels:
        if f.levels[n].branchless:
            out[-1] = Group(out[-1].first, n)
        else:
            out.append(Group(n, n))
    return tuple(out)


@record
class Packer:
    """Appends coordinates to the output's levels, and values if it has a buffer for them.  Without
    buffers it only counts.  `fits` says that the capacity is known to do.
    """

    assignment: Assignment
    extents: Env
    arrays: dict[tuple[int, str], Buffer]
    values: Buffer | None = None
    fits: bool = False

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

    def append(self, g: Group, env: Env, committed: bool, value: Expr | None = None) -> Stmt:
        """crd[count] = coordinate, and its value if there is one; the parent ends behind it."""
        n = self.count(g)
        step = Assign(n, add(n, ONE))
        if not self.arrays:
            return step
        index = self.assignment.output.format.index
        stores: list[Stmt] = [
            Store(self.arrays[level, "crd"], n, Cast(index, env[v]))
            for level, v in enumerate(self.assignment.output.level_vars)
            if g.first <= level <= g.last
        ]
        if g.first:  # else there is one fiber, which ends with the last entry
            above = add(self.parent(g, env, committed), ONE)
            stores.append(Store(self.arrays[g.first, "pos"], above, Cast(index, add(n, ONE))))
        if value is not None:
            assert self.values is not None
            stores.append(Store(self.values, n, value))
        if self.fits:
            return block(*stores, step)
        room = Bin("<", n, Dim(self.arrays[g.first, "crd"], 0))
        return block(If(room, block(*stores)), step)

    def begin(self, starts: dict[Group, Expr]) -> list[Stmt]:
        """The counters, from where this chunk starts."""
        return [
            Decl(self.count(g), starts.get(g, ZERO), mutable=True) for g in groups(self.assignment)
        ]

    def prepare(self) -> list[Stmt]:
        return [
            Do("fill_zero", (b, ZERO, Dim(b, -1)))
            for (_, role), b in self.arrays.items()
            if role == "pos"
        ]

    def finish(self, totals: dict[Group, Expr]) -> list[Stmt]:
        """What is beyond the entries: coordinates 0; fibers that have none end where the one
        before does.
        """
        out: list[Stmt] = []
        for g in groups(self.assignment):
            pos = self.arrays[g.first, "pos"]
            index = self.assignment.output.format.index
            if not g.first:
                out.append(Store(pos, ONE, Cast(index, totals[g])))
            else:
                out.append(Do("copy_max", (pos, sub(Dim(pos, 0), ONE))))
            beyond = [self.arrays[n, "crd"] for n in range(g.first, g.last + 1)]
            if self.values is not None and g == groups(self.assignment)[-1]:
                beyond.append(self.values)
            out += [Do("fill_zero", (b, totals[g], Dim(b, 0))) for b in beyond]
        return out

    def capacity(self, totals: dict[Group, Expr]) -> list[Stmt]:
        """A fault if the entries do not fit."""
        out: list[Stmt] = []
        for g in groups(self.assignment):
            room = Dim(self.arrays[g.first, "crd"], 0)
            over = Raise(CAPACITY, OUTPUT, g.first, ZERO, totals[g], room)
            out.append(If(Bin(">", totals[g], room), over))
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


def output_buffers(a: Assignment) -> tuple[Buffer, ...]:
    """The result buffers of a `fill` kernel, in order: the output's index arrays."""
    return tuple(
        Buffer(f"Y{level}_{role}", a.output.format.index, "result", n)
        for n, (level, role) in enumerate(a.output.format.array_names())
    )

# SPDX-License-Identifier: Apache-2.0
"""The arrays of a kernel: their order in the call, their names, and the checks of those that came
from outside.

The order is the contract with whoever calls a kernel: for each operand its values (unless it is a
pattern), then its index arrays level by level; last the index arrays of an output that brings its
own pattern.  Names follow from operand and level: `A_vals`, `A1_pos`, `A1_crd`.
"""

from __future__ import annotations

from jsparse.ir.index import PATTERN, Access, Assignment
from jsparse.ir.loop import (
    CRD_OUT_OF_RANGE,
    INT,
    OFFSET,
    POS_NOT_MONOTONE,
    ZERO,
    Buffer,
    Cast,
    Check,
    Const,
    Decl,
    Dim,
    Expr,
    Extent,
    For,
    If,
    Load,
    Raise,
    Stmt,
    Var,
    block,
)
from jsparse.levels import Level, Storage
from jsparse.lower.cursor import Cursor
from jsparse.record import record

OUTPUT = -1  # the operand number of the output in cursors and faults


@record
class Tensor:
    """An access with its buffers."""

    access: Access
    number: int
    values: Buffer | None
    storage: tuple[Storage, ...]

    def cursor(self, required: bool) -> Cursor:
        return Cursor(self.access, self.storage, required)


@record
class Binding:
    """All tensors of a kernel, its argument buffers in order, its extents as expressions, and as
    the loops use them: by name, or as constants where a format fixes them.
    """

    tensors: dict[int, Tensor]
    args: tuple[Buffer, ...]
    extents: dict[str, Expr]
    dims: dict[str, Expr]

    def declared(self) -> list[Stmt]:
        """The extents that are not constants, under their names."""
        named = ((self.dims[v], e) for v, e in self.extents.items())
        return [Decl(d, e) for d, e in named if isinstance(d, Var)]


def index_arrays(access: Access) -> tuple[tuple[int, str], ...]:
    return access.format.array_names()


def bind(a: Assignment) -> Binding:
    """Number the buffers of an assignment's operands."""
    args: list[Buffer] = []
    tensors: dict[int, Tensor] = {}
    extents: dict[str, Expr] = {v: Extent(n) for n, v in enumerate(a.vars)}
    accesses = dict(enumerate(a.operands))
    if a.pattern is not None:
        accesses[OUTPUT] = a.pattern

    def new(name: str, dtype: str) -> Buffer:
        args.append(Buffer(name, dtype, "arg", len(args)))
        return args[-1]

    values: dict[int, Buffer | None] = {}
    arrays: dict[int, list[dict[str, Buffer]]] = {}
    for n, access in accesses.items():
        values[n] = new(f"{access.name}_vals", access.dtype) if access.dtype != PATTERN else None
        arrays[n] = [{} for _ in access.format.levels]
        for level, role in index_arrays(access):
            arrays[n][level][role] = new(f"{access.name}{level}_{role}", access.format.index)
        buffer = values[n]
        if (
            access.format.is_dense and buffer is not None
        ):  # its shape says the extents, also symbolic ones
            for mode, v in enumerate(access.vars):
                if isinstance(extents[v], Extent):
                    extents[v] = Dim(buffer, access.format.order.index(mode))
    dims: dict[str, Expr] = {v: Var(f"{v}_dim") for v in extents}
    dims |= {v: Const(n) for v, n in a.fixed.items()}
    for n, access in accesses.items():
        names = access.level_vars
        below = (*[dims[v] for v in names[1:]], None)
        storage = tuple(
            Storage(arrays[n][level], dims[v], level, below[level]) for level, v in enumerate(names)
        )
        tensors[n] = Tensor(access, n, values[n], storage)
    return Binding(tensors, tuple(args), extents, dims)


def positions(t: Tensor) -> Expr:
    """How many positions the last level has: the end of the stored values."""
    lo: Expr = ZERO
    hi: Expr = Const(1)
    for level, s in zip(t.access.format.levels, t.storage, strict=True):
        lo, hi = level.bounds(s, lo, hi)
    return hi


def checks(t: Tensor, lo: Expr, hi: Expr, first: int = 0) -> list[Stmt]:
    """Faults if an index array below the positions [lo, hi) of level `first` - 1 leads out of
    bounds.
    """
    out: list[Stmt] = []
    if t.access.trusted:
        return out
    for n in range(first, t.access.format.ndim):
        level, s = t.access.format.levels[n], t.storage[n]
        if level.relative:
            out.append(_offsets(t.number, level, s))
            return out
        if "pos" in s.arrays:
            room = Dim(s["crd"], 0)
            out.append(Check(POS_NOT_MONOTONE, t.number, n, s["pos"], lo, hi, room))
        lo, hi = level.bounds(s, lo, hi)
        if n + 1 < t.access.format.ndim and "pos" in s.arrays:  # the levels below start from them
            ends = Var(f"{t.access.name}{n}_lo"), Var(f"{t.access.name}{n}_hi")
            out += [Decl(v, e) for v, e in zip(ends, (lo, hi), strict=True)]
            lo, hi = ends
        if "crd" in s.arrays:
            out.append(Check(CRD_OUT_OF_RANGE, t.number, n, s["crd"], lo, hi, s.extent))
    return out


def _offsets(number: int, level: Level, s: Storage) -> Stmt:
    """A fault if the coordinates of a relative level do not ascend, or leave the matrix."""
    q = Var("q")
    got = Cast(INT, Load(s["crd"], q))
    fault = Raise(OFFSET, number, s.level, q, got, s.extent)
    return For(q, ZERO, Dim(s["crd"], 0), If(level.damaged(s, q), fault))


def check_all(tensors: list[Tensor]) -> Stmt | None:
    stmts = [s for t in tensors for s in checks(t, ZERO, Const(1))]
    return block(*stmts) if stmts else None

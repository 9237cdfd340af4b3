# SPDX-License-Identifier: Apache-2.0
"""Loop IR: a small imperative language in which every kernel is written before it becomes C++.

Semantics.  Integers are 64-bit; values have the dtype of their buffer, or an accumulation dtype.
An expression has no effect.  `Select`, `and` and `or` evaluate only what they need, so a guarded
load is not performed.  A value with `lanes` n > 1 is a vector of n scalars: operators act lane by
lane, a scalar beside a vector is splat, a `Load` or `Store` with n lanes touches n consecutive
elements.  `For` runs `var` = lo, lo + step, … < hi; `Parallel` runs its body for chunks 0 …
chunks - 1 in any order, on any threads: iterations touch disjoint outputs.

    For(i, 0, n, Block(Decl(t, Load(A, i)), Store(Y, i, t * 2)))     for i in [0, n): t = A[i];
    Y[i] = t * 2
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

from jsparse.record import record

INT = "int64"
BOOL = "bool"


@record
class Buffer:
    """A flat array the kernel was handed (`where` = "arg" or "result", with its number) or
    allocated ("scratch").
    """

    name: str
    dtype: str
    where: str = "scratch"
    number: int = -1


# ---------------------------------------------------------------- expressions
@record
class Const:
    value: int | float | bool
    dtype: str = INT


@record
class Var:
    name: str
    dtype: str = INT
    lanes: int = 1


@record
class Dim:
    """Extent `axis` of an argument or result buffer, as the caller passed it."""

    buffer: Buffer
    axis: int


@record
class Extent:
    """Number `number` of the extents that the caller passed beside the buffers."""

    number: int


@record
class Load:
    buffer: Buffer
    index: Expr
    lanes: int = 1


@record
class Bin:
    """`op` is one of + - * / % min max & | (values and integers), < <= > >= == != (compare), and
    or (logic).
    """

    op: str
    a: Expr
    b: Expr


@record
class Neg:
    a: Expr


@record
class Cast:
    dtype: str
    a: Expr


@record
class Select:
    cond: Expr
    a: Expr
    b: Expr


@record
class Keep:
    """The scalar `a` if `cond`, else zero; `a` is evaluated in any case, without a branch."""

    cond: Expr
    a: Expr


@record
class Splat:
    """The scalar `a` in every one of `lanes` lanes."""

    a: Expr
    lanes: int


@record
class Pack:
    """Scalars of one dtype, one in each lane."""

    parts: tuple[Expr, ...]


@record
class HSum:
    """The lanes of `a` reduced with `op`, halves first, so that the order is fixed."""

    a: Expr
    op: str = "+"


@record
class Call:
    """A helper of `csrc/cpu` (see `HELPERS`); integer result."""

    name: str
    args: tuple[Expr | Buffer, ...]


@record
class Threads:
    """How many threads `Parallel` can use."""


Expr = (
    Const
    | Var
    | Dim
    | Extent
    | Load
    | Bin
    | Neg
    | Cast
    | Select
    | Keep
    | Splat
    | Pack
    | HSum
    | Call
    | Threads
)


# ----------------------------------------------------------------- statements
@record
class Decl:
    """A new variable.  `mutable` ones may be assigned later."""

    var: Var
    value: Expr
    mutable: bool = False


@record
class Assign:
    var: Var
    value: Expr


@record
class Store:
    """buffer[index] = value, or with `op` buffer[index] = buffer[index] op value."""

    buffer: Buffer
    index: Expr
    value: Expr
    op: str = ""
    lanes: int = 1


@record
class For:
    var: Var
    lo: Expr
    hi: Expr
    body: Stmt
    step: int = 1


@record
class While:
    cond: Expr
    body: Stmt


@record
class If:
    cond: Expr
    then: Stmt
    other: Stmt | None = None


@record
class Block:
    stmts: tuple[Stmt, ...]


@record
class Break:
    pass


@record
class Comment:
    text: str


@record
class Scratch:
    """Allocate `size` elements for `buffer`; `zero` fills them."""

    buffer: Buffer
    size: Expr
    zero: bool = False


@record
class Parallel:
    """Run `body` for `var` = 0 … chunks - 1 on the threads of the caller's pool."""

    var: Var
    chunks: Expr
    body: Stmt


@record
class Do:
    """A helper called for its effect on buffers."""

    name: str
    args: tuple[Expr | Buffer, ...]


@record
class Raise:
    """Report a fault (`kind` of csrc/abi.h) and leave the kernel, or the chunk."""

    kind: int
    operand: int
    level: int
    position: Expr
    got: Expr
    limit: Expr


@record
class Check:
    """Report a fault and leave, as `Raise` does, if an index array leads out of bounds.

    `kind` CRD_OUT_OF_RANGE: an element of `array`[lo:hi] is outside [0, limit).
    `kind` POS_NOT_MONOTONE: `array`[lo:hi + 1] descends somewhere, or leaves [0, limit].
    """

    kind: int
    operand: int
    level: int
    array: Buffer
    lo: Expr
    hi: Expr
    limit: Expr


Stmt = (
    Decl
    | Assign
    | Store
    | For
    | While
    | If
    | Block
    | Break
    | Comment
    | Scratch
    | Parallel
    | Do
    | Raise
    | Check
)

CRD_OUT_OF_RANGE, POS_NOT_MONOTONE, OUT_OF_MEMORY, CAPACITY, OFFSET = 1, 2, 3, 4, 5  # csrc/abi.h
FIBER = 6


@record
class Kernel:
    """One entry: its buffers in the caller's order and its body."""

    args: tuple[Buffer, ...]
    results: tuple[Buffer, ...]
    body: Stmt
    title: tuple[str, ...] = field(default=())


# ------------------------------------------------------- construction helpers
ZERO, ONE = Const(0), Const(1)
TRUE = Const(True, BOOL)

_TRUTH = frozenset(("<", "<=", ">", ">=", "==", "!=", "and", "or"))
_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "min": min,
    "max": max,
}


def binary(op: str, a: Expr, b: Expr) -> Expr:
    """`Bin` with integer constants folded and neutral elements dropped: x + 0 = x, x * 1 = x, x *
    0 = 0.
    """
    x = a.value if type(a) is Const and a.dtype == INT else None
    y = b.value if type(b) is Const and b.dtype == INT else None
    if x is None and y is None:
        return Bin(op, a, b)
    if x is not None and y is not None and op in _FOLD:
        return Const(_FOLD[op](x, y))
    if op == "+" and x == 0:
        return b
    if op in "+-" and y == 0:
        return a
    if op == "*" and (x == 0 or y == 0):
        return ZERO
    if op == "*" and (x == 1 or y == 1):
        return b if x == 1 else a
    return Bin(op, a, b)


def add(a: Expr, b: Expr) -> Expr:
    return binary("+", a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return binary("-", a, b)


def mul(a: Expr, b: Expr) -> Expr:
    return binary("*", a, b)


def both(*conds: Expr | None) -> Expr | None:
    """The conjunction of those that are not None; None if there is none: 'always'."""
    out: Expr | None = None
    for c in conds:
        if c is not None and c != TRUE:
            out = c if out is None else Bin("and", out, c)
    return out


def block(*stmts: Stmt | None) -> Stmt:
    """A flat `Block` without empty ones; a single statement stands for itself."""
    flat: list[Stmt] = []
    for s in stmts:
        if isinstance(s, Block):
            flat.extend(s.stmts)
        elif s is not None:
            flat.append(s)
    return flat[0] if len(flat) == 1 else Block(tuple(flat))


def type_of(e: Expr) -> tuple[str, int]:
    """(dtype, lanes) of an expression."""
    if isinstance(e, Var):
        return e.dtype, e.lanes
    if isinstance(e, Load):
        return e.buffer.dtype, e.lanes
    if isinstance(e, Bin):
        if e.op in _TRUTH:
            return BOOL, 1
        (dtype, lanes), (_, more) = type_of(e.a), type_of(e.b)
        return dtype, max(lanes, more)
    if isinstance(e, Const):
        return e.dtype, 1
    if isinstance(e, Cast):
        return e.dtype, type_of(e.a)[1]
    if isinstance(e, Splat):
        return type_of(e.a)[0], e.lanes
    if isinstance(e, Pack):
        return type_of(e.parts[0])[0], len(e.parts)
    if isinstance(e, HSum):
        return type_of(e.a)[0], 1
    if isinstance(e, (Neg, Select, Keep)):
        return type_of(e.a)
    if isinstance(e, (Dim, Extent, Call, Threads)):
        return INT, 1
    raise TypeError(f"not a loop expression: {e!r}")

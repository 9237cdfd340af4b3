# SPDX-License-Identifier: Apache-2.0
"""How a nest adds up: when an output is visited again; in what dtype and order sums are taken."""

from __future__ import annotations

from jsparse.ir.index import Access
from jsparse.ir.loop import (
    INT,
    Bin,
    Buffer,
    Const,
    Expr,
    Keep,
    Select,
    Splat,
    Var,
    type_of,
)
from jsparse.schedule.directives import Nest

WIDE = {"float16": "float32", "bfloat16": "float32"}


def position_row(operand: str, v: str) -> Buffer:
    """Where positions of an operand's fiber along `v` are looked up."""
    return Buffer(f"{operand}_at_{v}", INT)


def adds(nest: Nest) -> bool:
    """Whether a nest visits an element of its output more than once: a reduction is outside of it,
    or an operand may hold one of its coordinates in several places.
    """
    a = nest.assignment
    out = a.output.vars
    return nest.first_reduction < nest.complete or (
        not a.sampled and any(_repeats(x, out) for x in a.operands)
    )


def _repeats(access: Access, out: tuple[str, ...]) -> bool:
    levels = access.format.levels
    for n, v in enumerate(access.level_vars):
        grouped = n + 1 < len(levels) and levels[n + 1].branchless
        if v in out and not levels[n].unique and not (grouped and levels[n].ordered):
            return True
    return False


def tree(parts: list[Var] | list[Expr], op: str) -> Expr:
    """The parts combined pairwise, so that the order is fixed and the error small."""
    level: list[Expr] = list(parts)
    while len(level) > 1:
        pairs = [Bin(op, a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + ([level[-1]] if len(level) % 2 else [])
    return level[0]


def masked(present: Expr, value: Expr, zero: Const, valid: bool) -> Expr:
    """`value` where `present`, else `zero`; without a branch if it may be computed in any case."""
    lanes = type_of(value)[1]
    if valid and lanes == 1 and zero.value == 0:
        return Keep(present, value)
    return Select(present, value, Splat(zero, lanes) if lanes > 1 else zero)

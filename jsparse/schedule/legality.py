# SPDX-License-Identifier: Apache-2.0
"""What an assignment allows: which variable can be a vector loop or be held in registers, and what
a loop walks.
"""

from __future__ import annotations

import math

from jsparse.ir.index import Access, Assignment
from jsparse.levels import Level
from jsparse.target import VECTOR_DTYPES


def not_vectorizable(
    a: Assignment, workspace: str | None, var: str, *, movable: bool = False
) -> str | None:
    """Why `var` cannot be a vector loop, or None if it can: every access has it, or one variable
    that moves along with it, innermost and dense, or has none of them.  With `movable` dense
    tensors may be laid out anew.
    """
    moving = a.moving(var)
    accesses = [*a.operands]
    if workspace != var:
        accesses.append(a.output)
    if len(moving) > 1:
        if len(a.ties) > 1:
            return "more than one tensor is stored by diagonals"
        if len(a.terms) > 1:
            return "the terms of a sum have other entries"
    for access in accesses:
        inside = [v for v in access.level_vars if v in moving]
        if not inside:
            continue
        if inside.count(var) > 1:
            return f"{access.name} has {var} twice"
        if len(inside) > 1 and not (set(inside) == set(access.tied) and len(set(inside)) == 2):
            return f"{access.name} has {' and '.join(inside)}"
        if movable and access.format.is_dense:
            continue
        if access.level_vars[-1] != inside[-1] or not access.format.levels[-1].full:
            return f"{inside[-1]} is not the innermost, dense level of {access.name}"
    if a.pattern is not None and not a.pattern.tied and set(moving) & set(a.pattern.sparse_vars):
        return f"{var} is a compressed level of the output"
    return None


MOST_HELD = 16  # values of a variable that has an accumulator for each


def not_held(a: Assignment, var: str) -> str | None:
    """Why `var` cannot have an accumulator for each of its values, or None if it can."""
    if a.pattern is not None or var not in a.output.vars:
        return f"{var} must be a variable of a dense output, or of one with an operand's pattern"
    if a.fixed.get(var, MOST_HELD + 1) > MOST_HELD:
        return f"no format fixes the extent of {var}, to at most {MOST_HELD}"
    if len(a.terms) > 1:
        return "terms of a sum are visited apart"
    tensors = (a.output, *a.operands)
    if any(var in x.sparse_vars or x.vars.count(var) > 1 or x.tied for x in tensors):
        return f"{var} must index dense levels only, once in each tensor"
    return None


def not_collected(a: Assignment, var: str) -> str | None:
    """Why nonzeros along `var` cannot run in lanes, or None if they can."""
    if len(a.terms) > 1:
        return "terms of a sum are visited apart"
    if a.output.dtype not in VECTOR_DTYPES:
        return f"there are no vectors of {a.output.dtype}"
    if any(x.vars.count(var) > 1 or x.tied for x in a.operands):
        return f"{var} must index each operand once, and lie where no level is relative"
    walked = [x for x in a.operands if var in x.sparse_vars]
    if len(walked) != 1 or walked[0].level_vars[-1] != var:
        return f"{var} must be the last level of one sparse operand, and dense in the others"
    level = walked[0].format.levels[-1]
    if level.full or level.branchless:
        return f"{walked[0].name} must store a fiber along {var} in one piece"
    return None


def walked_level(x: Access, v: str, order: tuple[str, ...]) -> Level | None:
    """The level of an access whose entries the loop over `v` visits; None if it has no such level:
    it lacks `v`, stores every coordinate, or is searched there, for levels above are bound later.
    """
    if v not in x.level_vars:
        return None
    n = x.level_vars.index(v)
    level = x.format.levels[n]
    above = max((order.index(u) for u in x.level_vars[:n]), default=-1)
    return None if level.full or above > order.index(v) else level


def are_rows(a: Assignment, names: tuple[str, ...], vector: str) -> bool:
    """Whether a dense tensor indexed by `names` is a matrix of rows along `vector`, or has a few of
    them, as many as formats fix, for each value of its first variable.
    """
    few = math.prod(a.fixed.get(v, MOST_HELD + 1) for v in names[1:-1]) <= MOST_HELD
    return len(names) > 1 and names[-1] == vector and few

# SPDX-License-Identifier: Apache-2.0
"""The autoscheduler against every other loop order, by work that is counted and not predicted.

Random expressions over random formats, extents and fills are lowered twice: as planned, and once
for each order of their loops.  The interpreter counts iterations.  The plan may not need more than
`CONSTANT` times the best order's, however the extents lie: no asymptotic cliffs.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from cases import Array, pack, seed

from jsparse.errors import InternalError, ScheduleError
from jsparse.format import parse_format
from jsparse.ir import interpret
from jsparse.ir.index import Access, Assignment, Term
from jsparse.lower.kernel import lower
from jsparse.schedule import auto, directives, notation
from jsparse.schedule.directives import Reorder, Schedule

CONSTANT = 4  # a plan may trade this much work for better memory access
SLACK = 300  # iterations that do not matter
LONG = {2: (40, 60), 3: (16, 24), 4: (6, 10)}  # extents by number of index variables
SHORT = (2, 5)
FORMATS = {
    1: ("dense", "coo"),
    2: ("dense", "csr", "csc", "coo", "dcsr", "dcsc"),
    3: ("dense", "csf", "coo", "dense,compressed,compressed", "compressed,compressed,dense"),
}
_EXPRESSIONS = """
    ij,jk->ik ij,kj->ik ji,jk->ik ij,j->i ij,i->j ij,ij->ij ij,ij-> ij,ij->ji ij->j ij,jk->ki
    i,ij,j-> ij,ik,jk->ij ij,ik,kj->ij ij,jk,ki-> ijk,kl->ijl ijk,kl,jl->il ijk,jk->i ijk,k->ij
    ijk,ijk-> ijk,ik,jk->ij ij,jk,kl->il
"""
EXPRESSIONS = tuple(_EXPRESSIONS.split())


def problem(number: int) -> tuple[Assignment, dict[str, int], tuple[int, ...], list[Array]]:
    """A random expression: assignment with a dense output, extents, entries, dense oracles."""
    rng = seed("schedule", number)
    inputs, _, output = EXPRESSIONS[number % len(EXPRESSIONS)].partition("->")
    names = inputs.split(",")
    variables = sorted(set(inputs) - {","})
    long = LONG[max(len(variables), 2)]
    extents = {v: int(rng.integers(*(long if rng.integers(3) else SHORT))) for v in variables}
    accesses: list[Access] = []
    arrays: list[Array] = []
    nse: list[int] = []
    for n, letters in enumerate(names):
        f = str(rng.choice(FORMATS[len(letters)][(n == 0) :]))  # the first is sparse
        shape = tuple(extents[v] for v in letters)
        x = numbers(rng, shape, 1.0 if f == "dense" else rng.choice([0.01, 0.1, 0.4]))
        accesses.append(Access("ABC"[n], tuple(letters), parse_format(f, len(shape)), "float64"))
        arrays.append(x)
        nse.append(0 if f == "dense" else int(np.count_nonzero(x)))
    out = Access("Y", tuple(output), parse_format("dense", len(output)), "float64")
    return (
        Assignment(out, tuple(accesses), (Term(tuple(range(len(names)))),)),
        extents,
        tuple(nse),
        arrays,
    )


def numbers(rng: np.random.Generator, shape: tuple[int, ...], share: float) -> Array:
    """Small whole numbers at about a share of the elements, at least one."""
    x = np.where(rng.random(shape) < share, rng.integers(1, 5, shape), 0.0)
    x.reshape(-1)[rng.integers(x.size)] = 1.0
    return x


def work(
    a: Assignment,
    schedule: Schedule,
    extents: dict[str, int],
    dense: list[Array],
    most: float = math.inf,
) -> int:
    """Iterations of the nest of `a`, whose result is checked."""
    kernel = lower(directives.apply(schedule, a))
    args: list[Array] = []
    for x, array in zip(a.operands, dense, strict=True):
        args += stored(x, array)
    shape = tuple(extents[a.output.vars[m]] for m in a.output.format.order)
    y = np.full(shape, np.nan)
    steps = interpret.run(kernel, args, [y], [extents[v] for v in a.vars], most=most)
    text = ",".join("".join(x.vars) for x in a.operands) + "->" + "".join(a.output.vars)
    want = np.einsum(text, *dense).transpose(a.output.format.order)
    np.testing.assert_allclose(y, want, rtol=1e-9, atol=1e-9)
    return steps


def stored(x: Access, array: Array) -> list[Array]:
    """Values and index arrays of `array` in the format of an access."""
    if x.format.is_dense:
        return [np.ascontiguousarray(array.transpose(x.format.order))]
    coords = np.stack(np.nonzero(array))
    packed = pack(coords, array[tuple(coords)], array.shape, str(x.format))
    return [np.asarray(packed.data), *(np.asarray(i) for i in packed.structure)]


def check(number: int) -> None:
    a, extents, nse, arrays = problem(number)
    plan = auto.plan(a, tuple(extents[v] for v in a.vars), nse)
    chosen = work(plan.assignment, plan.schedule, extents, arrays)
    least: tuple[int, Any] = (chosen, plan.schedule)
    for order in itertools.permutations(a.vars):
        try:
            least = work(a, (Reorder(order),), extents, arrays, least[0]), order
        except (ScheduleError, InternalError):  # an order that this storage does not allow
            continue
        except interpret.TooLong:
            continue
    what = f"{a} with {extents}, entries {nse}: planned {notation.show(plan.schedule)}"
    assert chosen <= CONSTANT * least[0] + SLACK, f"{what}, {chosen} steps; {least[1]} {least[0]}"


@pytest.mark.parametrize("number", range(len(EXPRESSIONS)))
def test_no_cliff(number: int) -> None:
    check(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(EXPRESSIONS), 5 * len(EXPRESSIONS)))
def test_no_cliff_anywhere(number: int) -> None:
    check(number)

# SPDX-License-Identifier: Apache-2.0
"""Contractions of more than two operands: one fused nest, or a pair first.

    ij,jk,kl->il     A sparse, B and C dense: (B C) first, or A (B C), or one nest over i, j, k, l

A pair is taken where the pair and what remains are predicted to cost less than the fused nest.
Its intermediate must be dense, or have an operand's pattern: sparse intermediates of unknown
pattern are not made.  A result with an operand's pattern (SDDMM) stays fused with that operand;
only its dense factors may be paired.  Operands without a common variable are not paired.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

from jsparse.ir.index import Access, Assignment, Term
from jsparse.schedule import auto
from jsparse.schedule.infer import Output, dense, infer

BLAS = 0.03  # nanoseconds for a multiply-add of a dense matrix product
SUM = 0.5  # the same where one side has no dimension of its own: a reduction, bound by memory
BLOCK = 8  # extent from which a dimension of its own makes a matrix product
GAIN = 0.9  # how much cheaper a pair must be than the fused nest

Sizes = tuple[tuple[str, int], ...]


def _cost(
    accesses: tuple[Access, ...],
    output: tuple[str, ...],
    sizes: dict[str, int],
    nse: tuple[int, ...],
    limit: float = math.inf,
) -> float:
    """Predicted nanoseconds of one nest, or something above `limit`."""
    if all(a.format.is_dense for a in accesses):
        return _dense_cost(accesses, sizes)
    terms = (Term(tuple(range(len(accesses)))),)
    result = infer(output, accesses, terms)
    if result.computed:
        result = Output(dense(len(output)))
    out = Access("Y", output, result.format, accesses[0].dtype)
    a = Assignment(out, accesses, terms, result.shares)
    return auto.quick_cost(a, tuple(sizes[v] for v in a.vars), nse, limit)


def _dense_cost(accesses: tuple[Access, ...], sizes: dict[str, int]) -> float:
    """Predicted nanoseconds of a product of dense operands."""
    work = 1.0
    for v in dict.fromkeys(v for a in accesses for v in a.vars):
        work *= sizes[v]
    least = work
    for a in accesses:
        others = {v for b in accesses if b is not a for v in b.vars}
        own = 1.0
        for v in a.vars:
            own *= 1 if v in others else sizes[v]
        least = min(least, own)
    return work * (BLAS if least >= BLOCK else SUM)


@lru_cache(maxsize=4096)
def first_pair(
    accesses: tuple[Access, ...],
    output: tuple[str, ...],
    shares: bool,
    sizes: Sizes,
    nse: tuple[int, ...],
) -> tuple[int, int] | None:
    """The pair to contract first, or None for one fused nest.

    Args:
      accesses: the operands.
      output: variables of the result.
      shares: whether the result takes an operand's pattern.
      sizes: (variable, extent) pairs.
      nse: stored entries of each operand, 0 for dense ones.
    """
    extent = dict(sizes)
    best, choice = math.inf, None
    for m, n in itertools.combinations(range(len(accesses)), 2):
        pair = (accesses[m], accesses[n])
        both_dense = all(a.format.is_dense for a in pair)
        if (shares and not both_dense) or set(pair[0].vars).isdisjoint(pair[1].vars):
            continue
        rest = [k for k in range(len(accesses)) if k not in (m, n)]
        needed = {v for k in rest for v in accesses[k].vars} | set(output)
        kept = tuple(dict.fromkeys(v for a in pair for v in a.vars if v in needed))
        result = infer(kept, pair, (Term((0, 1)),))
        if result.computed:
            continue
        size = 1.0
        for v in kept:
            size *= extent[v]
        middle_nse = 0 if result.shares is None else nse[(m, n)[result.shares]]
        middle = Access("T", kept, result.format, pair[0].dtype)
        total = float(middle_nse if middle_nse else size)
        total += _cost(pair, kept, extent, (nse[m], nse[n]), best - total)
        if total >= best:  # whatever the rest costs
            continue
        left = (*(accesses[k] for k in rest), middle)
        total += _cost(left, output, extent, (*(nse[k] for k in rest), middle_nse), best - total)
        if total < best:
            best, choice = total, (m, n)
    if choice is not None and GAIN * _cost(accesses, output, extent, nse, best / GAIN) <= best:
        return None
    return choice

# SPDX-License-Identifier: Apache-2.0
"""Partial results: each part of the outermost reduction adds to a result of its own, and these are
added up at the end.

    forall i, j: Y[j] += A[i,j] * x[i]     rfactor(i,4)
 -> Y_parts = scratch of 4 results
    parallel part: Y_parts[part,:] = 0; forall i in part, j: Y_parts[part,j] += A[i,j] * x[i]
    parallel: Y[q] = (Y_parts[0,q] + Y_parts[1,q]) + (Y_parts[2,q] + Y_parts[3,q])

The schedule says how many parts there are, so the sum has one order for any number of threads.
"""

from __future__ import annotations

from jsparse.ir.loop import (
    ONE,
    ZERO,
    Bin,
    Buffer,
    Call,
    Cast,
    Const,
    Decl,
    Dim,
    Do,
    Expr,
    For,
    Load,
    Parallel,
    Stmt,
    Store,
    Threads,
    Var,
    add,
    block,
    mul,
)
from jsparse.lower.chunks import GRAIN
from jsparse.lower.sums import tree
from jsparse.target import VECTOR_DTYPES

START = Var("part_start")  # where in the parts the sums of one begin
LANES = 8


def begin(target: Buffer, result: Buffer, chunk: Expr, adds: bool) -> list[Stmt]:
    """What a part does first: find its place in `target`; zeros there if sums are added to it."""
    size = Dim(result, -1)
    out: list[Stmt] = [Decl(START, mul(chunk, size))]
    return [*out, Do("fill_zero", (target, START, add(START, size)))] if adds else out


def combine(parts: int, target: Buffer, result: Buffer, plus: str) -> Stmt:
    """The result from its parts, several elements at once, in chunks."""
    size, chunks, chunk = Dim(result, -1), Var("result_chunks"), Var("result_chunk")
    lo, hi, whole = Var("q_begin"), Var("q_end"), Var("q_whole")

    def store(q: Expr, lanes: int) -> Stmt:
        places = [add(mul(Const(p), size), q) for p in range(parts)]
        loads: list[Expr] = [Load(target, at, lanes) for at in places]
        total = tree(loads, plus)
        value = total if target.dtype == result.dtype else Cast(result.dtype, total)
        return Store(result, q, value, lanes=lanes)

    q = Var("q")
    loops: list[Stmt] = [For(q, lo, hi, store(q, 1))]
    if target.dtype in VECTOR_DTYPES and result.dtype in VECTOR_DTYPES:
        some = mul(Bin("/", Bin("-", hi, lo), Const(LANES)), Const(LANES))
        loops = [
            Decl(whole, add(lo, some)),
            For(q, lo, whole, store(q, LANES), LANES),
            For(q, whole, hi, store(q, 1)),
        ]
    ends = [Call("even", (ZERO, size, k, chunks)) for k in (chunk, add(chunk, ONE))]
    work = Bin("/", mul(Const(parts), size), Const(GRAIN))
    most = mul(Threads(), Const(4))
    return block(
        Decl(chunks, Bin("max", ONE, Bin("min", work, most))),
        Parallel(chunk, chunks, block(Decl(lo, ends[0]), Decl(hi, ends[1]), *loops)),
    )

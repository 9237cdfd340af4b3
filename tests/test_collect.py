# SPDX-License-Identifier: Apache-2.0
"""Nonzeros in lanes (`collect`): kernel and interpreter against dense NumPy, what is legal, and
when the scheduler asks for it.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from cases import seed, values

import jsparse as js
from jsparse import pipeline
from jsparse.errors import ScheduleError
from jsparse.ir import interpret
from jsparse.ir.index import parse_assignment
from jsparse.schedule import auto, directives
from jsparse.schedule.notation import parse_schedule, show
from jsparse.target import VECTOR_DTYPES

pytestmark = pytest.mark.usefixtures("x64")

EXTENT = {"i": 23, "j": 41, "k": 37}
EINSUMS = {  # loop order, the reduction innermost; formats of the sparse operand that store it last
    "ij,j->i": ("ij", ("csr", "csr/int64", "dcsr", "dense,compressed(-ou)")),
    "ij,i->j": ("ji", ("csc", "dcsc")),
    "ij->i": ("ij", ("csr", "dcsr")),
    "ij,j,j->i": ("ij", ("csr",)),
    ",ij,j->i": ("ij", ("csr",)),
    "ij,i,j->i": ("ij", ("csr",)),
    "ijk,k->ij": ("ijk", ("csf", "dense,dense,compressed")),
}
ROWS = [(e, f) for e, (_, formats) in EINSUMS.items() for f in formats]


def fibers(names: str, along: str, dtype: Any) -> np.ndarray:
    """An array whose fibers along a variable have none, one, few and all of their entries."""
    shape, rng = tuple(EXTENT[v] for v in names), seed(names, along)
    x = np.moveaxis(values(rng, shape, dtype), names.index(along), -1)
    share = rng.choice([0.0, 0.1, 0.5, 1.0], x.shape[:-1])
    x = np.where(rng.random(x.shape) < share[..., None], x, x.dtype.type(0))
    return np.moveaxis(x, -1, names.index(along))


def posed(einsum: str, fmt: str, dtype: Any = np.float64) -> tuple[list[Any], np.ndarray]:
    """Operands, those of several modes in `fmt`; the right answer."""
    along = EINSUMS[einsum][0][-1]
    names = einsum.split("->")[0].split(",")
    exact = [
        fibers(n, along, dtype)
        if len(n) > 1
        else values(seed(n), tuple(EXTENT[v] for v in n), dtype)
        for n in names
    ]
    ops = [js.fromdense(x, fmt) if x.ndim > 1 else jnp.asarray(x) for x in exact]
    return ops, np.einsum(einsum, *[x.astype(np.float64) for x in exact])


@pytest.mark.parametrize("lanes", ["2,1", "8,1", "4,3"])
@pytest.mark.parametrize(("einsum", "fmt"), ROWS)
def test_sums_in_lanes(einsum: str, fmt: str, lanes: str) -> None:
    ops, want = posed(einsum, fmt)
    order = EINSUMS[einsum][0]
    schedule = f"reorder({','.join(order)}) collect({order[-1]},{lanes}) parallelize({order[0]})"
    y = js.einsum(einsum, *ops, schedule=schedule)
    np.testing.assert_allclose(np.asarray(y), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_interpreter_agrees(threads: int) -> None:
    ops, want = posed("ij,j->i", "csr")
    a = parse_assignment("Y[i]:dense:float64 = A[i,j]:csr:float64 * x[j]:dense:float64")
    schedule = parse_schedule("reorder(i,j) collect(j,4,2) prefetch(A,256) parallelize(i)")
    spec = pipeline.Spec(a, schedule)
    assert pipeline.from_recipe(spec.recipe()) == spec
    flat = [np.asarray(x) for x in (ops[0].data, *ops[0].arrays, ops[1])]
    y = np.full(want.shape, np.nan)
    interpret.run(pipeline.lower(spec), flat, [y], [EXTENT["i"], EXTENT["j"]], threads)
    np.testing.assert_allclose(y, want, rtol=1e-12)


@pytest.mark.parametrize("dtype", VECTOR_DTYPES)
def test_every_dtype_that_has_vectors(dtype: str) -> None:
    ops, want = posed("ij,j->i", "csr", jnp.dtype(dtype))
    y = js.einsum("ij,j->i", *ops, schedule="reorder(i,j) collect(j,4,2)")
    assert y.dtype == dtype
    if jnp.dtype(dtype).kind in "iu":
        np.testing.assert_array_equal(np.asarray(y), want.astype(dtype))
        return
    close = 4 * float(jnp.finfo(dtype).eps) if "16" in dtype else 1e-5
    np.testing.assert_allclose(np.asarray(y, np.float64), want, rtol=close, atol=8 * close)


ILLEGAL = {
    "reorder(j,i) collect(j,4,1)": "innermost loop and the only reduction",
    "reorder(i,j) collect(i,4,1)": "last level of one sparse operand",
    "reorder(i,j) collect(j,3,1)": "power of two",
    "reorder(i,j) collect(j,4,9)": "registers",
    "reorder(i,j) unroll(j,4) collect(j,4,1)": "partial sums",
}
OTHERS = {
    "Y[i]:dense:int8 = A[i,j]:csr:int8 * x[j]:dense:int8": "no vectors of int8",
    "Y[i]:dense:float32 = A[i,j]:csr:float32 + B[i,j]:csr:float32": "terms of a sum",
    "Y[i]:dense:float32 = A[i,j]:csr:float32 * B[i,j]:csr:float32": "last level of one sparse",
    "Y[i]:dense:float32 = A[i,j]:csc:float32 * x[j]:dense:float32": "last level of one sparse",
    "Y[i]:dense:float32 = A[i,j]:coo:float32 * x[j]:dense:float32": "in one piece",
    "Y[i]:dense:float32 = A[i,j]:dia:float32 * x[j]:dense:float32": "relative",
    "Y[]:dense:float32 = A[i,j]:csr:float32 * x[j]:dense:float32": "only reduction",
}


def test_what_collect_needs() -> None:
    plain = "Y[i]:dense:float32 = A[i,j]:csr:float32 * x[j]:dense:float32"
    cases = [(plain, *pair) for pair in ILLEGAL.items()]
    cases += [(a, "reorder(i,j) collect(j,4,1)", why) for a, why in OTHERS.items()]
    for text, schedule, why in cases:
        with pytest.raises(ScheduleError, match=why):
            directives.apply(parse_schedule(schedule), parse_assignment(text))


@pytest.mark.parametrize(
    ("text", "entries", "want"),
    [
        ("Y[i]:dense:float32 = A[i,j]:csr:float32 * x[j]:dense:float32", 400, True),
        ("Y[i]:dense:float64 = A[i,j]:csr:float64", 400, True),
        ("Y[i]:dense:float32 = A[i,j]:csr:float32 * x[j]:dense:float32", 40, False),
        ("Y[i]:dense:complex64 = A[i,j]:csr:complex64 * x[j]:dense:complex64", 400, False),
        ("Y[]:dense:float32 = A[i,j]:csr:float32 * x[j]:dense:float32", 400, False),
    ],
)
def test_plans_collect_long_fibers(text: str, entries: int, want: bool) -> None:
    a = parse_assignment(text)
    nse = (1000 * entries, *[0 for _ in a.operands[1:]])
    schedule = auto.plan(a, (1000, 4000), nse).schedule
    assert ("collect(" in show(schedule)) == want
    assert parse_schedule(show(schedule)) == schedule


@pytest.mark.parametrize("dtype", ["float32", "int32", "complex64", "int8"])
def test_long_vectors_are_summed_in_parts(dtype: str) -> None:
    """One loop that is the reduction, cut in parts, and has several nonzeros in flight."""
    n = 1 << 18
    x = np.arange(n, dtype=np.int64) % 3
    a, y = js.fromdense(x.astype(dtype), "coo"), jnp.asarray(np.arange(n) % 2, dtype)
    assert "rfactor(i," in str(js.explain("i,i->", a, y))
    got = js.einsum("i,i->", a, y), js.einsum("i->", a)
    want = (x * (np.arange(n) % 2)).sum(), x.sum()
    np.testing.assert_array_equal(np.asarray(got), np.asarray(want).astype(dtype))

# SPDX-License-Identifier: Apache-2.0
"""Fibers visited together: intersections in which one side is much longer than the other."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Array, assert_same, pack, seed

import jsparse as js
from jsparse.errors import ScheduleError
from jsparse.ir.index import parse_assignment
from jsparse.schedule import auto, directives
from jsparse.schedule.directives import parse_schedule, show

pytestmark = pytest.mark.usefixtures("x64")

MATRICES = ["csr", "csc", "coo", "dcsr", "dcsc", "csr/int64"]
SHAPES = [(30, 400), (1, 300), (300, 1), (0, 4), (4, 0)]
SKEWED = {  # einsum: fill of each operand
    "ij,ij->ij": (0.02, 0.7),
    "ij,ij->": (0.7, 0.02),
    "ij,ij->i": (0.02, 0.7),
    "ij,ij->j": (0.7, 0.02),
    "ij,ij,ij->ij": (0.7, 0.02, 0.3),
    "ij,ij,ij->": (0.02, 0.04, 0.9),
    "ij,ij,j->i": (0.02, 0.7, 1.0),
}
DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "complex64", "bool"]


def filled(rng: np.random.Generator, shape: tuple[int, ...], fill: float, dtype: str) -> Array:
    x = np.where(rng.random(shape) < fill, rng.integers(1, 4, shape), 0)
    return x.astype(jnp.dtype(dtype))


def made(x: Array, f: str) -> Any:
    if f == "dense":
        return jnp.asarray(x)
    coords = np.stack(np.nonzero(x))
    return pack(coords, x[tuple(coords)], x.shape, f)


def skewed(
    einsum: str, shape: tuple[int, int], formats: tuple[str, ...], dtype: str = "float64"
) -> tuple[list[Any], Array]:
    """Operands, and their product."""
    rng = seed("skewed", einsum, shape, dtype)
    inputs = einsum.partition("->")[0].split(",")
    shapes = [shape if len(x) == 2 else shape[1:] for x in inputs]
    dense = [filled(rng, s, fill, dtype) for s, fill in zip(shapes, SKEWED[einsum], strict=True)]
    wide = [x if dtype.startswith("complex") else x.astype(np.float64) for x in dense]
    want = np.einsum(einsum, *wide)
    pairs = zip(dense, formats, strict=False)
    arrays = [made(x, f if x.ndim == 2 else "dense") for x, f in pairs]
    return arrays, (want != 0 if dtype == "bool" else want).astype(jnp.dtype(dtype))


@pytest.mark.parametrize("frozen", [False, True], ids=["dynamic", "frozen"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("einsum", SKEWED)
def test_skewed_intersections(einsum: str, shape: tuple[int, int], frozen: bool) -> None:
    """Every format, eagerly and under jit."""
    for number, f in enumerate(MATRICES):
        others = (f, MATRICES[(number + len(einsum)) % len(MATRICES)], f)
        arrays, want = skewed(einsum, shape, others if number % 2 else (f, f, f))
        if frozen:
            arrays = [x.freeze() if isinstance(x, js.SparseArray) else x for x in arrays]
        assert_same(js.einsum(einsum, *arrays), want)
        sparse = einsum.endswith("->ij") and not frozen
        how = {"nse": int(np.count_nonzero(want)) + 3} if sparse else {}
        assert_same(jax.jit(lambda *xs, how=how: js.einsum(einsum, *xs, **how))(*arrays), want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("einsum", ["ij,ij->ij", "ij,ij->i", "ij,ij,ij->"])
def test_dtypes_of_skewed_intersections(einsum: str, dtype: str) -> None:
    arrays, want = skewed(einsum, (20, 60), ("csr", "csr", "csr"), dtype)
    assert_same(js.einsum(einsum, *arrays), want)


@pytest.mark.parametrize(("few", "many"), [(3, 2000), (2000, 3), (0, 2000), (2000, 0)])
def test_vectors_of_very_different_lengths(few: int, many: int) -> None:
    rng = seed("vectors", few, many)
    x, y = np.zeros((2, 5000))
    for v, n in ((x, few), (y, many)):
        v[rng.choice(5000, n, replace=False)] = rng.integers(1, 5, n)
    a, b = made(x, "coo"), made(y, "coo")
    assert_same(a * b, x * y)
    assert_same(js.einsum("i,i->", a, b), np.float64(x @ y))
    assert_same(js.einsum("i,i,i->i", a, b, jnp.asarray(y)), x * y * y)


@pytest.mark.parametrize("format", ["csr", "coo", "dcsr"])
def test_sampled_results_of_skewed_patterns(format: str) -> None:
    """A result sampled at a pattern much shorter, or much longer, than the operand."""
    rng = seed("sampled", format)
    for fills in ((0.02, 0.8), (0.8, 0.02)):
        x, p = (filled(rng, (25, 200), fill, "float64") for fill in fills)
        a, like = made(x, format), made(p, format)
        got = js.einsum("ij->ij", a, like=like)
        assert got.nse == like.nse
        assert_same(got, x * (p != 0))


def test_gradients_and_batches_of_skewed_intersections() -> None:
    (a, b), _ = skewed("ij,ij->ij", (20, 200), ("csr", "csr"))
    x, y = (np.asarray(m.todense()) for m in (a, b))
    da, db = js.grad(lambda a, b: (js.einsum("ij,ij->i", a, b) ** 2).sum(), argnums=(0, 1))(a, b)
    sums = 2 * (x * y).sum(1, keepdims=True)
    assert_same(da, np.where(x != 0, sums * y, 0))
    assert_same(db, np.where(y != 0, sums * x, 0))
    scales = jnp.arange(3.0)
    got = jax.vmap(lambda s: js.einsum("ij,ij->i", a.with_data(a.data * s), b))(scales)
    assert_same(got, np.asarray(scales)[:, None] * (x * y).sum(1))


# ----------------------------------------------------------------- the directive
CASES = {  # assignment: entries of its operands, and what the plan searches
    "Y[i,j]:csr:float32 = A[i,j]:csr:float32 * B[i,j]:csr:float32": ((800, 51200, 100), "gallop(B"),
    "Y[]:dense:float32 = A[i,j]:csr:float32 * B[i,j]:csr:float32": ((51200, 800), "gallop(A,j)"),
    "Y[i]:dense:float32 = A[i,j]:csr:float32 * B[i,j]:csr:float32": ((800, 2400), ""),
    "Y[i,j]:dense:float32 = A[i,j]:csr:float32 + B[i,j]:csr:float32": ((800, 51200), ""),
    "Y[i,j]:csr:float32 = A[i,j]:csr:float32": ((51200, 800), "gallop(A,j)"),
}


@pytest.mark.parametrize("text", CASES)
def test_plans_search_long_fibers_only(text: str) -> None:
    a, (nse, want) = parse_assignment(text), CASES[text]
    schedule = auto.plan(a, tuple([100, 600][n] for n, _ in enumerate(a.vars)), nse).schedule
    assert (want in show(schedule)) if want else ("gallop" not in show(schedule))
    assert parse_schedule(show(schedule)) == schedule
    directives.apply(schedule, a)


ILLEGAL = {
    "gallop(B,j)": "terms of a sum",
    "gallop(C,j)": "no sparse operand",
    "gallop(A,i)": "does not walk A",
    "gallop(A,j)": "",
    "gallop(A,j) gallop(B,j)": "another tensor",
    "reorder(j,i) gallop(A,j)": "does not walk A",
}


@pytest.mark.parametrize("text", ILLEGAL)
def test_what_gallop_needs(text: str) -> None:
    sign = "+" if "sum" in ILLEGAL[text] else "*"
    a = parse_assignment(f"Y[i]:dense:int32 = A[i,j]:csr:int32 {sign} B[i,j]:csr:int32")
    if not ILLEGAL[text]:
        assert directives.apply(parse_schedule(text), a).galloped == (("A", "j"),)
        return
    with pytest.raises(ScheduleError, match=ILLEGAL[text]):
        directives.apply(parse_schedule(text), a)


@pytest.mark.parametrize("flags", ["", "(-o)", "(-u)", "(-ou)"])
def test_only_ascending_unique_coordinates_are_searched(flags: str) -> None:
    f = f"dense,compressed{flags}"
    a = parse_assignment(f"Y[i]:dense:int32 = A[i,j]:{f}:int32 * B[i,j]:csr:int32")
    found = "gallop(A,j)" in show(auto.plan(a, (100, 600), (51200, 800)).schedule)
    assert found == (not flags)

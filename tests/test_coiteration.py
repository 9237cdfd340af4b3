# SPDX-License-Identifier: Apache-2.0
"""Fibers visited together: sums and products whose outermost loop is cut into chunks, and
intersections in which one side is much longer than the other.  And conversions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Array, assert_same, pack, seed, some_slow

import jsparse as js
from jsparse import pipeline
from jsparse.errors import ScheduleError
from jsparse.ir import interpret
from jsparse.ir.index import parse_assignment
from jsparse.lower import chunks
from jsparse.schedule import auto, directives
from jsparse.schedule.notation import parse_schedule, show

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


# ------------------------------------------------------------------- chunks
@pytest.fixture
def many_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels whose chunks have a few entries each."""
    monkeypatch.setattr(chunks, "GRAIN", 8)
    for cache in (pipeline.lower, pipeline.text):
        cache.cache_clear()
    yield
    for cache in (pipeline.lower, pipeline.text):
        cache.cache_clear()


PAIRS = [("dcsr", "dcsr"), ("coo", "coo"), ("dcsr", "coo"), ("dcsc", "dcsc"), ("csr", "dcsr")]
PAIRS += [("dcsr", "csr"), ("dcsr/int64", "coo/int64")]
CUBES = [("csf", "csf"), ("coo", "coo"), ("csf", "coo"), ("compressed,dense,compressed", "csf")]
FUNCTIONS: dict[str, Any] = {
    "A + B": lambda a, b: a + b,
    "A - B": lambda a, b: a - b,
    "A * B": lambda a, b: a * b,
}
APART = {  # rows of the two operands that have entries
    "everywhere": (slice(None), slice(None)),
    "one after the other": (slice(None, 20), slice(20, None)),
    "in the middle": (slice(None), slice(18, 22)),
    "in one row": (slice(11, 12), slice(None)),
    "nowhere": (slice(0, 0), slice(None)),
}


@pytest.mark.parametrize("where", some_slow(list(APART), ("everywhere", "one after the other")))
@pytest.mark.parametrize("formats", [*PAIRS, *CUBES], ids="*".join)
def test_chunks_of_fibers_that_are_visited_together(
    formats: tuple[str, str], where: str, many_chunks: None
) -> None:
    rng = seed("chunks", formats, where)
    shape = (41, 23) if formats in PAIRS else (41, 6, 7)
    dense = [np.zeros(shape), np.zeros(shape)]
    for x, rows in zip(dense, APART[where], strict=True):
        x[rows] = filled(rng, x[rows].shape, 0.2, "float64")
    (x, y), (a, b) = dense, (made(x, f) for x, f in zip(dense, formats, strict=True))
    names = "ijk"[: len(shape)]
    for name, f in FUNCTIONS.items():
        want = f(x, y)
        got = f(a, b)
        assert_same(got, want)
        assert not got.format.is_dense
        assert_same(f(a.freeze(), b.freeze()), want)
        if name == "A + B":
            assert_same(jax.jit(lambda a, b: js.add(a, b, nse=1500))(a, b), want)
    for out in (names, names[0], names[-1], ""):
        want = np.einsum(f"{names},{names}->{out}", x, y)
        assert_same(js.einsum(f"{names},{names}->{out}", a, b), want)
    like = jax.jit(lambda a, b: js.einsum(f"{names}->{names}", a, like=b))
    assert_same(like(a, b), np.where(y != 0, x, 0))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 90), (90, 1)], ids=str)
@pytest.mark.parametrize("format", ["dcsr", "coo"])
def test_chunks_of_thin_matrices(format: str, shape: tuple[int, int], many_chunks: None) -> None:
    rng = seed("thin", format, shape)
    x, y, z = (filled(rng, shape, 0.5, "float32") for _ in range(3))
    a, b, c = (made(v, format) for v in (x, y, z))
    for f in FUNCTIONS.values():
        assert_same(f(a, b), f(x, y))
    assert_same(a + b + c, x + y + z)
    assert_same(js.einsum("ij,ij,ij->ij", a, b, c), x * y * z)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_of_chunks(dtype: str, many_chunks: None) -> None:
    rng = seed("chunk dtypes", dtype)
    x, y = (filled(rng, (43, 29), 0.3, dtype) for _ in range(2))
    a, b = made(x, "dcsr"), made(y, "coo")
    wide = dtype == "bool" or dtype.startswith("complex")
    left, right = (v if wide else v.astype(np.float64) for v in (x, y))
    assert_same(a + b, (left + right).astype(x.dtype))
    assert_same(a * b, (left * right).astype(x.dtype))


def test_chunks_of_vectors(many_chunks: None) -> None:
    rng = seed("vectors")
    x, y = (filled(rng, (700,), 0.2, "float64") for _ in range(2))
    a, b = made(x, "coo"), made(y, "coo")
    assert_same(a + b, x + y)
    assert_same(a * b, x * y)
    assert_same(js.einsum("i,i->", a, b), np.float64(x @ y))


def test_sums_of_long_columns_are_added_in_parts() -> None:
    """A union that is the outermost loop and a reduction."""
    n = 400_000
    rng = seed("columns")
    at = [np.sort(rng.choice(n, 200_000, replace=False)) for _ in range(2)]
    a, b = (js.coo(jnp.ones(k.size), (k, k % 3), (n, 3)).to("dcsr") for k in at)
    want = sum(np.bincount(k % 3, minlength=3).astype(float) for k in at)
    assert_same(js.add(a, b).sum(0), want)
    assert_same(jax.jit(lambda a, b: js.add(a, b, nse=n).sum(0))(a, b), want)


@pytest.mark.parametrize("count", [1, 2, 7, 50])
def test_shares_are_even(count: int) -> None:
    """Coordinates are cut so that all fibers together have about the same number of entries."""
    rng = seed("shares", count)
    extent = 10_000
    one = np.sort(rng.choice(3000, 2000, replace=False))
    two = np.sort(5000 + rng.choice(5000, 4000, replace=False))
    pos = np.concatenate([[0], np.cumsum(rng.integers(1, 9, two.size))])
    fibers = (one, 0, 0, one.size, two, pos, 0, two.size)
    cuts = [interpret._HELPERS["share"](k, count, extent, *fibers) for k in range(count + 1)]
    assert cuts[0] == 0 and cuts[-1] == extent and cuts == sorted(cuts)
    weights = np.zeros(extent)
    weights[one] += 1
    weights[two] += 1 + np.diff(pos)
    shares = [weights[a:b].sum() for a, b in itertools.pairwise(cuts)]
    assert max(shares) - min(shares) <= 2 * weights.max()


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


# ---------------------------------------------------------------- conversions
@pytest.mark.parametrize("columns", [1, 3, 2000, 70_000])
@pytest.mark.parametrize("source", ["csr", "csc", "coo", "csr/int64"])
def test_conversions_are_stable_and_exact(source: str, columns: int) -> None:
    """Entries that only move are not counted first; coordinates of several digits sort."""
    rng = seed("convert", source, columns)
    at = np.unique(rng.integers(0, 300 * columns, 900))
    coords = np.array(np.unravel_index(at, (300, columns)))
    values = rng.standard_normal(at.size)
    a = pack(coords, values, (300, columns), source)
    for target in ("csr", "csc", "coo", "dcsr"):
        got = a.to(target)
        assert got.nse == at.size
        dense = got.to_scipy().tocoo()
        back = np.lexsort((dense.col, dense.row))
        np.testing.assert_array_equal(np.array([dense.row, dense.col])[:, back], coords)
        np.testing.assert_array_equal(dense.data[back], values)


@pytest.mark.parametrize("wrong", [-1, 2, 50, 2**31 - 1])
@pytest.mark.parametrize("target", ["csc", "coo"])
def test_a_damaged_count_is_an_error(target: str, wrong: int) -> None:
    x = filled(seed("damaged"), (6, 7), 0.5, "float32")
    a = made(x, "csr")
    pos = np.array(a.arrays[0])
    pos[-1] = wrong
    bad = replace(a, structure=(jnp.asarray(pos), *a.arrays[1:]))
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="pos"):
        jax.block_until_ready(jax.tree.leaves(bad.to(target)))

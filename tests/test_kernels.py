# SPDX-License-Identifier: Apache-2.0
"""Generated kernels against dense NumPy.

The table of cases, dtypes, accuracy, special values, compiling once, threads, capacity, damage.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from cases import Case, assert_same, dense_of, expected, operands, pack, seed, unpack

import jsparse as js
from jsparse.errors import CapacityError

pytestmark = pytest.mark.usefixtures("x64")

# A status of XLA reaches Python as a JaxRuntimeError from the first call of a program and from an
# asynchronous one, and as a ValueError from JAX's fast path for later calls.
ERRORS = (jax.errors.JaxRuntimeError, ValueError)


def freeze(x: Any) -> Any:
    return x.freeze() if isinstance(x, js.SparseArray) else x


def under_jit(case: Case, arrays: Any, **how: Any) -> Any:
    return jax.jit(lambda *xs: js.einsum(case.einsum, *xs, **how))(*arrays)


# ---------------------------------------------------------------- the table
@pytest.mark.parametrize("case", cases.parameters())
def test_eager(case: Case) -> None:
    """Eager calls give what NumPy gives, sparse or dense, and leave their operands as they were."""
    ops = operands(case)
    before = [np.array(x) for x in jax.tree.leaves(ops.arrays)]
    assert_same(js.einsum(case.einsum, *ops.arrays), expected(case, ops.dense))
    for x, y in zip(before, jax.tree.leaves(ops.arrays), strict=True):
        np.testing.assert_array_equal(x, np.asarray(y))


def every_seventh(number: int) -> list[Any]:
    """A seventh of the cases: what jit and frozen patterns add does not depend on the einsum."""
    return [p for n, p in enumerate(cases.parameters()) if n % 7 == number]


@pytest.mark.parametrize("case", every_seventh(0))
def test_jit_of_dynamic_operands(case: Case) -> None:
    """The same under `jit`; a result whose pattern is computed needs `nse=` there, or `like=`."""
    ops = operands(case)
    want = expected(case, ops.dense)
    try:
        got = under_jit(case, ops.arrays)
    except CapacityError:
        eager = js.einsum(case.einsum, *ops.arrays)
        assert isinstance(eager, js.SparseArray)
        got = under_jit(case, ops.arrays, nse=eager.nse + 3)
        assert isinstance(got, js.SparseArray)
        assert (got.nse, got.format) == (eager.nse + 3, eager.format)
        assert_same(under_jit(case, ops.arrays, like=eager), want)
    assert_same(got, want)


@pytest.mark.parametrize("case", every_seventh(1))
def test_jit_of_frozen_operands(case: Case) -> None:
    """Frozen operands need no capacity; the result has exactly the entries of the eager one."""
    ops = operands(case)
    frozen = [freeze(x) for x in ops.arrays]
    got = under_jit(case, frozen)
    assert_same(got, expected(case, ops.dense))
    if isinstance(got, js.SparseArray):
        assert got.frozen
        eager = js.einsum(case.einsum, *frozen)
        assert (eager.nse, eager.format) == (got.nse, got.format)


@pytest.mark.parametrize("case", every_seventh(2))
def test_eager_of_frozen_operands(case: Case) -> None:
    ops = operands(case)
    got = js.einsum(case.einsum, *[freeze(x) for x in ops.arrays])
    assert_same(got, expected(case, ops.dense))


# ------------------------------------------------------- format of the result
@pytest.mark.parametrize(
    ("einsum", "formats", "result"),
    [
        ("ij,jk->ik", ("csr", "dense"), "dense"),
        ("ij,jk->ik", ("dense", "csc"), "dense"),
        ("ij,jk->ik", ("csr", "csr"), "csr"),
        ("ij,jk->ik", ("csr", "csc"), "csr"),
        ("ij,ik,jk->ij", ("csr", "dense", "dense"), "csr"),
        ("ij,ik,jk->ij", ("coo", "dense", "dense"), "coo"),
        ("ij,ik,jk->ij", ("csc", "dense", "dense"), "csc"),
        ("ij,j->ij", ("dcsr", "dense"), "dcsr"),
        ("ij->ji", ("csr",), "csc"),
        ("ij,ij->ij", ("csr", "dense"), "csr"),
        ("ij,ij->ij", ("csc", "csc"), "csc"),
        ("ij,j->i", ("csr", "dense"), "dense"),
        ("ij->i", ("csr",), "dense"),
        ("ij->", ("coo",), "dense"),
        ("ijk,kl->ijl", ("csf", "dense"), "dense"),
        ("ijk,ijk->ijk", ("csf", "dense"), "csf"),
        ("ijk,ijk->ijk", ("coo", "coo"), "coo"),
    ],
)
def test_inferred_format(einsum: str, formats: tuple[str, ...], result: str) -> None:
    case = Case(einsum, formats)
    got = js.einsum(einsum, *operands(case).arrays)
    if result == "dense":
        assert isinstance(got, jax.Array)
    else:
        assert isinstance(got, js.SparseArray)
        assert str(got.format) == result


@pytest.mark.parametrize(
    "out",
    cases.some_slow(
        ["dense", "csr", "csc", "coo", "dcsr", "dcsc", "csr/int64", "compressed,dense"],
        ["dense", "csc", "coo"],
    ),
)
@pytest.mark.parametrize(
    "case",
    [
        Case("ij,jk->ik", ("csr", "csr")),
        Case("ij,jk->ik", ("csr", "dense")),
        Case("ij,j->ij", ("csr", "dense"), fill="zeros"),
        Case("ij,ij->ij", ("coo", "csc")),
    ],
    ids=str,
)
def test_out_format(case: Case, out: str) -> None:
    """The result in the format asked for, eagerly and (with a capacity) under jit."""
    ops = operands(case)
    got = js.einsum(case.einsum, *ops.arrays, out_format=out)
    assert_same(got, expected(case, ops.dense))
    assert out == "dense" if isinstance(got, jax.Array) else str(got.format) == out
    jitted = under_jit(case, ops.arrays, out_format=out, nse=None if out == "dense" else 40)
    assert_same(jitted, expected(case, ops.dense))
    assert isinstance(jitted, jax.Array) == (out == "dense")


def test_out_format_of_a_vector_and_a_tensor() -> None:
    case = Case("ij->i", ("csr",), fill="empty_rows")
    ops = operands(case)
    got = js.einsum(case.einsum, *ops.arrays, out_format="coo")
    assert_same(got, expected(case, ops.dense))
    case = Case("ijk,kl->ijl", ("csf", "csr"))
    ops = operands(case)
    for out in ("csf", "coo", "dense,dense,compressed", "dense"):
        assert_same(js.einsum(case.einsum, *ops.arrays, out_format=out), expected(case, ops.dense))


@pytest.mark.parametrize("format", ["csr", "coo", "dcsr"])
def test_like_samples_the_result(format: str) -> None:
    """`like=` computes only its own entries, and returns them in its own format."""
    a, b, mask = (cases.operand(seed(n), (6, 6), f) for n, f in enumerate(("csr", "dense", format)))
    for like in (mask[0], mask[0].freeze()):
        for f in (js.einsum, jax.jit(js.einsum, static_argnums=0)):
            got = f("ij,jk->ik", a[0], b[0], like=like)
            assert got.format == like.format and got.nse == like.nse
            assert_same(got, (a[1] @ b[1]) * (unpack(mask[0].with_data(jnp.ones(like.nse))) != 0))


# -------------------------------------------------------------------- dtypes
DTYPES = [
    "float32",
    "float64",
    "bfloat16",
    "float16",
    "complex64",
    "complex128",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "bool",
]


def small(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Integers of one digit in any dtype: sums of products are exact in each."""
    x = rng.integers(0 if dtype.startswith("u") else -3, 4, shape)
    return np.asarray(jnp.asarray(x).astype(dtype))


def sparse_of(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, format: str = "csr"
) -> Any:
    """A sparse array of small integers, and its dense oracle."""
    coords = cases.coordinates(rng, shape)
    data = small(rng, coords.shape[1:], dtype)
    dense = np.zeros(shape, data.dtype)
    dense[tuple(coords)] = data
    return pack(coords, data, shape, format), dense


def promoted(left: str, part: int) -> list[str]:
    """The dtypes that are tried with `left`: a third of them, or the others."""
    return [d for n, d in enumerate(DTYPES) if ((n + DTYPES.index(left)) % 3 == 0) == (part == 0)]


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("left", DTYPES)
def test_mixed_dtypes_promote_as_in_jax(left: str, part: int) -> None:
    """Dtype and value of a product are those of `jnp.einsum` on the dense arrays."""
    for right in promoted(left, part):
        rng = seed(left, right)
        a, dense = sparse_of(rng, (5, 6), left)
        b = jnp.asarray(small(rng, (6, 4), right))
        want = jnp.einsum("ij,jk->ik", jnp.asarray(dense), b)
        assert_same(js.einsum("ij,jk->ik", a, b), want)
        assert a.dtype == left


CASES_OF_DTYPES = (
    Case("ij->i", ("csr",)),
    Case("ij->", ("coo",)),
    Case("ij,j->i", ("csr", "dense")),
    Case("ij,ik,jk->ij", ("csr", "dense", "dense")),
    Case("ij,jk->ik", ("csr", "csr")),
    Case("ij,ij->", ("csr", "csr")),
    Case("ijk,kl->ijl", ("csf", "dense")),
)


def dtypes_of_cases() -> list[Any]:
    """Every case with every dtype; a quarter of them quick."""
    pairs = itertools.product(enumerate(CASES_OF_DTYPES), enumerate(DTYPES))
    return [
        pytest.param(case, d, id=f"{case} {d}", marks=[pytest.mark.slow] if (n + m) % 4 else [])
        for (n, case), (m, d) in pairs
    ]


@pytest.mark.parametrize(("case", "dtype"), dtypes_of_cases())
def test_dtypes(case: Case, dtype: str) -> None:
    rng = seed(case, dtype)
    arrays, dense = [], []
    for shape, format in zip(case.shapes, case.formats, strict=True):
        x, y = sparse_of(rng, shape, dtype, "coo" if format == "dense" else format)
        arrays.append(jnp.asarray(y) if format == "dense" else x)
        dense.append(jnp.asarray(y))
    assert_same(js.einsum(case.einsum, *arrays), jnp.einsum(case.einsum, *dense))


def test_weak_types_do_not_widen() -> None:
    a, dense = cases.operand(seed("weak"), (4, 5), "csr", dtype=np.float32)
    assert (a * 2.0).dtype == np.float32
    assert js.einsum(",ij->ij", 2.0, a).dtype == np.float32
    assert_same(a * 2.0, dense * np.float32(2))


@pytest.mark.parametrize("wide", [False, True])
def test_dtypes_without_x64(wide: bool) -> None:
    """Without jax_enable_x64 results stay in 32 bits, as JAX's do."""
    with jax.enable_x64(wide):
        a = js.fromdense(np.eye(3))
        assert a.dtype == jnp.einsum("ij->ij", np.eye(3)).dtype
        assert (a @ np.ones(3)).dtype == (jnp.eye(3) @ np.ones(3)).dtype


# ------------------------------------------------------------------ accuracy
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("format", cases.some_slow(cases.MATRIX, ("csr", "coo")))
def test_16_bit_floats_accumulate_in_float32(dtype: str, format: str) -> None:
    """4096 ones: a bfloat16 sum would stop at 256, a float16 one at 2048."""
    n = 4096
    coords = np.stack([np.zeros(n, np.int64), np.arange(n)])
    a = pack(coords, np.ones(n, jnp.dtype(dtype)), (1, n), format)
    one = jnp.ones((n, 3), dtype)
    for got in (
        js.einsum("ij->i", a),
        js.einsum("ij->", a),
        js.einsum("ij,j->i", a, one[:, 0]),
        js.einsum("ij,jk->ik", a, one),
        js.einsum("ij,ij->", a, a),
        js.einsum("ij,kj->ik", a, a, out_format="dense"),
        js.einsum("ij,ij->", a, one[:, 0][None]),
        js.einsum("ji->j", a.T.to(format).T),
    ):
        assert got.dtype == dtype
        np.testing.assert_array_equal(np.asarray(got, np.float64), n)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("width", [1, 3, 8, 75])
def test_16_bit_floats_are_rounded_once_in_vectors_too(dtype: str, width: int) -> None:
    """Products of every 97th pair of bit patterns: NaN, infinities, ties, denormal numbers."""
    bits = np.arange(0, 2**16, 97, dtype=np.uint16)
    x = bits[: len(bits) // width * width].view(jnp.dtype(dtype)).reshape(-1, width)
    scale = np.roll(bits, 31)[: len(x)].view(jnp.dtype(dtype))
    with np.errstate(all="ignore"):
        want = (scale.astype(np.float32)[:, None] * x.astype(np.float32)).astype(x.dtype)
    a = js.diags(jnp.asarray(scale)) if width > 1 else js.diags(jnp.asarray(scale)).to("csr")
    got = np.asarray(js.einsum("ij,jk->ik", a, jnp.asarray(x)))
    same = (got.view(np.uint16) == want.view(np.uint16)) | (np.isnan(got) & np.isnan(want))
    # 0 + -0 is 0: a sum starts from zero
    assert np.all(same | ((got == 0) & (want == 0)))


def ones_in(shape: tuple[int, int], dtype: Any = np.float32) -> js.SparseArray:
    """A full matrix of ones in csr."""
    rows, columns = shape
    pos = np.arange(rows + 1, dtype=np.int32) * columns
    crd = np.tile(np.arange(columns, dtype=np.int32), rows)
    return js.csr(jnp.ones(rows * columns, dtype), crd, pos, shape, sorted=True, unique=True)


def test_sums_of_2_25_float32_ones_by_products() -> None:
    """2^12 stored ones, each of them times 2^13 dense ones: float32 alone would stop at 2^24."""
    a, one = ones_in((1, 2**12)), jnp.ones((1, 2**13), jnp.float32)
    for got in (
        js.einsum("ij,ik->i", a, one),
        js.einsum("ij,ik->", a, one),
        js.einsum("ji,ik->j", a, jnp.ones((2**12, 2**13), jnp.float32)),
    ):
        assert np.all(np.asarray(got) == 2**25)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("einsum", "shape"),
    [
        ("ij->", (2**12, 2**13)),
        ("ij->i", (1, 2**25)),
        ("ij->j", (2**25, 1)),
        ("ij,j->i", (1, 2**25)),
    ],
)
def test_sums_of_2_25_float32_ones(einsum: str, shape: tuple[int, int]) -> None:
    a = ones_in(shape)
    dense = [jnp.ones(shape[1], jnp.float32)] * einsum.count(",")
    assert np.all(np.asarray(js.einsum(einsum, a, *dense)) == 2**25)
    if einsum == "ij->":
        assert np.all(np.asarray(js.einsum(einsum, a.T)) == 2**25)
        c = a.to("coo")
        assert np.all(np.asarray(js.einsum(einsum, c)) == 2**25)


def test_float32_error_grows_slowly() -> None:
    """The error of a long float32 sum is that of several partial sums, not of one running sum."""
    n = 1 << 16
    x = seed("sum").random(n).astype(np.float32)
    coords = np.stack([np.zeros(n, np.int64), np.arange(n)])
    a = pack(coords, x, (1, n), "csr")
    exact = x.astype(np.float64).sum()
    for got in (
        js.einsum("ij->", a),
        js.einsum("ij->i", a),
        js.einsum("ij,j->i", a, jnp.ones(n, jnp.float32)),
    ):
        assert abs(float(np.asarray(got).reshape(-1)[0]) - exact) < 2e-5 * exact


# -------------------------------------------------------------- special values
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("format", cases.some_slow(cases.MATRIX, ("csr", "coo")))
def test_absent_entries_are_not_read(format: str, bad: float) -> None:
    """NaN and Inf of a dense operand count only where the sparse one has an entry, be it a zero."""
    coords = np.array([[0, 0, 2], [1, 3, 1]])
    data = np.array([2.0, 0.0, 3.0])
    a = pack(coords, data, (3, 4), format)
    b = np.ones((4, 37))
    b[0] = b[2] = bad  # columns that A has no entry in
    assert_same(
        js.einsum("ij,jk->ik", a, b), np.stack([np.full(37, 2.0), np.zeros(37), np.full(37, 3.0)])
    )
    assert_same(js.einsum("ij,j->i", a, b[:, 0]), np.array([2.0, 0.0, 3.0]))
    assert_same(
        js.einsum("ij,ij->", a, np.where(unpack(a) == 0, bad, 1.0) * [[1], [1], [1]]),
        np.array(np.nan),
    )
    full = np.full((3, 4), bad)
    full[tuple(coords)] = 1.0
    assert_same(js.einsum("ij,ij->", a, full), np.array(5.0))
    product = js.einsum("ij,ij->ij", a, full)
    assert isinstance(product, js.SparseArray) and product.nse == 3
    assert_same(product, unpack(a))
    stored = pack(coords, np.array([2.0, bad, 3.0]), (3, 4), format)
    got = np.asarray(js.einsum("ij,jk->ik", stored, np.ones((4, 37))))
    assert not np.isfinite(got[0]).any() and np.isfinite(got[1:]).all()


@pytest.mark.parametrize("format", cases.some_slow(cases.MATRIX, ("csr", "dcsr")))
def test_absent_entries_of_a_second_sparse_operand_are_not_read(format: str) -> None:
    """A stored NaN that meets nothing stored is no part of a product, but of a sum."""
    a = pack(np.array([[0, 1], [0, 1]]), np.array([np.nan, 2.0]), (2, 3), format)
    b = pack(np.array([[0, 1], [1, 1]]), np.array([5.0, 3.0]), (2, 3), format)
    assert_same(js.einsum("ij,ij->ij", a, b), np.array([[0, 0, 0], [0, 6.0, 0]]))
    assert_same(
        js.einsum("ij,kj->ik", a, b, out_format="dense"), np.array([[0.0, 0.0], [10.0, 6.0]])
    )
    assert_same(a + b, np.array([[np.nan, 5.0, 0], [0, 5.0, 0]]))


def test_denormals_are_kept() -> None:
    tiny = np.float32(1e-42)
    a = pack(np.array([[0, 0], [0, 1]]), np.array([tiny, tiny]), (1, 2), "csr")
    assert np.asarray(js.einsum("ij->", a)) == tiny + tiny
    assert np.asarray(js.einsum("ij,j->i", a, jnp.ones(2, jnp.float32)))[0] == tiny + tiny


@pytest.mark.parametrize("format", cases.some_slow(cases.MATRIX, ("csr",)))
def test_explicit_zeros_stay_entries(format: str) -> None:
    a, dense = cases.operand(seed("zeros"), (5, 7), format, "zeros")
    row = jnp.arange(1.0, 8.0)
    for got, want in (
        (js.einsum("ij,j->ij", a, row), dense * np.asarray(row)),
        (js.einsum("ij->ji", a), dense.T),
        (js.einsum("ij,ij->ij", a, a), dense * dense),
        (a + a, dense + dense),
        (a - a, dense - dense),
    ):
        assert got.nse == a.nse
        assert_same(got, want)


# -------------------------------------------------------------- index dtypes
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_index_dtype_is_kept(index: str) -> None:
    a, dense_a = cases.operand(seed("a"), (5, 7), f"csr/{index}")
    b, dense_b = cases.operand(seed("b"), (7, 5), f"csr/{index}")
    for got, want in (
        (a @ b, dense_a @ dense_b),
        (a + a, 2 * dense_a),
        (a.to("coo"), dense_a),
        (a * 2, 2 * dense_a),
    ):
        assert got.format.index == index
        assert_same(got, want)


def test_mixed_index_dtypes_widen() -> None:
    a, dense_a = cases.operand(seed("a"), (5, 7), "csr/int64")
    b, dense_b = cases.operand(seed("b"), (5, 7), "csr")
    for x, y in ((a, b), (b, a)):
        assert (x + y).format.index == "int64"
        assert_same(x + y, dense_a + dense_b)
        assert_same(x * y, dense_a * dense_b)


def test_more_than_2_31_elements() -> None:
    """Positions and extents beyond 32 bits, in shapes that need no such memory."""
    n = 2**40
    at = np.array([[0, 5, n - 1, n - 1], [n - 1, 7, 0, n - 1]])
    a = js.coo(np.array([1.0, 2.0, 3.0, 4.0]), at, (n, n))
    assert a.format.index == "int64"
    assert_same(js.einsum("ij->", a), np.array(10.0))
    assert_same(js.einsum("ij,ij->", a, a), np.array(30.0))
    assert_same(js.einsum("ii->", a), np.array(4.0))
    both = a + a.T
    assert both.nnz == 5
    assert_same(js.einsum("ij->", both), np.array(20.0))
    flat = js.coo(np.ones(2), np.array([[0, 2**20 - 1], [1, 2**20 - 1]]), (2**20, 2**20)).reshape(
        (2**40,)
    )
    assert np.asarray(flat.indices).tolist() == [1, 2**40 - 1]
    wide = js.csr(
        np.ones(2), [3, 2**17 - 1], np.array([0, 1] + [1] * (2**17 - 2) + [2]), (2**17, 2**17)
    )
    y = js.einsum("ij,j->i", wide, jnp.arange(2.0**17))
    assert (float(y[0]), float(y[-1]), float(y.sum())) == (3.0, 2**17 - 1, 2**17 + 2)


@pytest.mark.slow
def test_a_dense_operand_of_more_than_2_31_elements() -> None:
    shape = (2**16 + 1, 2**15)
    b = jnp.zeros(shape, jnp.int8).at[-1, -1].set(3)
    a = js.coo(jnp.ones(2, jnp.int8), np.array([[0, shape[0] - 1], [0, shape[1] - 1]]), shape)
    assert int(js.einsum("ij,ij->", a, b)) == 3
    assert int(js.einsum("ij,ij->", a.to("csr"), b)) == 3


# ------------------------------------------------------ compiled once, and safe
class Compiles(logging.Handler):
    """Counts what JAX compiles."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "Compiling" in record.getMessage()


@pytest.fixture
def compiles() -> Any:
    handler, logger = Compiles(), logging.getLogger("jax")
    logger.addHandler(handler)
    with jax.log_compiles():
        yield handler
    logger.removeHandler(handler)


def objects() -> set[str]:
    """Kernels in the cache directory."""
    return {p.name for p in Path(js.config.get().cache_dir).rglob("*.so")}


def test_the_same_call_compiles_once(compiles: Compiles) -> None:
    """Nothing is compiled the second time, also for other values in the same pattern."""
    a, _ = cases.operand(seed(1), (6, 9), "csr", "full_row")
    b, dense = cases.operand(seed(2), (9, 11), "dense")
    first = [
        js.einsum("ij,jk->ik", a, b),
        a @ a.T,
        a + a,
        a * b[:, 0],
        a.to("csc"),
        js.einsum("ij->i", a),
    ]
    assert compiles.count > 0
    again = a.with_data(a.data + 1)
    compiles.count, before = 0, objects()
    second = [
        js.einsum("ij,jk->ik", again, b),
        again @ again.T,
        again + again,
        again * b[:, 0],
        again.to("csc"),
        js.einsum("ij->i", again),
    ]
    assert len(first) == len(second)
    assert (compiles.count, objects() - before) == (0, set())


def test_jit_traces_once() -> None:
    traces = []

    @jax.jit
    def f(a: js.SparseArray, x: jax.Array) -> jax.Array:
        traces.append(a.format)
        return js.einsum("ij,j->i", a, x)

    for n in range(3):
        a, dense = cases.operand(seed(n), (6, 9), "csr", "plain")
        a = replace(
            a,
            data=jnp.resize(a.data, 60),
            structure=(a.structure[0], jnp.resize(a.structure[1], 60)),
        )
        x = jnp.arange(9.0) + n
        assert_same(f(a, x), dense @ np.asarray(x))
    assert len(traces) == 1


def test_many_threads_call_one_function() -> None:
    a, dense = cases.operand(seed("threads"), (300, 400), "csr")
    f = jax.jit(lambda a, b: js.einsum("ij,jk->ik", a, b))

    def work(n: int) -> None:
        b = seed(n).standard_normal((400, 33))
        for _ in range(10):
            assert_same(f(a, b), dense @ b, rtol=1e-10)
            assert_same(a @ b[:, 0], dense @ b[:, 0], rtol=1e-10)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_many_threads_compile_at_once() -> None:
    """The first call of a kernel, from eight threads at once, each its own program."""
    a, dense = cases.operand(seed("start"), (13, 11), "dcsr")

    def work(n: int) -> None:
        assert_same(
            js.einsum("ij,jk,k->i", a, jnp.ones((11, n + 1)), jnp.ones(n + 1)),
            (n + 1) * dense.sum(1),
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def print_bits() -> None:
    """Prints hashes of results that are large enough to be shared among threads."""
    rng = np.random.default_rng(0)
    m = sp.random_array((3000, 2000), density=0.05, rng=rng, dtype=np.float32).tocsr()
    a = js.csr(m.data, m.indices, m.indptr, m.shape)
    c = a.to("coo")
    x, y = (jnp.asarray(rng.standard_normal(n), jnp.float32) for n in m.shape)
    u, b = (jnp.asarray(rng.standard_normal((n, 40)), jnp.float32) for n in m.shape)
    n = 600_000
    s = js.dia(rng.standard_normal((5, n)).astype(np.float32), [-313, -1, 0, 1, 313], (n, n))
    z = jnp.asarray(rng.standard_normal(n), jnp.float32)
    calls: list[tuple[Any, ...]] = [
        ("ij,j->i", s, z),
        ("ij,i->j", s, z),
        ("ij,j->ij", s, z),
        ("ij,jk->ik", a, b),
        ("ij,jk->ik", c, b),
        ("ij,j->i", a, y),
        ("ij,j->i", c, y),
        ("ij,i->j", a, x),
        ("ij->", a),
        ("ij->", c),
        ("ij->j", a),
        ("ij,ik->jk", a, u),
        ("ij,ik,jk->ij", a, u, b),
        ("ij,ij->", a, a),
        ("ij,kj->ik", a, a),
    ]
    d = js.csr(m.data, m.indices[::-1], m.indptr, m.shape).to("csr")
    runs = [(call[0], functools.partial(js.einsum, *call)) for call in calls]
    runs += [("A + B", lambda: a + d), ("A * B", lambda: a * d)]
    for f in ("dcsr", "coo"):
        left, right = a.to(f), d.to(f)
        runs += [(f"{f} +", functools.partial(js.add, left, right))]
        runs += [(f"{f} *", functools.partial(js.multiply, left, right))]
        runs += [(f"{f} sum", functools.partial(js.einsum, "ij,ij->", left, right))]
    at = np.unique(rng.integers(0, 40**3, (2, 30_000)), axis=1)
    cubes = [js.csf(jnp.ones(k.size), np.unravel_index(k, (40, 40, 40)), (40,) * 3) for k in at]
    runs += [("csf +", functools.partial(js.add, *cubes))]
    runs += [("csf *", functools.partial(js.multiply, *cubes))]
    for name, run in runs:
        once, twice = (jax.tree.leaves(run()) for _ in range(2))
        bits = [hashlib.sha256(np.asarray(x).tobytes()).hexdigest()[:16] for x in once]
        assert bits == [hashlib.sha256(np.asarray(x).tobytes()).hexdigest()[:16] for x in twice]
        print(name, *bits)


def run_here(call: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A function of this module in a process of its own, with the same kernel cache."""
    env = {
        **os.environ,
        "JSPARSE_CACHE_DIR": js.config.get().cache_dir,
        "PYTHONPATH": str(Path(__file__).parent),
        "JAX_ENABLE_X64": "1",
        **environment,
    }
    command = [sys.executable, "-c", f"import test_kernels; test_kernels.{call}"]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)


def test_results_are_bitwise_the_same_for_any_number_of_threads() -> None:
    one, four = (run_here("print_bits()", NPROC=n) for n in ("1", "4"))
    assert (one.returncode, four.returncode) == (0, 0), one.stderr + four.stderr
    assert one.stdout.splitlines() == four.stdout.splitlines()


# ------------------------------------------------------------------- capacity
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("format", cases.some_slow(cases.MATRIX, ("csr", "dcsr")))
def test_too_small_a_capacity_says_what_was_needed(format: str, jit: bool) -> None:
    a, _ = cases.operand(seed("cap"), (6, 6), format, "full_row")
    exact = js.einsum("ij,jk->ik", a, a)
    run = jax.jit(js.einsum, static_argnums=0, static_argnames="nse") if jit else js.einsum
    for operation in ("ij,jk->ik", "ij,jk->ki"):
        got = run(operation, a, a, nse=exact.nse)
        assert got.nse == exact.nse
        with pytest.raises(ERRORS) as error:
            jax.block_until_ready(run(operation, a, a, nse=exact.nse - 1))
        assert str(exact.nse) in str(error.value) and str(exact.nse - 1) in str(error.value)
        assert "nse" in str(error.value) or "capacity" in str(error.value)
    assert_same(run("ij,jk->ik", a, a, nse=exact.nse), dense_of(exact))


def test_a_failed_call_leaves_the_next_one_right() -> None:
    a, dense = cases.operand(seed("cap"), (6, 6), "csr", "full_row")
    f = jax.jit(lambda a: js.einsum("ij,jk->ik", a, a, nse=12))
    for _ in range(3):
        with pytest.raises(ERRORS):
            jax.block_until_ready(f(a))
    small = js.csr(
        jnp.ones(a.nse), np.zeros(a.nse, np.int32), np.array([0, 1, 1, 1, 1, 1, 1]), (6, 6)
    )
    small = replace(small, format=a.format)
    assert_same(f(small), np.diag([1.0, 0, 0, 0, 0, 0]))


# ----------------------------------------------------------- damaged structures
Named = Iterator[tuple[str, Callable[[js.SparseArray], Any]]]


def uses(shape: tuple[int, ...]) -> Named:
    """Calls of every kind on an array of that shape."""
    names, last, n = "ijkl"[: len(shape)], "ijkl"[len(shape) - 1], shape[-1]
    dense, row, panel = jnp.ones(shape), jnp.ones(n), jnp.ones((n, 33))
    other, _ = cases.operand(seed("other"), shape, "csr" if len(shape) == 2 else "csf")
    square, _ = cases.operand(seed("square"), (n, n), "csr")
    e = js.einsum
    yield "spmm", lambda a: e(f"{names},{last}z->{names[:-1]}z", a, panel)
    yield "first", lambda a: e(f"{names},{names[0]}->{names[1:]}", a, jnp.ones(shape[0]), nse=200)
    yield "sum", lambda a: e(f"{names}->", a)
    yield "rows", lambda a: e(f"{names}->{names[0]}", a)
    yield "columns", lambda a: e(f"{names}->{last}", a)
    yield "scale", lambda a: e(f"{names},{last}->{names}", a, row)
    yield "times dense", lambda a: e(f"{names},{names}->", a, dense)
    yield "dot", lambda a: e(f"{names},{names}->", a, other)
    yield "todense", lambda a: a.todense()
    yield "times", lambda a: e(f"{names},{names}->{names}", a, other, nse=200)
    yield "plus", lambda a: js.add(a, other, nse=200)
    yield "product", lambda a: e(f"{names},{last}z->{names[:-1]}z", a, square, nse=200)
    yield "like", lambda a: e(f"{names},{names}->{names}", dense, other, like=a)
    yield "to", lambda a: a.to("csf" if "singleton" in str(a.format) else "coo", nse=200)
    yield "slice", lambda a: a[:2]


def damages(role: str, size: int, extent: int, capacity: int, index: str) -> set[tuple[int, int]]:
    """(position, value) pairs that make an index array wrong."""
    low, top = np.iinfo(index).min, np.iinfo(index).max
    ends = (size // 2, size - 1)
    if role == "crd":
        return {(at, v) for at in (0, *ends) for v in (-1, extent, top, low)}
    out = {(at, v) for at in ends for v in (-1, capacity + 1, top, low) if at}
    return out | {(0, -1), (0, low), (1, capacity + 1)}


def damaged(a: js.SparseArray) -> Iterator[tuple[str, js.SparseArray]]:
    """`a` with one number of one index array wrong, through its pytree."""
    leaves, tree = jax.tree.flatten(a)
    names = a.format.array_names()
    sizes = {name: x.shape[0] for name, x in zip(names, a.structure, strict=True)}
    for n, (level, role) in enumerate(names):
        extent, size = a.shape[a.format.order[level]], sizes[level, role]
        for at, value in sorted(damages(role, size, extent, sizes[level, "crd"], a.format.index)):
            x = np.array(leaves[1 + n])
            x[at] = value
            changed = [*leaves[: 1 + n], jnp.asarray(x), *leaves[2 + n :]]
            yield f"level {level}: {role}[{at}] = {value}", jax.tree.unflatten(tree, changed)


def report(*what: str) -> None:
    print(json.dumps(what), flush=True)


def use_damaged(format: str, shape: tuple[int, ...]) -> None:
    """Uses damaged arrays in every way; reports those that gave a result, or a strange error."""
    a, _ = cases.operand(seed("damage", format), shape, format, "full_row")
    for name, call in uses(shape):
        for how, f in (("eager", call), ("jit", jax.jit(call))):
            report("intact", name, how)
            jax.block_until_ready(f(a))
            for text, b in damaged(a):
                report("try", text, name, how)
                try:
                    jax.block_until_ready(f(b))
                except ERRORS:
                    continue
                except Exception as error:
                    report("strange", text, name, how, repr(error)[:200])
                else:
                    report("silent", text, name, how)
    report("done")


def survives(format: str, shape: tuple[int, ...]) -> None:
    run = run_here(f"use_damaged({format!r}, {shape!r})")
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 0, f"rc {run.returncode} at {lines[-1:]}: {run.stderr[-2000:]}"
    assert lines[-1] == ["done"]
    wrong = [line for line in lines if line[0] in ("silent", "strange")]
    shown = "\n".join(map(str, wrong[:40]))
    assert not wrong, f"{len(wrong)} of {len(lines)}:\n{shown}"


@pytest.mark.parametrize("format", ["csr", "coo"])
def test_damaged_matrices_raise(format: str) -> None:
    """Whatever stands in the index arrays: an error, never a crash, never a number."""
    survives(format, (5, 6))


@pytest.mark.slow
@pytest.mark.parametrize("format", ["dcsr", "csc", "csr/int64", "compressed,dense", "coo/int64"])
def test_more_damaged_matrices_raise(format: str) -> None:
    survives(format, (5, 6))


@pytest.mark.slow
@pytest.mark.parametrize("format", cases.SPARSE[3])
def test_damaged_tensors_raise(format: str) -> None:
    survives(format, (4, 3, 5))


def use_broken_promises() -> None:
    """Arrays in no order under formats that promise one."""
    other, _ = cases.operand(seed("other"), (5, 6), "csr")
    calls: list[Callable[[js.SparseArray], Any]] = [
        lambda a: js.einsum("ij,ij->", a, other),
        lambda a: js.einsum("ij,ij->ij", a, other, nse=99),
        lambda a: js.einsum("ij,kj->ik", a, other, nse=99),
        lambda a: js.add(a, other, nse=99),
        lambda a: a.todense(),
    ]
    for format, fill in itertools.product(("csr", "coo", "dcsr"), cases.LOOSE):
        a, _ = cases.operand(seed("promise", format), (5, 6), format, fill)
        b = replace(a, format=a.format.tighten())
        for f in calls:
            for g in (f, jax.jit(f)):
                with contextlib.suppress(*ERRORS):
                    jax.block_until_ready(g(b))
    report("done")


def test_broken_promises_do_not_crash() -> None:
    """A wrong number or an error, but memory is safe."""
    run = run_here("use_broken_promises()")
    assert run.returncode == 0, run.stderr[-2000:]
    assert "done" in run.stdout


@pytest.mark.parametrize("formats", ["csr csr", "dcsr csr", "coo csc", "csc csc", "dcsr dcsr"])
def test_counted_results_keep_stored_zeros(formats: str) -> None:
    """The entries of a sparse result follow from the patterns, also where values are zero."""
    rng = np.random.default_rng(1)
    places = [rng.random((40, 40)) < 0.2 for _ in range(2)]
    dense = [np.where(p, rng.integers(-1, 2, p.shape), 0).astype(np.float32) for p in places]
    arrays = [
        js.coo(x[p], np.array(np.nonzero(p)), x.shape).to(f)
        for x, p, f in zip(dense, places, formats.split(), strict=True)
    ]
    (a, b), (x, y), (p, q) = arrays, dense, places
    for got, want, there in (
        (a + b, x + y, p | q),
        (a - b, x - y, p | q),
        (js.multiply(a, b), x * y, p & q),
        (a @ b, x @ y, p.astype(int) @ q > 0),
    ):
        np.testing.assert_array_equal(got.todense(), want)
        assert got.nnz == there.sum()
    f, g = a.freeze(), b.freeze()
    room = jax.jit(lambda a, b: (js.add(a, b, nse=900), js.einsum("ij,jk->ik", a, b, nse=1700)))
    for got, want in (
        (f + g, x + y),
        (f - g, x - y),
        (js.multiply(f, g), x * y),
        (f @ g, x @ y),
        *zip(room(a, b), (x + y, x @ y), strict=True),
    ):
        np.testing.assert_array_equal(got.todense(), want)

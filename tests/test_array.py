# SPDX-License-Identifier: Apache-2.0
"""`SparseArray`: constructors, conversions, properties, and its life as a pytree."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from cases import assert_same, coordinates, dense_of, operand, pack, scatter, seed, unpack, values
from jax.experimental import sparse as jax_sparse

import jsparse as js
from jsparse.errors import FormatError, StructureError
from jsparse.format import parse_format

pytestmark = pytest.mark.usefixtures("x64")

ERRORS = (jax.errors.JaxRuntimeError, ValueError)
FORMATS = {
    1: ("coo",),
    2: (
        *cases.MATRIX,
        "dcsc",
        "compressed,dense",
        "dense,compressed@0,1/int64",
        "compressed(-u),singleton@1,0",
    ),
    3: (
        "csf",
        "coo",
        "compressed,compressed,compressed@2,0,1",
        "dense,dense,compressed",
        "dense,compressed,dense",
    ),
}
SHAPE = (5, 7, 4)


def same_parts(a: js.SparseArray, b: js.SparseArray) -> None:
    """The same format, index arrays and values, bit by bit."""
    assert a.format == b.format and a.shape == b.shape
    for x, y in zip((a.data, *a.arrays), (b.data, *b.arrays), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


# --------------------------------------------------------------- constructors
@pytest.mark.parametrize("fill", cases.FILLS)
@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
def test_constructors_find_out_what_holds(format: str, fill: str) -> None:
    """js.csr and friends take any entries, and promise exactly what they see."""
    want, dense = operand(seed(fill), (5, 7), format, fill)
    if format == "coo":
        n = int(want.structure[0][1])  # js.coo takes no capacity
        got = js.coo(want.data[:n], [x[:n] for x in want.structure[1:]], (5, 7))
    else:
        got = getattr(js, format)(want.data, want.indices, want.indptr, (5, 7))
    assert_same(got, dense)
    if fill in ("duplicates", "messy"):
        assert not got.format.canonical
    if fill not in cases.LOOSE:
        assert str(got.format) == format


def test_csr_takes_lists_and_scipy_parts() -> None:
    a = js.csr([1.0, 2.0, 3.0], [0, 2, 1], [0, 2, 2, 3], (3, 4))
    assert_same(a, np.array([[1.0, 0, 2, 0], [0, 0, 0, 0], [0, 3, 0, 0]]))
    assert (a.nse, a.nnz, a.shape, a.ndim, a.size, str(a.format)) == (3, 3, (3, 4), 2, 12, "csr")


def test_coo_coordinates_as_array_or_tuple() -> None:
    coords = np.array([[0, 1, 1], [3, 0, 2], [1, 1, 0]])
    for c in (coords, tuple(coords), jnp.asarray(coords), coords.tolist(), coords.astype(np.uint8)):
        assert_same(js.coo(np.ones(3), c, (2, 4, 2)), scatter(coords, np.ones(3), (2, 4, 2)))


def test_csf_sorts_and_sums() -> None:
    rng = seed("csf")
    coords = coordinates(rng, SHAPE, "messy")
    data = values(rng, coords.shape[1:], np.float64)
    a = js.csf(data, coords, SHAPE)
    assert str(a.format) == "csf" and a.format.canonical
    assert a.nse == np.unique(coords, axis=1).shape[1]
    assert_same(a, scatter(coords, data, SHAPE))


def test_promises_are_checked() -> None:
    with pytest.raises(StructureError, match="sorted=True"):
        js.csr(np.ones(2), [1, 0], [0, 2], (1, 2), sorted=True)
    with pytest.raises(StructureError, match="unique=True"):
        js.csr(np.ones(2), [1, 1], [0, 2], (1, 2), unique=True)
    modest = js.csr(np.ones(2), [0, 1], [0, 2], (1, 2), sorted=False)
    assert not modest.format.canonical
    traced = jax.jit(
        lambda i: js.csr(jnp.ones(2), i, jnp.array([0, 2]), (1, 2), sorted=True, unique=True)
    )
    assert traced(jnp.array([0, 1])).format.canonical
    assert not jax.jit(lambda i: js.csr(jnp.ones(2), i, jnp.array([0, 2]), (1, 2)))(
        jnp.array([0, 1])
    ).format.canonical


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_fromdense(ndim: int) -> None:
    """The nonzeros, in any format, eagerly and (with room) under jit."""
    _, dense = operand(seed("fromdense", ndim), SHAPE[:ndim], "coo")
    for format in FORMATS[ndim]:
        a = js.fromdense(dense, format)
        assert_same(a, dense)
        assert a.format == parse_format(format, ndim)
        if not a.format.dense_tail:
            assert a.nse == np.count_nonzero(dense)
        b = jax.jit(lambda x, f=format: js.fromdense(x, f, nse=90))(dense)
        assert b.nse == 90 and b.format == a.format
        assert_same(b, dense)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (1, 1), (1, 9), (9, 1)])
@pytest.mark.parametrize("format", cases.MATRIX)
def test_fromdense_of_small_shapes(format: str, shape: tuple[int, int]) -> None:
    for x in (np.zeros(shape), np.ones(shape)):
        a = js.fromdense(x, format)
        assert_same(a, x)
        assert_same(np.asarray(a.todense()), x)
        assert a.nnz == x.sum()


def test_fromdense_defaults() -> None:
    assert str(js.fromdense(np.eye(3)).format) == "csr"
    assert js.fromdense(np.ones((2, 2, 2))).format.ndim == 3
    assert js.fromdense(np.ones(4)).ndim == 1


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "uint32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "complex64",
        "complex128",
    ],
)
def test_fromdense_keeps_the_dtype(dtype: str) -> None:
    x = jnp.asarray([[0, 1, 2], [3, 0, 0]]).astype(dtype)
    a = js.fromdense(x)
    assert a.dtype == dtype and a.nse == 3
    assert_same(a, x)
    assert_same(a.todense(), x)
    assert_same(a.to("coo"), x)
    assert_same(a.to("csc"), x)


def test_fromdense_stores_nan_and_negative_zero_as_they_are() -> None:
    x = np.array([[np.nan, 0.0, np.inf], [0.0, -0.0, 1.0]])
    a = js.fromdense(x)
    assert a.nse == 3
    np.testing.assert_array_equal(np.asarray(a.todense()), x)


def test_random() -> None:
    a = js.random(jax.random.key(0), (30, 40), density=0.1)
    assert a.nse == a.nnz == 120 and str(a.format) == "csr" and a.dtype == jnp.result_type(float)
    same_parts(a, js.random(jax.random.key(0), (30, 40), density=0.1))
    b = js.random(jax.random.key(1), (30, 40), density=0.1)
    assert not np.array_equal(np.asarray(a.indices), np.asarray(b.indices))
    c = js.random(jax.random.PRNGKey(0), (4, 5, 6), density=0.5, format="csf", dtype=np.float32)
    assert c.dtype == np.float32 and c.nnz == 60 and str(c.format) == "csf"
    unpack(c)
    assert js.random(jax.random.key(0), (3, 3), density=0).nse == 0
    assert js.random(jax.random.key(0), (3, 3), density=1.0).nse == 9


@pytest.mark.parametrize("format", ["csr", "csc", "coo"])
def test_eye(format: str) -> None:
    for args in ((4,), (4, 6), (6, 4), (4, 6, 2), (6, 4, -3), (3, 3, 5), (0,)):
        a = js.eye(*args, format=format)
        assert_same(a, np.eye(*args))
        assert str(a.format) == format
    assert js.eye(3, dtype=np.int32).dtype == np.int32


def test_diags() -> None:
    assert_same(js.diags([1.0, 2.0, 3.0]), np.diag([1.0, 2, 3]))
    assert_same(js.diags([1.0, 2.0], 1), np.diag([1.0, 2], 1))
    parts = [[1.0, 2, 3, 4], [5.0, 6, 7], [8.0, 9, 10]]
    assert_same(js.diags(parts, [0, 1, -1]), sp.diags_array(parts, offsets=[0, 1, -1]).toarray())
    one = sp.diags_array([1.0, 2.0], offsets=[0, 1], shape=(4, 4)).toarray()
    assert_same(js.diags([1.0, 2.0], [0, 1], shape=(4, 4)), one)
    band = js.diags([[-2.0], [1.0], [1.0]], [0, -1, 1], shape=(5, 6), format="coo")
    assert_same(
        band, sp.diags_array([[-2.0], [1.0], [1.0]], offsets=[0, -1, 1], shape=(5, 6)).toarray()
    )
    jitted = jax.jit(lambda d: js.diags(d, 0) @ jnp.ones(3))
    assert_same(jitted(jnp.arange(3.0)), np.arange(3.0))


# --------------------------------------------------------------- conversions
@pytest.mark.parametrize("source", cases.some_slow(FORMATS[2], ("csr",)))
def test_matrix_conversions(source: str) -> None:
    """Every format to every other, as the host would pack it, and back."""
    a, dense = operand(seed(source), (5, 7), source, "zeros")
    coords = np.stack(np.nonzero(unpack(a.with_data(jnp.ones_like(a.data)))))
    for target in FORMATS[2]:
        b = a.to(target)
        assert b.format.with_index("int32") == parse_format(target, 2).with_index("int32")
        assert_same(b, dense)
        same_parts(b.to(source).to(target), b)
        if "dense" not in source.split(",")[1:] and "/" not in source + target:
            same_parts(b, pack(coords, dense[tuple(coords)], (5, 7), target))
        assert_same(b.todense(), dense)
    assert_same(a.to("dense"), dense)


@pytest.mark.parametrize("source", cases.some_slow(FORMATS[3], ("csf",)))
def test_tensor_conversions(source: str) -> None:
    a, dense = operand(seed(source), SHAPE, source)
    for target in FORMATS[3]:
        assert_same(a.to(target), dense)
    assert_same(a.todense(), dense)
    assert_same(a.freeze().to("csf"), dense)


@pytest.mark.parametrize("fill", cases.FILLS)
@pytest.mark.parametrize("source", cases.some_slow(["csr", "csc", "coo", "dcsr"], ("csr", "coo")))
def test_conversions_of_every_fill(source: str, fill: str) -> None:
    """Sorts, sums duplicates, keeps explicit zeros, drops capacity; under jit keeps that too."""
    a, dense = operand(seed(source, fill), (6, 5), source, fill)
    distinct = np.count_nonzero(unpack(replace(a, data=jnp.ones_like(a.data))))
    for target in ("csr", "csc", "coo"):
        b = a.to(target)
        assert_same(b, dense)
        assert b.format.canonical
        if b is not a and a.format != b.format:
            assert b.nse == b.nnz == distinct
        c = jax.jit(lambda x, t=target: x.to(t))(a)
        assert c.nse == a.nse and c.format == b.format
        assert_same(c, dense)
        d = jax.jit(lambda x, t=target: x.to(t, nse=50))(a)
        assert d.nse == 50
        assert_same(d, dense)


@pytest.mark.parametrize("format", ["csr", "coo"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "complex64", "int8", "uint16", "bool"])
def test_duplicates_are_summed_in_every_dtype(format: str, dtype: str) -> None:
    data = jnp.asarray([1, 1, 0, 1, 1, 1]).astype(dtype)
    a = js.coo(data, [[0, 2, 0, 0, 2, 1], [1, 0, 1, 1, 0, 2]], (3, 3))
    want = np.zeros((3, 3), bool if dtype == "bool" else int)
    want[0, 1], want[2, 0], want[1, 2] = (1, 1, 1) if dtype == "bool" else (2, 2, 1)
    for got in (
        a.to(format),
        a.todense(),
        jax.jit(lambda a: a.to(format))(a),
        a.freeze().to(format),
    ):
        assert_same(got, jnp.asarray(want).astype(dtype))


def test_conversion_capacity() -> None:
    a, dense = operand(seed("room"), (6, 5), "csr", "full_row")
    assert_same(a.to("coo", nse=a.nse + 5), dense)
    assert a.to("coo", nse=a.nse + 5).nse == a.nse + 5
    for f in (lambda x: x.to("csc", nse=3), jax.jit(lambda x: x.to("csc", nse=3))):
        with pytest.raises(ERRORS, match=str(a.nse)):
            jax.block_until_ready(f(a))
    for g in (lambda x: js.fromdense(x, nse=3), jax.jit(lambda x: js.fromdense(x, nse=3))):
        with pytest.raises(ERRORS, match=str(np.count_nonzero(dense))):
            jax.block_until_ready(g(dense))


def test_conversion_of_a_large_array() -> None:
    """Many entries, so that sorting and summing are not those of a toy."""
    rng = np.random.default_rng(0)
    coords = rng.integers(0, 300, (2, 50_000))
    data = rng.integers(-3, 4, 50_000).astype(np.float64)
    want = sp.coo_array((data, tuple(coords)), shape=(300, 300)).tocsr()
    want.sum_duplicates()
    a = js.coo(data, coords, (300, 300)).to("csr")
    np.testing.assert_array_equal(np.asarray(a.indptr), want.indptr)
    np.testing.assert_array_equal(np.asarray(a.indices), want.indices)
    np.testing.assert_array_equal(np.asarray(a.data), want.data)
    t = want.tocsc()
    b = a.to("csc")
    np.testing.assert_array_equal(np.asarray(b.indptr), t.indptr)
    np.testing.assert_array_equal(np.asarray(b.indices), t.indices)
    np.testing.assert_array_equal(np.asarray(b.data), t.data)


def test_to_is_free_where_nothing_changes() -> None:
    a, _ = operand(seed("free"), (5, 7), "csr")
    b = a.to("csr")
    assert b.data is a.data and b.structure[1] is a.structure[1]
    c = a.T.to("csc")
    assert c.data is a.data


# ------------------------------------------------------------- other libraries
SCIPY = ("csr", "csc", "coo", "bsr", "dia", "lil", "dok")


@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("format", SCIPY)
def test_scipy(format: str, kind: str) -> None:
    _, dense = operand(seed("scipy"), (6, 8), "csr")
    m = getattr(sp, f"{format}_{kind}")(dense)
    a = js.asarray(m)
    assert_same(a, dense)
    assert str(a.format) == (format if format in ("csr", "csc", "coo", "dia") else "csr")
    assert js.asarray(m, format="csr").nnz == np.count_nonzero(dense)
    assert_same(js.asarray(m, format="csc"), dense)
    assert_same(js.einsum("ij,j->i", m, np.ones(8)), dense.sum(1))


@pytest.mark.parametrize("format", cases.some_slow(FORMATS[2], ("csr", "coo", "csc")))
def test_to_scipy(format: str) -> None:
    for fill in ("plain", "empty", "padded", "zeros", "messy"):
        a, dense = operand(seed(format), (5, 7), format, fill)
        m = a.to_scipy()
        assert sp.issparse(m) and m.shape == (5, 7)
        np.testing.assert_allclose(m.toarray(), dense, rtol=1e-14)
        if format in ("csr", "csc", "coo"):
            assert m.format == format
        if not a.format.dense_tail:
            assert m.nnz == a.nnz
        assert_same(js.asarray(m), dense)


def test_scipy_with_duplicates_and_unsorted_indices() -> None:
    m = sp.csr_array((np.arange(1.0, 6), [3, 0, 0, 2, 2], [0, 3, 3, 5]), shape=(3, 4))
    assert_same(js.asarray(m), m.toarray())
    c = sp.coo_array((np.arange(1.0, 4), ([2, 0, 2], [1, 1, 1])), shape=(3, 4))
    assert_same(js.asarray(c), c.toarray())
    assert_same(js.asarray(c, format="csr"), c.toarray())


def test_scipy_tensors_and_vectors() -> None:
    coords = ([0, 1, 1], [2, 0, 3], [1, 1, 0])
    m = sp.coo_array((np.arange(1.0, 4), coords), shape=(2, 4, 2))
    a = js.asarray(m)
    assert_same(a, m.toarray())
    np.testing.assert_array_equal(a.to_scipy().toarray(), m.toarray())
    v = sp.coo_array(np.array([0, 1.0, 0, 2.0]))
    assert_same(js.asarray(v), np.array([0, 1.0, 0, 2.0]))


def test_bcoo() -> None:
    _, dense = operand(seed("bcoo"), (6, 8), "csr")
    m = jax_sparse.BCOO.fromdense(jnp.asarray(dense), nse=30)  # with padding
    assert_same(js.asarray(m), dense)
    assert_same(js.asarray(m, format="csr"), dense)
    for format in ("csr", "dcsr"):
        a, want = operand(seed(format), (6, 8), format, "padded")
        np.testing.assert_allclose(np.asarray(a.to_bcoo().todense()), want, rtol=1e-14)
    got = jax.jit(lambda m: js.einsum("ij,j->i", js.asarray(m), jnp.ones(8)))(
        jax_sparse.BCOO.fromdense(jnp.asarray(dense))
    )
    assert_same(got, dense.sum(1))


def test_bcoo_with_padding_under_jit() -> None:
    """BCOO pads with coordinates beyond the shape; under jit they must not count, nor raise."""
    _, dense = operand(seed("bcoo"), (6, 8), "csr")
    m = jax_sparse.BCOO.fromdense(jnp.asarray(dense), nse=40)
    assert_same(
        jax.jit(lambda m: js.einsum("ij,j->i", js.asarray(m), jnp.ones(8)))(m), dense.sum(1)
    )
    a, want = operand(seed("bcoo"), (6, 8), "csr", "padded")
    np.testing.assert_allclose(
        np.asarray(jax.jit(lambda a: a.to_bcoo().todense())(a)), want, rtol=1e-14
    )


def test_bcsr() -> None:
    _, dense = operand(seed("bcsr"), (6, 8), "csr")
    m = jax_sparse.BCSR.fromdense(jnp.asarray(dense))
    a = js.asarray(m)
    assert_same(a, dense)
    assert str(a.format) == "csr"
    assert_same(js.einsum("ij,jk->ik", m, np.ones((8, 3))), dense @ np.ones((8, 3)))


def test_asarray_of_dense_arrays() -> None:
    _, dense = operand(seed("dense"), (6, 8), "csr")
    for x in (dense, jnp.asarray(dense), dense.tolist()):
        assert_same(js.asarray(x), dense)
        assert_same(js.asarray(x, format="coo"), dense)
    a = js.asarray(dense)
    assert js.asarray(a) is a


# ------------------------------------------------------------------ properties
def test_properties() -> None:
    a = js.csr(np.array([1, 0, 3, 9], np.float32), [0, 2, 1, 0], [0, 2, 2, 3], (3, 4))
    assert (a.shape, a.ndim, a.size, a.dtype, a.nse, a.nnz, len(a)) == (
        (3, 4),
        2,
        12,
        np.float32,
        4,
        3,
        3,
    )
    assert np.asarray(a.indptr).tolist() == [0, 2, 2, 3]
    assert np.asarray(a.indices).tolist()[:3] == [0, 2, 1]
    assert a.indices.dtype == np.int32 and not a.frozen
    assert jax.jit(lambda a: a.nnz)(a) == 3


@pytest.mark.parametrize("format", [*FORMATS[2], "csf"])
def test_nnz(format: str) -> None:
    for fill in ("plain", "padded", "empty", "zeros"):
        a, _ = operand(seed(format), (5, 7), format, fill)
        crd = [n for n, (_, role) in enumerate(a.format.array_names()) if role == "crd"][-1]
        used = a.nse - (6 if fill == "padded" else 0)
        assert a.structure[crd].shape[0] == a.nse
        assert a.nnz == used
        assert a.freeze().nnz == used


def test_repr() -> None:
    a, _ = operand(seed("repr"), (5, 7), "csr")
    text = repr(a)
    for word in ("SparseArray", "csr", "(5, 7)", "float64", f"nse={a.nse}"):
        assert word in text
    assert "frozen" in repr(a.freeze())
    padded, _ = operand(seed("repr"), (5, 7), "csr", "padded")
    assert f"nnz={padded.nnz}" in repr(padded) and f"nse={padded.nse}" in repr(padded)
    texts: list[str] = []
    jax.jit(lambda a: texts.append(repr(a)) or a.data)(a)
    assert "csr" in texts[0]
    assert "csr" in repr(jax.tree.map(lambda x: 0, a))  # whatever the leaves are


@pytest.mark.parametrize("format", FORMATS[3])
def test_transpose(format: str) -> None:
    a, dense = operand(seed(format), SHAPE, format)
    for axes in (None, (0, 1, 2), (2, 0, 1), (1, 2, 0), (-1, 0, 1)):
        b = a.transpose(axes)
        assert b.data is a.data
        assert_same(b, np.transpose(dense, axes))
        assert_same(b.todense(), np.transpose(dense, axes))
    assert_same(a.T.T, dense)
    assert a.T.T.format == a.format
    assert_same(a.freeze().T, dense.T)


def test_transposed_names() -> None:
    a, _ = operand(seed("T"), (5, 7), "csr")
    assert str(a.T.format) == "csc" and a.T.shape == (7, 5)
    assert str(a.to("dcsr").T.format) == "dcsc"


def test_astype_and_with_data() -> None:
    a, dense = operand(seed("astype"), (5, 7), "csr")
    assert_same(a.astype(np.float32), dense.astype(np.float32))
    assert_same(a.astype("complex128"), dense.astype(complex))
    assert_same(a.astype(bool), dense != 0)
    b = a.with_data(a.data * 2)
    assert_same(b, dense * 2)
    assert b.structure[0] is a.structure[0]
    assert_same(a.with_data(jnp.ones(a.nse, np.int8)), (dense != 0).astype(np.int8))


def test_conj_and_complex() -> None:
    a, dense = operand(seed("conj"), (5, 7), "csr", dtype=np.complex128)
    assert_same(a.conj(), dense.conj())


def test_block_until_ready() -> None:
    a, dense = operand(seed("ready"), (5, 7), "csr")
    assert_same(a.block_until_ready(), dense)


# ---------------------------------------------------------------------- frozen
@pytest.mark.parametrize("format", cases.some_slow([*FORMATS[2], "csf"], ("csr", "coo", "csf")))
@pytest.mark.parametrize("fill", ["plain", "empty", "padded", "messy"])
def test_freeze(format: str, fill: str) -> None:
    a, dense = operand(seed(format), (5, 7), format, fill)
    f = a.freeze()
    assert f.frozen and not a.frozen and f.freeze() is f
    assert len(jax.tree.leaves(f)) == 1
    assert_same(f, dense)
    assert_same(f.todense(), dense)
    same_parts(f.unfreeze(), a)
    assert_same(f.unfreeze().todense(), dense)


def test_equal_patterns_are_one_object() -> None:
    a, _ = operand(seed("pattern"), (5, 7), "csr")
    b = jax.tree.map(lambda x: jnp.array(x), a)
    assert a.freeze().pattern is b.freeze().pattern
    assert jax.tree.structure(a.freeze()) == jax.tree.structure(b.freeze())
    c, _ = operand(seed("another"), (5, 7), "csr")
    assert jax.tree.structure(a.freeze()) != jax.tree.structure(c.freeze())
    traces: list[int] = []
    f = jax.jit(lambda x: traces.append(1) or x.data.sum())
    f(a.freeze())
    f(b.freeze().with_data(a.data * 3))
    assert len(traces) == 1


def test_a_frozen_array_is_not_tied_to_what_it_came_from() -> None:
    pos, crd = np.array([0, 1, 2], np.int32), np.array([0, 1], np.int32)
    a = js.csr(np.ones(2), crd, pos, (2, 2)).freeze()
    crd[:] = 0
    assert_same(a.todense(), np.eye(2))
    assert_same(a, np.eye(2))


def test_freeze_checks() -> None:
    a, _ = operand(seed("pattern"), (5, 7), "csr")
    with pytest.raises(StructureError, match="out of range"):
        replace(a, structure=(a.structure[0], a.structure[1] + 7)).freeze()
    with pytest.raises(NotImplementedError, match="traced"):
        jax.jit(lambda x: x.freeze().data)(a)


def test_grad_of_a_frozen_array_is_one() -> None:
    a, _ = operand(seed("pattern"), (5, 7), "csr")
    g = jax.grad(lambda x: (x.data**2).sum())(a.freeze())
    assert isinstance(g, js.SparseArray) and g.pattern is a.freeze().pattern
    np.testing.assert_allclose(g.data, 2 * a.data)


# ---------------------------------------------------------------------- pytree
@pytest.mark.parametrize("format", [*FORMATS[2], "csf"])
def test_pytree_round_trip(format: str) -> None:
    a, dense = operand(seed(format), (5, 7), format)
    leaves, tree = jax.tree.flatten(a)
    assert len(leaves) == 1 + len(a.structure)
    assert leaves[0] is a.data
    same_parts(jax.tree.unflatten(tree, leaves), a)
    b, _ = operand(seed(format, "other"), (5, 7), format, "zeros")
    assert jax.tree.structure(b) == tree
    assert_same(jax.jit(lambda x: x)(a), dense)


def test_tree_map_and_placeholders() -> None:
    a, dense = operand(seed("tree"), (5, 7), "csr")
    assert_same(jax.tree.map(lambda x: x * 2 if x.dtype == np.float64 else x, a), 2 * dense)
    shapes = jax.eval_shape(lambda x: x, a)
    assert (
        isinstance(shapes, js.SparseArray) and shapes.shape == a.shape and shapes.dtype == a.dtype
    )
    axes = jax.tree.map(lambda _: 0, a)
    assert jax.tree.leaves(axes) == [0, 0, 0]
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_flatten_with_path(a)[0]]
    assert paths[0] == ".data" and paths[1].startswith(".structure")


def test_jit_takes_and_returns_sparse_arrays() -> None:
    a, dense = operand(seed("jit"), (5, 7), "csr")
    doubled, transposed = jax.jit(lambda x: (x.with_data(x.data * 2), {"t": x.T}))(a)
    assert_same(doubled, 2 * dense)
    assert_same(transposed["t"], dense.T)
    assert str(transposed["t"].format) == "csc"


@pytest.mark.parametrize("frozen", [False, True])
def test_carry_of_loops(frozen: bool) -> None:
    """An array as the carry of loops: operations do not change its tree structure."""
    a, dense = operand(seed("carry"), (6, 6), "csr")
    a = a.freeze() if frozen else a

    def step(x: js.SparseArray, _: Any) -> tuple[js.SparseArray, jax.Array]:
        y = x * 0.5
        return y + y if frozen else y.with_data(2 * y.data), js.einsum("ij->", y)

    last, sums = jax.lax.scan(step, a, None, length=3)
    assert_same(last, dense)
    np.testing.assert_allclose(sums, [dense.sum() / 2] * 3)
    out = jax.lax.fori_loop(0, 3, lambda _, x: x * 2.0, a)
    assert_same(out, 8 * dense)
    out = jax.lax.while_loop(
        lambda x: x.data[0] < 100, lambda x: x * x.data.dtype.type(2), a.with_data(jnp.abs(a.data))
    )
    assert out.data[0] >= 100
    both = jax.lax.cond(True, lambda x: x * 2.0, lambda x: -x, a)
    assert_same(both, 2 * dense)


def test_no_tracer_leaks() -> None:
    a, dense = operand(seed("leak"), (6, 6), "csr")
    with jax.checking_leaks():
        f = a.freeze()
        assert_same(jax.jit(lambda x, y: (x @ y) @ jnp.ones(6))(f, f), dense @ dense @ np.ones(6))
        assert_same(
            jax.jit(lambda d: (f.with_data(d).to("csc") + f.T.to("csc")).todense())(f.data),
            dense + dense.T,
        )
    assert_same(f.to("csc"), dense)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("format", ["csr", "coo", "csf"])
def test_pickle(format: str, frozen: bool) -> None:
    a, dense = operand(seed("pickle"), (5, 7), format)
    a = a.freeze() if frozen else a
    b = pickle.loads(pickle.dumps(a))
    same_parts(a, b)
    assert b.frozen == frozen
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert_same(b.todense(), dense)


def test_hash_and_equality_are_those_of_objects() -> None:
    """No elementwise ==, so that arrays can sit in containers and trees."""
    a, _ = operand(seed("eq"), (5, 7), "csr")
    assert a == a and hash(a) == hash(a)
    assert a.freeze().pattern == a.freeze().pattern


# ----------------------------------------------------------------------- files
@pytest.mark.parametrize("name", ["a.mtx", "a.mtx.gz", "a.npz"])
@pytest.mark.parametrize("fill", ["plain", "empty", "padded", "messy"])
def test_save_and_load(tmp_path: Path, name: str, fill: str) -> None:
    a, dense = operand(seed("file", fill), (5, 7), "csr", fill)
    js.save(tmp_path / name, a)
    b = js.load(tmp_path / name)
    assert_same(b, dense)
    assert b.format.canonical
    for format in ("csc", "coo", "dcsr"):
        assert str(js.load(tmp_path / name, format=format).format) == format
        assert_same(js.load(tmp_path / name, format=format), dense)


def test_save_and_load_tensors(tmp_path: Path) -> None:
    a, dense = operand(seed("file"), SHAPE, "csf")
    js.save(tmp_path / "a.tns", a)
    assert_same(js.load(tmp_path / "a.tns", shape=SHAPE), dense)


def test_todense_of_results() -> None:
    """`js.todense` and the method agree with the host's reading, for every format and fill."""
    for format in ("csr", "coo"):
        for fill in cases.FILLS:
            a, dense = operand(seed(format, fill), (4, 6), format, fill)
            assert_same(js.todense(a), dense)
            assert_same(dense_of(a), dense)


@pytest.mark.parametrize(
    ("text", "ndim", "same"),
    [
        ("csf@2,0,1", 3, "compressed,compressed,compressed@2,0,1"),
        ("coo@1,0", 2, "compressed(-u),singleton@1,0"),
        ("csr@1,0/int64", 2, "csc/int64"),
    ],
)
def test_a_preset_in_another_mode_order(text: str, ndim: int, same: str) -> None:
    assert parse_format(text, ndim) == parse_format(same, ndim)
    with pytest.raises(FormatError, match="mode order of its own"):
        parse_format("csc@0,1", 2)

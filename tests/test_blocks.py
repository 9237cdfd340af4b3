# SPDX-License-Identifier: Apache-2.0
"""Formats with split modes: text, conversions, einsums, padding, derivatives; and the choice of a
format.  The oracle is dense NumPy in float64, or SciPy.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

import jsparse as js
from jsparse import command, config, pipeline
from jsparse.errors import FormatError, ScheduleError, StructureError, UnsupportedError
from jsparse.format import Format, blocked, parse_format
from jsparse.ir import interpret
from jsparse.ir.index import Access, Assignment, Term
from jsparse.levels import Dense
from jsparse.schedule.notation import parse_schedule, show

pytestmark = pytest.mark.usefixtures("x64")

BLOCKED = ("csr[4,4]", "csc[2,3]", "csr[1,4]", "coo[2,2]", "dcsr[3,2]", "dcsc[2,1]")
LAST_FIRST = "dense,compressed[4,2]@0,1,3,2"  # blocks stored column by column
SHAPES = ((8, 12), (9, 13), (1, 5), (0, 4), (5, 0), (3, 1))
SOME_SHAPES = cases.some_slow(SHAPES, ((9, 13), (0, 4)))
DTYPES = ("float64", "float32", "bfloat16", "complex64", "int32", "bool")


def dense(shape: tuple[int, ...], dtype: Any = np.float64, density: float = 0.3) -> np.ndarray:
    """A random array, the same for equal arguments, small integers or multiples of 1/4 in it."""
    rng = np.random.default_rng([*shape, len(str(dtype))])
    x = rng.integers(-8, 9, shape) / (4 if np.dtype(dtype).kind in "fcV" else 1)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.integers(-8, 9, shape)
    return np.where(rng.random(shape) < density, x, 0).astype(dtype)


def same(got: Any, want: np.ndarray) -> None:
    got = got.todense() if isinstance(got, js.SparseArray) else got
    assert got.shape == want.shape
    np.testing.assert_allclose(np.asarray(got, want.dtype), want, rtol=1e-5, atol=1e-5)


# ----------------------------------------------------------------------- text
@pytest.mark.parametrize(
    ("text", "ndim"),
    [(f, 2) for f in (*BLOCKED, LAST_FIRST)]
    + [("csf[2,3,1]", 3), ("csf@2,0,1[2,2,2]", 3), ("coo[4]", 1), ("csr[2,2]/int64", 2)]
    + [("dense,compressed(-u)[2,2]", 2), ("dense,compressed,dense[2,2,1]", 3)],
)
def test_text_parses_back(text: str, ndim: int) -> None:
    f = parse_format(text, ndim)
    assert f.ndim == ndim
    for axes in itertools.permutations(range(ndim)):
        g = f.transpose(axes)
        assert parse_format(str(g), ndim) == g
        assert g.transpose(tuple(axes.index(m) for m in range(ndim))) == f
        assert g.block == tuple(f.block[a] for a in axes)


def test_a_block_is_levels() -> None:
    f = parse_format("csr[4,2]", 2)
    assert f.split == parse_format("dense,compressed,dense(4),dense(2)", 4)
    assert f.whole == parse_format("csr", 2)
    assert parse_format("csr[1,1]", 2) == f.whole
    assert str(f.transpose((1, 0))) == "csc[2,4]"
    assert Format(f.levels, f.order, f.index, f.block) == blocked(f.whole, (4, 2))


@pytest.mark.parametrize(
    "text", ["csr[4]", "csr[0,2]", "csr[4,4", "csr[a,2]", "dense[2,2]", "csr[2,2]@0,1,2", "csr[,]"]
)
def test_text_that_says_no_block(text: str) -> None:
    with pytest.raises(FormatError, match=r"format"):
        parse_format(text, 2)


def test_levels_that_do_not_fit_the_block() -> None:
    csr = parse_format("csr", 2)
    for levels, order, block in [
        (csr.levels, (0, 1), (2, 2)),
        ((*csr.levels, Dense(size=2), Dense(size=3)), (0, 1, 2, 3), (2, 2)),
        ((Dense(size=2), *csr.levels), (2, 0, 1), (2, 1)),
    ]:
        with pytest.raises(FormatError, match="block"):
            Format(levels, order, "int32", block)
    with pytest.raises(FormatError, match="no size"):
        parse_format("dense,compressed(4)", 2)


# ---------------------------------------------------------------- conversions
@pytest.mark.parametrize("shape", SOME_SHAPES, ids=str)
@pytest.mark.parametrize("fmt", [*BLOCKED, LAST_FIRST])
def test_conversions(fmt: str, shape: tuple[int, int]) -> None:
    """From dense, to and from other formats, transposed; frozen and not; entries are counted."""
    x = dense(shape, np.float32)
    a = js.fromdense(x, fmt)
    assert str(a.format) == fmt
    same(a, x)
    same(a.T, x.T)
    same(a.T.to("csr"), x.T)
    assert a.nse == a.data.size
    for g, freeze in itertools.product(("csr", "coo", "csc[2,2]"), (False, True)):
        b = (a.freeze() if freeze else a).to(g)
        same(b, x)
        assert b.frozen == freeze
        c = b.to(fmt)
        same(c, x)
        if "[" not in g:
            assert b.nnz == a.nnz
            assert c.data.shape == a.data.shape
    same(a.freeze().unfreeze(), x)
    assert a.freeze().nnz == a.nnz


@pytest.mark.parametrize("shape", [(9, 13), (0, 4)], ids=str)
@pytest.mark.parametrize("fmt", BLOCKED[:3])
def test_conversions_under_jit(fmt: str, shape: tuple[int, int]) -> None:
    x = dense(shape, np.float32)
    a = js.fromdense(x, fmt)
    for b, g in itertools.product((a, a.freeze()), ("csr", "csc[2,2]", fmt)):
        same(jax.jit(lambda a, g=g: a.to(g))(b), x)
        if g == "csr":
            same(jax.jit(lambda a: a.to("csr").to(fmt, nse=a.nse))(b), x)
    same(jax.jit(lambda x: js.fromdense(x, fmt, nse=a.nse))(x), x)
    assert jax.jit(lambda a: a.nnz)(a) == a.nnz


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str) -> None:
    x = dense((9, 6), jnp.dtype(dtype))
    a = js.fromdense(x, "csr[2,4]")
    assert a.dtype == jnp.dtype(dtype)
    np.testing.assert_array_equal(a.todense(), x)
    np.testing.assert_array_equal(a.to("csc").to("csr[3,3]").todense(), x)
    y = js.einsum("ij,jk->ik", a, jnp.asarray(dense((6, 5), jnp.dtype(dtype))))
    want = np.asarray(x, np.complex128) @ np.asarray(dense((6, 5), jnp.dtype(dtype)), np.complex128)
    want = want != 0 if dtype == "bool" else want
    np.testing.assert_allclose(np.asarray(y, np.complex128), want, rtol=0.02, atol=0.1)


def test_duplicate_and_unordered_blocks() -> None:
    data = np.arange(12.0, dtype=np.float32).reshape(3, 2, 2)
    a = js.bcsr(data, [1, 0, 1], [0, 3, 3], (4, 4))
    assert str(a.format) == "dense,compressed(-ou)[2,2]"
    want = np.zeros((4, 4), np.float32)
    for block, j in zip(data, (1, 0, 1), strict=True):
        want[:2, 2 * j : 2 * j + 2] += block
    for b in (a, a.freeze()):
        for g in ("csr", "csr[2,2]", "csr[3,3]", "coo"):
            same(b.to(g), want)
        same(b @ np.eye(4, dtype=np.float32), want)
        same(b * want, want * want)


# ------------------------------------------------------- SciPy, files, errors
def test_scipy() -> None:
    x = dense((8, 6), np.float32)
    m = sp.bsr_array(x, blocksize=(4, 3))
    m.sort_indices()
    for given in (m, sp.bsr_matrix(m)):
        a = js.asarray(given)
        assert str(a.format) == "csr[4,3]"
        same(a, x)
    back = a.to_scipy()
    assert back.format == "bsr"
    np.testing.assert_array_equal(back.data, m.data)
    np.testing.assert_array_equal(back.indices, m.indices)
    np.testing.assert_array_equal(a.T.to_scipy().toarray(), x.T)
    np.testing.assert_array_equal(js.fromdense(x[:7], "csr[4,3]").to_scipy().toarray(), x[:7])
    assert js.asarray(sp.bsr_array(x, blocksize=(1, 1))).format == parse_format("csr", 2)
    same(js.asarray(js.asarray(m).to_bcoo()), x)


def test_files(tmp_path: Path) -> None:
    x = dense((8, 6), np.float64)
    sp.save_npz(tmp_path / "a.npz", sp.bsr_array(x, blocksize=(4, 3)))
    same(js.load(tmp_path / "a.npz", "csr[4,3]"), x)
    for name in ("b.npz", "b.mtx"):
        js.save(tmp_path / name, js.fromdense(x[:7], "csr[2,4]"))
        same(js.load(tmp_path / name), x[:7])


@pytest.mark.parametrize(
    ("data", "indices", "indptr", "shape", "message"),
    [
        (np.ones((1, 2)), [0], [0, 1], (2, 2), "data has shape"),
        (np.ones((1, 1, 1)), [0], [0, 1], (1, 1), "r or c above 1"),
        (np.ones((1, 2, 2)), [0], [0, 1], (4, 4), "indptr has length 2, expected 3"),
        (np.ones((1, 2, 2)), [2], [0, 1], (2, 4), "coordinate 2 at position 0 is out of range"),
        (np.ones((1, 2, 2)), [0, 1], [0, 2], (2, 4), "lengths differ"),
    ],
)
def test_bcsr_errors(data: Any, indices: Any, indptr: Any, shape: Any, message: str) -> None:
    with pytest.raises(StructureError, match=message):
        js.bcsr(data, indices, indptr, shape)


def test_extents_that_the_format_does_not_have() -> None:
    a = js.fromdense(np.ones((2, 4)), "csr[2,2]")
    wrong = js.SparseArray(jnp.ones((2, 3, 2)), a.structure, (2, 4), a.format)
    with pytest.raises(StructureError, match="expected"):
        wrong @ jnp.ones(4)


# -------------------------------------------------------------------- einsums
EINSUMS = (
    *("ij,jk->ik", "ij,kj->ki", "ij,j->i", "ij,i->j", "ij,ij->ij", "ij->", "ij->i", "ij->j"),
    *("ij->ji", "ij,j->ij", "ij,ik,jk->ij", "ij,jk,kl->il", "ij,ik->jk", "ii->i", "ii->"),
    *("ij,j,i->", "ij,jk,k->i"),
)
EXTENT = {"i": 9, "j": 14, "k": 5, "l": 3}
FORMATS = {
    "square": ("csr[4,4]", "dense"),
    "tall": ("csc[3,1]", "dense"),
    "both": ("csr[4,4]", "csr[4,4]"),
    "other": ("csr[2,2]", "csr"),
}


def operands(einsum: str, formats: tuple[str, ...]) -> tuple[list[Any], np.ndarray]:
    """Operands and the result; formats take turns over the matrices among them."""
    shapes = [tuple(EXTENT[v] for v in names) for names in einsum.split("->")[0].split(",")]
    arrays = [dense(s, np.float32, 0.4) for s in shapes]
    first, second = formats
    chosen = [first, *[second] * len(shapes)]
    ops = [
        js.fromdense(x, f) if f != "dense" and x.ndim == 2 else jnp.asarray(x)
        for x, f in zip(arrays, chosen, strict=False)
    ]
    return ops, np.einsum(einsum, *[x.astype(np.float64) for x in arrays])


@pytest.mark.parametrize("formats", cases.some_slow(list(FORMATS), ("square", "other")))
@pytest.mark.parametrize("einsum", EINSUMS)
def test_einsum(einsum: str, formats: str) -> None:
    """Against NumPy: eagerly, again, frozen, under `jit`."""
    ops, want = operands(einsum, FORMATS[formats])
    frozen = [x.freeze() if isinstance(x, js.SparseArray) else x for x in ops]

    def f(*ops: Any) -> Any:
        return js.einsum(einsum, *ops, out_format="dense")

    first = js.einsum(einsum, *ops)
    same(first, want)
    same(js.einsum(einsum, *ops), want)
    same(js.einsum(einsum, *frozen), want)
    same(jax.jit(f)(*ops), want)
    same(jax.jit(f)(*frozen), want)
    if isinstance(first, js.SparseArray) and formats in ("square", "tall"):
        assert first.format.block, "a result with the pattern of blocks has blocks"


@pytest.mark.parametrize("shape", SOME_SHAPES, ids=str)
@pytest.mark.parametrize("fmt", [*BLOCKED, LAST_FIRST])
def test_products(fmt: str, shape: tuple[int, int]) -> None:
    """Matrix products with every block and extent."""
    x = dense(shape, np.float32)
    a, v = js.fromdense(x, fmt), dense((shape[1], 11), np.float32, 1.0)
    want = x.astype(np.float64) @ v
    same(a @ v, want)
    same(a @ v[:, 0], want[:, 0])
    same(v.T @ a.T, want.T)
    same(a.sum(1), x.sum(1))
    same(a.freeze() @ v, want)


def test_elementwise() -> None:
    x, y = dense((9, 6), np.float32), dense((9, 6), np.float32, 0.6)
    a = js.fromdense(x, "csr[2,4]")
    for b in (js.fromdense(y, "csr[2,4]"), js.fromdense(y, "csr"), js.fromdense(y.T, "csr[4,2]").T):
        same(a + b, x + y)
        same(a - b, x - y)
        same(a * b, x * y)
    assert (a + js.fromdense(y, "csr[2,4]")).format == a.format
    same(a + jnp.asarray(y), x + y)
    same(3 * a / 2, 1.5 * x)
    same(-a, -x)
    same(a.sum(), x.sum())
    same(a.mean(0), x.mean(0))
    same(a[1:8, 3], x[1:8, 3])
    same(a.reshape(6, 9), x.reshape(6, 9))
    same(js.concatenate([a, js.fromdense(y, "csr")], 1), np.concatenate([x, y], 1))
    assert (2 * a).format == a.astype(jnp.float64).format == a.format


def test_wishes() -> None:
    """`out_format`, `like` and `nse` with blocks on either side."""
    x, y = dense((9, 6), np.float32), dense((6, 7), np.float32, 1.0)
    mask = dense((9, 7), np.float32) != 0
    a = js.fromdense(x, "csr[2,4]")
    for out in ("csr", "csr[4,4]", "dense"):
        same(js.einsum("ij,jk->ik", a, y, out_format=out), x @ y)
        same(js.einsum("ij,ij->ij", a, x, out_format=out), x * x)
        same(js.einsum("ij,jk->ik", js.fromdense(x, "csr"), js.fromdense(y, "csr"), out_format=out),
             x @ y)  # fmt: skip
    for fmt in ("csr", "csr[3,2]", "csr[2,4]"):
        like = js.fromdense(mask.astype(np.float32), fmt)
        stored = js.einsum("ij,ij->ij", like.with_data(jnp.ones_like(like.data)), np.ones((9, 7)))
        for b, c in ((a, y), (x, js.fromdense(y, "csr[2,2]")), (jnp.asarray(x), jnp.asarray(y))):
            for want in (like, like.freeze()):
                got = js.einsum("ij,jk->ik", b, c, like=want)
                assert got.format == like.format
                same(got, np.where(stored.todense() != 0, x @ y, 0))
    added = jax.jit(lambda a, b: js.add(a, b, nse=2 * a.nse))(a, a)
    same(added, 2 * x)


def test_three_modes() -> None:
    x = dense((5, 6, 7))
    v = dense((7, 3), density=1.0)
    for fmt in ("csf[2,2,2]", "csf[1,3,2]", "dense,compressed,dense[2,4,1]", "csf@2,0,1[2,2,3]"):
        a = js.fromdense(x, fmt)
        same(a, x)
        same(js.einsum("ijk,kl->ijl", a, v), np.einsum("ijk,kl->ijl", x, v))
        same(js.einsum("ijk,jk->i", a, x[0]), np.einsum("ijk,jk->i", x, x[0]))
        same(js.einsum("ijk->kj", a), x.sum(0).T)


# -------------------------------------------------------------------- padding
def test_padding_is_never_read() -> None:
    """Blocks that reach beyond the array hold NaN there: no result and no gradient sees it."""
    x = dense((5, 7), np.float64, 1.0)
    plain = js.fromdense(x, "csr[2,4]")
    beyond = np.full((6, 8), np.nan)
    beyond[:5, :7] = x
    data = beyond.reshape(3, 2, 2, 4).transpose(0, 2, 1, 3).reshape(-1, 2, 4)
    for a in (plain.with_data(jnp.asarray(data)), plain.freeze().with_data(jnp.asarray(data))):
        same(a, x)
        same(a.T, x.T)
        same(a.sum(), x.sum())
        same(a.sum(0), x.sum(0))
        same(a @ x.T, x @ x.T)
        same(a.to("csr"), x)
        same(a.to("csr[3,3]"), x)
        same(a * x, x * x)
        same(a + a, 2 * x)
        same(jax.jit(lambda a: js.einsum("ij,ik->jk", a, x))(a), x.T @ x)
        assert a.nnz == x.size
        inside = ~np.isnan(data)
        for f in (lambda a: a.sum(), lambda a: (a @ x.T).sum(), lambda a: (a * a).todense().sum()):
            g = js.grad(lambda a, f=f: f(a))(a)
            assert np.isfinite(g.data).all()
            assert not np.asarray(g.data)[~inside].any()
        np.testing.assert_array_equal(js.grad(lambda a: a.sum())(a).todense(), np.ones((5, 7)))


# ----------------------------------------------------------------- transforms
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("fmt", ["csr[2,4]", "csc[3,2]", "coo[2,2]"])
def test_gradients(fmt: str, frozen: bool) -> None:
    """Of a product and of a sampled one, in values and in dense operands; of second order."""
    x = dense((9, 6), np.float64, 0.5)
    v = jnp.asarray(dense((6, 4), density=1.0))
    u = jnp.asarray(dense((9, 4), density=1.0))
    a = js.fromdense(x, fmt)
    a = a.freeze() if frozen else a
    stored = a.with_data(jnp.ones_like(a.data)).todense()

    def f(d: Any, v: Any, u: Any) -> Any:
        b = a.with_data(d)
        return jnp.sin(b @ v).sum() + (js.einsum("ij,ik,jk->ij", b, u, v).todense() ** 2).sum()

    def g(x: Any, v: Any, u: Any) -> Any:
        return jnp.sin(x @ v).sum() + ((x * (u @ v.T)) ** 2).sum()

    for h in (f, jax.jit(f)):
        got = jax.grad(h, (0, 1, 2))(a.data, v, u)
        want = jax.grad(g, (0, 1, 2))(jnp.asarray(x), v, u)
        np.testing.assert_allclose(a.with_data(got[0]).todense(), want[0] * stored, rtol=1e-8)
        np.testing.assert_allclose(got[1], want[1], rtol=1e-8)
        np.testing.assert_allclose(got[2], want[2], rtol=1e-8)
    second = jax.grad(lambda d: jax.grad(f, 1)(d, v, u).sum())(a.data)
    dense_second = jax.grad(lambda x: jax.grad(g, 1)(x, v, u).sum())(jnp.asarray(x))
    np.testing.assert_allclose(
        a.with_data(second).todense(), dense_second * stored, rtol=1e-8, atol=1e-10
    )
    tangent = jnp.ones_like(a.data)
    _, got = jax.jvp(lambda d: f(d, v, u), (a.data,), (tangent,))
    _, want = jax.jvp(lambda x: g(x, v, u), (jnp.asarray(x),), (stored,))
    np.testing.assert_allclose(got, want, rtol=1e-8)


@pytest.mark.parametrize("frozen", [False, True])
def test_vmap(frozen: bool) -> None:
    x = dense((9, 6), np.float64, 0.5)
    a = js.fromdense(x, "csr[2,4]")
    a = a.freeze() if frozen else a
    v = jnp.asarray(dense((3, 6), density=1.0))
    same(jax.vmap(lambda v: a @ v)(v), np.asarray(v) @ x.T)
    scale = jnp.arange(1.0, 4.0)
    data = scale[:, None, None, None] * a.data
    got = jax.vmap(lambda d, v: a.with_data(d) @ v)(data, v)
    same(got, np.asarray(scale)[:, None] * (np.asarray(v) @ x.T))
    got = jax.vmap(lambda d: a.with_data(d).todense())(data)
    same(got, np.asarray(scale)[:, None, None] * x)


def test_carried_through_control_flow_and_export() -> None:
    x = dense((8, 6), np.float32)
    a = js.fromdense(x, "csr[2,2]")
    out = jax.lax.fori_loop(0, 3, lambda _, b: 2 * b, a)
    assert out.format == a.format
    same(out, 8 * x)
    for b in (a, a.freeze()):
        program = jax.export.export(
            jax.jit(lambda a, v: a @ v), disabled_checks=js.export_checks()
        )(b, jnp.ones(6, jnp.float32))
        again = jax.export.deserialize(program.serialize())
        same(again.call(b, jnp.ones(6, jnp.float32)), x.sum(1))


@pytest.mark.parametrize("fmt", ["csr[2,4]", "csc[3,2]"])
def test_in_pure_jax(fmt: str) -> None:
    """The reference computes the same, with gradients, where no kernel runs."""
    x, v = dense((7, 6), np.float64, 0.5), dense((6, 3), density=1.0)
    a = js.fromdense(x, fmt)
    jax.clear_caches()
    with config.override(backend="reference"):
        same(jax.jit(lambda a: a @ v)(a), x @ v)
        same(jax.jit(lambda a: js.einsum("ij,ij->ij", a, x))(a), x * x)
        same(jax.jit(lambda a: a.todense())(a), x)
        got = js.grad(lambda a: ((a @ v) ** 2).sum())(a)
        same(got.todense() * (x != 0), 2 * (x @ v) @ v.T * (x != 0))
    jax.clear_caches()


@pytest.mark.parametrize("fmt", ["csr[2,4]", "coo[3,2]", "dense,compressed,dense@1,0,2"])
def test_conversions_in_pure_jax(fmt: str) -> None:
    """Out of blocks, and out of any format with dense levels below the sparse ones."""
    x = dense((7, 6), np.float64, 0.5) if "[" in fmt else dense((4, 5, 3), np.float64, 0.3)
    a = js.fromdense(x, fmt)
    jax.clear_caches()
    with config.override(backend="reference"):
        for b in (a, a.freeze()):
            same(b.to("coo"), x)
            same(jax.jit(lambda a: a.to("coo", nse=x.size))(b), x)
            same(b.to("csr" if x.ndim == 2 else "csf"), x)
        if x.ndim == 2:
            same(a + js.fromdense(x, "csr"), 2 * x)
    jax.clear_caches()


# ------------------------------------------------------------------- schedule
def held(size: int, tail: str = "k") -> Assignment:
    """Y[i,a,k] = A[i,j,a,b] * B[j,b,k] over blocks of one size."""
    f = parse_format(f"dense,compressed,dense({size}),dense({size})", 4)
    many, few = parse_format("dense", 3), parse_format("dense", 2)
    names = (tail,) if tail else ()
    out = Access("Y", ("i", "a", *names), many if tail else few, "float32")
    b = Access("B", ("j", "b", *names), many if tail else few, "float32")
    return Assignment(out, (Access("A", ("i", "j", "a", "b"), f, "float32"), b), (Term((0, 1)),))


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize(
    "schedule",
    [
        "reorder(i,k,j,b,a) hold(a)",
        "reorder(i,k,j,b,a) vectorize(k,4,2) hold(a)",
        "reorder(i,k,j,a,b) hold(a)",
        "reorder(i,k,a,j,b)",
    ],
)
def test_hold(size: int, schedule: str) -> None:
    """Accumulators for each value of a variable: kernel and interpreter agree with NumPy."""
    x = dense((5, 6, size, size), np.float32, 1.0) * (dense((5, 6, 1, 1), np.float32) != 0)
    v = dense((6, size, 13), np.float32, 1.0)
    a = js.fromdense(x, f"dense,compressed,dense({size}),dense({size})")
    want = np.einsum("ijab,jbk->iak", x.astype(np.float64), v)
    same(js.einsum("ijab,jbk->iak", a, v, schedule=schedule), want)
    spec = pipeline.Spec(held(size), parse_schedule(schedule))
    assert show(spec.schedule) == schedule
    assert pipeline.from_recipe(spec.recipe()) == spec
    args = [np.asarray(x) for x in (a.data, *a.arrays, v)]
    result = np.full((5, size, 13), np.nan, np.float32)
    interpret.run(pipeline.lower(spec), args, [result], [5, size, 13, 6, size])
    np.testing.assert_allclose(result, want, rtol=1e-5)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("reorder(i,k,j,b,a) hold(b)", "variable of a dense output"),
        ("reorder(i,k,j,b,a) hold(k)", "no format fixes the extent"),
        ("reorder(i,a,k,j,b) hold(a)", "only output variable inside"),
        ("reorder(i,j,b,a,k) hold(a)", "only output variable inside"),
    ],
)
def test_hold_errors(schedule: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        pipeline.lower(pipeline.Spec(held(4), parse_schedule(schedule)))


def test_products_of_blocks_hold_their_rows() -> None:
    """The scheduler keeps a sum for each row of a block; the kernel knows the block's extents."""
    a = js.fromdense(dense((64, 64), np.float32), "csr[4,4]")
    for einsum, b in (("ij,j->i", jnp.ones(64)), ("ij,jk->ik", jnp.ones((64, 32)))):
        text = str(js.explain(einsum, a, b.astype(jnp.float32)))
        assert "csr[4,4]" in text
        assert "hold(i_in)" in text
        assert "i_in_dim" not in text
        assert "j_in_dim" not in text


# --------------------------------------------------------------------- choice
def blocky(r: int, c: int, fill: float = 1.0, n: int = 240) -> np.ndarray:
    rng = np.random.default_rng(r * 17 + c)
    mask = np.kron(rng.random((n // r, n // c)) < 0.06, np.ones((r, c))) > 0
    return (mask & (rng.random(mask.shape) < fill)).astype(np.float32)


@pytest.mark.parametrize("use", ["spmv", "spmm", 5])
@pytest.mark.parametrize("size", [(4, 4), (8, 8), (3, 5), (6, 2), (16, 16)], ids=str)
def test_auto_finds_blocks(size: tuple[int, int], use: str | int) -> None:
    x = blocky(*size)
    for a in (js.fromdense(x, "csr"), js.fromdense(x, "csc").freeze()):
        b = a.to("auto", use=use)
        same(b, x)
        assert b.frozen == a.frozen
        assert b.format.block
        assert all(s % t == 0 for s, t in zip(size, b.format.block, strict=True))
        same(b.to("auto", use=use), x)


def test_auto_otherwise() -> None:
    rng = np.random.default_rng(0)
    scattered = (rng.random((300, 300)) < 0.02).astype(np.float32)
    assert str(js.fromdense(scattered, "coo").to("auto").format) == "csr"
    assert str(js.fromdense(blocky(4, 4, 0.2), "csr[4,4]").to("csr").to("auto").format) != ""
    hyper = np.zeros((400, 50), np.float32)
    hyper[::40] = rng.random((10, 50)) < 0.2
    assert str(js.fromdense(hyper, "csr").to("auto").format) == "dcsr"
    full = (rng.random((50, 60)) < 0.9).astype(np.float32)
    assert isinstance(js.fromdense(full, "csr").to("auto"), jax.Array)
    assert str(js.asarray(scattered, "auto").format) == "csr"
    for shape in SHAPES:
        x = dense(shape, np.float32)
        same(js.fromdense(x, "csr").to("auto"), x)


def test_auto_finds_diagonals() -> None:
    """For products with few columns; from every format of the pattern."""
    rng = cases.seed("auto", "diagonals")
    x = np.asarray(
        sp.diags_array(rng.random((3, 90)) + 1, offsets=[-20, 0, 7], shape=(80, 90)).todense()
    )
    for format in ("csr", "coo", "dia"):
        a = js.fromdense(x, format)
        assert str(a.to("auto").format) == "dia"
        assert str(a.to("auto", use="spmm").format) == "csr"
        same(a.to("auto"), x)
        same(a.T.to("auto"), x.T)


def test_auto_of_many_entries_looks_at_some() -> None:
    rng = np.random.default_rng(0)
    n, k = 40_000, 4
    rows = np.repeat(np.arange(n // 4), k)
    cols = rng.integers(0, n // 4, rows.size)
    at = sp.coo_array((np.ones(rows.size, np.float32), (rows, cols)), shape=(n // 4, n // 4))
    m = sp.kron(at, np.ones((4, 4), np.float32), format="csr")
    assert str(js.asarray(m).to("auto").format) == "csr[4,4]"


def test_auto_errors() -> None:
    a = js.fromdense(np.eye(4), "csr")
    with pytest.raises(UnsupportedError, match="convert outside of jit, or freeze"):
        jax.jit(lambda a: a.to("auto"))(a)
    x = blocky(4, 4)
    same(jax.jit(lambda a: a.to("auto").todense())(js.fromdense(x, "csr").freeze()), x)
    with pytest.raises(FormatError, match="use='spgemm', expected 'spmv' or 'spmm'"):
        a.to("auto", use="spgemm")
    with pytest.raises(FormatError, match="expected a matrix"):
        js.fromdense(np.ones((2, 2, 2)), "csf").to("auto")


def test_the_command_line_knows_blocks() -> None:
    text = command.explain("ij,jk->ik", ["csr[4,2],dense"], {"i": 10, "j": 7})
    assert "csr[4,2] float32[10,7]" in text
    assert "hold(i_in)" in text

# SPDX-License-Identifier: Apache-2.0
"""What only blocks have: text that says none, blocks given twice, SciPy's, padding, accumulators
that hold the rows of a block; and the choice of a format.

What they share with the other formats that store zeros is in the tests of the table of `filled`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import cases
import jax
import numpy as np
import pytest
import scipy.sparse as sp
from filled import FORMS, SHAPES, called, full, make, same

import jsparse as js
from jsparse import command, pipeline
from jsparse.errors import FormatError, ScheduleError, StructureError, UnsupportedError
from jsparse.format import Format, blocked, parse_format
from jsparse.ir import interpret
from jsparse.ir.index import Access, Assignment, Term
from jsparse.levels import Dense
from jsparse.schedule.notation import parse_schedule, show

pytestmark = pytest.mark.usefixtures("x64")


def sparse(shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
    """A random array, three in ten of it not zero."""
    mask = cases.seed("sparse", shape).random(shape) < 0.3
    return np.where(mask, full("sparse", shape, dtype), 0).astype(dtype)


# ----------------------------------------------------------------------- text
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
    x = sparse((8, 6), np.float32)
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


def test_files(tmp_path: Path) -> None:
    x = sparse((8, 6))
    sp.save_npz(tmp_path / "a.npz", sp.bsr_array(x, blocksize=(4, 3)))
    same(js.load(tmp_path / "a.npz", "csr[4,3]"), x)


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
    wrong = js.SparseArray(np.ones((2, 3, 2)), a.structure, (2, 4), a.format)
    with pytest.raises(StructureError, match="expected"):
        wrong @ np.ones(4)


# ---------------------------------------------------------------- conversions
MOVES = (("coo[2,2]", "csc[2,2]"), ("csr[4,2]", "dense,compressed[4,2]@0,1,3,2"))
MOVES += (("dcsr[3,2]", "csr[3,2]"), ("dense,compressed[4,2]@0,1,3,2", "csc[4,2]"))


@pytest.mark.parametrize("form", FORMS)
def test_blocks_move_as_a_whole(form: str) -> None:
    """To blocks of the same size in another order, and to such whose elements are in another."""
    for source, target in MOVES:
        a, x = make(source, (9, 13), "float32")
        b = called(form, lambda a, target=target: a.to(target), a)
        assert str(b.format) == target
        assert b.data.size == a.data.size
        same(b, x)


# -------------------------------------------------------------------- padding
@pytest.mark.parametrize("frozen", [False, True])
def test_padding_is_never_read(frozen: bool) -> None:
    """Blocks that reach beyond the array hold NaN there: no result and no gradient sees it."""
    x = full("padding", (5, 7))
    beyond = np.full((6, 8), np.nan)
    beyond[:5, :7] = x
    data = beyond.reshape(3, 2, 2, 4).transpose(0, 2, 1, 3).reshape(-1, 2, 4)
    plain = js.fromdense(np.ones((5, 7)), "csr[2,4]")
    a = (plain.freeze() if frozen else plain).with_data(jax.device_put(data))
    same(a, x)
    same(a.T.todense(), x.T)
    same(a.sum(), x.sum())
    same(a.sum(0), x.sum(0))
    same(a @ x.T, x @ x.T)
    same(a.to("csr"), x)
    same(a.to("csr[3,3]"), x)
    same(a * x, x * x)
    same(a + a, 2 * x)
    same(jax.jit(lambda a: js.einsum("ij,ik->jk", a, x))(a), x.T @ x)
    assert a.nnz == x.size
    beyond = np.isnan(data)
    wants = (np.ones((5, 7)), np.ones((5, 5)) @ x, 2 * x)
    fs = (lambda a: a.sum(), lambda a: (a @ x.T).sum(), lambda a: (a * a).todense().sum())
    for f, want in zip(fs, wants, strict=True):
        g = js.grad(f)(a)
        same(g, want)
        assert not np.asarray(g.data)[beyond].any()


# ------------------------------------------------------------------- schedule
@cache
def held_array(size: int) -> tuple[js.SparseArray, np.ndarray]:
    x = full("held", (5, 6, size, size), np.float32) * (sparse((5, 6, 1, 1)) != 0)
    return js.fromdense(x, f"dense,compressed,dense({size}),dense({size})"), x


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
    v = full("hold", (6, size, 13), np.float32)
    a, x = held_array(size)
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
    a, _ = make("csr[4,4]", (64, 64), "float32")
    for einsum, b in (("ij,j->i", np.ones(64)), ("ij,jk->ik", np.ones((64, 32)))):
        text = str(js.explain(einsum, a, b.astype(np.float32)))
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
        x = sparse(shape, np.float32)
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

# SPDX-License-Identifier: Apache-2.0
"""What only diagonals have: an interior in vectors with borders that leave the matrix, on every
shape; schedules, SciPy's, damaged offsets.

What they share with the other formats that store zeros is in the tests of the table of `filled`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from cases import assert_same, dense_of, pack, seed, unpack, values
from filled import INTERPRETED, interpreted, stored

import jsparse as js
from jsparse import fallback, partition, pipeline
from jsparse.convert import diagonals_of, todense
from jsparse.errors import (
    CapacityError,
    FormatError,
    ScheduleError,
    StructureError,
    UnsupportedError,
)
from jsparse.format import parse_format
from jsparse.ir.index import parse_assignment
from jsparse.lower import chunks

XLA = (jax.errors.JaxRuntimeError, ValueError)  # what a failed kernel reaches Python as
pytestmark = pytest.mark.usefixtures("x64")

# rows, columns, offsets; vectors of four lanes in eight registers need interiors of over 32 rows
MATRICES: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "tridiagonal": (50, 50, (-1, 0, 1)),
    "stencil": (150, 150, (-40, -1, 0, 1, 40)),
    "wide": (41, 90, (-3, 0, 7, 60, 89)),
    "tall": (90, 41, (-89, -60, 0, 2)),
    "one": (70, 70, (5,)),
    "corners": (37, 37, (-36, 36)),
    "below": (64, 64, (-9, -8)),
    "small": (3, 2, (-2, -1, 0, 1)),
    "row": (1, 9, (0, 3, 8)),
    "column": (9, 1, (-8, 0)),
    "unit": (1, 1, (0,)),
    "empty": (6, 5, ()),
    "no_rows": (0, 5, ()),
    "no_columns": (5, 0, ()),
}
FORMATS = ("dia", "diagonal,dense", "dia/int64")
EINSUMS = (
    "ij,j->i",
    "ij,i->j",
    "ij,jk->ik",
    "ij,ik->jk",
    "ji,jk->ik",
    "ij,kj->ik",
    "ij->i",
    "ij->j",
    "ij->",
    "i,ij,j->",
    "ij,j->ij",
    "ij,i->ij",
    "ij,ik,jk->ij",
    "ij->ji",
)


def matrix(name: str, format: str, dtype: Any = np.float64) -> tuple[js.SparseArray, cases.Array]:
    """A matrix of the table with every place of its diagonals, and its dense oracle."""
    rows, columns, offsets = MATRICES[name]
    rng = seed(name, format)
    dense = np.zeros((rows, columns), dtype)
    for k in offsets:
        i = np.arange(max(0, -k), min(rows, columns - k))
        dense[i, i + k] = values(rng, i.shape, dtype)
    i, j = np.indices(dense.shape)
    coords = np.stack(np.nonzero(np.isin(j - i, offsets))).astype(np.int64)
    return pack(coords, dense[tuple(coords)], dense.shape, format), dense


def operands(einsum: str, a: js.SparseArray, d: Any) -> tuple[list[Any], list[Any]]:
    """The matrix first where it stands, dense arrays beside it; and all as dense arrays."""
    rng = seed(einsum, a.shape)
    parts = einsum.split("->")[0].split(",")
    at = next(n for n, p in enumerate(parts) if len(p) == 2)
    size = dict(zip(parts[at], a.shape, strict=True)) | {"k": 11}
    ops = [
        values(rng, tuple(size.get(v, 11) for v in p), d.dtype) if n != at else None
        for n, p in enumerate(parts)
    ]
    return [a if x is None else x for x in ops], [d if x is None else x for x in ops]


@pytest.mark.parametrize("einsum", EINSUMS)
@pytest.mark.parametrize("format", cases.some_slow(FORMATS, FORMATS[:1]))
def test_every_shape(format: str, einsum: str) -> None:
    """One shape in turn within a program, the diagonals known."""
    for n, name in enumerate(MATRICES):
        a, d = matrix(name, format)
        ops, dense = operands(einsum, a, d)
        want = np.einsum(einsum, *dense)
        assert_same(js.einsum(einsum, *ops), want)
        if n == EINSUMS.index(einsum):
            known = [x.freeze() if isinstance(x, js.SparseArray) else x for x in ops]
            assert_same(jax.jit(lambda *xs: js.einsum(einsum, *xs))(*known), want)


@pytest.mark.parametrize("einsum", INTERPRETED)
@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_of_rows_stay_whole(
    einsum: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the interpreter, on every shape and for any number of chunks."""
    monkeypatch.setattr(chunks, "GRAIN", 8)
    for name in MATRICES:
        for format in FORMATS[:2]:
            a, d = matrix(name, format)
            interpreted(einsum, a, d, threads)


SCHEDULES = (
    "",
    "unroll(j,2)",
    "vectorize(i,8,2) unroll(j,4)",
    "vectorize(i,8,2)",
    "vectorize(i,4,8) parallelize(i)",
    "vectorize(i,8,1)",
)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule: str) -> None:
    for name in MATRICES:
        a, d = matrix(name, "dia")
        x = values(seed("x"), a.shape[1:], np.float64)
        got = js.einsum("ij,j->i", a, x, schedule=f"reorder(i,j) {schedule}")
        assert_same(got, d @ x)


def test_the_plan_runs_over_rows_in_vectors() -> None:
    a, _ = matrix("stencil", "dia")
    x = np.ones(150)
    assert "reorder(i,j) vectorize(i," in str(js.explain("ij,j->i", a, x))
    assert "reorder(j,i) vectorize(j," in str(js.explain("ij,i->j", a, x))
    assert "vectorize(i," in str(js.explain("ij,j->ij", a, x))
    wide = str(js.explain("ij,jk->ik", a, np.ones((150, 64))))
    assert "vectorize(k," in wide


TARGETS = (*cases.MATRIX, "dcsc", "compressed,dense", "csr/int64", "dia", "diagonal,dense")


@pytest.mark.parametrize("name", cases.some_slow(tuple(MATRICES), ("stencil", "tall", "empty")))
def test_conversions(name: str) -> None:
    """Out of every shape; what takes turns are the targets, and which diagonals are known."""
    for n, target in enumerate(TARGETS):
        a, d = matrix(name, FORMATS[n % 2])
        assert_same((a.freeze() if n % 4 < 2 else a).to(target), d)
        if not n:
            assert a.nnz == a.to("csr").nnz
            assert a.nse == a.data.size
            assert_same(js.fromdense(d, "dia"), d)


def test_an_entry_stays_one_through_csr() -> None:
    """A stored diagonal is stored in the matrix, and no place outside of it."""
    a = js.dia(np.array([[3.0, 0, 4], [1, 2, np.nan]]), [0, 1], (3, 3))
    assert (a.nse, a.nnz) == (6, 5)
    b = a.to("csr")
    np.testing.assert_array_equal(np.asarray(b.data), [3, 1, 0, 2, 4])
    np.testing.assert_array_equal(np.asarray(a.todense()), [[3, 1, 0], [0, 0, 2], [0, 0, 4]])


def test_fromdense_eye_and_diags() -> None:
    d = np.diag(np.arange(1.0, 5), 1)
    assert_same(js.fromdense(d, "dia"), d)
    assert js.fromdense(d, "dia").nse == 5
    assert_same(js.eye(4, 6, 1, "dia"), np.eye(4, 6, 1))
    two = js.diags([np.ones(3), np.ones(4)], [-1, 0], format="dia")
    assert_same(two, np.eye(4) + np.eye(4, k=-1))


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("make", ("dia_array", "dia_matrix"))
def test_scipy(name: str, make: str) -> None:
    rows, columns, _ = MATRICES[name]
    a, d = matrix(name, "dia")
    s = getattr(sp, make)(sp.coo_array(d))
    b = js.asarray(s)
    assert str(b.format) == "dia"
    assert_same(b, d)
    if columns and rows:
        back = a.to_scipy()
        assert back.format == "dia"
        np.testing.assert_array_equal(back.toarray(), d)
        np.testing.assert_array_equal(a.T.to_scipy().toarray(), d.T)


def test_scipy_diagonals_in_any_order_short_or_outside() -> None:
    data = np.arange(1.0, 13).reshape(3, 4)
    s = sp.dia_array((data, [2, -1, 9]), shape=(5, 6))
    assert_same(js.asarray(s), s.toarray())


def test_files(tmp_path: Path) -> None:
    s = sp.diags_array([np.ones(9), np.arange(1.0, 11)], offsets=[1, 0], format="dia")
    sp.save_npz(tmp_path / "a.npz", s)
    a = js.load(tmp_path / "a.npz").to("dia")
    assert_same(a, s.toarray())


# ------------------------------------------------------------- transformations
def test_derivatives_of_columns() -> None:
    """The gradient has no value beyond the matrix; of second order in the vector."""
    for name in ("stencil", "wide", "tall"):
        a, d = matrix(name, "dia")
        rng = seed(name, "gradient")
        x, w = (values(rng, (n,), np.float64) for n in reversed(a.shape))

        def loss(a: Any, x: Any, w: Any = w) -> Any:
            return jnp.vdot(w, jnp.sin(a @ x))

        da, dx = jax.jit(js.grad(loss, argnums=(0, 1)))(a, x)
        dy = w * np.cos(d @ x)
        assert_same(dx, d.T @ dy)
        assert_same(da, np.outer(dy, x) * stored(a))
        assert (np.asarray(da.data)[~np.isfinite(np.asarray(a.data))] == 0).all()
        if name == "stencil":
            hessian = jax.jit(jax.jacfwd(jax.grad(loss, argnums=1), argnums=1))(a, x)
            want = d.T @ np.diag(-w * np.sin(d @ x)) @ d
            np.testing.assert_allclose(hessian, want, atol=1e-10)


def test_a_dense_level_below_and_a_batch_axis_in_front() -> None:
    a, d = matrix("wide", "dia")
    data = jax.device_put(np.stack([a.data, -np.asarray(a.data)], axis=-1))
    f = parse_format("diagonal,dense,dense@1,0,2", 3)
    b = js.SparseArray(data, a.arrays, (*a.shape, 2), f)
    e = np.stack([d, -d], axis=-1)
    x = values(seed("below"), (a.shape[1],), np.float64)
    np.testing.assert_allclose(js.einsum("ijb,j->ib", b, x), np.einsum("ijb,j->ib", e, x))
    np.testing.assert_allclose(js.einsum("ijb->b", b), e.sum((0, 1)), atol=1e-12)
    np.testing.assert_allclose(b.todense(), e)
    np.testing.assert_allclose(b.to("csf").todense(), e)
    assert b.nnz == a.nnz


def test_devices_may_cut_columns_but_not_diagonals() -> None:
    text = "Y[i,k]:dense:float64 = A[i,j]:dia:float64 * B[j,k]:dense:float64"
    spec = pipeline.Spec(parse_assignment(text))
    rule = partition.rule(spec, [(3, 8), (3,), (8, 4)], [(8, 4)])
    assert list(rule.variables) == ["k"]


def test_properties() -> None:
    a, d = matrix("wide", "dia")
    assert repr(a) == "SparseArray(dia, shape=(41, 90), dtype=float64, nnz=151, nse=205)"
    assert str(parse_format("diagonal,dense@1,0", 2)) == "dia"
    assert str(a.T.format) == "diagonal,dense"
    assert_same(a.T, d.T)
    count = jax.jit(lambda x: x.nnz)(a)
    assert int(count) == a.nnz


def test_with_other_operands() -> None:
    a, d = matrix("stencil", "dia")
    e = values(seed("others"), d.shape, np.float64) * (seed("where").random(d.shape) < 0.05)
    b = js.fromdense(e)
    for n, format in enumerate(cases.MATRIX):
        left, x = a.freeze() if n % 2 else a, b.to(format)
        assert_same(left @ x, d @ e)
        assert_same(x @ left, e @ d)
        assert_same(left * x, d * e)
        assert_same(*((left + x, d + e) if n < 2 else (x - left, e - d)))
    assert_same(a + a.T, d + d.T)
    assert_same(a @ a, d @ d)
    assert_same(js.einsum("ij,jk->ik", b, b, like=a.to("dia")), np.where(d != 0, e @ e, 0))
    assert_same(js.einsum("ij,jk->ik", a, a, out_format="dia"), d @ d)
    assert_same(js.einsum("ij,ij->", a, b), np.sum(d * e))
    assert_same(js.einsum("ii->i", a), np.diag(d).copy())
    assert_same(js.einsum("ii->", a), np.trace(d))
    assert_same(a.reshape(75, 300), d.reshape(75, 300))
    assert_same(a[3:90:2, ::-1], d[3:90:2, ::-1])


# ---------------------------------------------------------------------- errors
def bad(offsets: Sequence[int]) -> js.SparseArray:
    """Not built by a constructor, which would refuse it."""
    f = parse_format("dia", 2)
    return js.SparseArray(np.ones((len(offsets), 4)), (np.array(offsets, "int32"),), (4, 5), f)


@pytest.mark.parametrize("offsets", [(0, 5), (-4, 0), (1, 0), (0, 0), (2**31 - 1,), (-(2**31),)])
def test_damaged_offsets(offsets: Sequence[int]) -> None:
    data = np.ones((len(offsets), 4))
    with pytest.raises(StructureError, match="offset"):
        js.dia(data, offsets, (4, 5))
    with pytest.raises(StructureError, match="offset"):
        bad(offsets).freeze()
    calls = (lambda a: a @ np.ones(5), lambda a: np.ones(4) @ a, todense, lambda a: a.to("csr"))
    for call in calls:
        with pytest.raises(XLA, match="offsets that ascend"):
            jax.block_until_ready(call(bad(offsets)))
    a = bad(offsets)
    assignment = parse_assignment("Y[i]:dense:float64 = A[i,j]:dia:float64 * B[j]:dense:float64")
    with pytest.raises(XLA, match="damaged"):
        fallback.einsum(assignment, (4, 5), (a.data, *a.arrays, np.ones(5)))


def test_errors() -> None:
    scattered = js.coo(np.ones(999), [np.arange(999), np.arange(999)[::-1]], (1000, 1000))
    with pytest.raises(FormatError, match=r"999 entries lie on 999 diagonals.*7.6 MiB.*keep csr"):
        scattered.to("dia")
    with pytest.raises(UnsupportedError, match="freeze the array first"):
        jax.jit(lambda a: a.to("dia").data)(scattered)
    with pytest.raises(CapacityError, match="no capacity"):
        matrix("wide", "csr")[0].to("dia", nse=7)
    for words in ("locate(A,j)", "prefetch(A,8)"):
        with pytest.raises(ScheduleError):
            js.einsum("ij,i->j", matrix("one", "dia")[0], np.ones(70), schedule=words)
    with pytest.raises(StructureError, match="data has shape"):
        js.dia(np.ones((2, 3)), [0, 1], (4, 4))
    for text in ("dense,diagonal", "diagonal,compressed", "diagonal(-u),dense", "diagonal"):
        with pytest.raises(FormatError, match="diagonal"):
            parse_format(text, len(text.split(",")))
    with pytest.raises(ScheduleError, match="its loop must be inside"):
        a, _ = matrix("one", "dia")
        js.einsum("ij,i->j", a, np.ones(70), schedule="reorder(i,j) vectorize(j,4,1)")


def test_how_many_diagonals() -> None:
    a, _ = matrix("wide", "dia")
    for x in (a, a.to("csr"), a.to("coo").freeze(), a.T):
        found = diagonals_of(x)
        assert (found.count, found.entries) == (5, 151)
        assert found.fill == 151 / (5 * x.shape[0])
    assert list(diagonals_of(a.to("csc")).offsets) == list(MATRICES["wide"][2])
    assert unpack(a).shape == (41, 90)
    assert dense_of(a).shape == (41, 90)

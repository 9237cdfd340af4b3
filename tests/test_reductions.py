# SPDX-License-Identifier: Apache-2.0
"""Reductions whose parts have results of their own (`rfactor`), against dense NumPy."""

from __future__ import annotations

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import assert_same, seed

import jsparse as js
from jsparse.lower import chunks, parts

pytestmark = pytest.mark.usefixtures("x64")

SHAPE = (23, 17)  # of the sparse operand
OPERANDS = {"x": (23,), "y": (17,), "X": (23, 5), "W": (23, 70)}
# einsum, dense operands, schedule
ROWS = [
    ("ij,i->j", "x", "reorder(i,j) rfactor(i,3)"),
    ("ij->j", "", "reorder(i,j) rfactor(i,4)"),
    ("ij->", "", "reorder(i,j) rfactor(i,5)"),
    ("ij->", "", "reorder(i,j) unroll(j,2) rfactor(i,2)"),
    ("i,ij,j->", "x y", "reorder(i,j) rfactor(i,64)"),
    ("ij,ik->jk", "X", "reorder(i,j,k) vectorize(k,4,1) rfactor(i,3)"),
    ("ij,ik->jk", "W", "reorder(i,j,k) vectorize(k,8,4) rfactor(i,7)"),
    ("ij,ik->k", "W", "reorder(i,j,k) rfactor(i,3)"),
]


def call(
    einsum: str, names: str, a: js.SparseArray, dense: dict[str, jax.Array], **how: str
) -> jax.Array:
    more = [dense[n] for n in names.split()]
    ops = [more[0], a, *more[1:]] if einsum.startswith("i,") else [a, *more]
    return js.einsum(einsum, *ops, **how)


KINDS = [(f, d) for f in ("csr", "coo", "dcsr") for d in ("float64",)]
KINDS += [("csr", d) for d in ("float32", "int32", "complex64", "bfloat16", "bool")]


@pytest.mark.parametrize(("format", "dtype"), KINDS)
def test_parts_add_up(format: str, dtype: str) -> None:
    """Small whole numbers: sums are exact in every dtype."""
    rng = seed("parts", format, dtype)
    fill = "messy" if format == "coo" else "plain"
    a, array = cases.operand(rng, SHAPE, format, fill, np.int64 if dtype != "bool" else bool)
    a, array = a.astype(dtype), array.astype(jnp.dtype(dtype))
    dense = {n: jnp.asarray(rng.integers(-1, 2, s)).astype(dtype) for n, s in OPERANDS.items()}
    for einsum, names, schedule in ROWS:
        if dtype in ("complex64", "bfloat16", "bool"):  # without vectors
            schedule = " ".join(w for w in schedule.split() if "vectorize" not in w)
        more = [dense[n] for n in names.split()]
        ops = [more[0], array, *more[1:]] if einsum.startswith("i,") else [array, *more]
        want = np.einsum(einsum, *(np.asarray(x).astype(complex) for x in ops))
        want = (want if dtype == "complex64" else want.real).astype(jnp.dtype(dtype))
        assert_same(call(einsum, names, a, dense, schedule=schedule), want)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 9), (9, 1), (2, 3)])
def test_more_parts_than_rows(shape: tuple[int, int]) -> None:
    a, array = cases.operand(seed("few", shape), shape, "csr")
    for einsum in ("ij->j", "ij->"):
        got = js.einsum(einsum, a, schedule="reorder(i,j) rfactor(i,16)")
        assert_same(got, np.einsum(einsum, array))


def test_the_result_is_added_up_in_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "GRAIN", 8)
    monkeypatch.setattr(parts, "GRAIN", 8)
    a, array = cases.operand(seed("chunks"), (40, 99), "csr")
    got = js.einsum("ij->j", a, schedule="reorder(i,j) rfactor(i,6)")
    assert_same(got, array.sum(0))


def test_large_reductions_are_planned_in_parts_and_small_ones_are_not() -> None:
    def schedule(n: int, d: int, einsum: str) -> str:
        pos = np.arange(n + 1, dtype=np.int32) * d
        crd = np.tile(np.arange(d, dtype=np.int32) * (n // d), n)
        a = js.csr(jnp.ones(n * d, jnp.float32), crd, pos, (n, n))
        return str(js.explain(einsum, a, *[jnp.ones(n, jnp.float32)] * einsum.count(",")))

    for einsum in ("ij,i->j", "ij->j", "ij->"):
        assert "rfactor(i," in schedule(20_000, 20, einsum)
        assert "rfactor" not in schedule(50, 5, einsum)
    assert "rfactor" not in schedule(20_000, 1, "ij->j")  # as many results as entries
    assert "rfactor" not in schedule(20_000, 20, "ij->i")


def test_parts_of_blocks_whose_sums_are_held() -> None:
    a, array = cases.operand(seed("held"), (24, 16), "csr")
    x = jnp.asarray(seed("held", "x").standard_normal((24, 6)))
    got = jax.jit(lambda a, x: js.einsum("ij,ik->jk", a, x))(a.to("csr[4,2]"), x)
    assert_same(got, array.T @ np.asarray(x))
    got = js.einsum("ij->", a.to("csr[4,2]"))
    assert_same(got, array.sum())


def test_parts_are_differentiated_and_batched() -> None:
    rng = seed("parts under transformations")
    a, array = cases.operand(rng, SHAPE, "csr")
    x = jnp.asarray(rng.standard_normal((4, SHAPE[0])))

    def f(data: jax.Array, x: jax.Array) -> jax.Array:
        b = a.with_data(data)
        return js.einsum("ij,i->j", b, x, schedule="reorder(i,j) rfactor(i,3)")

    assert_same(jax.vmap(f, (None, 0))(a.data, x), np.asarray(x) @ array)
    data, cotangent = jax.vjp(f, a.data, x[0])[1](jnp.ones(SHAPE[1]))
    assert_same(cotangent, array.sum(1))
    assert data.shape == a.data.shape

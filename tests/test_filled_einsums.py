# SPDX-License-Identifier: Apache-2.0
"""Einsums over every format that stores zeros: in all forms of a call, in every extent, with other
formats beside them, in wished formats, in three modes; by the kernel and by the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import (
    BLOCKS,
    FAMILIES,
    FILLED,
    FORMS,
    INTERPRETED,
    QUICK,
    SHAPES,
    called,
    dtype_of,
    fits,
    frozen,
    full,
    interpreted,
    make,
    same,
    stored,
    turns,
)
from test_filled import THREE

import jsparse as js
from jsparse.format import parse_format
from jsparse.lower import chunks

pytestmark = pytest.mark.usefixtures("x64")

# -------------------------------------------------------------------- einsums
EINSUMS = (
    *("ij,jk->ik", "ij,i->j", "ij,ij->ij", "ij->", "ij,kj->ki", "ij,j->i", "ij,j->ij", "ij->i"),
    *("ij,ik->jk", "ij,ik,jk->ij", "i,ij,j->", "ij->j", "ji,jk->ik", "ij,i->ij", "ij->ji", "ii->i"),
    *("ij,kj->ik", "ij,jk,kl->il", "ij,j,i->", "ii->", "ij,jk,k->i"),
)
EXTENT = {"i": 41, "j": 50, "k": 37, "l": 3}  # no multiples of a block; diagonals have an interior
BESIDE = ("dense", "csr", "dense", "same", "csr[2,2]")  # what further matrices are stored in


def _einsums() -> Iterator[Any]:
    """Each einsum meets each family, in quick tests once; each format several einsums."""
    for n, einsum in enumerate(EINSUMS):
        for family in FAMILIES.values():
            for k in range(min(3, len(family))):
                fmt = family[(n + 4 * k) % len(family)]
                matrices = sum(len(v) > 1 for v in einsum.split("->")[0].split(","))
                beside = BESIDE[(n + k) % len(BESIDE)] if matrices > 1 else "dense"
                form = FORMS[(n // 2 + k) % len(FORMS)]
                yield pytest.param(
                    *(einsum, fmt, beside, form),
                    id=f"{einsum} {fmt}*{beside} {form}",
                    marks=[pytest.mark.slow] if k else [],
                )


def operands(einsum: str, fmt: str, beside: str) -> tuple[list[Any], list[cases.Array]]:
    """The first matrix in `fmt`, further ones in another format or dense; and all of them dense."""
    inputs = einsum.split("->")[0].split(",")
    first = next(n for n, v in enumerate(inputs) if len(v) == 2)
    ops, arrays = [], []
    for n, v in enumerate(inputs):
        shape = tuple(EXTENT[m] for m in v)
        chosen = fmt if n == first or beside == "same" else beside
        if n != first and (chosen == "dense" or len(v) == 1):
            a = x = full(f"operand {n}", shape, dtype_of(fmt))
            a = jax.device_put(a)
        else:
            a, x = make(chosen, shape, dtype_of(fmt))
        ops.append(a)
        arrays.append(x)
    return ops, arrays


@pytest.mark.parametrize(("einsum", "fmt", "beside", "form"), list(_einsums()))
def test_einsum(einsum: str, fmt: str, beside: str, form: str) -> None:
    """Against NumPy; what has the pattern of the one sparse operand has its format."""
    ops, arrays = operands(einsum, fmt, beside)
    want = np.einsum(einsum, *[x.astype(np.float64) for x in arrays])
    wish = {"out_format": "dense"} if "jit" in form else {}
    got = called(form, lambda *ops: js.einsum(einsum, *ops, **wish), *ops)
    same(got, want)
    if isinstance(got, js.SparseArray) and beside == "dense":
        a = next(x for x in ops if isinstance(x, js.SparseArray))
        assert got.format == (a.T if einsum == "ij->ji" else a).format


@pytest.mark.parametrize("fmt", cases.some_slow(FILLED, QUICK))
def test_products(fmt: str) -> None:
    """Matrix products; extents take turns over the formats, frozen arrays over the products."""
    number = FILLED.index(fmt)
    shapes = [s for s in SHAPES if fits(fmt, s)]
    for shape in (shapes[0], *shapes[1 + number % 3 :: 3]):
        a, x = make(fmt, shape)
        v = full("many", (shape[1], 43), dtype_of(fmt))
        u = full("one", shape[:1], dtype_of(fmt))
        one, other = (a, a.freeze()) if number % 2 else (a.freeze(), a)
        same(one @ v, x @ v)
        same(other @ v[:, 0], x @ v[:, 0])
        same(v.T @ other.T, v.T @ x.T)
        same(one.T @ u, x.T @ u)
        same(other.sum(1), x.sum(1))


# ---------------------------------------------------------- with other arrays
PARTNERS = ("csr", "csc", "csr[2,2]", "coo", "dia", "dcsr")


@pytest.mark.parametrize(("fmt", "form"), turns(1))
def test_elementwise(fmt: str, form: str) -> None:
    """With a format that takes turns, with itself, with dense arrays and numbers."""
    number = FILLED.index(fmt)
    a, x = make(fmt, (9, 6))
    b, y = make(PARTNERS[number % len(PARTNERS)], (9, 6), dtype_of(fmt))
    if "jit" in form:  # the pattern of a sum is known there if those of its terms are
        form = "jit frozen"
    a, b = frozen(form, a, b)

    def f(a: Any, b: Any) -> Any:
        return a + b, b - a, a * b, b @ a.T if number % 2 else a @ b.T, a + a

    wants = (x + y, y - x, x * y, y @ x.T if number % 2 else x @ y.T, 2 * x)
    for got, want in zip(called(form, f, a, b), wants, strict=True):
        same(got, want)
    if fmt in BLOCKS:
        assert (a + a).format == a.format
    same(a + jax.device_put(y), x + y)
    c = 3 * a / 2
    assert c.format == (-a).format == a.format
    same(c, 1.5 * x)
    same(-a, -x)


@pytest.mark.parametrize("fmt", cases.some_slow(FILLED, QUICK))
def test_functions(fmt: str) -> None:
    """Sums over modes, parts, other shapes, two in one; all of them for some formats."""
    a, x = make(fmt, (9, 6))
    a = a.freeze() if FILLED.index(fmt) % 2 else a
    b = js.fromdense(x[::-1], "csr")
    checks = (
        lambda: same(a.mean(0), x.mean(0)),
        lambda: same(a[1:8, 3], x[1:8, 3]),
        lambda: same(a.reshape(6, 9), x.reshape(6, 9)),
        lambda: same(js.concatenate([a, b], 1), np.concatenate([x, x[::-1]], 1)),
        lambda: same(a[1:8:2, ::-1], x[1:8:2, ::-1]),
        lambda: same(js.sum(a), x.sum()),
        lambda: same(a[7], x[7]),
    )
    for check in checks if fmt in QUICK else checks[FILLED.index(fmt) % 4 :: 4]:
        check()


def test_transposed_partner() -> None:
    for fmt in QUICK:
        a, x = make(fmt, (9, 9))
        same(a + a.T, x + x.T)
        same(a @ a, x @ x)
        same(js.einsum("ij,ij->", a, a.T.to("csr")), np.sum(x * x.T))


WISHED = ("csr", "csr[4,4]", "dense", "dense,uniform(7)", "dia", "dense,uniform(5)@1,0")
LIKE = ("csr", "csr[3,2]", "csr[2,4]", "dense,uniform(6)", "dense[1,2:4]", "dia", "diagonal,dense")


@pytest.mark.parametrize("out", cases.some_slow(WISHED, WISHED[:4]))
def test_wished_format(out: str) -> None:
    """`out_format` from the formats of the table, from none of them, and for one entry each."""
    y = full("wished", (8, 7))
    n = WISHED.index(out)
    for fmt in QUICK[n % 2 :: 2]:
        a, x = make(fmt, (5, 8), "float64")
        same(js.einsum("ij,jk->ik", a, y, out_format=out), x @ y)
        same(js.einsum("ij,jk->ik", js.fromdense(x), js.fromdense(y), out_format=out), x @ y)
        got = js.einsum("ij,ij->ij", js.fromdense(x), x, out_format=fmt)
        assert got.format == a.format
        same(got, x * x)
    b, x = make(QUICK[n % 4], (5, 7), "float64")
    same(js.einsum("ij,ij->ij", b, x, out_format=out), x * x)


@pytest.mark.parametrize("fmt", cases.some_slow(LIKE, ("csr[2,4]", "dia", "dense[1,2:4]")))
def test_like(fmt: str) -> None:
    """A product at the pattern of an array, from dense operands and from filled ones."""
    like, _ = make(fmt, (9, 7), "float64")
    (a, x), (b, y) = (make(QUICK[LIKE.index(fmt) % 4], s, "float64") for s in ((9, 6), (6, 7)))
    want = (x @ y) * stored(like)
    for n, ops in enumerate(((a, y), (x, b), (jnp.asarray(x), jnp.asarray(y)))):
        for pattern in (like, like.freeze())[n % 2 :: 2] if n else (like, like.freeze()):
            got = js.einsum("ij,jk->ik", *ops, like=pattern)
            assert got.format == like.format
            same(got, want)


def test_added_within_a_capacity() -> None:
    add = jax.jit(lambda a: js.add(a, a, nse=2 * a.nse))
    for fmt in QUICK:
        a, x = make(fmt, (9, 6))
        same(add(a), 2 * x)
        same(js.add(a, a, nse=None), 2 * x)


# ---------------------------------------------------------------- three modes
@pytest.mark.parametrize("fmt", cases.some_slow(THREE, (THREE[0], THREE[4], THREE[8])))
def test_three_modes(fmt: str) -> None:
    a, x = make(fmt, (5, 6, 8), "float64")
    v = full("three", (8, 3))
    assert repr(a).startswith(f"SparseArray({parse_format(fmt, 3)}, ")
    same(js.fromdense(x, fmt), x)
    same(a.todense(), x)
    same(a.to("csf"), x)
    same(js.fromdense(x, "coo").to(fmt), x)
    nse = None if "uniform" in fmt or ":" in fmt else a.nse
    same(jax.jit(lambda a: a.to(fmt, nse=nse))(js.fromdense(x, "csf")), x)
    same(js.einsum("ijk,kl->ijl", a, v), np.einsum("ijk,kl->ijl", x, v))
    same(js.einsum("ijk,jk->i", a, x[0]), np.einsum("ijk,jk->i", x, x[0]))
    same(js.einsum("ijk->kj", a), x.sum(0).T)


# ---------------------------------------------------------------- interpreter
@pytest.mark.parametrize("fmt", FILLED)
def test_the_interpreter_agrees(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "GRAIN", 8)
    for shape in ((8, 21), (23, 23), (0, 25)):
        if fits(fmt, shape):
            a, x = make(fmt, shape)
            for n, einsum in enumerate(INTERPRETED):
                for threads in (1, 3) if fmt in QUICK else (1 + 2 * (n % 2),):
                    interpreted(einsum, a, x, threads)

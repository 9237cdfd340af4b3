# SPDX-License-Identifier: Apache-2.0
"""What holds for every format that stores zeros: text, conversions, dtypes, einsums, products,
elementwise operations, wishes, three modes.  The oracle is dense NumPy.
"""

from __future__ import annotations

import itertools
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import (
    DIAGONALS,
    FAMILIES,
    FILLED,
    FORMS,
    QUICK,
    SHAPES,
    UNIFORM,
    called,
    fits,
    full,
    make,
    same,
    stored,
    turns,
)

import jsparse as js
from jsparse.format import parse_format

pytestmark = pytest.mark.usefixtures("x64")

THREE = (
    *("csf[2,2,2]", "csf[1,3,2]", "dense,compressed,dense[2,4,1]", "csf@2,0,1[2,2,3]"),
    *("dense,dense,uniform(2)", "csf[1,1,2:4]", "dense,compressed,uniform(3)"),
    *("dense,dense,uniform(2)@2,0,1", "dense[1,2:4,1]", "dense,uniform(2),dense"),
    "compressed,dense,uniform(2)",
)


# ----------------------------------------------------------------------- text
@pytest.mark.parametrize(
    ("text", "ndim"),
    [(f, 2) for f in (*FILLED, "dense,uniform(3)(-ou)", "dense[1,2:4(-o)]", "dense[4,2:4]")]
    + [("dense,compressed(-u)[2,2]", 2), ("dense,dense[2:4,2]@0,1,3,2", 2)]
    + [(f, 3) for f in (*THREE, "csf[2,3,1]", "diagonal,dense,dense@1,0,2")]
    + [("coo[4]", 1), ("uniform(5)", 1)],
)
def test_text_parses_back(text: str, ndim: int) -> None:
    f = parse_format(text, ndim)
    assert f.ndim == ndim
    for axes in itertools.permutations(range(ndim)):
        g = f.transpose(axes)
        assert parse_format(str(g), ndim) == g
        assert g.transpose(tuple(axes.index(m) for m in range(ndim))) == f
        assert g.block == tuple(f.block[a] for a in axes if f.block)
    if not text.startswith("csf@"):
        assert str(f) == text


# ---------------------------------------------------------------- conversions
OTHERS = ("csr", "coo", "dcsc", "csc[2,2]", "csc", "compressed,dense", "csr/int64", "dia", "dcsr")
SPARING = ("csr", "coo", "dcsc", "csc", "csr/int64", "dcsr")  # those that store no zeros


@pytest.mark.parametrize("fmt", cases.some_slow(FILLED, QUICK))
def test_conversions(fmt: str) -> None:
    """From dense, to and from another format, transposed or frozen; entries are counted."""
    number = FILLED.index(fmt)
    turned, first = number % 2, number // 2 % 2  # what takes turns over the formats
    g = OTHERS[number % len(OTHERS)]
    h = SPARING[number % len(SPARING)] if fmt in UNIFORM else g
    shapes = [s for s in SHAPES if fits(fmt, s)]
    for n, shape in enumerate(shapes):
        a, x = make(fmt, shape)
        assert a.format == parse_format(fmt, 2)
        assert repr(a).startswith(f"SparseArray({fmt}, shape={shape}")
        assert a.nse == a.data.size
        assert a.nnz == stored(a).sum() == a.freeze().nnz
        same(a.T, x.T)
        if n in (0, 1 + number % (len(shapes) - 1)):
            same(js.fromdense(x, fmt), x)
            same(a.todense(), x)
        there, back = a.T if turned else a, js.fromdense(x, h)
        b = (there.freeze() if first else there).to(g)
        same(b, x.T if turned else x)
        if g in SPARING:
            assert b.nnz == a.nnz
            assert b.frozen == bool(first)
        c = (back if first else back.freeze()).to(fmt)
        same(c, x)
        assert c.frozen != bool(first)
        if h in SPARING and fmt not in DIAGONALS:
            assert c.data.shape == a.data.shape


FULL = ("dia", "csr[2,4]", "dense,uniform(7)", "diagonal,dense", "dense,uniform(5)@1,0")
FULL += ("dia/int64", "coo[3,2]")  # each source meets each of them
SOURCES = (*cases.MATRIX, "dcsc", "compressed,dense", "csr/int64")


@pytest.mark.parametrize("source", cases.some_slow(SOURCES, ("coo",)))
def test_conversions_of_any_entries(source: str) -> None:
    """Duplicates, any order, capacity, empty rows, stored zeros; in all forms."""
    for n, fill in enumerate(cases.FILLS):
        fmt, form = FULL[n % len(FULL)], FORMS[(n + SOURCES.index(source)) % len(FORMS)]
        if "dia" in fmt:
            form = form.replace("jit", "jit frozen") if form == "jit" else form
        a, x = cases.operand(cases.seed("any", source, fill), (5, 7), source, fill)
        b = called(form, lambda a, fmt=fmt: a.to(fmt), a)
        same(b, x)
        assert b.frozen == ("frozen" in form)


@pytest.mark.parametrize(("fmt", "form"), [p for p in turns(2) if "jit" in p.values[1]])
@pytest.mark.parametrize("shape", [(9, 13), (0, 4)], ids=str)
def test_conversions_under_jit(shape: tuple[int, int], fmt: str, form: str) -> None:
    """To and from other formats within one program; entries are counted there, too."""
    if not fits(fmt, shape):
        return
    a, x = make(fmt, shape)
    index = "/int64" if "int64" in fmt else ""
    g = SPARING[FILLED.index(fmt) % 4] + index
    fixed = fmt in DIAGONALS and form == "jit"  # only of a known pattern

    def f(a: Any, source: Any) -> Any:
        b = a.to(g)
        more = (a.todense(), b.to("csr[2,2]")) if fixed else (b.to(fmt), source.to(fmt))
        return a.nnz, b, *more

    nnz, *results = called(form, f, a, js.fromdense(x, g))
    assert nnz == a.nnz
    for y in results:
        same(y, x)


@pytest.mark.parametrize("fmt", cases.some_slow([f for f in FILLED if f not in DIAGONALS], QUICK))
def test_from_dense_under_jit(fmt: str) -> None:
    """With a capacity where the format has one."""
    a, x = make(fmt, (9, 13))
    nse = a.nse if parse_format(fmt, 2).appended else None
    same(jax.jit(lambda x: js.fromdense(x, fmt, nse))(x), x)


def test_the_same_array() -> None:
    """What keeps the pattern keeps the format."""
    for fmt in FILLED:
        a, x = make(fmt, (9, 13))
        same(a.T.T, x)
        same(a.freeze().unfreeze(), x)
        same(a.with_data(2 * np.asarray(a.data)), 2 * x)
        same(jax.tree.unflatten(jax.tree.structure(a), jax.tree.leaves(a)), x)
        assert a.freeze().pattern is a.freeze().pattern
        assert a.freeze().format.canonical
        if fmt in QUICK:
            b = a.astype(np.float16)
            assert (b.dtype, b.format) == (np.float16, a.format)
            same(b, x)


DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "complex64", "complex128", "int32", "int8"),
    "bool",
)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", cases.some_slow(DTYPES, ("float32", "bfloat16", "bool")))
def test_dtypes(dtype: str, family: str) -> None:
    """Conversions are exact; products with a vector and a matrix take turns."""
    kind, number = jnp.dtype(dtype), DTYPES.index(dtype)
    formats = FAMILIES[family]
    fmt = formats[5 * number % len(formats)]
    a, x = make(fmt, (41, 50), kind)
    assert a.dtype == kind
    for y in (a, a.to("csc"), js.fromdense(x).to(fmt)):
        same(y, x, 0)
    z = a.todense()
    assert z.dtype == kind
    same(z, x, 0)
    v = full("dtype", (50, 5), kind)[:, : 1 + 4 * (number % 2)]
    y = a @ (v if number % 2 else v[:, 0])
    assert y.dtype == kind
    exact = np.complex128 if kind.kind == "c" else np.float64
    want = x.astype(exact) @ v.astype(exact)
    want = want.astype(kind) if kind.kind in "ib" else want
    same(np.reshape(y, want.shape), want, 0.02)

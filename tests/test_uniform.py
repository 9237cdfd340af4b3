# SPDX-License-Identifier: Apache-2.0
"""Levels with one number of coordinates in each fiber, ELL and N:M: text, conversions, einsums,
derivatives, errors.  The oracle is dense NumPy in float64.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jsparse as js
from jsparse import config, pipeline
from jsparse.errors import CapacityError, FormatError, StructureError
from jsparse.format import Format, blocked, parse_format
from jsparse.ir import interpret
from jsparse.ir.index import parse_assignment
from jsparse.levels import Dense, Uniform
from jsparse.lower import chunks
from jsparse.schedule import auto
from jsparse.validate import validate

XLA = (jax.errors.JaxRuntimeError, ValueError)  # what a failed kernel reaches Python as
pytestmark = pytest.mark.usefixtures("x64")

ELL = ("dense,uniform(3)", "dense,uniform(2)@1,0", "dense,uniform(1)", "compressed,uniform(2)")
NM = ("dense[1,2:4]", "dense,dense[2:4,1]@1,0", "csr[1,2:4]", "dense[2,1:3]", "dense[2:4,2]")
FORMATS = (*ELL, *NM, "dense,uniform(2)/int64", "dense[1,2:4]/int64")
SHAPES = ((8, 12), (9, 13), (1, 5), (3, 3), (0, 4))
SOME_SHAPES = cases.some_slow(SHAPES, ((9, 13), (0, 4)))
SOME = (ELL[0], ELL[3], NM[0], NM[2])


def fits(fmt: str, shape: tuple[int, int]) -> bool:
    """Whether the mode of the uniform level has as many coordinates as it stores."""
    f = parse_format(fmt, 2)
    n = f.sparse_levels[-1]
    return bool(f.block) or (f.levels[n].children or 0) <= shape[f.order[n]]


DTYPES = ("float64", "float32", "float16", "bfloat16", "complex64", "int32", "int8", "bool")


def fiber_of(f: Format, shape: tuple[int, ...]) -> np.ndarray:
    """The number of the fiber of its uniform level that each place of an array lies in, and its
    coordinate there.
    """
    block = f.block or (1,) * len(shape)
    at = np.indices(shape)
    outer = [c // b for c, b in zip(at, block, strict=True)]
    inner = [c % b for c, b in zip(at, block, strict=True) if b != 1]
    coords = [(*outer, *inner)[m] for m in f.order]
    n = f.sparse_levels[-1]
    fiber = np.zeros(shape, np.int64)
    for c in coords[:n]:
        fiber = fiber * (int(c.max(initial=0)) + 1) + c
    return np.stack([fiber, coords[n]])


def dense(shape: tuple[int, ...], fmt: str, dtype: Any = np.float64) -> np.ndarray:
    """A random array that fits a format: fibers of as many coordinates as it says, fewer, none."""
    f = parse_format(fmt, len(shape))
    rng = cases.seed(shape, fmt)
    x = cases.values(rng, shape, dtype)
    drop = rng.random(shape) < 0.6
    size = f.levels[f.sparse_levels[-1]].children
    kept: dict[int, set[int]] = {}
    numbers = fiber_of(f, shape).reshape(2, -1).T
    for place in rng.permutation(len(numbers)):
        fiber, c = (int(k) for k in numbers[place])
        seen = kept.setdefault(fiber, set())
        if not drop.flat[place] and (c in seen or len(seen) < size):
            seen.add(c)
        else:
            x.flat[place] = 0
    return x


def same(got: Any, want: np.ndarray, rtol: float = 1e-5) -> None:
    """Equal shape, close values; index arrays of a sparse result as its format promises."""
    if isinstance(got, js.SparseArray):
        proper(got)
        got = got.todense()
    assert got.shape == want.shape
    exact = np.complex128 if np.dtype(want.dtype).kind == "c" else np.float64
    np.testing.assert_allclose(np.asarray(got, exact), want.astype(exact), rtol=rtol, atol=rtol)


def proper(a: js.SparseArray) -> None:
    """Fibers of a uniform level: in range, ascending, as many as there are positions above."""
    arrays = tuple(np.asarray(x) for x in a.arrays)
    assert all(x.dtype == a.format.index for x in arrays)
    assert a.data.shape[0] == arrays[-1].size or not a.format.canonical
    ordered, unique = validate(a.format, a.shape, arrays, "test")
    assert ordered or not a.format.canonical
    assert unique or not a.format.canonical


# ----------------------------------------------------------------------- text
@pytest.mark.parametrize(
    ("text", "ndim"),
    [(f, 2) for f in (*FORMATS, "dense,uniform(3)(-ou)", "dense[1,2:4(-o)]", "dense[4,2:4]")]
    + [("dense,dense,uniform(4)", 3), ("csf[1,1,2:4]", 3), ("dense,uniform(2),dense", 3)]
    + [("dense,dense[2:4,2]@0,1,3,2", 2), ("uniform(5)", 1)],
)
def test_text_parses_back(text: str, ndim: int) -> None:
    f = parse_format(text, ndim)
    for axes in itertools.permutations(range(ndim)):
        g = f.transpose(axes)
        assert parse_format(str(g), ndim) == g
        assert g.transpose(tuple(axes.index(m) for m in range(ndim))) == f
    assert str(f) == text
    if f == f.tighten():
        assert repr(js.fromdense(np.zeros((8,) * ndim), f)).startswith(f"SparseArray({text}, ")


def test_parts_are_levels() -> None:
    f = parse_format("dense[1,2:4]", 2)
    assert f.split == parse_format("dense,dense,uniform(2:4)", 3)
    assert (f.outer, f.whole) == (parse_format("dense", 2), parse_format("csr", 2))
    assert str(f.transpose((1, 0))) == "dense,dense[2:4,1]@1,0"
    assert f == blocked(f.outer, (1, 4), {1: Uniform(size=2, of=4)})
    ell = parse_format("dense,uniform(8)", 2)
    assert ell.appendable == parse_format("csr", 2)
    assert not ell.appended
    assert not Uniform(size=2).keeps(Uniform(size=3))
    assert Uniform(size=2).keeps(Uniform(size=2, ordered=False))


@pytest.mark.parametrize(
    "text",
    [
        *("dense,uniform", "dense,uniform(0)", "dense,uniform(4:2)", "uniform(2),compressed"),
        *("dense[1,4:4]", "dense[1,0:4]", "dense[1,2:4:6]", "dense[1,2:]", "dense,compressed(2:4)"),
        "dense[2:4,2:4]",
    ],
)
def test_text_that_says_no_format(text: str) -> None:
    with pytest.raises(FormatError, match="format"):
        parse_format(text, 2)


# ---------------------------------------------------------------- conversions
@pytest.mark.parametrize("shape", SOME_SHAPES, ids=str)
@pytest.mark.parametrize("fmt", FORMATS)
def test_conversions(fmt: str, shape: tuple[int, int]) -> None:
    """From dense, to and from other formats, transposed; frozen and not; entries are counted."""
    if not fits(fmt, shape):
        return
    x = dense(shape, fmt)
    a = js.fromdense(x, fmt)
    assert str(a.format) == fmt
    same(a, x)
    same(a.T, x.T)
    same(a.T.to("csr"), x.T)
    assert a.nse == a.data.size
    for g, freeze in itertools.product(("csr", "coo", "csc[2,2]", "dcsc"), (False, True)):
        b = (a.freeze() if freeze else a).to(g)
        same(b, x)
        assert b.frozen == freeze
        if "[" not in g:
            assert b.nnz == a.nnz
            source = js.fromdense(x, g)
            c = (source.freeze() if freeze else source).to(fmt)
            assert c.frozen == freeze
            same(c, x)
            assert c.data.shape == a.data.shape
    same(a.freeze().unfreeze(), x)
    assert a.freeze().nnz == a.nnz
    same(a.astype(np.float32), x.astype(np.float32))
    same(a.with_data(2 * a.data), 2 * x)
    same(jax.tree.unflatten(jax.tree.structure(a), jax.tree.leaves(a)), x)


@pytest.mark.parametrize("source", cases.some_slow(cases.MATRIX, ("coo",)))
@pytest.mark.parametrize("fill", cases.FILLS)
def test_conversions_of_any_entries(source: str, fill: str) -> None:
    """Duplicates, order, capacity, empty rows: what rows of full length hold."""
    rng = cases.seed("uniform", source, fill)
    a, d = cases.operand(rng, (5, 7), source, fill)
    for fmt in ("dense,uniform(7)", "dense,uniform(5)@1,0"):
        for b in (a, a.freeze()):
            same(b.to(fmt), d)
            same(jax.jit(lambda a, fmt=fmt: a.to(fmt))(b), d)
            same(jax.jit(lambda a, fmt=fmt: a.to(fmt).to("csc"))(b), d)


@pytest.mark.parametrize("shape", [(9, 13), (0, 4)], ids=str)
@pytest.mark.parametrize("fmt", FORMATS)
def test_conversions_under_jit(fmt: str, shape: tuple[int, int]) -> None:
    if not fits(fmt, shape):
        return
    x = dense(shape, fmt)
    a = js.fromdense(x, "csr/int64" if "int64" in fmt else "csr")
    for b in (a, a.freeze()):
        c = jax.jit(lambda a: a.to(fmt))(b)
        same(c, x)
        same(jax.jit(lambda a: a.to("coo"))(c), x)
        assert c.format == js.fromdense(x, fmt).format
    same(jax.jit(lambda x: js.fromdense(x, fmt))(x), x)
    assert jax.jit(lambda a: a.nnz)(a.to(fmt)) == a.to(fmt).nnz


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str) -> None:
    kind = jnp.dtype(dtype)
    for fmt in ("dense,uniform(3)", "dense[1,2:4]"):
        x = dense((9, 8), fmt, kind)
        v = cases.values(cases.seed("v"), (8, 5), kind)
        a = js.fromdense(x, fmt)
        assert a.dtype == kind
        np.testing.assert_array_equal(a.todense(), x)
        np.testing.assert_array_equal(a.to("csc").todense(), x)
        np.testing.assert_array_equal(js.fromdense(x).to(fmt).todense(), x)
        want = np.asarray(x, np.complex128) @ np.asarray(v, np.complex128)
        if dtype == "bool":
            want = want != 0
        for y in (a @ jnp.asarray(v), (a @ jnp.asarray(v[:, 0]))[:, None]):
            w = want[:, : y.shape[1]]
            np.testing.assert_allclose(np.asarray(y, np.complex128), w, rtol=0.02, atol=0.1)


def test_which_coordinates_fill_up() -> None:
    """The least ones that a fiber does not use, with zeros, also where they are the last places."""
    x = np.zeros((4, 6))
    x[0, 4], x[1, 0], x[1, 5], x[3, :3] = 1, 2, 3, 4
    a = js.fromdense(x, "dense,uniform(3)")
    assert np.asarray(a.structure[0]).reshape(4, 3).tolist() == [
        [0, 1, 4],
        [0, 1, 5],
        [0, 1, 2],
        [0, 1, 2],
    ]
    assert np.asarray(a.data).reshape(4, 3).tolist() == [[0, 0, 1], [2, 0, 3], [0, 0, 0], [4, 4, 4]]
    assert (a.nse, a.nnz) == (12, 12)
    assert js.fromdense(x[:, :3], "dense,uniform(3)").nnz == 12


# -------------------------------------------------------------------- einsums
EINSUMS = (
    *("ij,jk->ik", "ij,kj->ki", "ij,j->i", "ij,i->j", "ij,ij->ij", "ij->", "ij->i", "ij->j"),
    *("ij->ji", "ij,j->ij", "ij,ik,jk->ij", "ij,jk,kl->il", "ij,ik->jk", "ij,j,i->", "ij,jk,k->i"),
)
EXTENT = {"i": 9, "j": 14, "k": 37, "l": 3}


def operands(einsum: str, fmt: str, other: str) -> tuple[list[Any], list[np.ndarray]]:
    """The first operand in `fmt`, further matrices of the same variables in `other`."""
    names = einsum.split("->")[0].split(",")
    shapes = [tuple(EXTENT[v] for v in n) for n in names]
    rng = cases.seed(einsum, fmt)
    arrays = [dense(shapes[0], fmt), *[cases.values(rng, s, np.float64) for s in shapes[1:]]]
    ops = [js.fromdense(arrays[0], fmt)]
    for x in arrays[1:]:
        ops.append(js.fromdense(x, other) if other != "dense" and x.ndim == 2 else jnp.asarray(x))
    return ops, arrays


@pytest.mark.parametrize("other", cases.some_slow(("dense", "csr"), ("dense",)))
@pytest.mark.parametrize("fmt", cases.some_slow(FORMATS[:9], (ELL[0], NM[0])))
@pytest.mark.parametrize("einsum", EINSUMS)
def test_einsum(einsum: str, fmt: str, other: str) -> None:
    """Against NumPy: eagerly, frozen, under `jit`."""
    ops, arrays = operands(einsum, fmt, other)
    want = np.einsum(einsum, *arrays)
    frozen = [x.freeze() if isinstance(x, js.SparseArray) else x for x in ops]

    def f(*ops: Any) -> Any:
        return js.einsum(einsum, *ops, out_format="dense")

    first = js.einsum(einsum, *ops)
    same(first, want)
    same(js.einsum(einsum, *frozen), want)
    same(jax.jit(f)(*frozen), want)
    if other == "dense":
        same(jax.jit(f)(*ops), want)
        if isinstance(first, js.SparseArray):
            swap = einsum == "ij->ji"
            assert first.format == (ops[0].T if swap else ops[0]).format


@pytest.mark.parametrize("shape", cases.some_slow(SHAPES, ((9, 13), (1, 5))), ids=str)
@pytest.mark.parametrize("fmt", FORMATS)
def test_products(fmt: str, shape: tuple[int, int]) -> None:
    """Matrix products with every extent."""
    if not fits(fmt, shape):
        return
    x = dense(shape, fmt, np.float32)
    a = js.fromdense(x, fmt)
    v = cases.values(cases.seed("v"), (shape[1], 43), np.float32)
    u = cases.values(cases.seed("u"), (shape[0],), np.float32)
    same(a @ v, x @ v, 1e-4)
    same(a @ v[:, 0], x @ v[:, 0], 1e-4)
    same(v.T @ a.T, v.T @ x.T, 1e-4)
    same(a.T @ u, x.T @ u, 1e-4)
    same(a.freeze().T @ u, x.T @ u, 1e-4)
    same(a.sum(1), x.sum(1), 1e-4)


@pytest.mark.parametrize("fmt", cases.some_slow(FORMATS[:9], SOME[1:3]))
def test_elementwise(fmt: str) -> None:
    x, y = dense((9, 6), fmt), dense((9, 6), fmt)[::-1] + np.eye(9, 6)
    a = js.fromdense(x, fmt)
    for b in (js.fromdense(y, "csr"), js.fromdense(y, "csc"), js.fromdense(y, "csr[2,2]"), a):
        z = np.asarray(b.todense())
        same(a + b, x + z)
        same(a - b, x - z)
        same(b - a, z - x)
        same(a * b, x * z)
        same(js.einsum("ij,jk->ik", b, a.T), z @ x.T)
        f = a.freeze()
        same(jax.jit(lambda b, f=f: f + b)(b.freeze()), x + z)
    same(a + jnp.asarray(y), x + y)
    same(3 * a / 2, 1.5 * x)
    assert (2 * a).format == a.format
    same(a[1:8, 3], x[1:8, 3])
    same(a.reshape(6, 9), x.reshape(6, 9))
    same(js.concatenate([a, js.fromdense(y)], 1), np.concatenate([x, y], 1))


def test_wishes() -> None:
    """`out_format`, `like` and `nse` with uniform levels on either side."""
    x = dense((9, 8), "dense[1,2:4]")
    y = cases.values(cases.seed("y"), (8, 7), np.float64)
    for fmt in ("dense,uniform(8)", "dense[1,2:4]"):
        a = js.fromdense(x, fmt)
        for out in ("csr", "csr[4,4]", "dense", "dense,uniform(7)"):
            same(js.einsum("ij,jk->ik", a, y, out_format=out), x @ y)
            got = js.einsum("ij,jk->ik", js.fromdense(x), js.fromdense(y), out_format=out)
            same(got, x @ y)
        same(js.einsum("ij,ij->ij", js.fromdense(x), x, out_format=fmt), x * x)
        for want in (a, a.freeze()):
            stored = np.asarray(a.with_data(jnp.ones_like(a.data)).todense())
            got = js.einsum("ij,kj->ik", jnp.asarray(x), jnp.asarray(np.eye(8)), like=want)
            assert got.format == a.format
            same(got, x * stored)
        same(jax.jit(lambda a, b: js.add(a, b, nse=a.nse + b.nse))(a, a), 2 * x)


def test_three_modes() -> None:
    v = cases.values(cases.seed("v"), (8, 3), np.float64)
    for fmt in (
        *("dense,dense,uniform(2)", "csf[1,1,2:4]", "dense,compressed,uniform(3)"),
        *("dense,dense,uniform(2)@2,0,1", "dense[1,2:4,1]", "dense,uniform(2),dense"),
        "compressed,dense,uniform(2)",
    ):
        x = dense((5, 6, 8), fmt)
        a = js.fromdense(x, fmt)
        same(a, x)
        same(a.to("csf"), x)
        same(js.fromdense(x, "coo").to(fmt), x)
        same(jax.jit(lambda a, fmt=fmt: a.to(fmt))(js.fromdense(x, "csf")), x)
        same(js.einsum("ijk,kl->ijl", a, v), np.einsum("ijk,kl->ijl", x, v))
        same(js.einsum("ijk,jk->i", a, x[0]), np.einsum("ijk,jk->i", x, x[0]))
        same(js.einsum("ijk->kj", a), x.sum(0).T)


INTERPRETED = (
    ("Y[i]:dense:float64", "A[i,j]:{}:float64 * B[j]:dense:float64"),
    ("Y[j]:dense:float64", "A[i,j]:{}:float64 * B[i]:dense:float64"),
    ("Y[i,j]:like(A):float64", "A[i,j]:{}:float64 * B[j]:dense:float64"),
    ("Y[k,i]:dense:float64", "A[i,j]:{}:float64 * B[k,j]:dense:float64"),
)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("parts", INTERPRETED, ids=" = ".join)
def test_the_interpreter_agrees(
    parts: tuple[str, str], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loads and stores within bounds, each value written, for any number of chunks."""
    monkeypatch.setattr(chunks, "GRAIN", 8)
    sizes = ("dense,uniform(3)", "dense,uniform(20)", "dense,uniform(2)@1,0")
    for fmt, shape in itertools.product(sizes, ((8, 21), (23, 23), (0, 25))):
        if not fits(fmt, shape):
            continue
        d = dense(shape, fmt)
        a = js.fromdense(d, fmt)
        y = parse_assignment(" = ".join(parts).format(fmt))
        extent = dict(zip("ij", shape, strict=True)) | {"k": 3}
        b = y.operands[1].vars
        x = cases.values(cases.seed(b), tuple(extent[v] for v in b), np.float64)
        want = np.einsum(f"ij,{''.join(b)}->{''.join(y.output.vars)}", d, x)
        plan = auto.plan(y, tuple(extent[v] for v in y.vars), (a.nse, 0))
        kernel = pipeline.lower.__wrapped__(pipeline.Spec(plan.assignment, plan.schedule))
        got = np.full(want.shape if y.shares is None else a.data.shape, np.nan)
        numbers = [extent[v] for v in plan.assignment.vars]
        layout = plan.assignment.operands[1].format.order
        args = [
            np.asarray(a.data),
            np.asarray(a.arrays[0]),
            np.ascontiguousarray(x.transpose(layout)),
        ]
        out = plan.assignment.output.format.order
        into = got if y.shares is not None else np.ascontiguousarray(got.transpose(out))
        interpret.run(kernel, args, [into], numbers, threads)
        assert np.isfinite(into).all()
        same(into.transpose(np.argsort(out)) if y.shares is None else a.with_data(into), want)


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_conversion_is_interpreted(fmt: str) -> None:
    """The fit by the interpreter, by the kernel and by the reference are the same."""
    x = dense((6, 9), fmt)
    a = js.fromdense(x, fmt).split()
    f = a.format
    plain = js.fromdense(x, fmt).to("csr").split()
    source = js.fromdense(a.todense(), f.appendable)
    text = "Y[{0}]:{1}:pattern = A[{0}]:{2}:pattern".format(
        ",".join("ijkl"[: f.ndim]), f, f.appendable
    )
    spec = pipeline.Spec(parse_assignment(text), (), "fit")
    assert pipeline.from_recipe(spec.recipe()) == spec
    size = math.prod(np.asarray(a.arrays[-1]).shape)
    results = [np.full(size, -7, f.index), np.full(size, -7, f.index)]
    numbers = [a.shape["ijkl".index(v)] for v in spec.assignment.vars]
    kernel = pipeline.lower.__wrapped__(spec)
    interpret.run(kernel, [np.asarray(y) for y in source.arrays], results, numbers)
    np.testing.assert_array_equal(results[0], a.arrays[-1])
    data = np.append(np.asarray(source.data).reshape(source.data.shape[0], -1), 0)
    if not f.dense_tail:
        np.testing.assert_array_equal(data[results[1]], np.asarray(a.data))
    jax.clear_caches()
    with config.override(backend="reference"):
        again = jax.jit(lambda a: a.to(f))(source)
    jax.clear_caches()
    for left, right in zip(jax.tree.leaves(again), jax.tree.leaves(a), strict=True):
        np.testing.assert_array_equal(left, right)
    same(plain, np.asarray(plain.todense()))


def test_kernels_spell_short_fibers_out() -> None:
    a = js.fromdense(dense((40, 30), "dense,uniform(3)"), "dense,uniform(3)")
    text = str(js.explain("ij,j->i", a, jnp.ones(30)))
    assert text.count("* B_vals[j]") == 3
    assert "A1_pos" not in text
    n = js.fromdense(dense((8, 32), "dense[1,2:4]"), "dense[1,2:4]")
    text = str(js.explain("ij,jk->ik", n, jnp.ones((32, 8))))
    assert "dense[1,2:4]" in text
    assert "j_in_dim" not in text
    assert "pA2_end" not in text


# ----------------------------------------------------------------- transforms
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("fmt", cases.some_slow((*ELL[:2], *NM), (ELL[0], NM[0])))
def test_gradients(fmt: str, frozen: bool) -> None:
    """Of a product, a sampled one and a conversion, in values and in dense operands."""
    x = dense((9, 6), fmt)
    rng = cases.seed("gradient")
    v, u = (jnp.asarray(cases.values(rng, s, np.float64)) for s in ((6, 4), (9, 4)))
    a = js.fromdense(x, fmt)
    a = a.freeze() if frozen else a
    stored = a.with_data(jnp.ones_like(a.data)).todense()

    def f(d: Any, v: Any, u: Any) -> Any:
        b = a.with_data(d)
        moved = (b.to("csr").to("csc") @ v[:, 0]).sum() + (b.T @ u[:, 0] ** 2).sum()
        sampled = js.einsum("ij,ik,jk->ij", b, u, v).todense()
        return jnp.sin(b @ v).sum() + (sampled**2).sum() + moved

    def g(x: Any, v: Any, u: Any) -> Any:
        moved = (x @ v[:, 0]).sum() + (x.T @ u[:, 0] ** 2).sum()
        return jnp.sin(x @ v).sum() + ((x * (u @ v.T)) ** 2).sum() + moved

    for h in (f, jax.jit(f)):
        got = jax.grad(h, (0, 1, 2))(a.data, v, u)
        want = jax.grad(g, (0, 1, 2))(jnp.asarray(x), v, u)
        np.testing.assert_allclose(
            a.with_data(got[0]).todense(), want[0] * stored, rtol=1e-8, atol=1e-12
        )
        np.testing.assert_allclose(got[1], want[1], rtol=1e-8)
        np.testing.assert_allclose(got[2], want[2], rtol=1e-8)
    c = js.fromdense(x, "csr")
    c = c.freeze() if frozen else c
    got = jax.jit(jax.grad(lambda d: (c.with_data(d).to(fmt) @ v).sum()))(c.data)
    want = jax.grad(lambda d: (c.with_data(d) @ v).sum())(c.data)
    np.testing.assert_allclose(got, want, rtol=1e-10)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("fmt", [ELL[0], NM[0]])
def test_vmap(fmt: str, frozen: bool) -> None:
    x = dense((9, 6), fmt)
    a = js.fromdense(x, fmt)
    a = a.freeze() if frozen else a
    v = jnp.asarray(cases.values(cases.seed("vmap"), (3, 6), np.float64))
    same(jax.vmap(lambda v: a @ v)(v), np.asarray(v) @ x.T)
    scale = jnp.arange(1.0, 4.0)
    data = scale[:, None] * a.data
    got = jax.vmap(lambda d, v: a.with_data(d) @ v)(data, v)
    same(got, np.asarray(scale)[:, None] * (np.asarray(v) @ x.T))
    same(jax.vmap(lambda d: a.with_data(d).todense())(data), scale[:, None, None] * x)
    if frozen:
        return
    b = js.fromdense(x)  # a batch of patterns, converted and multiplied
    many = jax.tree.map(lambda y: jnp.stack([y, y]), b)
    same(jax.vmap(lambda m, v: m.to(fmt) @ v)(many, v[:2]), np.asarray(v)[:2] @ x.T)


def test_carried_through_control_flow_and_export() -> None:
    for fmt in (ELL[0], NM[0]):
        x = dense((8, 6), fmt)
        a = js.fromdense(x, fmt)
        out = jax.lax.fori_loop(0, 3, lambda _, b: 2 * b, a)
        assert out.format == a.format
        same(out, 8 * x)
        for b in (a, a.freeze()):
            program = jax.export.export(
                jax.jit(lambda a, v: a @ v), disabled_checks=js.export_checks()
            )(b, jnp.ones(6))
            again = jax.export.deserialize(program.serialize())
            same(again.call(b, jnp.ones(6)), x.sum(1))


@pytest.mark.parametrize("fmt", cases.some_slow(FORMATS[:9], SOME))
def test_in_pure_jax(fmt: str) -> None:
    """The reference computes the same, with gradients, where no kernel runs."""
    x, v = dense((7, 6), fmt), cases.values(cases.seed("v"), (6, 3), np.float64)
    a = js.fromdense(x, fmt)
    stored = np.asarray(a.with_data(jnp.ones_like(a.data)).todense())
    jax.clear_caches()
    with config.override(backend="reference"):
        same(jax.jit(lambda a: a @ v)(a), x @ v)
        same(jax.jit(lambda a: js.einsum("ij,ij->ij", a, x))(a), x * x)
        same(jax.jit(lambda a: a.to("coo"))(a), x)
        same(jax.jit(lambda a: a.to(fmt))(js.fromdense(x, "coo")), x)
        same(a + js.fromdense(x, "csr"), 2 * x)
        got = js.grad(lambda a: ((a @ v) ** 2).sum())(a)
        same(got.todense(), 2 * (x @ v) @ v.T * stored)
    jax.clear_caches()


# ----------------------------------------------------------- files and errors
def test_files_and_scipy(tmp_path: Path) -> None:
    for fmt in (ELL[0], NM[0]):
        x = dense((9, 7), fmt)
        a = js.fromdense(x, fmt)
        for name in ("b.npz", "b.mtx"):
            js.save(tmp_path / name, a)
            same(js.load(tmp_path / name), x)
        assert a.to_scipy().format == "csr"
        np.testing.assert_array_equal(a.to_scipy().toarray(), x)
        same(js.asarray(a.to_scipy(), "csc"), x)
        same(js.asarray(a.to_bcoo()), x)
        assert js.random(jax.random.key(0), (6, 9), 0.1, "dense,uniform(9)").shape == (6, 9)


def test_a_fiber_with_too_many_entries() -> None:
    x = np.zeros((4, 6))
    x[2, 1:5] = 1
    a = js.fromdense(x)
    words = r"row 2 has 4 entries, expected at most 3; the most in one are 4"
    for b in (a, a.freeze(), js.fromdense(x, "coo"), js.fromdense(x, "csc")):
        with pytest.raises(CapacityError, match=words):
            b.to("dense,uniform(3)")
    with pytest.raises(CapacityError, match="row 2 has 4"):
        js.fromdense(x, "dense,uniform(3)")
    with pytest.raises(CapacityError, match=r"fiber 4 has 3 entries, expected at most 2"):
        a.to("dense[1,2:4]")
    for f in (lambda a: a.to("dense,uniform(3)").data, lambda a: a.to("dense[1,2:4]").data):
        with pytest.raises(XLA, match=r"fiber \d has \d entries, expected at most \d"):
            jax.block_until_ready(jax.jit(f)(a))
    with pytest.raises(XLA, match=r"fiber 2 has 4 entries, expected at most 3"):
        jax.block_until_ready(jax.jit(lambda x: js.fromdense(x, "dense,uniform(3)").data)(x))
    jax.clear_caches()
    with config.override(backend="reference"):
        f = jax.jit(lambda a: a.to("dense,uniform(3)").data)
        with pytest.raises(XLA, match="a fiber has 4 entries, expected at most 3"):
            jax.block_until_ready(f(a))
    jax.clear_caches()


def test_errors() -> None:
    a = js.fromdense(np.eye(4, 3))
    with pytest.raises(FormatError, match=r"stores 4 different .* an extent of 3"):
        a.to("dense,uniform(4)")
    with pytest.raises(FormatError, match=r"stores 1 different .* an extent of 0"):
        js.fromdense(np.zeros((4, 0)), "dense,uniform(1)")
    for fmt in ("dense,uniform(2)", "dense[1,2:4]"):
        with pytest.raises(CapacityError, match="no capacity"):
            a.to(fmt, nse=7)
    b = js.fromdense(np.eye(4, 6), "dense,uniform(2)")
    damaged = jnp.asarray([0, 6, *b.structure[0][2:]], "int32")
    c = js.SparseArray(b.data, (damaged,), b.shape, b.format)
    with pytest.raises(XLA, match=r"crd\[1\] is 6, expected 0 <= crd < 6"):
        jax.block_until_ready(c @ jnp.ones(6))
    with pytest.raises(StructureError, match=r"coordinate 6 at position 1 is out of range"):
        c.freeze()
    for wrong in (damaged[:-1], damaged[:-2], jnp.zeros((0,), "int32")):
        d = js.SparseArray(b.data, (wrong,), b.shape, b.format)
        with pytest.raises(StructureError, match=r"expected int32\[8\]"):
            d @ jnp.ones(6)
        with pytest.raises(StructureError, match=r"expected \(8,\)"):
            d.freeze()
    fewer = js.SparseArray(b.data[:-1], b.structure, b.shape, b.format)
    with pytest.raises(StructureError, match="expected float64 and 8 of them"):
        fewer @ jnp.ones(6)
    with pytest.raises(FormatError, match="block"):
        Format((Dense(), Dense(), Uniform(size=2)), (0, 1, 2), "int32", (1, 4))


def test_what_does_not_ascend_is_never_out_of_bounds() -> None:
    """Index arrays that break the promises give wrong values at worst, with an order given up
    right ones.
    """
    x = dense((6, 9), "dense,uniform(3)")
    a = js.fromdense(x, "dense,uniform(3)")
    crd = np.asarray(a.structure[0]).reshape(6, 3)[:, ::-1].reshape(-1)
    data = np.asarray(a.data).reshape(6, 3)[:, ::-1].reshape(-1)
    bad = js.SparseArray(jnp.asarray(data), (jnp.asarray(crd),), a.shape, a.format)
    for y in (bad @ x.T, bad + a, bad * a, bad.to("csr"), bad.T @ x):
        jax.block_until_ready(y)
    loose = parse_format("dense,uniform(3)(-o)", 2)
    b = js.SparseArray(jnp.asarray(data), (jnp.asarray(crd),), a.shape, loose)
    for c in (b, b.freeze()):
        same(c @ x.T, x @ x.T)
        same(c + a, 2 * x)
        same(c * a, x * x)
        same(c.to("csr"), x)
        same(c.to("dense,uniform(3)"), x)
        same(c.T @ x, x.T @ x)


def test_auto_finds_rows_of_one_length() -> None:
    """For products with some columns, if rows have nearly the same number of few entries."""
    x = np.zeros((60, 90), np.float32)
    rng = cases.seed("auto", "uniform")
    for i in range(60):
        x[i, rng.choice(90, 7 + (i % 9 > 0), replace=False)] = 1
    for a in (js.fromdense(x), js.fromdense(x, "csc").freeze()):
        b = a.to("auto", use=16)
        assert str(b.format) == "dense,uniform(8)"
        assert b.frozen == a.frozen
        same(b, x)
        assert str(b.to("csr").to("auto").format) == "csr"
        assert str(a.to("auto", use="spmm").format) == "csr"
    x[3, :40] = 1
    assert str(js.fromdense(x).to("auto", use=16).format) == "csr"

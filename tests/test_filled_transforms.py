# SPDX-License-Identifier: Apache-2.0
"""Derivatives, batches, loops and export of every format that stores zeros; SciPy and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filled import DIAGONALS, FILLED, QUICK, frozen, full, inside, make, same, stored, turns

import jsparse as js

pytestmark = pytest.mark.usefixtures("x64")


# ---------------------------------------------------------------- derivatives
def loss(a: Any, v: Any, u: Any) -> Any:
    """A product, a sampled one and a conversion; `a` is sparse or dense."""
    if isinstance(a, js.SparseArray):
        moved, sampled = a.to("csr").to("csc"), js.einsum("ij,ik,jk->ij", a, u, v).todense()
    else:
        moved, sampled = a, a * (u @ v.T)
    turned = (moved @ v[:, 0]).sum() + (a.T @ u[:, 0] ** 2).sum()
    return jnp.sin(a @ v).sum() + (sampled**2).sum() + turned


def mixed(a: Any, v: Any, u: Any) -> Any:
    """The sum of the gradient in `v`: its gradient is of second order."""
    return jax.grad(loss, 1)(a, v, u).sum()


WANTED = jax.jit(jax.grad(loss, (0, 1, 2)))  # of dense arrays: one program for all formats
WANTED_SECOND = jax.jit(jax.grad(mixed))
WANTED_TANGENT = jax.jit(lambda x, t, v, u: jax.jvp(lambda x: loss(x, v, u), (x,), (t,))[1])
POINT = (9, 6)


def _at() -> tuple[cases.Array, cases.Array]:
    return full("v", (6, 4)), full("u", (9, 4))


@pytest.mark.parametrize(("fmt", "form"), turns(0, ("csr[4,4]", "dia", "dense[1,2:4]")))
def test_gradients(fmt: str, form: str) -> None:
    """In values and in dense operands; none in what is stored beyond the array."""
    a, x = make(fmt, POINT, "float64")
    (a,), (v, u) = frozen(form, a), _at()
    f = jax.grad(lambda d, v, u: loss(a.with_data(d), v, u), (0, 1, 2))
    got = (jax.jit(f) if "jit" in form else f)(a.data, v, u)
    want = WANTED(x, v, u)
    assert np.isfinite(got[0]).all()
    assert not np.asarray(got[0])[~inside(a)].any()
    same(a.with_data(got[0]), np.asarray(want[0]) * stored(a), 1e-9)
    same(got[1], want[1], 1e-9)
    same(got[2], want[2], 1e-9)


@pytest.mark.parametrize(("fmt", "form"), turns(1, ("coo[2,2]", "dia", "dense,uniform(3)")))
def test_gradients_through_a_conversion(fmt: str, form: str) -> None:
    """Into the format; diagonals must be known under a trace."""
    _, x = make(fmt, POINT, "float64")
    v, _ = _at()
    c = js.fromdense(x, "csr")
    c = c.freeze() if "frozen" in form or fmt in DIAGONALS else c
    f = jax.grad(lambda d: ((c.with_data(d).to(fmt) @ v) ** 2).sum())
    got = (jax.jit(f) if "jit" in form else f)(c.data)
    same(c.with_data(got), 2 * (x @ v) @ v.T * (x != 0), 1e-9)


SECOND = ("csr[2,4]", "csc[3,2]", "coo[2,2]", "dia", "diagonal,dense", "dense,uniform(3)")
SECOND += ("dense[1,2:4]", "csr[1,2:4]")


@pytest.mark.parametrize("fmt", cases.some_slow(SECOND, ("csr[2,4]", "dia")))
def test_second_derivatives_and_tangents(fmt: str) -> None:
    a, x = make(fmt, POINT, "float64")
    (v, u), mask = _at(), stored(a)
    a = a.freeze() if SECOND.index(fmt) % 2 else a
    second = jax.jit(jax.grad(lambda d: mixed(a.with_data(d), v, u)))(a.data)
    same(a.with_data(second), np.asarray(WANTED_SECOND(x, v, u)) * mask, 1e-8)
    tangent = np.ones(a.data.shape)
    _, got = jax.jvp(jax.jit(lambda d: loss(a.with_data(d), v, u)), (a.data,), (tangent,))
    same(got, WANTED_TANGENT(x, mask.astype(np.float64), v, u), 1e-8)


# -------------------------------------------------------------------- batches
@pytest.mark.parametrize(("fmt", "form"), turns(2, ("csr[4,4]", "dia", "dense,uniform(3)")))
def test_vmap(fmt: str, form: str) -> None:
    """Over vectors; over values and vectors; over patterns."""
    a, x = make(fmt, POINT, "float64")
    (a,), v, u = frozen(form, a), full("batch", (3, 6)), full("other", (3, 9))
    scale = np.arange(1.0, 4.0)
    data = np.multiply.outer(scale, np.asarray(a.data))
    wrap = jax.jit if "jit" in form else lambda f: f

    def each(d: Any, v: Any) -> Any:
        b = a.with_data(d)
        return b @ v, b.todense(), js.einsum("ij,j->ij", b, v).data

    product, whole, scaled = wrap(jax.vmap(each))(data, v)
    same(product, scale[:, None] * (v @ x.T))
    same(whole, np.multiply.outer(scale, x))
    same(a.with_data(scaled[1]), 2 * x * v[1])
    product, turned = wrap(jax.vmap(lambda v, u: (a @ v, a.T @ u)))(v, u)
    same(product, v @ x.T)
    same(turned, u @ x)
    if "frozen" in form:
        return
    many = jax.tree.map(lambda y: np.stack([y, y]), a)
    same(wrap(jax.vmap(lambda m, v: m @ v))(many, v[:2]), v[:2] @ x.T)
    if fmt not in DIAGONALS:
        b = jax.tree.map(lambda y: np.stack([y, y]), js.fromdense(x))
        same(wrap(jax.vmap(lambda m, v: m.to(fmt) @ v))(b, v[:2]), v[:2] @ x.T)


# ----------------------------------------------------------- loops and export
@pytest.mark.parametrize("fmt", cases.some_slow(FILLED[::3] + QUICK, QUICK))
def test_carried_through_control_flow_and_export(fmt: str) -> None:
    a, x = make(fmt, (8, 6))
    out = jax.lax.fori_loop(0, 3, lambda _, b: 2 * b, a)
    assert out.format == a.format
    same(out, 8 * x)
    v = full("export", (6,), x.dtype)
    product = jax.jit(lambda a, v: a @ v)
    for b in (a, a.freeze()):
        program = jax.export.export(product, disabled_checks=js.export_checks())(b, v)
        same(jax.export.deserialize(program.serialize()).call(b, v), x @ v)


# ------------------------------------------------------------ SciPy and files
@pytest.mark.parametrize("fmt", cases.some_slow(FILLED[1::3] + QUICK, QUICK))
def test_files_scipy_and_jax(fmt: str, tmp_path: Path) -> None:
    a, x = make(fmt, (9, 7))
    for name in ("a.npz", "a.mtx"):
        js.save(tmp_path / name, a)
        same(js.load(tmp_path / name), x)
    same(js.load(tmp_path / "a.npz", "csc").to("csr"), x)
    s = a.to_scipy()
    np.testing.assert_array_equal(s.toarray(), x)
    same(js.asarray(s), x)
    same(js.asarray(s, "csc"), x)
    np.testing.assert_array_equal(a.T.to_scipy().toarray(), x.T)
    b = a.to_bcoo()
    same(b.todense(), x)
    same(js.asarray(b), x)


@pytest.mark.parametrize("fmt", ["csr[2,4]", "dia", "dense,uniform(9)"])
def test_random(fmt: str) -> None:
    a = js.random(jax.random.key(0), (6, 9), 0.1, fmt)
    assert (a.shape, str(a.format)) == ((6, 9), fmt)
    same(a.todense(), np.asarray(a.to("csr").todense()))

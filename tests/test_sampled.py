# SPDX-License-Identifier: Apache-2.0
"""Results at a given pattern, and what else fuzzing found: kinds, not instances."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jsparse as js
from jsparse import config
from jsparse.errors import FormatError

SHAPE = (4, 5)
RNG = np.random.default_rng(5)
X = np.where(RNG.random(SHAPE) < 0.6, RNG.standard_normal(SHAPE), 0).astype(np.float32)
MASK = RNG.random(SHAPE) < 0.5
MASK[0] = True


def pattern(fmt: str, kind: str) -> js.SparseArray:
    """The pattern MASK: as it is, with its coordinates in any order, or with each of them twice."""
    coords = np.array(np.nonzero(MASK))
    if kind == "unsorted":
        coords = coords[:, np.random.default_rng(1).permutation(coords.shape[1])]
    if kind == "twice":
        coords = np.repeat(coords, 2, axis=1)
    ones = np.ones(coords.shape[1], np.float32)
    if fmt == "coo" or kind == "plain":
        return js.coo(ones, coords, SHAPE) if fmt == "coo" else js.coo(ones, coords, SHAPE).to(fmt)
    major, minor = (0, 1) if fmt == "csr" else (1, 0)
    order = np.argsort(coords[major], kind="stable")
    pos = np.searchsorted(coords[major][order], np.arange(SHAPE[major] + 1))
    make = js.csr if fmt == "csr" else js.csc
    return make(ones, coords[minor][order], pos, SHAPE)


@pytest.mark.parametrize("kind", ["plain", "unsorted", "twice"])
@pytest.mark.parametrize("fmt", ["csr", "csc", "coo"])
def test_like(fmt: str, kind: str) -> None:
    """Each entry of the pattern once, whatever the pattern's order and the operands' formats."""
    like = pattern(fmt, kind)
    b = RNG.standard_normal((5, 5)).astype(np.float32)
    for source, freeze in itertools.product(("csr", "csc", "coo", "dense"), (False, True)):
        a = X if source == "dense" else js.fromdense(X, source)
        want = like.freeze() if freeze else like
        jitted = jax.jit(lambda a, b, want: js.einsum("ij,jk->ik", a, b, like=want).todense())
        masked = np.where(MASK, X @ b, 0)
        np.testing.assert_allclose(jitted(a, b, want), masked, rtol=1e-4, atol=1e-5)
        full = js.einsum("ij,ij->ij", a, X, like=want).todense()
        np.testing.assert_allclose(full, np.where(MASK, X * X, 0), rtol=1e-5)
        product = js.einsum("ij,jk->ik", a, b, like=want).todense()
        np.testing.assert_allclose(product, np.where(MASK, X @ b, 0), rtol=1e-4, atol=1e-5)


def test_sparse_results_of_dense_operands() -> None:
    b = RNG.standard_normal((5, 5)).astype(np.float32)
    like = pattern("csr", "plain")
    got = js.einsum("ij,jk->ik", jnp.asarray(X), b, like=like)
    np.testing.assert_allclose(got.todense(), np.where(MASK, X @ b, 0), rtol=1e-4, atol=1e-5)
    full = js.einsum("ij,jk->ik", jnp.asarray(X), b, out_format="csr")
    assert full.nse == 20
    np.testing.assert_allclose(full.todense(), X @ b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fmt", ["csr", "csc", "coo", "dcsr"])
@pytest.mark.parametrize("subscripts", ["ki,ii->ki", "ki,ii->i", "ki,ii->"])
def test_gradients_of_diagonals(subscripts: str, fmt: str) -> None:
    a = js.fromdense(X[:, :4], fmt)
    b = js.fromdense(X[:, :4] + np.eye(4, dtype=np.float32), fmt)

    def loss(f: Any, b: Any) -> Any:
        y = f(b)
        y = y.todense() if isinstance(y, js.SparseArray) else y
        return jnp.sum(y**2)

    got = js.grad(lambda b: loss(lambda b: js.einsum(subscripts, a, b), b))(b).todense()
    dense = jax.grad(lambda b: loss(lambda b: jnp.einsum(subscripts, a.todense(), b), b))
    want = jnp.where(b.todense() != 0, dense(b.todense()), 0)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "fmt",
    [
        "dense,compressed,dense@2,0,1",
        "dense,dense,compressed",
        "csf",
        "coo",
        "compressed,dense,dense",
    ],
)
@pytest.mark.parametrize("subscripts", ["ij,ijk->j", "ij,ijk->ik", "ij,ijk->"])
def test_frozen_mixed_formats(subscripts: str, fmt: str) -> None:
    x = np.where(RNG.random((3, 4, 4)) < 0.4, RNG.standard_normal((3, 4, 4)), 0).astype(np.float32)
    c = js.fromdense(x, "coo").to(fmt).freeze()
    p = js.fromdense(X[:3, :4])
    dense = lambda p: jnp.sum(jnp.einsum(subscripts, p, x) ** 2)  # noqa: E731

    def sparse(p: js.SparseArray) -> Any:
        y = js.einsum(subscripts, p, c)
        return jnp.sum((y.todense() if isinstance(y, js.SparseArray) else y) ** 2)

    np.testing.assert_allclose(sparse(p), dense(p.todense()), rtol=1e-4)
    want = jnp.where(p.todense() != 0, jax.grad(dense)(p.todense()), 0)
    np.testing.assert_allclose(js.grad(sparse)(p).todense(), want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("few", [1, 4, 30])
@pytest.mark.parametrize("fmt", ["dense,dense,compressed", "csf", "coo"])
def test_eager_calls_with_few_frozen_entries(fmt: str, few: int) -> None:
    i = np.arange(few)
    b = js.coo(np.ones(few, np.float32), [i % 17, i % 2, i % 5], (17, 2, 5)).to(fmt)
    dense = b.todense()
    v = jnp.arange(2.0)
    for x in (b, b.freeze()):
        y = js.einsum("kij,i->kj", x, v)
        y = y.todense() if isinstance(y, js.SparseArray) else y
        np.testing.assert_allclose(y, jnp.einsum("kij,i->kj", dense, v))
        z = js.einsum("kij,j->ki", x, jnp.ones(5))
        z = z.todense() if isinstance(z, js.SparseArray) else z
        np.testing.assert_allclose(z, dense.sum(2))


def test_a_singleton_level_says_that_coordinates_may_repeat() -> None:
    a = js.fromdense(X, "coo")
    with pytest.raises(FormatError, match="compressed\\(-u\\)"):
        a.to("compressed,singleton@1,0")
    b = a.to("compressed(-u),singleton@1,0")
    np.testing.assert_array_equal((a - b).todense(), 0 * X)


def test_the_fallback_raises_what_kernels_raise() -> None:
    """Without a compiler: damaged index arrays, and results beyond their capacity."""
    a = js.fromdense(X)
    crd = a.structure[1].at[0].set(99)
    damaged = dataclasses.replace(a, structure=(a.structure[0], crd))
    with config.override(backend="reference"):
        jax.clear_caches()
        np.testing.assert_allclose(a @ X.T, X @ X.T, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose((a @ a.T).todense(), X @ X.T, rtol=1e-4, atol=1e-5)
        for run in (lambda f: f, jax.jit):
            with pytest.raises(Exception, match="damaged"):
                jax.block_until_ready(run(lambda a: a @ X.T)(damaged))
            with pytest.raises(Exception, match="nse=|capacity"):
                jax.block_until_ready(run(lambda a: js.matmul(a, a.T, nse=2).data)(a))
    jax.clear_caches()

# SPDX-License-Identifier: Apache-2.0
"""The reference, in pure JAX, computes for every format that stores zeros what kernels compute.

In a file of its own: programs that hold kernels are forgotten once before it, and those of the
reference once after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import cases
import jax
import numpy as np
import pytest
from filled import BLOCKS, DIAGONALS, FILLED, QUICK, full, make, same, stored

import jsparse as js
from jsparse import config
from jsparse.codegen import build

ERRORS = (jax.errors.JaxRuntimeError, ValueError)  # what a failed program reaches Python as
pytestmark = pytest.mark.usefixtures("x64")


@pytest.fixture(scope="module", autouse=True)
def only_the_reference() -> Iterator[None]:
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Settings for a `with` block in which no kernel runs."""

    def enter() -> Any:
        monkeypatch.setattr(build, "submit", lambda *_: pytest.fail("a kernel runs"))
        return config.override(backend="reference")

    return enter


@pytest.mark.parametrize("fmt", cases.some_slow(FILLED, QUICK))
def test_values(fmt: str, no_kernels: Any) -> None:
    """A product and its gradient; the others take turns over the formats."""
    a, x = make(fmt, (7, 6), "float64")
    v, u, w = full("v", (6, 3)), full("u", (7,)), full("w", (7, 6))
    some = slice(FILLED.index(fmt) % 3, None, 3)

    def values(a: Any) -> tuple[Any, ...]:
        fs = (lambda: js.einsum("ij,ij->ij", a, w), a.todense, lambda: a @ v[:, 0])
        gs = (lambda: a.T @ u, lambda: js.einsum("ij->", a), lambda: js.einsum("ij,i->ij", a, u))
        return tuple(f() for f in (*fs, *gs)[some])

    def loss(a: Any) -> Any:
        y = a @ v
        return (y**2).sum(), (y, values(a))

    wants = (x * w, x, x @ v[:, 0], x.T @ u, x.sum(), x * u[:, None])
    with no_kernels():
        (_, (y, gots)), da = jax.jit(jax.value_and_grad(loss, has_aux=True, allow_int=True))(a)
    same(y, x @ v)
    for got, want in zip(gots, wants[some], strict=True):
        same(got, want)
    same(a.with_data(da.data), 2 * (x @ v) @ v.T * stored(a))


CONVERTED = ("csr[2,4]", "dia", "dense,uniform(3)", "dense[1,2:4]", "coo[3,2]", "csc[2,3]")
CONVERTED += ("diagonal,dense", "compressed,uniform(2)", "dense[2:4,2]", "dense,uniform(2)@1,0")


@pytest.mark.parametrize("fmt", cases.some_slow(CONVERTED, CONVERTED[:3]))
def test_conversions(fmt: str, no_kernels: Any) -> None:
    """Out of and into the format in one program; index arrays equal those of the kernels."""
    a, x = make(fmt, (7, 6), "float64")
    b = js.fromdense(x, ("coo", "csr")[CONVERTED.index(fmt) % 2])
    if fmt in DIAGONALS:
        b = b.freeze()
    want = b.to(fmt)

    def f(a: Any, b: Any) -> Any:
        return a.to("coo", nse=x.size), b.to(fmt)

    with no_kernels():
        there, back = jax.jit(f)(a, b)
    same(there, x)
    same(back, x)
    assert back.format == want.format
    if fmt not in BLOCKS and "compressed" not in fmt:  # else capacity follows
        for left, right in zip(back.arrays, want.arrays, strict=True):
            np.testing.assert_array_equal(left, right)


def test_eagerly(no_kernels: Any) -> None:
    """Out of any format with dense levels below the sparse ones; dynamic and frozen."""
    a, x = make("dense,compressed,dense@1,0,2", (4, 5, 3), "float64")
    with no_kernels():
        same(a.to("coo"), x)
        same(a.freeze().to("csf"), x)


@pytest.mark.slow
def test_blocks_eagerly(no_kernels: Any) -> None:
    a, x = make("csr[2,4]", (7, 6), "float64")
    b = js.fromdense(x[::-1], "csr")
    with no_kernels():
        same(a.freeze().to("coo"), x)
        same(a + b, x + x[::-1])


def test_sums_of_rows_of_one_length(no_kernels: Any) -> None:
    a, x = make("dense,uniform(3)", (7, 6), "float64")
    b = js.fromdense(x[::-1], "csr")
    with no_kernels():
        same(jax.jit(lambda a, b: js.add(a, b, nse=2 * x.size))(a, b), x + x[::-1])


def test_a_fiber_with_too_many_entries(no_kernels: Any) -> None:
    x = np.zeros((4, 6))
    x[2, 1:5] = 1
    a = js.fromdense(x)
    with no_kernels(), pytest.raises(ERRORS, match="a fiber has 4 entries, expected at most 3"):
        jax.block_until_ready(jax.jit(lambda a: a.to("dense,uniform(3)").data)(a))

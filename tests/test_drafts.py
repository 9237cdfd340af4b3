# SPDX-License-Identifier: Apache-2.0
"""Results of one walk that are packed afterwards (`lower.draft`), beside those that are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from cases import assert_same, seed

import jsparse as js
from jsparse import assembly, convert

pytestmark = pytest.mark.usefixtures("x64")

SHAPES = [(0, 4), (4, 0), (1, 9), (9, 1), (300, 500), (40, 300_000)]
ONE_WALK: dict[str, Callable[..., Any]] = {
    "A + B": lambda a, b, c: a + b,
    "A - B": lambda a, b, c: a - b,
    "A * B": lambda a, b, c: a * b,
    "A C": lambda a, b, c: a @ c,
    "A + A": lambda a, b, c: a + a,
}


@pytest.mark.parametrize(
    "shape", [(0, 4), (4, 0), (1, 9), (9, 1), (300, 500), (40, 300_000)], ids=str
)
@pytest.mark.parametrize("name", ONE_WALK)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32", "complex64", "bool"])
def test_drafts_and_counts_give_the_same(
    dtype: str, name: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of one walk, packed, are those of counting and filling, bit by bit."""
    rng = seed("drafts", dtype, shape)

    def random(n: int, m: int) -> js.SparseArray:
        count = min(3000, n * m // 2)
        at = rng.choice(n * m, count, replace=False) if count else np.zeros(0, int)
        data = jnp.asarray(rng.integers(0, 5, count) - 2).astype(dtype)
        coords = (at // max(m, 1), at % max(m, 1))
        return js.coo(data, coords, (n, m)).to("csr")

    n, m = shape
    a, b, c = random(n, m), random(n, m), random(m, 70 if m > 1000 else m)
    if name in ("A C", "A - B") and dtype == "bool":
        pytest.skip("numbers only")
    monkeypatch.setattr(assembly, "DRAFT_FROM", 0)
    taken: list[bool] = []

    def draft_and_pack(*args: Any) -> Any:
        taken.append(True)
        return assembly.draft_and_pack(*args)

    monkeypatch.setattr(convert, "draft_and_pack", draft_and_pack)
    got = ONE_WALK[name](a, b, c)
    assert taken == [True] or 0 in shape
    monkeypatch.setattr(convert, "drafts", lambda *_: (False, None))
    want = ONE_WALK[name](a, b, c)
    assert len(taken) <= 1
    assert (got.format, got.shape, got.nse) == (want.format, want.shape, want.nse)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert x.dtype == y.dtype
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.mark.parametrize("few", [2, 40])
@pytest.mark.parametrize("columns", [63, 64, 4097, 1 << 18, (1 << 18) + 1, (1 << 22) + 1])
def test_sets_of_every_width(columns: int, few: int) -> None:
    """A workspace is a few bits, many bits, stamps, or a hash table, by the width of a row."""
    rng = seed("widths", columns, few)
    a = sp.random_array((90, 30), density=0.5, rng=rng).tocsr()
    j, k = rng.integers(0, 30, 30 * few), rng.integers(0, columns, 30 * few)
    k[:2] = 0, columns - 1
    b = sp.coo_array((rng.standard_normal(j.size), (j, k)), (30, columns)).tocsr()
    x, y = (js.csr(m.data, m.indices, m.indptr, m.shape) for m in (a, b))
    want = (a @ b).tocsr()
    for got in (x @ y, js.einsum("ij,jk->ik", x, y, nse=want.nnz + 3)):
        found = got.to_scipy().tocsr()
        assert found.has_sorted_indices
        assert found[:, :].nnz == want.nnz
        assert abs(found - want).max() < 1e-12


def test_a_draft_that_would_be_too_large_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    a, x = cases.operand(seed("large"), (60, 60), "csr", "full_row")
    monkeypatch.setattr(assembly, "MOST_DRAFT", 16)
    for got, want in ((a @ a, x @ x), (a + a, x + x)):
        assert_same(got, want)


@pytest.mark.parametrize("what", ["pos", "crd"])
def test_drafts_check_their_operands(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damaged index arrays are an error, not a read out of bounds."""
    m = sp.random_array((200, 300), density=0.05, rng=np.random.default_rng(0)).tocsr()
    good = js.csr(m.data, m.indices, m.indptr, m.shape)
    pos, crd = (np.array(x) for x in good.arrays)
    (pos if what == "pos" else crd)[7] = 10**6
    bad = replace(good, structure=(jnp.asarray(pos), jnp.asarray(crd)))
    monkeypatch.setattr(assembly, "DRAFT_FROM", 0)
    square = good.T.to("csr")
    for run in (lambda: bad + good, lambda: good * bad, lambda: bad @ square, lambda: square @ bad):
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match="operand"):
            jax.block_until_ready(jax.tree.leaves(run()))

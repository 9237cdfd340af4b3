# SPDX-License-Identifier: Apache-2.0
"""Products with fibers of one length: `python tests/bench/uniform.py`.

ELL: rows of equally many entries, times a vector and a matrix, stored as such, in csr and in SciPy.
N:M: weights with 2 entries in every 4 columns, times the transposed batch, as in a pruned layer.
CPU time of the process, median of rounds in which all variants take turns, as ratios to the product
with the uniform level; pin it to one CPU (`taskset -c 0`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from measure import medians

import jsparse as js

ROUNDS = flags.DEFINE_integer("rounds", 21, "rounds")
ROWS = flags.DEFINE_integer("rows", 100_000, "rows of the ELL matrices")
WEIGHTS = flags.DEFINE_integer("weights", 4096, "rows and columns of the weights")
BATCH = flags.DEFINE_integer("batch", 32, "columns of the dense factor")
ENTRIES = (4, 8, 16, 32)  # of a row


def ell(n: int, entries: int) -> js.SparseArray:
    """n rows of that many random columns, in csr."""
    rng = np.random.default_rng(0)
    columns = np.sort(rng.integers(0, n - entries, (n, entries)), axis=1) + np.arange(entries)
    data = rng.standard_normal(n * entries).astype(np.float32)
    return js.csr(data, columns.reshape(-1), entries * np.arange(n + 1), (n, n))


def pruned(n: int, kept: int, of: int) -> np.ndarray:
    """A dense n x n matrix with `kept` entries in every `of` columns."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((n, n // of, of)).astype(np.float32)
    drop = np.argsort(np.abs(w), axis=2)[:, :, : of - kept]
    np.put_along_axis(w, drop, 0, axis=2)
    return w.reshape(n, n)


def row(name: str, a: js.SparseArray, plain: js.SparseArray, text: str, x: Any) -> None:
    m, b = plain.to_scipy(), jnp.asarray(x)
    multiply = jax.jit(lambda a, b: js.einsum(text, a, b))
    right = x.T if text.endswith(",bj->ib") else x
    runs: dict[str, Any] = {"uniform": lambda: multiply(a, b), "csr": lambda: multiply(plain, b)}
    runs |= {"SciPy csr": lambda: m @ right}
    if a.size <= 1 << 24:
        d = plain.todense()
        runs["dense"] = lambda: multiply(d, b)
    want = m @ right
    for name_, run in runs.items():
        np.testing.assert_allclose(run(), want, rtol=1e-2, atol=1e-2, err_msg=name_)
    times = dict(zip(runs, medians(list(runs.values()), ROUNDS.value), strict=True))
    first = times["uniform"]
    ratios = "   ".join(f"{n} {t / first:5.2f}" for n, t in times.items() if n != "uniform")
    print(f"{name:36} {first:8.3f} ms   {ratios}", flush=True)


def main(_: list[str]) -> None:
    rng = np.random.default_rng(1)
    n = ROWS.value
    for entries in ENTRIES:
        plain = ell(n, entries)
        a = plain.to(f"dense,uniform({entries})")
        for columns in (0, 16, 64):
            x = rng.standard_normal((n, columns) if columns else n).astype(np.float32)
            text = "ij,jk->ik" if columns else "ij,j->i"
            row(f"{n} rows of {entries}, x {columns or 1}", a, plain, text, x)
    w, size = pruned(WEIGHTS.value, 2, 4), WEIGHTS.value
    a, plain = js.fromdense(w, "dense[1,2:4]"), js.fromdense(w)
    for shape, text in (((size, BATCH.value), "ij,jb->ib"), ((BATCH.value, size), "ij,bj->ib")):
        row(f"2:4, {text}", a, plain, text, rng.standard_normal(shape).astype(np.float32))
    row("2:4, ij,j->i", a, plain, "ij,j->i", rng.standard_normal(size).astype(np.float32))


if __name__ == "__main__":
    app.run(main)

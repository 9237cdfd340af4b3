# SPDX-License-Identifier: Apache-2.0
"""Products with matrices of dense blocks: `python tests/bench/blocks.py [--sizes=2x2,4x4,8x8]`.

Each matrix stored in blocks and without them, here and in SciPy, times a vector and a matrix.
CPU time of the process, median of rounds in which all variants take turns, as ratios to the product
with blocks; pin it to one CPU (`taskset -c 0`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from absl import app, flags
from measure import medians

import jsparse as js

SIZES = flags.DEFINE_list("sizes", ["4x4"], "rows and columns of a block")
COLUMNS = flags.DEFINE_integer("columns", 64, "columns of the dense matrix")
ROUNDS = flags.DEFINE_integer("rounds", 21, "rounds")
SHAPES = ((100_000, 10), (10_000, 100))  # rows, entries of a row


def matrix(n: int, entries: int, r: int, c: int) -> Any:
    """A matrix of about n rows with that many entries each, in r x c blocks anywhere."""
    rng = np.random.default_rng(0)
    rows, columns, each = n // r, n // c, max(1, round(entries / c))
    j = np.concatenate([np.sort(rng.choice(columns, each, replace=False)) for _ in range(rows)])
    data = rng.standard_normal((j.size, r, c)).astype(np.float32)
    pos = each * np.arange(rows + 1)
    return sp.bsr_array(
        (data, j.astype(np.int32), pos.astype(np.int32)), shape=(rows * r, columns * c)
    )


def row(name: str, m: Any, x: np.ndarray) -> None:
    plain, b = m.tocsr(), jnp.asarray(x)
    arrays = {"blocks": js.asarray(m), "csr": js.asarray(plain)}
    multiply = jax.jit(lambda a, x: a @ x)
    for a in arrays.values():
        np.testing.assert_allclose(multiply(a, b), plain @ x, rtol=1e-2, atol=1e-3)
    runs = {n: (lambda a=a: multiply(a, b)) for n, a in arrays.items()}
    runs |= {"SciPy bsr": lambda: m @ x, "SciPy csr": lambda: plain @ x}
    times = dict(zip(runs, medians(list(runs.values()), ROUNDS.value), strict=True))
    first = times["blocks"]
    ratios = "   ".join(f"{n} {t / first:5.2f}" for n, t in times.items() if n != "blocks")
    print(f"{name:36} blocks {first:8.3f} ms   {ratios}", flush=True)


def main(_: list[str]) -> None:
    rng = np.random.default_rng(1)
    for size in SIZES.value:
        r, c = (int(b) for b in size.split("x"))
        for n, entries in SHAPES:
            m = matrix(n, entries, r, c)
            for columns in (0, COLUMNS.value):
                shape = (m.shape[1], columns) if columns else (m.shape[1],)
                x = rng.standard_normal(shape).astype(np.float32)
                row(f"{size}, {n} rows of {entries}, x {columns or 1}", m, x)


if __name__ == "__main__":
    app.run(main)

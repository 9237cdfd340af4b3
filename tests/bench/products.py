# SPDX-License-Identifier: Apache-2.0
"""Products beside SciPy, JAX's BCSR and BCOO, and torch: `python tests/bench/products.py`.

Float32, a uniform and a power-law graph.  Patterns are frozen, so what a library can prepare once
for a pattern (the transpose, a compiled program) is not timed; patterns of sparse results are:
jsparse counts and makes them in each call, as SciPy does.  CPU time of the process, median of
rounds in which all take turns; pin it to one CPU (`taskset -c 0`).  Every result is compared with
SciPy's in float64.  `pip install ".[bench]"` brings torch; it is left out where it is absent.

The last column is the time over that of the roofline: every array read or written once at the speed
of a copy, or the operations at the speed of a dense product, whichever takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from absl import app, flags
from jax.experimental import sparse as jax_sparse
from measure import Run, bandwidth, graph, medians, moved, peak

import jsparse as js

ROWS = flags.DEFINE_integer("rows", 50_000, "rows and columns of the graphs")
DEGREE = flags.DEFINE_integer("degree", 10, "mean entries in a row")
ROUNDS = flags.DEFINE_integer("rounds", 9, "rounds")

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

Row = dict[str, Run]


def jitted(f: Callable[..., Any], *operands: Any) -> Run:
    g = jax.jit(f)
    return lambda: g(*operands)


def rows(kind: str) -> Iterator[tuple[str, Row, Any, int, int]]:
    """Name, a call by library, the right answer, bytes of operands, and operations."""
    n = ROWS.value
    a, b = graph(kind, n, DEGREE.value), graph(kind, n, DEGREE.value, seed=1)
    frozen, s, t = a.freeze(), a.to_scipy().tocsr(), b.to_scipy().tocsr()
    exact, other = s.astype(np.float64), t.astype(np.float64)
    bcsr, bcoo = jax_sparse.BCSR.from_scipy_sparse(s), jax_sparse.BCOO.from_scipy_sparse(s)
    with_torch = torch is not None
    if with_torch:
        torch.set_num_threads(1)
        crow, col = torch.from_numpy(s.indptr), torch.from_numpy(s.indices)
        tensor = torch.sparse_csr_tensor(crow, col, torch.from_numpy(s.data), s.shape)
    rng = np.random.default_rng(2)
    for width in (1, 16, 64):
        x = rng.standard_normal((n, width)).astype(np.float32)
        x = x[:, 0] if width == 1 else x
        d, k = jnp.asarray(x), "" if width == 1 else "k"
        name = "A x" if width == 1 else f"A X, {width} columns"
        row = {
            "jsparse": jitted(lambda a, d, k=k: js.einsum(f"ij,j{k}->i{k}", a, d), frozen, d),
            "SciPy": lambda x=x: s @ x,
            "BCSR": jitted(lambda a, d: a @ d, bcsr, d),
            "BCOO": jitted(lambda a, d: a @ d, bcoo, d),
        }
        if with_torch:
            y = torch.from_numpy(x)
            row["torch"] = lambda y=y: tensor @ y
        yield name, row, exact @ x, moved(a, d), 2 * a.nse * width
        name, turned = name.replace("A", "A^T"), s.T.tocsr()
        row = {
            "jsparse": jitted(lambda a, d, k=k: js.einsum(f"ji,j{k}->i{k}", a, d), frozen, d),
            "SciPy": lambda x=x, turned=turned: turned @ x,
            "BCOO": jitted(lambda a, d: a.T @ d, bcoo, d),
        }
        yield name, row, exact.T @ x, moved(a, d), 2 * a.nse * width
    u, v = rng.standard_normal((2, n, 32)).astype(np.float32)
    i, j = s.tocoo().coords
    row = {
        "jsparse": jitted(
            lambda a, u, v: js.einsum("ij,ik,jk->ij", a, u, v).data,
            frozen,
            *map(jnp.asarray, (u, v)),
        ),
        "NumPy": lambda: s.data * np.einsum("pk,pk->p", u[i], v[j]),
    }
    want = exact.data * np.einsum("pk,pk->p", u[i], v[j], dtype=np.float64)
    yield "SDDMM, 32 columns", row, want, moved(a, u, v), 2 * a.nse * 32
    both = moved(a, b)
    row = {"jsparse": lambda: a + b, "SciPy": lambda: s + t}
    yield "A + B", row, exact + other, both, a.nse + b.nse
    row = {"jsparse": lambda: a * b, "SciPy": lambda: s.multiply(t)}
    yield "A * B", row, exact.multiply(other), both, min(a.nse, b.nse)
    row = {"jsparse": lambda: a @ b, "SciPy": lambda: s @ t}
    work = int(np.diff(t.indptr)[s.indices].sum())
    yield "A B", row, exact @ other, both, 2 * work


def check(name: str, library: str, got: Any, want: Any) -> None:
    if isinstance(got, js.SparseArray):
        got = got.to_scipy()
    if sp.issparse(want):
        wrong = abs(sp.csr_array(got) - want).max() / abs(want).max()
    else:
        wrong = np.abs(np.asarray(got) - want).max() / np.abs(want).max()
    if not wrong < 1e-4:
        raise ValueError(f"{name}: {library} is off by {wrong:.1e}")


def main(_: list[str]) -> None:
    libraries = ["jsparse", "SciPy", "NumPy", "BCSR", "BCOO", *(["torch"] if torch else [])]
    speed, flops = bandwidth(), peak()
    print(f"Roofline: {speed / 1e9:.1f} GB/s, {flops / 1e9:.0f} GFLOP/s\n")
    columns = [*(f"{x}, ms" for x in libraries), "best other / jsparse", "x roofline"]
    print("| | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    ratios = []
    for kind in ("uniform", "power-law"):
        for name, row, want, read, work in rows(kind):
            for library, run in row.items():
                check(name, library, run(), want)
            least = 1e3 * max((read + moved(row["jsparse"]())) / speed, work / flops)
            times = dict(zip(row, medians(list(row.values()), ROUNDS.value), strict=True))
            ratios.append(min(t for x, t in times.items() if x != "jsparse") / times["jsparse"])
            cells = " | ".join(f"{times[x]:.2f}" if x in times else "" for x in libraries)
            far = times["jsparse"] / least
            print(f"| {name}, {kind} | {cells} | {ratios[-1]:.2f} | {far:.1f} |", flush=True)
    mean = math.exp(sum(math.log(r) for r in ratios) / len(ratios))
    print(f"\nGeometric mean of the best other library over jsparse: {mean:.2f}")


if __name__ == "__main__":
    app.run(main)

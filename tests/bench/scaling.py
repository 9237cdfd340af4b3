# SPDX-License-Identifier: Apache-2.0
"""Time and memory by the number of stored entries: `python tests/bench/scaling.py --most=8`.

Products of a uniform graph with ten entries a row, from 10^4 entries to 10^`most`, each size in a
process of its own.  Prints nanoseconds and bytes for each entry, which stay level where cost is
linear, and plots both.  10^8 entries need some 8 GB.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from measure import medians

import jsparse as js

MOST = flags.DEFINE_integer("most", 7, "the power of ten of the most entries")
PLOT = flags.DEFINE_string("plot", "", "file for the plot; none without")
ONE = flags.DEFINE_integer("one", 0, "measure this number of entries alone and print JSON")
DEGREE = 10
CALLS = {"A x": ("ij,j->i", 1), "A X, 8 columns": ("ij,jk->ik", 8), "A^T x": ("ij,i->j", 1)}


def graph(nse: int) -> js.SparseArray:
    """Ten ascending columns in each row, at random steps: no sort, little memory."""
    n = nse // DEGREE
    rng = np.random.default_rng(0)
    crd = rng.integers(0, max(n // DEGREE, 1), (n, DEGREE), dtype=np.int32)
    crd += (np.arange(DEGREE, dtype=np.int32) * (n // DEGREE))[None]
    pos = np.arange(n + 1, dtype=np.int32) * DEGREE
    return js.csr(
        jnp.ones(nse, jnp.float32), crd.reshape(-1), pos, (n, n), sorted=True, unique=True
    )


def measure(nse: int) -> dict[str, tuple[float, float]]:
    """Milliseconds of each call, and most bytes of the process beyond those it began with."""
    jax.block_until_ready(jax.jit(jnp.sum)(jnp.ones(8)))
    before, out = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, {}
    a = graph(nse)
    for name, (einsum, width) in CALLS.items():
        x = jnp.ones((a.shape[1], width) if width > 1 else a.shape[1], jnp.float32)
        run = jax.jit(lambda a, x, einsum=einsum: js.einsum(einsum, a, x))
        (time,) = medians([lambda run=run, x=x: run(a, x)], 5)
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        out[name] = time, 1024.0 * held
    return out


def main(_: list[str]) -> None:
    if ONE.value:
        print(json.dumps(measure(ONE.value)))
        return
    sizes = [10**p for p in range(4, MOST.value + 1)]
    found = []
    print(
        "| entries | "
        + " | ".join(f"{c}, ns an entry" for c in CALLS)
        + " | peak, bytes an entry |"
    )
    print("|---" * (len(CALLS) + 2) + "|")
    for nse in sizes:
        command = [sys.executable, __file__, f"--one={nse}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        cells = " | ".join(f"{1e6 * found[-1][c][0] / nse:.2f}" for c in CALLS)
        print(f"| {nse:.0e} | {cells} | {found[-1]['A^T x'][1] / nse:.0f} |", flush=True)
    if PLOT.value:
        plot(sizes, found)


def plot(sizes: list[int], found: list[dict[str, tuple[float, float]]]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 4))
    for name in CALLS:
        axes[0].loglog(sizes, [f[name][0] for f in found], "o-", label=name)
    axes[1].loglog(sizes, [f["A^T x"][1] / 2**20 for f in found], "o-", label="beyond the start")
    for axis, what in zip(axes, ("CPU time, ms", "peak memory, MiB"), strict=True):
        axis.set(xlabel="stored entries", ylabel=what)
        axis.legend()
    figure.tight_layout()
    figure.savefig(PLOT.value)


if __name__ == "__main__":
    app.run(main)

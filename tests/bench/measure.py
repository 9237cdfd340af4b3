# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: graphs, and times of calls that take turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import jsparse as js

Run = Callable[[], Any]


def graph(kind: str, n: int, degree: int, seed: int = 0) -> js.SparseArray:
    """A graph in csr with `n * degree` edges, less doubles: "uniform", or with a "power-law" for
    both ends.
    """
    rng = np.random.default_rng(seed)
    ends = rng.random((2, n * degree))
    if kind == "power-law":
        ends = np.stack([ends[0] ** 2, ends[1] ** 3])
    i, j = (rng.permutation(n)[np.minimum((n * e).astype(int), n - 1)] for e in ends)
    return js.coo(np.ones(n * degree, np.float32), (i, j), (n, n)).to("csr")


def medians(runs: Sequence[Run], rounds: int) -> list[float]:
    """Median CPU milliseconds of each, taken in turns, so that all see the same machine."""
    samples: list[list[float]] = [[] for _ in runs]
    for run in runs:
        jax.block_until_ready(run())
    for _ in range(rounds):
        for run, times in zip(runs, samples, strict=True):
            start = time.process_time()
            jax.block_until_ready(run())
            times.append(1e3 * (time.process_time() - start))
    return [statistics.median(times) for times in samples]


def bandwidth() -> float:
    """Bytes that a core moves in a second when it copies what fits in no cache."""
    source, target = np.ones((2, 1 << 25), np.float32)
    (time,) = medians([lambda: np.copyto(target, source)], 7)
    return 1e3 * 2 * source.nbytes / time


def peak() -> float:
    """Float32 operations that a core does in a second, in a dense product."""
    a = np.ones((768, 768), np.float32)
    (time,) = medians([lambda: a @ a], 7)
    return 1e3 * 2 * 768**3 / time


def moved(*trees: Any) -> int:
    """Bytes of all arrays in `trees`, frozen patterns too."""
    thawed = [x.unfreeze() if isinstance(x, js.SparseArray) else x for x in trees]
    return sum(np.asarray(x).nbytes for x in jax.tree.leaves(thawed))

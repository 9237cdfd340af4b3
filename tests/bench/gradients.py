# SPDX-License-Identifier: Apache-2.0
"""What gradients cost beside the product itself: `python tests/bench/gradients.py [--rows=100000]`.

For SpMM, SDDMM and sparse x sparse, on a uniform and a power-law graph, frozen and dynamic: time
of the forward product, of the gradient in all operands (values and dense arrays), and their ratio.
CPU time of the process, median of rounds in which all variants take turns; pin it to one CPU
(`taskset -c 0`) on a busy machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags
from measure import Run, graph, medians

import jsparse as js

ROWS = flags.DEFINE_integer("rows", 100_000, "rows and columns of the graph of SpMM and SDDMM")
DEGREE = flags.DEFINE_integer("degree", 10, "mean entries in a row")
COLUMNS = flags.DEFINE_integer("columns", 64, "columns of the dense operands")
ROUNDS = flags.DEFINE_integer("rounds", 7, "rounds")


def wrapped(a: js.SparseArray, frozen: bool) -> tuple[Callable[..., js.SparseArray], Any]:
    """(values, structure) -> the array, and the structure to pass: none if it is frozen."""
    if frozen:
        fixed = a.freeze()
        return lambda d, s: fixed.with_data(d), ()
    return lambda d, s: js.SparseArray(d, s, a.shape, a.format), a.structure


def pair(f: Callable[..., Any], structure: Any, *operands: Any) -> tuple[Run, Run]:
    """The jitted function, and its jitted cotangents in all operands."""
    forward = jax.jit(f)
    seed = jnp.ones_like(forward(structure, *operands))
    backward = jax.jit(lambda s, g, *x: jax.vjp(lambda *x: f(s, *x), *x)[1](g))
    return (lambda: forward(structure, *operands)), (lambda: backward(structure, seed, *operands))


def problems(kind: str, frozen: bool) -> Iterator[tuple[str, tuple[Run, Run]]]:
    n, width = ROWS.value, COLUMNS.value
    a = graph(kind, n, DEGREE.value)
    u, v = jax.random.normal(jax.random.key(0), (2, n, width))
    array, s = wrapped(a, frozen)
    yield "SpMM", pair(lambda s, d, b: js.einsum("ij,jk->ik", array(d, s), b), s, a.data, v)
    yield (
        "SDDMM",
        pair(lambda s, d, u, v: js.einsum("ij,ik,jk->ij", array(d, s), u, v).data, s, a.data, u, v),
    )
    small = graph(kind, n // 5, DEGREE.value)
    nse = (small @ small).nse
    array_2, s_2 = wrapped(small, frozen)
    room = None if frozen else nse
    yield (
        "sparse x sparse",
        pair(
            lambda s, d, e: js.einsum("ij,jk->ik", array_2(d, s), array_2(e, s), nse=room).data,
            s_2,
            small.data,
            small.data,
        ),
    )


def main(_: list[str]) -> None:
    print(f"{'':30} {'forward':>10} {'gradient':>10} {'ratio':>6}")
    for kind in ("uniform", "power-law"):
        for frozen in (True, False):
            for name, runs in problems(kind, frozen):
                forward, backward = medians(runs, ROUNDS.value)
                label = f"{name}, {kind}, {'frozen' if frozen else 'dynamic'}"
                print(f"{label:30} {forward:8.1f}ms {backward:8.1f}ms {backward / forward:6.2f}")


if __name__ == "__main__":
    app.run(main)

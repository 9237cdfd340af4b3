# SPDX-License-Identifier: Apache-2.0
"""Fit edge weights and node features of a graph by gradient descent.

    python examples/training.py [--steps=200] [--plot=loss.png]

A hidden graph network, y = A relu(A X), made the targets.  The pattern of A is known; its weights
and the features X are learned with optax under `jit`.  The graph is frozen, so its values are the
only leaf that the optimizer sees.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

import jsparse as js

STEPS = flags.DEFINE_integer("steps", 200, "steps of gradient descent")
PLOT = flags.DEFINE_string("plot", "", "write the loss curve to this picture (needs matplotlib)")
NODES, DEGREE, WIDTH = 2000, 8, 16


def network(a: js.SparseArray, x: jax.Array) -> jax.Array:
    return a @ jax.nn.relu(a @ x)


def chart(losses: np.ndarray, width: int = 60, height: int = 10) -> str:
    """The loss on a logarithmic scale, in text."""
    y = np.log10(losses[np.linspace(0, len(losses) - 1, width).astype(int)])
    rank = np.round((y - y.min()) / max(np.ptp(y), 1e-9) * (height - 1)).astype(int)
    lines = ["".join("*" if r == h else " " for r in rank) for h in reversed(range(height))]
    return "\n".join(
        f"{10**v:9.2e} |{s}"
        for v, s in zip(np.linspace(y.max(), y.min(), height), lines, strict=True)
    )


def main(_: list[str]) -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    truth = js.random(keys[0], (NODES, NODES), DEGREE / NODES) * (1 / DEGREE**0.5)
    target = network(truth, jax.random.normal(keys[1], (NODES, WIDTH)))
    a = truth.with_data(0.3 * jax.random.normal(keys[2], truth.data.shape)).freeze()
    params = (a, jax.random.normal(keys[3], (NODES, WIDTH)))
    optimizer = optax.adam(2e-2)

    @jax.jit
    def step(params, state):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((network(*p) - target) ** 2))(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, loss

    state = optimizer.init(params)
    losses, start = [], time.perf_counter()
    for _ in range(STEPS.value):
        params, state, loss = step(params, state)
        losses.append(loss)
    losses = np.array(losses)
    seconds = time.perf_counter() - start
    print(chart(losses))
    print(f"{STEPS.value} steps in {seconds:.2f} s, compilation included; parameters: {params[0]}")
    if PLOT.value:
        import matplotlib.pyplot as plt

        plt.semilogy(losses)
        plt.xlabel("step")
        plt.ylabel("mean squared error")
        plt.savefig(PLOT.value)
    assert losses[-1] < losses[0] / 10, "the loss did not fall"
    print(f"check: ok, the loss fell from {losses[0]:.3g} to {losses[-1]:.3g}")


if __name__ == "__main__":
    app.run(main)

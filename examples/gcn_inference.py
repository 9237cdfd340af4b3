# SPDX-License-Identifier: Apache-2.0
"""Forward pass of a two-layer graph convolutional network (Kipf and Welling, 2017), against SciPy.

h = relu(A x W1 + b1)
y = softmax(A h W2 + b2)

python examples/gcn_inference.py [--graph=graph.mtx]
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import jsparse as js

GRAPH = flags.DEFINE_string("graph", None, "file with a square matrix; by default one is generated")
WIDTHS = flags.DEFINE_list("widths", ["128", "32", "8"], "features, hidden units, classes")

Layer = tuple[jax.Array, jax.Array]  # weights and bias


def adjacency() -> js.SparseArray:
    """D^-1/2 (A + I) D^-1/2 of an undirected graph, every edge once; frozen: a static pattern."""
    size = (10_000, 10_000)
    graph = js.load(GRAPH.value) if GRAPH.value else js.random(jax.random.key(1), size, 5e-4)
    graph = graph.with_data(jnp.ones(graph.data.shape, jnp.float32))
    a = graph + graph.T + js.eye(graph.shape[0])
    a = a.with_data(jnp.ones(a.data.shape, jnp.float32))
    scale = 1 / jnp.sqrt(a.sum(1))
    return js.einsum("ij,i,j->ij", a, scale, scale).freeze()


@jax.jit
def gcn(a: js.SparseArray, layers: list[Layer], x: jax.Array) -> jax.Array:
    """Class probabilities.  `A x W` is one einsum: jsparse picks what to multiply first."""
    for w, b in layers[:-1]:
        x = jax.nn.relu(js.einsum("ij,jk,kl->il", a, x, w) + b)
    w, b = layers[-1]
    return jax.nn.softmax(js.einsum("ij,jk,kl->il", a, x, w) + b)


def reference(a: js.SparseArray, layers: list[Layer], x: jax.Array) -> np.ndarray:
    """The same with SciPy, in float64."""
    m, h = a.to_scipy(), np.asarray(x, np.float64)
    for n, (w, b) in enumerate(layers):
        h = m @ (h @ np.asarray(w, np.float64)) + np.asarray(b, np.float64)
        h = np.maximum(h, 0) if n + 1 < len(layers) else h
    h = np.exp(h - h.max(1, keepdims=True))
    return h / h.sum(1, keepdims=True)


def main(argv: list[str]) -> None:
    del argv
    a = adjacency()
    widths = [int(n) for n in WIDTHS.value]
    keys = jax.random.split(jax.random.key(0), len(widths))
    x = jax.random.normal(keys[0], (a.shape[0], widths[0]))
    sizes = zip(keys[1:], widths[:-1], widths[1:], strict=True)
    layers = [(jax.random.normal(k, (m, n)) / np.sqrt(m), jnp.zeros(n)) for k, m, n in sizes]
    print(f"adjacency: {a}\nwidths:    {widths}")

    times = []
    for _ in range(11):
        start = time.perf_counter()
        y = gcn(a, layers, x).block_until_ready()
        times.append(time.perf_counter() - start)
    print(f"first call {1e3 * times[0]:.1f} ms, then {1e3 * np.median(times[1:]):.2f} ms")

    error = float(np.abs(np.asarray(y) - reference(a, layers, x)).max(initial=0))
    assert error < 1e-4, f"probabilities are off by {error}"
    print(f"check: ok, probabilities agree with SciPy within {error:.1e}")


if __name__ == "__main__":
    app.run(main)

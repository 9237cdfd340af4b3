# SPDX-License-Identifier: Apache-2.0
"""A normalised adjacency times features, under jit, against SciPy and jax.experimental.sparse.

python examples/quickstart.py                       a generated power-law graph
python examples/quickstart.py --graph=graph.mtx     yours: .mtx, .npz, .tns or .smtx
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from absl import app, flags
from jax.experimental import sparse

import jsparse as js

GRAPH = flags.DEFINE_string("graph", None, "file with a square matrix; by default one is generated")
FEATURES = flags.DEFINE_integer("features", 64, "features of each node", 1)


def power_law(nodes: int = 20_000, edges: int = 200_000) -> js.SparseArray:
    """A random graph some of whose nodes have many edges; an edge drawn twice counts twice."""
    rng = np.random.default_rng(0)
    ends = (nodes * rng.random((2, edges)) ** 3).astype(np.int32)
    return js.coo(np.ones(edges, np.float32), ends, (nodes, nodes)).to("csr")


def normalised(graph: js.SparseArray) -> js.SparseArray:
    """D^-1/2 A D^-1/2, as in graph convolutions, of a matrix with entries of any sign."""
    ones = graph.with_data(jnp.ones(graph.data.shape, jnp.float32))
    rows, columns = (1 / jnp.sqrt(jnp.maximum(ones.sum(axis), 1)) for axis in (1, 0))
    return js.einsum("ij,i,j->ij", graph.astype(jnp.float32), rows, columns)


@jax.jit
def propagate(a: js.SparseArray, x: jax.Array) -> jax.Array:
    return js.einsum("ij,jk->ik", a, x)


def main(argv: list[str]) -> None:
    del argv
    graph = js.load(GRAPH.value) if GRAPH.value else power_law()
    a = normalised(graph)
    x = jax.random.normal(jax.random.key(0), (a.shape[1], FEATURES.value))
    print(f"adjacency: {a}\nfeatures:  {x.dtype}{x.shape}")

    s, host = a.to_scipy(), np.asarray(x)
    multiply = jax.jit(lambda m, x: m @ x)
    bcoo = a.to_bcoo()
    bcsr = sparse.BCSR.from_bcoo(bcoo)
    calls = {
        "jsparse": lambda: propagate(a, x),
        "SciPy": lambda: s @ host,
        "BCSR": lambda: multiply(bcsr, x),
        "BCOO": lambda: multiply(bcoo, x),
    }

    exact = sp.csr_array(s, dtype=np.float64) @ host.astype(np.float64)
    errors = {name: float(np.abs(np.asarray(f()) - exact).max()) for name, f in calls.items()}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(20):  # in turns, so that all see the same machine
        for name, f in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(f())
            taken[name].append(time.perf_counter() - start)
    for name in calls:
        print(f"{name:8s} {1e3 * np.median(taken[name]):8.3f} ms   max error {errors[name]:.1e}")

    bound = 1e-5 * float(np.abs(exact).max(initial=0))
    assert errors["jsparse"] <= bound, f"error {errors['jsparse']} is above {bound}"
    print(f"check: ok, the largest error is below {bound:.1e}")


if __name__ == "__main__":
    app.run(main)

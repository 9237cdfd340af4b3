# SPDX-License-Identifier: Apache-2.0
"""Programs that leave the process (export, JAX's compilation cache, pickles); several devices."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jsparse as js

HEAD = """
import jax, jax.numpy as jnp, numpy as np, jsparse as js
from jax import export
a = js.fromdense(np.triu(np.ones((6, 5), np.float32)))
frozen = a.freeze()
def product(data, structure, b):
    return js.SparseArray(data, structure, a.shape, a.format) @ b
checks = js.export_checks()
"""


def python(code: str, **environment: str) -> str:
    """Run code in a new process; its output."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    done = subprocess.run(
        [sys.executable, "-c", HEAD + code], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


WRITE = """
import pathlib
folder = pathlib.Path({folder!r})
b = jnp.ones((5, 3))
f = jax.jit(product)
e = export.export(f, disabled_checks=checks)(a.data, a.structure, b)
(folder / "plain").write_bytes(e.serialize(vjp_order=1))
n, = export.symbolic_shape("n")
b_n = jax.ShapeDtypeStruct((5, n), b.dtype)
e = export.export(f, disabled_checks=checks)(a.data, a.structure, b_n)
(folder / "wide").write_bytes(e.serialize())
g = jax.jit(lambda data, b: frozen.with_data(data) @ b)
e = export.export(g, platforms=["cpu", "tpu"], disabled_checks=checks)(a.data, b)
(folder / "both").write_bytes(e.serialize())
"""

READ = """
import pathlib
folder = pathlib.Path({folder!r})
load = lambda name: export.deserialize(bytearray((folder / name).read_bytes()))
b = jnp.ones((5, 3))
want = a.todense() @ b
plain = load("plain")
assert np.allclose(plain.call(a.data, a.structure, b), want)
g = jax.grad(lambda d: plain.call(d, a.structure, b).sum())(a.data)
assert np.allclose(g, 3), g
wide = load("wide")
for n in (3, 40):
    b = jnp.ones((5, n))
    assert np.allclose(wide.call(a.data, a.structure, b), a.todense() @ b)
assert np.allclose(load("both").call(a.data, jnp.ones((5, 3))), want)
print("read")
"""


def test_exported_programs_rebuild_their_kernels_in_a_new_process(tmp_path: Path) -> None:
    """With derivatives, shape-polymorphic, and for another platform too; from an empty cache."""
    python(WRITE.format(folder=str(tmp_path)), JSPARSE_CACHE_DIR=str(tmp_path / "first"))
    out = python(READ.format(folder=str(tmp_path)), JSPARSE_CACHE_DIR=str(tmp_path / "second"))
    assert out.strip() == "read"


A = js.fromdense(np.triu(np.arange(1, 21, dtype=np.float32).reshape(4, 5)))
B = jnp.asarray(np.random.default_rng(0).standard_normal((5, 3)), jnp.float32)
DATA = jnp.stack([A.data, 2 * A.data, -A.data])
SYMBOLIC: dict[str, tuple[Any, tuple[Any, ...], Any]] = {  # program, shape, argument
    "columns": (lambda a, b: (a @ b, a.T @ (a @ b)), (5, "n"), B),
    "summed columns": (lambda a, b: js.einsum("ij,jk->i", a, b), (5, "n"), B),
    "sampled": (lambda a, b: js.einsum("ij,ik,jk->ij", a, b[:4], b).data, (5, "n"), B),
    "three": (lambda a, b: js.einsum("ij,jk,kl->il", a, b, b.T), (5, "n"), B),
    "batch of values": (
        lambda a, d: jax.vmap(lambda d: a.with_data(d) @ B)(d),
        ("n", A.nse),
        DATA,
    ),
    "batch of vectors": (lambda a, b: jax.vmap(lambda x: a @ x)(b), ("n", 5), B.T),
    "batch of both": (
        lambda a, d: jax.vmap(lambda d: a.with_data(d) @ d[:5])(d),
        ("n", A.nse),
        DATA,
    ),
    "batch of sampled": (
        lambda a, d: jax.vmap(lambda d: js.einsum("ij,ik,jk->ij", a.with_data(d), B[:4], B).data)(
            d
        ),
        ("n", A.nse),
        DATA,
    ),
}


@pytest.mark.parametrize("kind", ["csr", "frozen csr", "coo", "frozen csc", "dcsr"])
@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_extents(name: str, kind: str) -> None:
    """Of columns and of batches, with gradients: exported once, called with a number."""
    f, shape, x = SYMBOLIC[name]
    a = A.to(kind.removeprefix("frozen "))
    a = a.freeze() if kind.startswith("frozen") else a

    def both(x: Any) -> Any:
        y, vjp = jax.vjp(lambda x: f(a, x), x)
        return y, vjp(y)

    text = ", ".join(map(str, shape))
    like = jax.ShapeDtypeStruct(export.symbolic_shape(text), x.dtype)
    program = export.export(jax.jit(both), disabled_checks=js.export_checks())(like)
    for got, want in zip(jax.tree.leaves(program.call(x)), jax.tree.leaves(both(x)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_exported_programs_take_and_return_sparse_arrays() -> None:
    """Their trees are part of what is written: formats, shapes, patterns of frozen ones."""
    tensor = js.fromdense(np.arange(24.0, dtype=np.float32).reshape(2, 3, 4), "csf")
    mesh = jax.make_mesh((1,), ("x",))
    arrays = [A, A.freeze(), A.T, A.to("coo").freeze(), tensor, js.shard_rows(A, mesh, "x")]
    for a in arrays:
        f = jax.jit(lambda a: jax.tree.map(lambda x: x * 2, a))
        e = export.export(f, disabled_checks=js.export_checks())(a)
        y = export.deserialize(bytearray(e.serialize())).call(a)
        assert jax.tree.structure(y) == jax.tree.structure(a)
        for got, want in zip(jax.tree.leaves(y), jax.tree.leaves(f(a)), strict=True):
            np.testing.assert_array_equal(got, want)


CACHED = """
import logging
jax.config.update("jax_compilation_cache_dir", {folder!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
y = jax.jit(product)(a.data, a.structure, jnp.ones((5, 3)))
assert np.allclose(y, a.todense() @ np.ones((5, 3)))
print(not any("cache_misses" in name for name in events))
"""


def test_persistent_compilation_cache_hits_in_a_second_process(tmp_path: Path) -> None:
    code = CACHED.format(folder=str(tmp_path))
    assert python(code).strip() == "False"
    assert python(code).strip() == "True"


SHARDED = """
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
    big = js.random(jax.random.key(0), (1000, 500), 0.02)
    b = jnp.asarray(np.random.default_rng(0).standard_normal((500, 16)), jnp.float32)
    dense = np.asarray(big.todense())
    blocks = js.shard_rows(big, mesh, "x")
    counts = np.asarray(blocks.stacked.structure[0])[:, -1]
    assert counts.max() <= 1.2 * counts.mean() and counts.sum() == big.nse
    put = NamedSharding(mesh, P("x"))

    def product(data, blocks, b):
        def local(data, blocks, b):
            return blocks.local().with_data(data[0]) @ b
        specs = (P("x"), P("x"), P())
        return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=P("x"))(data, blocks, b)

    def collectives(f, *args):
        text = jax.jit(f).lower(*args).compile().as_text()
        names = ("all-gather", "all-reduce", "all-to-all", "collective-permute")
        return {w for w in names if w in text}

    data = blocks.stacked.data
    y = blocks.rows_of(jax.jit(product)(data, blocks, b))
    assert np.allclose(y, dense @ b, atol=1e-4)
    assert collectives(product, data, blocks, b) == set()
    loss = lambda data, b: (product(data, blocks, b) ** 2).sum()
    gd, gb = jax.jit(jax.grad(loss, (0, 1)))(data, b)
    assert np.allclose(gb, 2 * dense.T @ (dense @ b), rtol=1e-3, atol=1e-3)
    assert collectives(jax.grad(loss, (0, 1)), data, b) == {"all-reduce"}
    sharded = jax.device_put(b, NamedSharding(mesh, P(None, "x")))
    assert np.allclose(jax.jit(lambda a, b: a @ b)(big, sharded), dense @ b, atol=1e-4)
print("sharded")
"""


def test_row_blocks_under_shard_map() -> None:
    """Eight devices: no collective forward, one sum for the shared operand's gradient."""
    out = python(SHARDED, XLA_FLAGS="--xla_force_host_platform_device_count=8")
    assert out.strip() == "sharded"


def test_pickles_and_archives(tmp_path: Path) -> None:
    a = js.fromdense(np.triu(np.ones((6, 5), np.float32)))
    for x in (a, a.freeze()):
        y = pickle.loads(pickle.dumps(x))
        assert y.format == x.format and y.frozen == x.frozen
        np.testing.assert_array_equal(y.todense(), x.todense())
    leaves, tree = jax.tree.flatten(a)
    np.savez(tmp_path / "a.npz", *leaves)
    with np.load(tmp_path / "a.npz") as f:
        back = jax.tree.unflatten(tree, [jnp.asarray(f[k]) for k in f.files])
    np.testing.assert_array_equal(back.todense(), a.todense())


def test_orbax_checkpoints(tmp_path: Path) -> None:
    """Saved and restored as part of a training state: structure, formats and values."""
    ocp = pytest.importorskip(
        "orbax.checkpoint", reason="orbax-checkpoint is not installed (70 MB: not in [test])"
    )
    a = js.fromdense(np.triu(np.arange(30, dtype=np.float32).reshape(6, 5)), nse=20)
    state = {
        "dynamic": a,
        "frozen": a.freeze(),
        "moments": [a.to("csc"), a.to("coo") * 2.0],
        "step": jnp.int32(3),
    }
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
        back = checkpointer.restore(tmp_path / "state", like)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    for x, y in zip(jax.tree.leaves(back), jax.tree.leaves(state), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(back["dynamic"].todense(), a.todense())
    np.testing.assert_array_equal(back["frozen"] @ jnp.ones(5), a @ jnp.ones(5))


def test_memory_of_gradients_and_batches_is_that_of_the_entries() -> None:
    """Temporaries stay within twice the outputs plus a few arrays of the entries' size."""
    n, width, nse = 3000, 8, 30_000
    a = js.random(jax.random.key(0), (n, n), nse / n**2)
    b = jnp.ones((n, width))

    def temporaries(f, *args) -> tuple[int, int]:  # type: ignore[no-untyped-def]
        stats = jax.jit(f).lower(*args).compile().memory_analysis()
        return stats.temp_size_in_bytes, stats.output_size_in_bytes

    entries = 8 * nse
    grad = js.grad(lambda a, b: ((a @ b) ** 2).sum(), (0, 1))
    used, out = temporaries(grad, a, b)
    assert used <= 2 * out + 8 * entries
    used, out = temporaries(jax.vmap(lambda x: a @ x), jnp.ones((4, n)))
    assert used <= 2 * out + 4 * entries
    used, out = temporaries(
        jax.vmap(lambda d: a.with_data(d) @ b[:, 0]), jnp.ones((4, a.nse), jnp.float32)
    )
    assert used <= 2 * (out + 4 * 4 * nse) + 4 * entries

# SPDX-License-Identifier: Apache-2.0
"""Plain `jit` on several devices: what is cut, what is gathered or summed, and right answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jsparse.ir.index import parse_assignment
from jsparse.partition import Rule, groups_of, local_shape, parts_of, propagated, rule
from jsparse.pipeline import Spec

SPMM = "Y[i,k]:dense:float32 = A[i,j]:csr:float32 * B[j,k]:dense:float32"
SDDMM = "Y[i,j]:like(A):float32 = A[i,j]:csr:float32 * B[i,k]:dense:float32 * C[j,k]:dense:float32"
CSR = [(9,), (6,), (9,)]


def spmm(batch: tuple[tuple[bool, ...], ...] = ()) -> Rule:
    shapes = [*CSR, (7, 16)]
    lead = [tuple(4 for mask in batch if mask[n]) for n in range(4)]
    cut = [(*more, *shape) for more, shape in zip(lead, shapes, strict=True)]
    return rule(Spec(parse_assignment(SPMM), batch=batch), cut, [(*[4] * len(batch), 5, 16)])


def names(r: Rule, which: frozenset[int]) -> set[str]:
    return {v for v, n in r.variables.items() if n in which}


def test_rules_by_formats() -> None:
    """Variables of dense levels only are free, or summed if the result lacks them."""
    r = spmm()
    assert names(r, r.free) == {"k"} and not r.summed
    r = rule(Spec(parse_assignment(SDDMM)), [*CSR, (5, 16), (7, 16)], [(9,)])
    assert names(r, r.summed) == {"k"} and not r.free
    batched = (
        "Y[i,b]:dense:float32 = A[i,j,b]:dense,compressed,dense:float32 * B[j,b]:dense:float32"
    )
    r = rule(Spec(parse_assignment(batched)), [(9, 4), (6,), (9,), (7, 4)], [(5, 4)])
    assert names(r, r.free) == {"b"}
    r = rule(Spec(parse_assignment(batched)), [(36,), (6,), (9,), (7, 4)], [(5, 4)])
    assert r.operands[3][1] == r.results[0][1] not in r.operands[0]
    diagonal = "Y[i]:dense:float32 = A[i,i]:dense:float32 * B[j]:compressed:float32"
    assert not rule(Spec(parse_assignment(diagonal)), [(4, 4), (3,), (2,), (3,)], [(4,)]).free
    truth = "Y[i]:dense:bool = A[i,j]:csr:bool * B[k]:dense:bool"
    assert not rule(Spec(parse_assignment(truth)), [*CSR, (4,)], [(5,)]).summed


def test_rules_of_batches_and_patterns() -> None:
    r = spmm(((True, True, True, False), (False, False, False, True)))
    assert len(r.free) == 3 and r.operands[0][0] == r.operands[2][0] == r.results[0][0]
    assert r.operands[3][0] == r.results[0][1]
    work = Spec(parse_assignment("Y[i,j]:csr:pattern = A[i,j]:coo:pattern"), (), "sort", True)
    assert rule(work, [(2,), (9,), (9,)], [(1,)]).attribute() == ""


def test_attribute_of_shardy() -> None:
    assert spmm().attribute() == (
        "#sdy.op_sharding_rule<([i], [j], [k], [l, m])->([n, m]) "
        "{i=9, j=6, k=9, l=7, m=16, n=5} need_replication={i, j, k, l, n}, custom>"
    )


def test_what_is_cut_divides_and_does_not_conflict() -> None:
    r = spmm(((True, True, True, False),))
    whole = [np.zeros((len(axes), 8), int) for axes in r.operands]
    result = [np.zeros((3, 8), int)]
    batch, column = r.results[0][0], r.results[0][2]
    by_4, by_2 = np.arange(8) // 2, np.arange(8) % 2
    result[0][0], whole[3][1] = by_4, by_2
    parts = parts_of(r, whole, result)
    assert set(parts) == {batch, column}
    assert local_shape(r, r.results[0], parts) == (1, 5, 8) and groups_of(r, parts) is None
    whole[3][1] = by_4  # the same devices for both
    assert set(parts_of(r, whole, result)) == {batch}
    result[0][0] = np.arange(8)  # 4 does not divide by 8
    assert set(parts_of(r, whole, result)) == {column}


def test_groups_that_sum() -> None:
    """One of each share, for each part of what is free, and for each replica."""
    text = "Y[i,l]:dense:float32 = A[i,j]:csr:float32 * B[k]:dense:float32 * C[l]:dense:float32"
    r = rule(Spec(parse_assignment(text)), [*CSR, (4,), (2,)], [(5, 2)])
    share, free = np.arange(8) % 2, np.arange(8) // 4
    operands = [np.zeros((1, 8), int)] * 3 + [share[None], free[None]]
    groups = groups_of(r, parts_of(r, operands, [np.zeros((2, 8), int)]))
    assert groups is not None
    assert sorted(map(sorted, groups.tolist())) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_types_on_an_explicit_mesh() -> None:
    assert propagated(spmm(), [[None], [None], [None], [None, "x"]]) == [[None, "x"]]
    assert propagated(spmm(), [["x"], [None], [None], ["y", None]]) == [[None, None]]
    r = spmm(((True, True, True, False),))
    given = [["x", None], ["x", None], ["x", None], [None, ("x", "y")]]
    assert propagated(r, given) == [["x", None, None]]


HEAD = """
import contextlib, re
import jax, jax.numpy as jnp, numpy as np, jsparse as js
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from jsparse.convert import coo_parts

kind = AxisType.{kind}
line = jax.make_mesh((8,), ("x",), axis_types=(kind,))
grid = jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind, kind))
rng = np.random.default_rng(0)
normal = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
a = js.random(jax.random.key(0), (1000, 512), 2**-5)
dense = np.asarray(a.todense())
at = tuple(np.asarray(c) for c in coo_parts(a)[1])
b, u, x, values = normal(512, 16), normal(1000, 16), normal(8, 512), normal(8, a.nse)
many = np.stack([a.with_data(v).todense() for v in values])
stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[a.with_data(v) for v in values])

def put(tree, *spec, mesh=line):
    return jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, P(*spec))), tree)

def check(f, want, *args, comm=(), out=None):
    meshes = [getattr(leaf.sharding, "mesh", None) for leaf in jax.tree.leaves(args)]
    mesh = next(m for m in meshes if m is not None)
    with jax.set_mesh(mesh) if kind == AxisType.Explicit else contextlib.nullcontext():
        compare(jax.jit(f), want, *args, comm=comm, out=out)

def compare(f, want, *args, comm, out):
    y = f(*args)
    for got, w in zip(jax.tree.leaves(y), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(got, w, rtol=1e-3, atol=1e-3)
    text = f.lower(*args).compile().as_text()
    found = re.findall(r" (all-gather|all-reduce|all-to-all|collective-permute)[\\w-]*\\(", text)
    assert sorted(set(found)) == sorted(comm), (found, comm)
    if out is not None:
        assert y.sharding.is_equivalent_to(NamedSharding(y.sharding.mesh, out), y.ndim), y.sharding

def product(a, b):
    return a @ b

def loss(d, b):
    return jnp.sum(product(a.with_data(d), b) ** 2)

def batch(values, b):
    return jax.vmap(lambda v: a.with_data(v) @ b)(values)

def sampled(a, u, b):
    return js.einsum("ij,ik,jk->ij", a, u, b).data

y = dense @ b
gb, gd = 2 * dense.T @ y, (2 * y @ b.T)[at]
"""

CUT = """
check(product, y, a, put(b, None, "x"), out=P(None, "x"))
check(product, y, a.freeze(), put(b, None, ("x", "y"), mesh=grid), out=P(None, ("x", "y")))
check(jax.grad(loss, 1), gb, a.data, put(b, None, "x"), out=P(None, "x"))
check(jax.grad(loss, (0, 1)), (gd, gb), a.data, put(b, None, "x"), comm=["all-reduce"])
check(jax.grad(loss, (0, 1)), (gd, gb), a.data, put(b, None, "y", mesh=grid), comm=["all-reduce"])
check(lambda a, x: jax.vmap(lambda x: a @ x)(x), x @ dense.T, a, put(x, "x"), out=P("x"))
check(batch, many @ b, put(values, "x"), b, out=P("x"))
parts = put(values, "x", mesh=grid), put(b, None, "y", mesh=grid)
check(batch, many @ b, *parts, out=P("x", None, "y"))
check(lambda s, b: jax.vmap(product, (0, None))(s, b), many @ b, put(stack, "x"), b, out=P("x"))
twice = lambda s: jax.vmap(lambda s: js.add(s, s, nse=2 * a.nse).todense())(s)
check(twice, 2 * many, put(stack, "x"), out=P("x"))
"""

GATHERED = """
gather = ["all-gather"]
check(product, y, a, put(b, "x"), comm=gather)
check(product, y, a, put(b, "x", "y", mesh=grid), comm=gather, out=P(None, "y"))
check(product, y, a.with_data(put(a.data, "x")), b, comm=gather)
check(product, y, a.with_data(put(a.data, "x")), put(b, None, "x"), comm=gather, out=P(None, "x"))
check(jax.grad(loss, (0, 1)), (gd, gb), put(a.data, "x"), put(b, "x"), comm=gather)
want = a.data * (u @ b.T)[at]
check(sampled, want, a, put(u, None, "x"), put(b, None, "x"), comm=["all-reduce"])
check(sampled, want, a, put(u, "x"), b, comm=gather)
"""

# First: 12 columns do not divide by 8 devices.
AUTO = """
check(lambda a, b: a @ b[:, :12], y[:, :12], a, put(b, None, "x"), comm=["all-gather"])
inside = lambda b: a @ b
for axes in ({"x"}, {"x", "y"}):
    rows, columns = P(tuple(sorted(axes))), P(None, tuple(sorted(axes)))
    f = jax.shard_map(inside, mesh=grid, in_specs=columns, out_specs=columns, axis_names=axes)
    check(f, y, put(b, None, ("x", "y"), mesh=grid), out=P(None, ("x", "y")))
    f = jax.shard_map(
        lambda s: jax.vmap(lambda s: js.add(s, s, nse=2 * a.nse).todense())(s),
        mesh=grid, in_specs=rows, out_specs=rows, axis_names=axes,
    )
    check(f, 2 * many, put(stack, ("x", "y"), mesh=grid))
with jax.set_mesh(grid):
    check(product, y, a, put(b, None, ("x", "y"), mesh=grid))
"""


def on_eight_devices(code: str) -> str:
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_what_can_be_cut_is_not_gathered(kind: str) -> None:
    """The collectives in the compiled program, the result's sharding, and right answers."""
    on_eight_devices(HEAD.replace("{kind}", kind) + CUT + GATHERED)


def test_partly_manual_meshes_and_uneven_extents() -> None:
    on_eight_devices(HEAD.replace("{kind}", "Auto") + AUTO)


LEAVES = """
import pathlib
from jax import export
jax.config.update("jax_compilation_cache_dir", {folder!r} + "/cache")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
file = pathlib.Path({folder!r}) / "program"
cut = put(b, None, "x")
f = jax.jit(lambda d, b: product(a.with_data(d), b))
if not file.exists():
    placed = jax.ShapeDtypeStruct(b.shape, b.dtype, sharding=cut.sharding)
    e = export.export(f, disabled_checks=js.export_checks())(a.data, placed)
    file.write_bytes(e.serialize(vjp_order=1))
program = export.deserialize(bytearray(file.read_bytes())).call
d = put(a.data)
check(program, y, d, cut, out=P(None, "x"))
total = lambda d, b: jnp.sum(program(d, b))
want = b.sum(1)[at[1]], jnp.broadcast_to(dense.sum(0)[:, None], b.shape)
check(jax.grad(total, (0, 1)), want, d, cut, comm=["all-reduce"])
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
f(d, cut)
print(any("cache_hits" in name for name in events))
"""


@pytest.mark.slow
def test_programs_that_are_cut_leave_the_process(tmp_path: Path) -> None:
    """Exported ones, and those in JAX's compilation cache: a second process has both."""
    code = HEAD.replace("{kind}", "Auto") + LEAVES.replace("{folder!r}", repr(str(tmp_path)))
    assert on_eight_devices(code).strip() == "False"
    assert on_eight_devices(code).strip() == "True"

# SPDX-License-Identifier: Apache-2.0
"""How long jsparse itself takes, beside the limits it sets itself: `python -m jsparse times`.

    call ── parse, infer, plan, text ──▶ C++ ── compiler ──▶ object ── new process ──▶ loaded
              limit 10 ms                      limit 0.25 s              limit 10 ms

Operands are abstract (shapes without values), so nothing but what is measured runs.  Each row of
`TABLE` is planned with extents that this process has not seen, hence from a cold start.  Things
that are compared are timed in turns.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jsparse as js
from jsparse import api, config, pipeline, primitive, solve
from jsparse.blocks import split_shape
from jsparse.codegen import build
from jsparse.errors import CompileError, EinsumError
from jsparse.format import parse_format
from jsparse.schedule import auto, split, storage

TABLE = (
    ("ij,jk->ik", "csr dense"), ("ij,jk->ik", "csc dense"), ("ij,jk->ik", "coo dense"),
    ("ij,jk->ik", "dcsr dense"), ("ij,jk->ik", "dense csr"), ("ij,jk->ik", "csr csr"),
    ("ij,jk->ik", "csr csc"), ("ij,kj->ik", "csr dense"), ("ji,jk->ik", "csr dense"),
    ("ij,j->i", "csr dense"), ("ij,i->j", "csr dense"), ("i,ij,j->", "dense csr dense"),
    ("ij,ij->ij", "csr csr"), ("ij,ij->ij", "csr coo"), ("ij,ij->ij", "csr dense"),
    ("ij->i", "csr"), ("ij->", "coo"), ("ii->i", "csr"), ("ij,j->ij", "csr dense"),
    ("i,j->ij", "coo coo"), ("ij,ik,jk->ij", "csr dense dense"),
    ("ij,jk,kl->il", "csr dense dense"), ("ij,jk,kl->il", "csr csr dense"),
    ("ij,jk,ki->", "csr csr csr"), ("ij,jk,kl,lm->im", "csr dense dense dense"),
    ("ij,ik,jk,k->ij", "csr dense dense dense"), ("i,ij,jk,k->", "dense csr dense dense"),
    ("ijk,kl,jl->il", "csf dense dense"), ("ijk,kl->ijl", "csf dense"), ("ijk,k->ij", "coo dense"),
    ("ijk,jk->i", "csf csr"), ("ijk,ijk->ijk", "csf coo"), ("ijkl,ijkl->ijkl", "csf csf"),
    ("ijkl,jm,kn,lo->imno", "csf dense dense dense"),
)  # fmt: skip
REPEATS = 3
Row = tuple[str, str]


# ------------------------------------------------------------------- operands
def abstract(format: str, shape: tuple[int, ...], dtype: str, density: float) -> Any:
    """An operand without values: what tracing and planning look at."""
    f = parse_format(format, len(shape))
    if f.is_dense:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
    if f.block:
        split = split_shape(shape, f.block)
        return abstract(str(f.split), split, dtype, density).join(shape, f.block)
    tail = f.dense_tail
    stored = [shape[m] for m in f.order[: f.ndim - tail]]
    nse = min(max(round(density * math.prod(stored)), 1), math.prod(stored))
    arrays, parents = [], 1
    for n, (level, mode) in enumerate(zip(f.levels, f.order, strict=True)):
        for role in level.arrays:
            size = level.array_size(role, parents, nse)
            arrays.append(jax.ShapeDtypeStruct((size,), jnp.dtype(f.index)))
        parents = level.positions(parents, shape[mode], nse if n < f.ndim - tail else 1)
        nse = parents if n == f.ndim - tail - 1 else nse
    data = jax.ShapeDtypeStruct(
        (nse, *(shape[m] for m in f.order[f.ndim - tail :])), jnp.dtype(dtype)
    )
    return js.SparseArray(data, tuple(arrays), shape, f)


def operands_for(
    subscripts: str, formats: Sequence[str], sizes: dict[str, int], dtype: str, density: float
) -> list[Any]:
    """Abstract operands in `formats`.

    `sizes` by letter; by default 1000, 100 for three modes and more, 64 for dense operands alone.
    """
    inputs = subscripts.replace(" ", "").partition("->")[0].split(",")
    if len(inputs) != len(formats):
        raise EinsumError(
            f"einsum {subscripts!r}: {len(inputs)} subscripts for {len(formats)} format(s)"
        )
    extent = dict(sizes)
    for names, f in sorted(zip(inputs, formats, strict=True), key=lambda pair: pair[1] == "dense"):
        usual = 64 if f == "dense" else 1000 if len(names) < 3 else 100
        for v in names:
            if not (v.isalpha() and v.isascii()):
                raise EinsumError(
                    f"einsum {subscripts!r}: unexpected {v!r}; here operands are plain letters"
                )
            extent.setdefault(v, usual)
    unused = sorted(set(sizes) - {v for names in inputs for v in names})
    if unused:
        raise EinsumError(f"einsum {subscripts!r}: a size for {unused[0]!r}, which no operand has")
    return [
        abstract(f, tuple(extent[v] for v in names), dtype, density)
        for names, f in zip(inputs, formats, strict=True)
    ]


# ----------------------------------------------------------------- measurement
def planned(
    subscripts: str, operands: Sequence[Any], **wish: Any
) -> tuple[float, list[pipeline.Spec]]:
    """Trace a jitted einsum without running it.

    Returns:
      Seconds of the call, JAX's share among them, and the kernels it wants.
    """
    specs: list[pipeline.Spec] = []
    stored = [x.nse for x in operands if isinstance(x, js.SparseArray)]
    if stored and wish.get("nse") is None and wish.get("like") is None:
        wish["nse"] = max(stored)  # heeded where the result's pattern is computed
    jitted = jax.jit(lambda *ops: api.einsum(subscripts, *ops, **wish))
    before = primitive.set_observer(lambda kind, a, spec, candidates: specs.append(spec))
    try:
        start = time.perf_counter()
        jitted.eval_shape(*operands)
        return time.perf_counter() - start, specs
    finally:
        primitive.set_observer(before)


def in_turns(
    calls: dict[str, Callable[[], Any]], seconds: float, most: int = 2000
) -> dict[str, float]:
    """Median seconds of each call, warm; they take turns, so that all see the same machine."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        jax.block_until_ready(call())
    stop = time.perf_counter() + seconds
    for turn in range(most):
        for name, call in calls.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            taken[name].append(time.perf_counter() - start)
        if turn >= 2 and time.perf_counter() > stop:
            break
    return {name: statistics.median(t) for name, t in taken.items()}


@dataclass(frozen=True, slots=True)
class Figure:
    """Samples of one quantity, (name, seconds, CPU seconds), and limits: seconds by percentile."""

    what: str
    limits: dict[int, float]
    unit: str
    samples: list[tuple[str, float, float]]

    def __str__(self) -> str:
        scale = {"ms": 1e3, "s": 1.0}[self.unit]
        names, wall, cpu = zip(*self.samples, strict=True)
        cells = [scale * float(np.percentile(wall, q)) for q in (50, 95, 99, 100)]
        cells.append(scale * float(np.percentile(cpu, 95)))
        good = all(np.percentile(wall, q) <= most for q, most in self.limits.items())
        limits = ", ".join(f"p{q} {scale * most:g}" for q, most in self.limits.items())
        slowest = f"{len(names)} samples, slowest {names[int(np.argmax(wall))]}"
        verdict = "ok" if good else "OVER"
        return _line(self.what, cells, f"{limits} {self.unit}", verdict, slowest)


def _line(what: str, cells: Sequence[Any], limit: str, verdict: str, detail: str) -> str:
    columns = [f"{c:8.2f}" if isinstance(c, float) else f"{c:>8s}" for c in cells]
    return f"{what:32s}{' '.join(columns)}  {limit:14s} {verdict:4s} {detail}".rstrip()


DECIDE = (
    (split, "first_pair"), (storage, "storage"), (storage, "rearrangements"), (auto, "plan"),
    (auto, "pattern_order"), (auto, "pattern_plan"), (solve, "infer"),
)  # fmt: skip


@contextmanager
def deciding() -> Iterator[list[tuple[float, float]]]:
    """Within, seconds and CPU seconds of every decision of the scheduler are appended to the list;
    decisions that another one asks for are part of it.
    """
    taken: list[tuple[float, float]] = []
    kept = [(module, name, getattr(module, name)) for module, name in DECIDE]
    inside = False

    def timed(decide: Callable[..., Any], *args: Any) -> Any:
        nonlocal inside
        if inside:
            return decide(*args)
        inside, start, busy = True, time.perf_counter(), time.thread_time()
        try:
            return decide(*args)
        finally:
            inside = False
            taken.append((time.perf_counter() - start, time.thread_time() - busy))

    for module, name, decide in kept:
        setattr(module, name, partial(timed, decide))
    try:
        yield taken
    finally:
        for module, name, decide in kept:
            setattr(module, name, decide)


def schedule_and_text(rows: Sequence[Row]) -> tuple[list[Figure], dict[str, pipeline.Spec]]:
    """Times from the call to C++ text, of the decisions and of the text among them, and the
    kernels by text.
    """
    planned(*_row("ij,jk->ik", "csr dense", 7))  # JAX's own first trace
    whole, decisions, writing = [], [], []
    kernels: dict[str, pipeline.Spec] = {}
    for repeat in range(REPEATS):
        pipeline.lower.cache_clear()
        pipeline.text.cache_clear()
        for subscripts, formats in rows:
            name, call = f"{subscripts} {formats}", _row(subscripts, formats, 8 * repeat)
            busy = time.thread_time()
            seconds, specs = planned(*call)
            start = time.perf_counter()
            for spec in specs:
                begin, used = time.perf_counter(), time.thread_time()
                kernels[pipeline.text(spec)] = spec
                used = time.thread_time() - used
                writing.append((name, time.perf_counter() - begin, used))
            taken = seconds + time.perf_counter() - start
            whole.append((name, taken, time.thread_time() - busy))
            with deciding() as steps:
                planned(*_row(subscripts, formats, 8 * repeat + 4))
            decisions.append((name, sum(t for t, _ in steps), sum(t for _, t in steps)))
    figures = [
        Figure("from call to schedule and text", {95: 0.010}, "ms", whole),
        Figure("  all decisions of a call", {50: 0.001, 99: 0.005}, "ms", decisions),
        Figure("  text of one kernel", {99: 0.005}, "ms", writing),
    ]
    return figures, kernels


def _row(subscripts: str, formats: str, shift: int) -> tuple[str, list[Any]]:
    letters = sorted(set(subscripts) - set(",->"))
    sizes = {v: 96 + shift + n for n, v in enumerate(letters)}
    return subscripts, operands_for(subscripts, formats.split(), sizes, "float32", 0.05)


def compile_each(kernels: dict[str, pipeline.Spec]) -> Figure:
    """Time of the C++ compiler for each kernel, one at a time, into the current cache folder."""
    samples = []
    for text, spec in kernels.items():
        start, before = time.perf_counter(), os.times()
        build.compile_now(text, build.key(text))
        after = os.times()
        busy = after.children_user - before.children_user
        busy += after.children_system - before.children_system
        samples.append((kernel_name(spec), time.perf_counter() - start, busy))
    return Figure("C++ compiler, one kernel", {95: 0.25}, "s", samples)


def kernel_name(spec: pipeline.Spec) -> str:
    """What a kernel computes, in a few words."""
    return spec.assignment.brief() + ("" if spec.work == "einsum" else f" (pattern, {spec.work})")


_FIND = """
import ctypes, json, sys, time
from jsparse import pipeline
taken = []
for key, recipe in json.load(sys.stdin):
    start, busy = time.perf_counter(), time.thread_time()
    ctypes.CDLL(pipeline.resolve(key, recipe))
    taken.append((time.perf_counter() - start, time.thread_time() - busy))
print(json.dumps(taken))
"""


def find_in_new_process(kernels: dict[str, pipeline.Spec]) -> Figure:
    """Time in a new process from a compiled program's recipe to its loaded object, all on disk."""
    folder = Path(config.get().cache_dir)
    before = len(list(folder.glob("*.so")))
    wanted = json.dumps([(build.key(text), spec.recipe()) for text, spec in kernels.items()])
    done = subprocess.run(
        [sys.executable, "-c", _FIND],
        input=wanted,
        env={**os.environ, "JSPARSE_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode or len(list(folder.glob("*.so"))) != before:
        raise CompileError(
            f"a second process did not find the kernels in {folder}: {done.stderr[-300:]}"
        )
    taken = json.loads(done.stdout.splitlines()[-1])
    samples = [(kernel_name(s), *t) for s, t in zip(kernels.values(), taken, strict=True)]
    return Figure("kernel found by a second process", {95: 0.010}, "ms", samples)


def eager_call(seconds: float) -> str:
    """A repeated eager call of a small SpMV against JAX's smallest jitted function."""
    a = js.random(jax.random.key(0), (64, 64), 0.05)
    x = jnp.ones(64)
    add_one = jax.jit(lambda x: x + 1)
    calls = {"ours": lambda: js.einsum("ij,j->i", a, x), "theirs": lambda: add_one(x)}
    taken = in_turns(calls, seconds, 20000)
    ratio = taken["ours"] / taken["theirs"]
    what, verdict = "cached eager call / jit(x + 1)", "ok" if ratio <= 2 else "OVER"
    detail = f"{1e6 * taken['ours']:.1f} us against {1e6 * taken['theirs']:.1f} us"
    return _line(what, [ratio, "", "", "", ""], "2 x", verdict, detail)


_FIRST = """
import sys, time
import jax, jax.numpy as jnp
import jsparse as js
jax.block_until_ready(jax.jit(lambda x: x @ x)(jnp.ones((8, 8))))
a = js.random(jax.random.key(0), (2000, 2000), 0.002).freeze()
x, y = jnp.ones((2000, 64)), jnp.zeros((2000, 7))
weights = jnp.ones((64, 16)), jnp.ones((16, 7))
def step(product):
    def loss(weights):
        h = jax.nn.relu(product(x @ weights[0]))
        return jnp.mean((jax.nn.log_softmax(product(h @ weights[1])) - y) ** 2)
    def update(weights):
        value, slopes = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda w, s: w - 0.1 * s, weights, slopes)
    return jax.jit(update)
dense = a.todense()
for run in (step(lambda h: dense @ h), step(lambda h: js.einsum("ij,jk->ik", a, h))):
    start = time.perf_counter()
    jax.block_until_ready(run(weights))
    print(time.perf_counter() - start)
"""


def first_step() -> str:
    """First jitted step of a two-layer GCN's training, without any kernel on disk, against the
    step with a dense adjacency matrix.
    """
    more = []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-c", _FIRST],
                env={**os.environ, "JSPARSE_CACHE_DIR": folder},
                capture_output=True,
                text=True,
                check=False,
            )
        if done.returncode:
            raise CompileError(f"the first step of a GCN failed: {done.stderr[-300:]}")
        dense, sparse = map(float, done.stdout.split()[-2:])
        more.append((sparse - dense, dense, sparse))
    middle = sorted(more)[len(more) // 2]
    detail = f"{middle[2]:.2f} s against {middle[1]:.2f} s"
    what, verdict = "first GCN step, less a dense one", "ok" if middle[0] <= 0.5 else "OVER"
    return _line(what, [middle[0], "", "", max(more)[0], ""], "0.5 s", verdict, detail)


# Scorch (CGO 2026): the paper's schedules, and its code measured on two cores of a machine like
# the one these limits were set on.
SCORCH = (
    "beside it, Scorch (CGO 2026): schedules in 1 to 18 ms, C++ compiler 65 s a kernel, "
    "first call 7 s (published) to 58 s (measured)"
)


def times(rows: Sequence[Row] = TABLE, seconds: float = 3.0) -> Iterator[str]:
    """The lines that `python -m jsparse times` prints, each as soon as it is known."""
    if build.compiler() is None:
        raise CompileError(build.NO_COMPILER)
    yield f"{len(rows)} einsums, {REPEATS} times each; {_load()}"
    yield _line("", ["p50", "p95", "p99", "max", "CPU p95"], "limits", "", "")
    figures, kernels = schedule_and_text(rows)
    yield from map(str, figures)
    with tempfile.TemporaryDirectory() as folder, config.override(cache_dir=folder):
        yield str(compile_each(kernels))
        yield str(find_in_new_process(kernels))
    yield eager_call(seconds)
    yield first_step()
    yield SCORCH
    yield _load()


def _load() -> str:
    averages = " ".join(f"{x:.1f}" for x in os.getloadavg())
    return f"load {averages} on {len(os.sched_getaffinity(0))} CPUs"

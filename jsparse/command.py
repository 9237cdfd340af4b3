# SPDX-License-Identifier: Apache-2.0
"""The commands `explain` and `run`, from texts to lines; flags and exit codes are in `__main__`.

    "ij,jk->ik"  graph.mtx  dense:64       operands as text
         │ operands                        loaded, generated, extents tied by the einsum's letters
         │ steps                           what parsing, planning, compiling, first calls take
         │ check                           against SciPy or dense NumPy in float64
         ▼ race                            against SciPy, BCOO and BCSR, in turns

An operand of `run` is one of

    graph.mtx, a.npz, x.tns.gz             a file; `a.mtx:csc` also says in which format to hold it
    random:csr:1000x1000:0.01              generated: format, shape, density
    dense  dense:64  dense:1000x64         generated: all extents known, the unknown ones, or all
"""

from __future__ import annotations

import math
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax.experimental import sparse as jax_sparse

import jsparse as js
from jsparse import config, exchange, latency, pipeline
from jsparse.codegen import build
from jsparse.errors import EinsumError, FormatError
from jsparse.parse import Einsum, parse_einsum

DENSE_LIMIT = 1 << 26  # elements of the largest dense array that a check makes
WORK_LIMIT = 1 << 33  # multiply-adds of a dense check
PAIRS_LIMIT = 1 << 22  # BCOO multiplies sparse by sparse through an array of nse x nse entries
WIDE = ("float64", "complex128", "int64", "uint64")


# -------------------------------------------------------------------- explain
def explain(
    subscripts: str,
    formats: Sequence[str],
    sizes: dict[str, int],
    dtype: str = "float32",
    density: float = 0.01,
    **wish: Any,
) -> str:
    """What `js.explain` says for operands in these formats: one text each, or one with commas."""
    if len(formats) == 1 and subscripts.partition("->")[0].count(","):
        formats = re.split(r",(?![^\[]*\])", formats[0])  # not at the commas of a block
    if any("int64" in f for f in formats):
        _dtype("int64")
    operands = latency.operands_for(subscripts, formats, sizes, str(_dtype(dtype)), density)
    return str(js.explain(subscripts, *operands, **wish))


def _dtype(name: str) -> Any:
    """The dtype of that name; 64-bit ones switch 64-bit types on for the process."""
    try:
        dtype = jnp.dtype(name)
    except TypeError:
        raise FormatError(f"dtype: got {name!r}, expected a name such as float32") from None
    if name in WIDE:
        jax.config.update("jax_enable_x64", True)
    return dtype


# ------------------------------------------------------------------- operands
def _extents(text: str, spec: str) -> tuple[int, ...]:
    try:
        return tuple(int(n) for n in text.split("x"))
    except ValueError:
        raise FormatError(
            f"operand {spec!r}: got extents {text!r}, expected e.g. 1000x64"
        ) from None


def _sparse(spec: str, dtype: Any, seed: int) -> js.SparseArray:
    """A loaded or generated sparse operand."""
    if spec.startswith("random:"):
        _, name, shape, *rest = [*spec.split(":"), ""][:4] if spec.count(":") > 1 else ("",) * 3
        if not name:
            raise FormatError(f"operand {spec!r}: expected random:FORMAT:SHAPE[:DENSITY]")
        try:
            density = float(rest[0] or "0.01")
        except ValueError:
            raise FormatError(f"operand {spec!r}: density {rest[0]!r} is no number") from None
        a = js.random(jax.random.key(seed), _extents(shape, spec), density, format=name)
    else:
        path, colon, name = spec.rpartition(":")
        known = colon and not Path(spec).exists()
        a = js.load(path, format=name) if known else js.load(spec)
    return a if dtype is None else a.astype(dtype)


def _is_dense(spec: str) -> bool:
    return spec == "dense" or spec.startswith("dense:")


def operands(subscripts: str, specs: Sequence[str], dtype: str = "") -> list[Any]:
    """The operands that texts name; dense ones get the extents that their letters have."""
    parts = subscripts.replace(" ", "").partition("->")[0].split(",")
    if len(parts) != len(specs):
        raise EinsumError(
            f"einsum {subscripts!r}: {len(parts)} subscripts for {len(specs)} operand(s)"
        )
    wanted = _dtype(dtype) if dtype else None
    out: list[Any] = [
        None if _is_dense(spec) else _sparse(spec, wanted, n) for n, spec in enumerate(specs)
    ]
    extent: dict[str, int] = {}
    for names, x in zip(parts, out, strict=True):
        if x is not None:
            extent.update(zip(names, x.shape, strict=False))
    rng = np.random.default_rng(0)
    for n, (names, spec) in enumerate(zip(parts, specs, strict=True)):
        if out[n] is None:
            shape = _dense_shape(names, spec, extent)
            whole = wanted is not None and wanted.kind in "iub"
            values: Any = rng.integers(0, 3, shape) if whole else rng.standard_normal(shape)
            out[n] = jnp.asarray(values, wanted or jnp.float32)
    return out


def _dense_shape(names: str, spec: str, extent: dict[str, int]) -> tuple[int, ...]:
    given = _extents(spec[6:], spec) if ":" in spec else ()
    if "..." in names and given:
        return given
    odd = next((v for v in names if not v.isalpha()), None)
    if odd is not None:
        raise EinsumError(
            f"operand {spec!r} for {names!r}: unexpected {odd!r}; use letters, "
            f"or '...' and all extents"
        )
    unknown = [v for v in dict.fromkeys(names) if v not in extent]
    if len(given) == len(unknown):
        extent.update(zip(unknown, given, strict=True))
        return tuple(extent[v] for v in names)
    if len(given) != len(names):
        known = ", ".join(f"{v}={extent[v]}" for v in names if v in extent) or "none"
        raise EinsumError(
            f"operand {spec!r} for {names!r}: got {len(given)} extent(s), expected "
            f"{len(unknown)} for {unknown} (known: {known}), or all {len(names)}"
        )
    extent.update(zip(names, given, strict=True))
    return given


# ---------------------------------------------------------------------- check
def scipy_call(e: Einsum, operands: Sequence[Any]) -> Callable[[], Any] | None:
    """The einsum through SciPy, if it is a product of matrices, an elementwise one or a sum."""
    plain = all(len(v) <= 2 and len(set(v)) == len(v) for v in e.inputs)
    if not plain or not any(isinstance(x, js.SparseArray) for x in operands):
        return None
    m: list[Any] = [
        exchange.toscipy(x) if isinstance(x, js.SparseArray) else np.asarray(x) for x in operands
    ]
    match e.inputs:
        case ((_, _) as a,) if len(e.output) < 2:
            kept = [a.index(v) for v in e.output]
            return lambda: m[0].sum(axis=1 - kept[0] if kept else None)
        case (a, b) if set(a) == set(b) == set(e.output) and len(a) == 2:
            x, y = (p if v == e.output else p.T for p, v in zip(m, (a, b), strict=True))
            x, y = (x, y) if sp.issparse(x) else (y, x)
            return lambda: x.multiply(y)
        case (a, b):
            shared = set(a) & set(b)
            free = tuple(v for v in (*a, *b) if v not in shared)
            if len(shared) != 1 or shared & set(e.output) or set(free) != set(e.output):
                return None
            x = m[0] if a[-1] in shared else m[0].T
            y = m[1] if b[0] in shared else m[1].T
            return (lambda: x @ y) if free == e.output else (lambda: (x @ y).T)
    return None


def _exact(x: Any) -> Any:
    """An operand in the widest type of its kind, on the host if dense."""
    kind = jnp.dtype(x.dtype).kind
    wide = {"c": np.complex128, "i": np.int64, "u": np.uint64, "b": np.int64}.get(kind, np.float64)
    if isinstance(x, js.SparseArray):
        return x.astype(wide)
    return np.asarray(x).astype(wide)


def check(subscripts: str, e: Einsum, operands: Sequence[Any], result: Any) -> tuple[bool, str]:
    """Whether the result is right, and a line that says by what and how far off it is."""
    with jax.enable_x64(True):
        exact = [_exact(x) for x in operands]
        call, by = scipy_call(e, exact), "SciPy"
        if call is None:
            size: dict[str, int] = {}
            for names, x in zip(e.inputs, exact, strict=True):
                size.update(zip(names, x.shape, strict=True))
            largest = max(math.prod(x.shape) for x in (*exact, result))
            if largest > DENSE_LIMIT or math.prod(size.values()) > WORK_LIMIT:
                return True, "check: none; SciPy has no such operation and a dense one is too large"
            dense = [
                np.asarray(js.todense(x) if isinstance(x, js.SparseArray) else x) for x in exact
            ]
            call, by = (lambda: np.einsum(subscripts, *dense, optimize=True)), "dense NumPy"
        error, scale = _difference(result, call())
    dtype = jnp.dtype(result.dtype)
    loose = 0.0 if dtype.kind in "iub" else float(jnp.finfo(dtype).eps)
    ok = error <= scale * loose * (4 if dtype.itemsize < 4 else 200)
    share = error / scale if scale else error
    wide = "64-bit integers" if dtype.kind in "iub" else "float64"
    verdict = "ok" if ok else "WRONG"
    return ok, f"check: {verdict}; {by} in {wide}; largest error {share:.1e} of the largest value"


def _difference(got: Any, want: Any) -> tuple[float, float]:
    """The largest difference, and the largest value."""
    if isinstance(got, js.SparseArray) and sp.issparse(want):
        got = exchange.toscipy(got.astype(want.dtype))
    else:
        want = want.toarray() if sp.issparse(want) else np.asarray(want)
        got = js.todense(got) if isinstance(got, js.SparseArray) else got
        got = np.asarray(got)
        if got.dtype.kind in "iub":
            want = want.astype(got.dtype).astype(np.int64)  # wraps as the result does
        got = got.astype(np.result_type(want.dtype, np.float32))
    return _most(got - want), _most(want)


def _most(x: Any) -> float:
    values = x.data if sp.issparse(x) else x
    return float(np.abs(values).max()) if values.size else 0.0


# ------------------------------------------------------------------------ run
def run(
    subscripts: str,
    specs: Sequence[str],
    dtype: str = "",
    seconds: float = 2.0,
    fresh: bool = False,
    **wish: Any,
) -> Iterator[str]:
    """The lines of `python -m jsparse run`; the last one is the check if the result is wrong.

    Args:
      subscripts: the einsum.
      specs: operands as text, see the module.
      dtype: of all operands; by default what a file holds, and float32.
      seconds: how long to time.
      fresh: compile although the kernels may be on disk.
      **wish: `out_format` and `schedule`, as for `js.einsum`.
    """
    with ExitStack() as stack:
        if fresh:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            stack.enter_context(config.override(cache_dir=folder))
        start = time.perf_counter()
        ops = operands(subscripts, specs, dtype)
        loaded = time.perf_counter() - start
        yield f"einsum {subscripts!r}"
        for n, (x, spec) in enumerate(zip(ops, specs, strict=True)):
            yield f"  operand {n}: {describe(x)}   {spec}"
        rows, result, jitted = _steps(subscripts, ops, wish)
        yield f"  result:    {describe(result)}"
        yield ""
        yield f"{'what it cost':44s} {'ms':>10s}"
        for what, taken in [("load or generate the operands", loaded), *rows]:
            yield f"  {what:42s} {1e3 * taken:10.3f}"
        e = parse_einsum(subscripts, tuple(x.ndim for x in ops))
        ok, line = check(subscripts, e, ops, result)
        same = check(subscripts, e, ops, jitted())
        yield ""
        yield line if ok == same[0] else f"eager and jitted differ: {line}; {same[1]}"
        yield ""
        yield from _race(subscripts, e, ops, jitted, wish, seconds)
        if not (ok and same[0]):
            raise WrongResultError(line if not ok else same[1])


class WrongResultError(ArithmeticError):
    """A result that failed its check."""


def describe(x: Any) -> str:
    """Format, dtype, shape and stored entries."""
    shape = ",".join(map(str, x.shape))
    if isinstance(x, js.SparseArray):
        return f"{x.format} {x.dtype}[{shape}], {x.nnz} stored entries"
    return f"dense {x.dtype}[{shape}]"


def _steps(
    subscripts: str, ops: list[Any], wish: dict[str, Any]
) -> tuple[list[tuple[str, float]], Any, Callable[[], Any]]:
    """What each step takes; the eager result; the jitted call."""
    rows: list[tuple[str, float]] = []

    def timed(what: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        out = call()
        jax.block_until_ready(out if isinstance(out, (js.SparseArray, jax.Array)) else ())
        rows.append((what, time.perf_counter() - start))
        return out

    timed("parse", lambda: parse_einsum(subscripts, tuple(x.ndim for x in ops)))
    taken, specs = latency.planned(subscripts, ops, **wish)
    rows.append(("trace, infer and plan", taken))
    texts = timed(f"text of {len(specs)} kernel(s)", lambda: [pipeline.text(s) for s in specs])
    if build.compiler() is not None:
        for text, spec in zip(texts, specs, strict=True):
            found = build.object_path(build.key(text)).exists()
            what = "find on disk" if found else "compile"
            name = f"{what} {latency.kernel_name(spec)}"
            timed(name[:42], partial(build.compile_now, text, build.key(text)))
    eager = timed("first eager call", lambda: js.einsum(subscripts, *ops, **wish))
    more = dict(wish)
    if isinstance(eager, js.SparseArray):
        more["nse"] = eager.nse
    program = jax.jit(lambda *xs: js.einsum(subscripts, *xs, **more))
    timed("first jitted call", lambda: program(*ops))
    timed("second eager call", lambda: js.einsum(subscripts, *ops, **wish))
    timed("second jitted call", lambda: program(*ops))
    return rows, eager, lambda: program(*ops)


def _race(
    subscripts: str,
    e: Einsum,
    ops: list[Any],
    jitted: Callable[[], Any],
    wish: dict[str, Any],
    seconds: float,
) -> Iterator[str]:
    """Times of jsparse and of what else can do it."""
    calls: dict[str, Callable[[], Any]] = {
        "jsparse, jit": jitted,
        "jsparse, eager": lambda: js.einsum(subscripts, *ops, **wish),
    }
    missing = {}
    small = all(jnp.dtype(x.dtype).itemsize >= 4 or x.dtype.kind in "iub" for x in ops)
    reference = scipy_call(e, ops) if small else None
    if reference is not None:
        calls["SciPy"] = reference
    else:
        missing["SciPy"] = "no such operation or dtype"
    for name in ("BCOO", "BCSR"):
        try:
            calls[f"{name}, jit"] = _theirs(subscripts, ops, name)
        except Exception as error:  # whatever it raises, it cannot do it
            missing[f"{name}, jit"] = (str(error) or repr(error)).splitlines()[0][:60]
    taken = latency.in_turns(calls, seconds)
    yield f"{'median of runs taken in turns':32s} {'ms':>10s} {'relative':>9s}"
    for name, t in taken.items():
        yield f"  {name:30s} {1e3 * t:10.3f} {t / taken['jsparse, jit']:9.2f}"
    for name, why in missing.items():
        yield f"  {name:30s} {'-':>10s} {'-':>9s}   {why}"


def _theirs(subscripts: str, ops: list[Any], kind: str) -> Callable[[], Any]:
    """The einsum through `jax.experimental.sparse`, warm; raises if it has no such operation."""
    sparse = [x for x in ops if isinstance(x, js.SparseArray)]
    if len(sparse) > 1 and math.prod(x.nse for x in sparse) > PAIRS_LIMIT:
        raise FormatError("skipped: would allocate nse x nse entries")
    xs = [exchange.tobcoo(x) if isinstance(x, js.SparseArray) else x for x in ops]
    if kind == "BCSR":
        xs = [jax_sparse.BCSR.from_bcoo(x) if isinstance(x, jax_sparse.BCOO) else x for x in xs]
    program = jax.jit(jax_sparse.sparsify(lambda *ys: jnp.einsum(subscripts, *ys)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its slower paths
        jax.block_until_ready(program(*xs))
    return lambda: program(*xs)

# SPDX-License-Identifier: Apache-2.0
"""Matrices of few diagonals: `python tests/bench/diagonals.py [--mkl=libmkl_rt.so]`.

A x, A^T x and the gradient of A x in the values of A, stored as csr and as dia, beside SciPy's csr
and dia; with `--mkl` also MKL's inspector, told of a thousand calls.  Patterns are frozen.  Last a
copy of as many bytes as the values of A, x and y have: what memory allows.  CPU time of the
process, median of rounds in which all take turns; pin it to one CPU (`taskset -c 0`).  Every
result is compared with SciPy's.
"""

from __future__ import annotations

import ctypes
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from absl import app, flags
from measure import Run, medians

import jsparse as js

ROUNDS = flags.DEFINE_integer("rounds", 31, "rounds")
MKL = flags.DEFINE_string("mkl", "", "path of libmkl_rt.so, to compare with")
STENCILS = {
    "1e6, 5 diagonals": (1_000_000, (-1000, -1, 0, 1, 1000)),
    "1e5, 9 diagonals": (100_000, tuple(range(-4, 5))),
    "1e5, 11 diagonals": (100_000, (-317, -316, -315, -2, -1, 0, 1, 2, 315, 316, 317)),
}


class Description(ctypes.Structure):
    """MKL's `matrix_descr`: a general matrix."""

    _fields_ = (("type", ctypes.c_int), ("mode", ctypes.c_int), ("diag", ctypes.c_int))


def inspected(s: Any, x: np.ndarray) -> Run:
    """MKL's product of a matrix that it has inspected."""
    library = ctypes.CDLL(MKL.value)
    library.MKL_Set_Interface_Layer(0)  # 32-bit integers
    library.MKL_Set_Num_Threads(1)
    single = s.dtype == np.float32
    name, real = ("s", ctypes.c_float) if single else ("d", ctypes.c_double)
    handle, general = ctypes.c_void_p(), Description(20, 0, 0)
    arrays = [np.ascontiguousarray(a) for a in (s.indptr[:-1], s.indptr[1:], s.indices, s.data)]
    y = np.empty(s.shape[0], s.dtype)

    def call(what: str, *args: Any) -> None:
        status = getattr(library, f"mkl_sparse_{what}")(*args)
        assert status == 0 or what == "optimize", f"{what}: MKL status {status}"

    def at(a: np.ndarray) -> ctypes.c_void_p:
        return ctypes.c_void_p(a.ctypes.data)

    call(f"{name}_create_csr", ctypes.byref(handle), 0, *s.shape, *map(at, arrays))
    call("set_mv_hint", handle, 10, general, 1000)
    call("optimize", handle)

    def run() -> np.ndarray:
        assert arrays
        call(f"{name}_mv", 10, real(1), handle, general, at(x), real(0), at(y))
        return y

    return run


def rows(n: int, offsets: tuple[int, ...], dtype: Any) -> dict[str, dict[str, Run]]:
    """Calls by what they compute and by library."""
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(n - abs(k)) for k in offsets]
    s = sp.diags_array(parts, offsets=offsets, shape=(n, n)).tocsr().astype(dtype)
    s.indptr, s.indices = s.indptr.astype(np.int32), s.indices.astype(np.int32)
    t, d, x = s.T.tocsr(), s.todia(), rng.standard_normal(n).astype(dtype)
    v = jnp.asarray(x)
    product = jax.jit(lambda a, x: a @ x)
    turned = jax.jit(lambda a, x: a.T @ x)
    gradient = jax.jit(jax.grad(lambda a, x: jnp.vdot(x, a @ x)))
    out: dict[str, dict[str, Run]] = {"A x": {}, "A^T x": {}, "dA": {}}
    for format in ("csr", "dia"):
        a = js.asarray(s).freeze().to(format)
        out["A x"][format] = lambda a=a: product(a, v)
        out["A^T x"][format] = lambda a=a: turned(a, v)
        out["dA"][format] = lambda a=a: gradient(a, v).data
        np.testing.assert_allclose(out["A x"][format](), s @ x, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(out["A^T x"][format](), t @ x, rtol=1e-4, atol=1e-4)
    out["A x"] |= {"SciPy csr": lambda: s @ x, "SciPy dia": lambda: d @ x}
    out["A^T x"]["SciPy csr"] = lambda: t @ x
    if MKL.value:
        out["A x"]["MKL"], out["A^T x"]["MKL"] = inspected(s, x), inspected(t, x)
        np.testing.assert_allclose(out["A x"]["MKL"](), s @ x, rtol=1e-4, atol=1e-4)
    source = np.ones((len(offsets) + 2) * n // 2, dtype)
    target = np.empty_like(source)
    out["A x"]["copy"] = lambda: np.copyto(target, source)
    return out


def main(_: list[str]) -> None:
    jax.config.update("jax_enable_x64", True)
    for name, (n, offsets) in STENCILS.items():
        for dtype in (np.float32, np.float64):
            for what, runs in rows(n, offsets, dtype).items():
                times = medians(list(runs.values()), ROUNDS.value)
                label = f"{name}, {np.dtype(dtype).name}, {what}"
                cells = "  ".join(f"{k} {t:.2f}" for k, t in zip(runs, times, strict=True))
                print(f"{label:36} ms  {cells}")


if __name__ == "__main__":
    app.run(main)

# SPDX-License-Identifier: Apache-2.0
"""Loop IR run on NumPy arrays: the executable semantics, and a test oracle that needs no compiler.

Slow by design: one Python step for each node.  Values are computed in the dtype that the
generated code uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jsparse.errors import InternalError
from jsparse.ir import loop
from jsparse.ir.loop import Buffer, Kernel, type_of

Array = np.ndarray[Any, Any]


class Fault(Exception):
    """A `Raise` that was reached: (kind, operand, level, position, got, limit)."""


class TooLong(Exception):
    """A run took more loop iterations than it was given."""


class _Break(Exception):
    pass


def numpy_dtype(name: str) -> Any:
    """The NumPy dtype of a dtype name; bfloat16 comes from ml_dtypes, which JAX depends on."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def run(
    kernel: Kernel,
    args: list[Array],
    results: list[Array],
    extents: list[int],
    threads: int = 1,
    most: float = math.inf,
) -> int:
    """Run a kernel on arrays; `results` are written.  Chunks run in reverse order, to show that
    order is free.

    Returns the number of loop iterations it took: its work, whatever the machine.  Raises
    `TooLong` after `most` of them.
    """
    machine = _Machine(kernel, args, results, extents, threads, most)
    machine.stmt(kernel.body, {})
    return machine.steps


class _Machine:
    def __init__(
        self,
        kernel: Kernel,
        args: list[Array],
        results: list[Array],
        extents: list[int],
        threads: int,
        most: float,
    ):
        self.arrays: dict[str, Array] = {}
        self.flat: dict[str, Array] = {}
        for buffers, arrays in ((kernel.args, args), (kernel.results, results)):
            for b, a in zip(buffers, arrays, strict=True):
                self.arrays[b.name] = a
                self.flat[b.name] = a.reshape(-1)
        self.extents = extents
        self.threads = threads
        self.sets: dict[str, set[int] | list[int]] = {}
        self.steps = 0
        self.most = most

    # ------------------------------------------------------------ expressions
    def eval(self, e: Any, env: dict[str, Any]) -> Any:
        match e:
            case loop.Const(value, dtype):
                return value if dtype == loop.INT else numpy_dtype(dtype).type(value)
            case loop.Var(name, _, _):
                return env[name]
            case loop.Dim(buffer, axis):
                a = self.arrays[buffer.name]
                return a.size if axis < 0 else a.shape[axis]
            case loop.Extent(number):
                return self.extents[number]
            case loop.Threads():
                return self.threads
            case loop.Load(buffer, index, lanes):
                at = self.inside(buffer, self.eval(index, env), lanes)
                flat = self.flat[buffer.name]
                return flat[at] if lanes == 1 else flat[at : at + lanes].copy()
            case loop.Bin("and", a, b):
                return self.eval(a, env) and self.eval(b, env)
            case loop.Bin("or", a, b):
                return self.eval(a, env) or self.eval(b, env)
            case loop.Bin(op, a, b):
                return _OPS[op](self.eval(a, env), self.eval(b, env))
            case loop.Neg(a):
                with np.errstate(over="ignore"):
                    return -self.eval(a, env)
            case loop.Cast(dtype, a):
                value = self.eval(a, env)
                if dtype == loop.INT:
                    return int(value)
                return np.asarray(value).astype(numpy_dtype(dtype))[()]
            case loop.Select(c, a, b):
                return self.eval(a if self.eval(c, env) else b, env)
            case loop.Keep(c, a):
                value = self.eval(a, env)
                return value if self.eval(c, env) else type(value)(0)
            case loop.Splat(a, lanes):
                return np.full(lanes, self.eval(a, env), numpy_dtype(type_of(a)[0]))
            case loop.Pack(parts):
                return np.array(
                    [self.eval(x, env) for x in parts], numpy_dtype(type_of(parts[0])[0])
                )
            case loop.HSum(a, op):
                v = self.eval(a, env)
                while len(v) > 1:
                    v = _OPS[op](v[: len(v) // 2], v[len(v) // 2 :])
                return v[0]
            case loop.Call(name, args):
                return self.helper(name, args, env)
        raise InternalError(f"cannot evaluate {e!r}")

    def inside(self, buffer: Buffer, at: int, lanes: int = 1) -> int:
        if not 0 <= at <= self.flat[buffer.name].size - lanes:
            raise InternalError(f"{buffer.name}[{at}] with {lanes} lanes is out of bounds")
        return int(at)

    def helper(self, name: str, args: tuple[Any, ...], env: dict[str, Any]) -> Any:
        values = [
            self.flat.get(a.name, a.name) if isinstance(a, Buffer) else self.eval(a, env)
            for a in args
        ]
        if name.startswith("set_"):
            return self.set_helper(name, *values)
        return _HELPERS[name](*values)

    def set_helper(self, name: str, which: Any, *args: Any) -> Any:
        match name:
            case "set_new" | "set_clear":
                self.sets[which] = set()
            case "set_insert":
                self.sets[which].add(args[0])  # type: ignore[union-attr]
            case "set_size":
                return len(self.sets[which])
            case "set_sort":
                self.sets[which] = sorted(self.sets[which])
                return len(self.sets[which])
            case "set_get":
                return self.sets[which][args[0]]  # type: ignore[index]
        return None

    # ------------------------------------------------------------- statements
    def step(self) -> None:
        self.steps += 1
        if self.steps > self.most:
            raise TooLong

    def stmt(self, s: Any, env: dict[str, Any]) -> None:
        match s:
            case loop.Block(stmts):
                for x in stmts:
                    self.stmt(x, env)
            case loop.Decl(var, value, _) | loop.Assign(var, value):
                if isinstance(s, loop.Assign) and var.name not in env:
                    raise InternalError(f"{var.name} assigned before its declaration")
                env[var.name] = self.eval(value, env)
            case loop.Store(buffer, index, value, op, lanes):
                self.store(buffer, self.eval(index, env), self.eval(value, env), op, lanes)
            case loop.For(var, lo, hi, body, step):
                stop = self.eval(hi, env)
                try:
                    for k in range(int(self.eval(lo, env)), int(stop), step):
                        env[var.name] = k
                        self.step()
                        self.stmt(body, env)
                except _Break:
                    pass
            case loop.While(cond, body):
                try:
                    while self.eval(cond, env):
                        self.step()
                        self.stmt(body, env)
                except _Break:
                    pass
            case loop.If(cond, then, other):
                if self.eval(cond, env):
                    self.stmt(then, env)
                elif other is not None:
                    self.stmt(other, env)
            case loop.Break():
                raise _Break
            case loop.Comment(_):
                pass
            case loop.Scratch(buffer, size, zero):
                n = self.eval(size, env)
                fill = 0 if zero else _poison(buffer.dtype)
                self.arrays[buffer.name] = self.flat[buffer.name] = np.full(
                    n, fill, numpy_dtype(buffer.dtype)
                )
            case loop.Do(name, args):
                self.helper(name, args, env)
            case loop.Parallel(var, chunks, body):
                for k in reversed(range(self.eval(chunks, env))):
                    self.stmt(body, {**env, var.name: k})
            case loop.Raise(kind, operand, level, position, got, limit):
                raise Fault(
                    kind, operand, level, *(int(self.eval(x, env)) for x in (position, got, limit))
                )
            case loop.Check():
                self.check(s, env)
            case _:
                raise InternalError(f"cannot run {s!r}")

    def check(self, s: loop.Check, env: dict[str, Any]) -> None:
        x = self.arrays[s.array.name]
        lo, hi, limit = (int(self.eval(e, env)) for e in (s.lo, s.hi, s.limit))
        bad = _BAD[s.kind](x, lo, hi, limit)
        if bad >= 0:
            raise Fault(s.kind, s.operand, s.level, bad, int(x[bad]), limit)

    def store(self, buffer: Buffer, at: int, value: Any, op: str, lanes: int) -> None:
        at = self.inside(buffer, at, lanes)
        flat = self.flat[buffer.name]
        where: Any = at if lanes == 1 else slice(at, at + lanes)
        with np.errstate(all="ignore"):
            flat[where] = _OPS[op](flat[where], value) if op else value


def _poison(dtype: str) -> Any:
    return np.nan if "float" in dtype or "complex" in dtype else 1


def _quiet(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def g(a: Any, b: Any) -> Any:
        with np.errstate(all="ignore"):
            return f(a, b)

    return g


_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "+": _quiet(lambda a, b: a + b),
    "-": _quiet(lambda a, b: a - b),
    "*": _quiet(lambda a, b: a * b),
    "/": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "min": min,
    "max": max,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


def _find_bad_pos(pos: Array, lo: int, hi: int, limit: int) -> int:
    if lo == 0 and pos[0] != 0:
        return 0
    for p in range(lo, hi + 1):
        if pos[p] < 0 or pos[p] > limit or (p > lo and pos[p] < pos[p - 1]):
            return p
    return -1


def _find_bad_crd(crd: Array, lo: int, hi: int, extent: int) -> int:
    bad = np.flatnonzero((crd[lo:hi] < 0) | (crd[lo:hi] >= extent))
    return lo + int(bad[0]) if bad.size else -1


def _lower_bound(crd: Array, lo: int, hi: int, x: int) -> int:
    return lo + int(np.searchsorted(crd[lo:hi], x))


def _balance(pos: Array, lo: int, hi: int, k: int, chunks: int) -> int:
    if k <= 0 or k >= chunks:
        return lo if k <= 0 else hi
    first = int(pos[lo]) + lo
    want = first + int((int(pos[hi]) + hi - first) * k / chunks)
    return lo + int(np.searchsorted(pos[lo:hi] + np.arange(lo, hi), want))


def _even(lo: int, hi: int, k: int, chunks: int) -> int:
    return lo if k <= 0 else hi if k >= chunks else lo + int((hi - lo) * k / chunks)


def _share(k: int, chunks: int, extent: int, *fibers: Any) -> int:
    if k <= 0 or k >= chunks:
        return 0 if k <= 0 else extent
    groups = [fibers[n : n + 4] for n in range(0, len(fibers), 4)]

    def before(v: int) -> int:
        total = 0
        for crd, pos, lo, hi in groups:
            p = _lower_bound(crd, lo, hi, v)
            total += p - lo + (int(pos[p]) - int(pos[lo]) if isinstance(pos, np.ndarray) else 0)
        return total

    want = int(before(extent) * k / chunks)
    a, b = 0, extent
    while a < b:
        mid = (a + b) // 2
        a, b = (mid + 1, b) if before(mid) < want else (a, mid)
    return a


def _group_start(crd: Array, p: int, lo: int, hi: int) -> int:
    while lo < p < hi and crd[p] == crd[p - 1]:
        p += 1
    return p


def _fill_zero(x: Array, lo: int, hi: int) -> None:
    x[lo:hi] = 0


def _copy(y: Array, to: int, x: Array, start: int, n: int) -> None:
    y[to : to + n] = x[start : start + n]


def _copy_scan(x: Array, n: int) -> None:
    x[: n + 1] = np.cumsum(x[: n + 1])


def _copy_max(x: Array, n: int) -> None:
    x[: n + 1] = np.maximum.accumulate(x[: n + 1])


def _sort_by(perm: Array, crd: Array, n: int) -> None:
    perm[:n] = perm[:n][np.argsort(crd[perm[:n]], kind="stable")]


def _identity(perm: Array, n: int) -> None:
    perm[:n] = np.arange(n)


_BAD = {loop.POS_NOT_MONOTONE: _find_bad_pos, loop.CRD_OUT_OF_RANGE: _find_bad_crd}
_HELPERS: dict[str, Callable[..., Any]] = {
    "lower_bound": _lower_bound,
    "gallop": _lower_bound,
    "balance": _balance,
    "even": _even,
    "share": _share,
    "group_start": _group_start,
    "prefetch": lambda x, at, n: None,
    "fill_zero": _fill_zero,
    "copy": _copy,
    "copy_scan": _copy_scan,
    "copy_max": _copy_max,
    "sort_by": _sort_by,
    "identity": _identity,
}

# SPDX-License-Identifier: Apache-2.0
"""Lowering without a compiler: loop IR under the interpreter, and `reference`, against dense NumPy.

A row of the tables is an assignment without dtypes.  Operands are made at random with small integer values, so that
sums are exact in every dtype and order; index arrays and values have capacity beyond their entries, filled with what
must not be read.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
import zlib
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsparse import pipeline, reference
from jsparse.errors import ScheduleError
from jsparse.format import Format
from jsparse.ir import interpret, verify
from jsparse.ir.index import PATTERN, Access, Assignment, parse_assignment
from jsparse.lower import assemble, loops
from jsparse.pipeline import Spec
from jsparse.schedule import auto, directives
from jsparse.schedule.directives import Parallelize, Precompute, Reorder, Schedule, Unroll, Vectorize

Array = np.ndarray[Any, Any]

EXTENTS = {"i": 5, "j": 6, "k": 4, "l": 3, "m": 2, "n": 7}
WIDE = EXTENTS | {"k": 35}  # vector loops with blocks of registers, of lanes, and a remainder


def assignment(text: str, dtype: str = "float32") -> Assignment:
    """`Y[i] = A[i,j]:csr * B[j]` with `:dense` and `:dtype` filled in."""
    text = re.sub(r"\](?=\s|$)", "]:dense", text)
    words = [w if "]:" not in w or w.endswith(PATTERN) else f"{w}:{dtype}" for w in text.split(" ")]
    return parse_assignment(" ".join(words))


def seed(*what: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(what).encode()))


# ------------------------------------------------------------------- operands
@dataclass(frozen=True)
class Packed:
    """Index arrays of a sparse tensor, in storage order, and the coordinates (by level) of its positions."""

    arrays: list[Array]
    entries: list[tuple[int, ...]]
    capacities: list[int]  # of each group of levels
    room: int  # positions of the last sparse level


def pack(
    f: Format, extents: tuple[int, ...], coords: list[tuple[int, ...]], pad: int, rng: np.random.Generator | None
) -> Packed:
    """Store coordinates (tuples by level, of the sparse part) in a format, each level with `pad` spare entries.

    With `rng` the padding is garbage and what need not be ordered is not; without it is what assembly leaves there.
    """
    positions: list[list[tuple[int, ...]]] = [sorted(coords)]
    room = 1
    arrays: list[Array] = []
    capacities: list[int] = []
    for n in range(f.ndim - f.dense_tail):
        level, e = f.levels[n], extents[n]
        if level.full:
            positions = [[c for c in p if c[n] == x] for p in positions for x in range(e)]
            room *= e
            continue
        children: list[list[list[tuple[int, ...]]]] = []
        for p in positions:
            groups = [[c for c in p if c[n] == x] for x in sorted({c[n] for c in p})] if level.unique else [[c] for c in p]
            if level.branchless:
                groups = [p]
            elif not level.ordered and rng is not None:
                rng.shuffle(groups)  # type: ignore[arg-type]
            children.append(groups)
        below = [g for groups in children for g in groups]
        if "pos" in level.arrays:
            pos = np.cumsum([0] + [len(groups) for groups in children])
            spare = room - len(positions)
            rest = rng.integers(-99, 99, spare) if rng is not None else np.full(spare, pos[-1])
            arrays.append(np.concatenate([pos, rest]).astype(f.index))
            room = len(below) + pad
            capacities.append(room)
        spare = room - len(below)
        rest = rng.integers(-99, 99, spare) if rng is not None else np.zeros(spare)
        arrays.append(np.array([*[g[0][n] for g in below], *rest]).astype(f.index))
        positions = below
    return Packed(arrays, [p[0] if p else () for p in positions], capacities, room)


@dataclass(frozen=True)
class Operand:
    """An operand as a kernel gets it, and as a dense array in the order of its modes."""

    access: Access
    flat: list[Array]
    dense: Array
    present: Array
    entries: list[tuple[int, ...]]
    room: int


def small(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    x = rng.integers(0 if dtype.startswith("uint") else -3, 4, shape)
    return (x + 1j * rng.integers(-3, 4, shape) if "complex" in dtype else x).astype(interpret.numpy_dtype(dtype))


def exact(dtype: str) -> Any:
    """The dtype of the oracle."""
    if dtype in (PATTERN, "bool") or "int" in dtype:
        return np.int64
    return np.complex128 if "complex" in dtype else np.float64


def operand(access: Access, extent: dict[str, int], rng: np.random.Generator, density: float = 0.4) -> Operand:
    f, names = access.format, access.level_vars
    shape = tuple(extent[v] for v in names)
    back = [f.order.index(m) for m in range(f.ndim)]
    if f.is_dense:
        x = small(rng, shape, access.dtype)
        wide = x.astype(exact(access.dtype)).transpose(back)
        return Operand(access, [x], wide, np.ones(wide.shape, bool), [], 0)
    depth = f.ndim - f.dense_tail
    places = list(itertools.product(*[range(e) for e in shape[:depth]]))
    coords = [c for c in places if rng.random() < density]
    last = f.levels[max(f.sparse_levels)]
    if not last.unique and coords:
        coords += [coords[n] for n in rng.integers(0, len(coords), 3)]
    packed = pack(f, shape, coords, pad=3, rng=rng)
    entries = packed.entries
    dense = np.zeros(shape, exact(access.dtype))
    present = np.zeros(shape, bool)
    flat = list(packed.arrays)
    values = np.ones((packed.room, *shape[depth:]), np.int64)
    if access.dtype != PATTERN:
        poison = interpret._poison(access.dtype)
        values = np.full(values.shape, poison, interpret.numpy_dtype(access.dtype))
        values[: len(entries)] = small(rng, (len(entries), *shape[depth:]), access.dtype)
        flat = [values, *flat]
    for p, c in enumerate(entries):
        dense[c] += values[p].astype(dense.dtype)
        present[c] = True
    return Operand(access, flat, dense.transpose(back), present.transpose(back), entries, packed.room)


@dataclass(frozen=True)
class Problem:
    """An assignment with operands and the expected values in storage order."""

    assignment: Assignment
    extent: dict[str, int]
    operands: list[Operand]
    pattern: Operand | None
    expected: Array

    @property
    def flat(self) -> list[Array]:
        return [x for o in (*self.operands, *([self.pattern] if self.pattern else [])) for x in o.flat]

    @property
    def extents(self) -> list[int]:
        return [self.extent[v] for v in self.assignment.vars]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(o.room for o in (*self.operands, *([self.pattern] if self.pattern else [])))

    def laid_out(self, a: Assignment) -> Problem:
        """The same problem with dense tensors in the layouts of `a`."""
        operands = [
            replace(o, access=x, flat=[_level_order(_mode_order(o.flat[0], o.access), x)]) if x.format.is_dense else o
            for o, x in zip(self.operands, a.operands, strict=True)
        ]
        expected = self.expected
        if not a.sampled:
            expected = _level_order(_mode_order(expected, self.assignment.output), a.output)
        return replace(self, assignment=a, operands=operands, expected=expected)


def _mode_order(x: Array, access: Access) -> Array:
    return x.transpose([access.format.order.index(m) for m in range(x.ndim)])


def _level_order(x: Array, access: Access) -> Array:
    return np.ascontiguousarray(x.transpose(access.format.order))


def oracle(a: Assignment, extent: dict[str, int], operands: list[Operand]) -> Array:
    """The output as a dense array in the order of its modes, exact."""
    letters = {v: chr(97 + n) for n, v in enumerate(a.vars)}
    total: Any = 0
    shape = [extent[v] for v in a.output.vars]
    for term in a.terms:
        inputs = ["".join(letters[v] for v in a.operands[n].vars) for n in term.factors]
        have = [v for v in a.output.vars if any(letters[v] in s for s in inputs)]
        spec = ",".join(inputs) + "->" + "".join(letters[v] for v in have)
        y = np.einsum(spec, *[operands[n].dense for n in term.factors])
        y = y.reshape([extent[v] if v in have else 1 for v in a.output.vars])
        total = total + term.sign * np.broadcast_to(y, shape)
    return np.asarray(total)


def problem(a: Assignment, extent: dict[str, int], density: float = 0.4) -> Problem:
    rng = seed(str(a), sorted(extent.items()))
    operands = [operand(x, extent, rng, density) for x in a.operands]
    pattern = operand(a.pattern, extent, rng, density) if a.pattern is not None else None
    dense = oracle(a, extent, operands)
    if a.output.dtype == "bool":
        dense = dense != 0
    dense = _level_order(dense, a.output).astype(interpret.numpy_dtype(a.output.dtype))
    owner = pattern if a.shares is None else operands[a.shares]
    if owner is None:
        return Problem(a, extent, operands, None, dense)
    tail = tuple(extent[v] for v in a.output.level_vars[a.output.format.ndim - a.output.format.dense_tail :])
    expected = np.zeros((owner.room, *tail), dense.dtype)
    for p, c in enumerate(owner.entries):
        expected[p] = dense[c]
    if a.shares is not None:  # of two entries at one place each has its own share
        unique = len(set(owner.entries)) == len(owner.entries)
        assert unique, "shared patterns with duplicates have a test of their own"
    return Problem(a, extent, operands, pattern, expected)


def interpreted(p: Problem, schedule: Schedule, threads: int = 1) -> Array:
    kernel = loops.lower(directives.apply(schedule, p.assignment))
    verify.check(kernel)
    result = np.full(p.expected.shape, interpret._poison(p.assignment.output.dtype), p.expected.dtype)
    interpret.run(kernel, p.flat, [result], p.extents, threads)
    return result


def referenced(p: Problem) -> Array:
    wide = any("64" in x.dtype.name for x in (*p.flat, p.expected))
    with jax.enable_x64(wide):
        flat = [jnp.asarray(x) for x in p.flat]
        y = jax.jit(lambda flat: reference.einsum(p.assignment, tuple(p.extents), flat))(flat)
        assert y.dtype == p.expected.dtype and y.shape == p.expected.shape
        return np.asarray(y)


# ---------------------------------------------------------------------- tables
ORDERED = ["csr", "csc", "coo", "dcsr", "dcsc", "csr/int64", "compressed,dense", "compressed,dense@1,0"]
LOOSE = [
    "dense,compressed(-u)",
    "dense,compressed(-o)",
    "dense,compressed(-ou)",
    "dense,compressed(-ou)@1,0",
    "compressed(-u),singleton(-u)",
    "compressed(-ou),singleton(-o)",
    "compressed(-ou),singleton(-ou)",
    "compressed,compressed(-ou)",
]
MATRIX = [*ORDERED, *LOOSE]
CUBE = [
    "csf",
    "coo",
    "compressed,compressed,compressed@2,0,1",
    "dense,dense,compressed",
    "dense,compressed,compressed",
    "compressed,dense,compressed",
    "dense,compressed,dense",
    "compressed,dense,dense@1,2,0",
    "compressed,compressed,dense",
    "compressed(-u),singleton,dense",
    "compressed(-ou),singleton(-ou),singleton(-ou)",
    "compressed(-u),singleton,compressed",
]

ONE_SPARSE = [  # {} is the format of A
    "Y[i] = A[i,j]:{} * B[j]",
    "Y[j] = A[i,j]:{} * B[i]",
    "Y[i,k] = A[i,j]:{} * B[j,k]",
    "Y[k,j] = A[i,j]:{} * B[k,i]",
    "Y[i,j] = A[i,j]:{}",
    "Y[j,i] = A[i,j]:{} * B[i]",
    "Y[j] = A[i,j]:{}",
    "Y[] = A[i,j]:{} * B[i] * C[j]",
    "Y[i] = A[i,i]:{}",
    "Y[j,i] = A[i,i]:{} * B[i,j]",
    "Y[i,j] = - A[i,j]:{}:pattern * B[j]",
    "Y[i,j,k] = A[i,j]:{} * B[i,k] * C[j,k]",
]
SHARED = [
    "Y[i,j]:like(A) = A[i,j]:{} * B[i,k] * C[j,k]",
    "Y[j,i]:like(A) = A[i,j]:{} * B[i] * C[j]",
    "Y[i,j]:like(A) = A[i,j]:{}:pattern * B[k]",
    "Y[i,j]:like(A) = - A[i,j]:{} * B[k,j] * C[k,i]",
]
SAMPLED = [
    "Y[i,j]:{} = A[i,k] * B[j,k]",
    "Y[i,j]:{} = A[i]",
    "Y[j,i]:{} = A[i] * B[j] - C[j,i]",
]
PAIRS = [  # {0} and {1}, both ordered and unique
    "Y[i,k] = A[i,j]:{0} * B[j,k]:{1}",
    "Y[i,j] = A[i,j]:{0} * B[i,j]:{1}",
    "Y[i,j] = A[i,j]:{0} + B[i,j]:{1}",
    "Y[i,j] = A[i,j]:{0} - B[j,i]:{1}",
    "Y[i] = A[i,j]:{0} * B[j,i]:{1}",
    "Y[] = A[i,j]:{0} * B[i,j]:{1}",
    "Y[i,k]:{1} = A[i,j]:{0} * B[j,k]:{1}",
    "Y[i,j]:{1} = A[i,j]:{0} + B[i,j]:{1}",
    "Y[i,j]:like(A) = A[i,j]:{0} * B[i,j]:{1}",
    "Y[i,j] = A[i,j]:{0} * B[i,k]:{1} * C[k,j]",
]
THREE = [
    "Y[i,j] = A[i,j,k]:{} * B[k]",
    "Y[i,l] = A[i,j,k]:{} * B[j,l] * C[k,l]",
    "Y[k,l] = A[i,j,k]:{} * B[i,j,l]",
    "Y[k,i] = A[i,j,k]:{}",
    "Y[i] = A[i,i,j]:{} * B[j]",
    "Y[j] = A[i,j,i]:{}",
    "Y[i,j,k]:like(A) = A[i,j,k]:{} * B[i,l] * C[j,l]",
    "Y[i,j,k]:{} = A[i,l] * B[j,l] * C[k,l]",
]
OTHERS = [
    "Y[i,j] = A[i,j]:csr + B[i,j]",
    "Y[i,j] = A[i,j] - B[i,j]:coo",
    "Y[i,j] = A[i,j]:csr * B[i,j]:csr + C[i,j]:csr",
    "Y[i,j] = A[i,j]:csr + B[i,j]:dcsr - C[i,j]:coo",
    "Y[i,j] = A[i,j]:csr * B[j] + C[i,j]:csr * D[i]",
    "Y[i,j]:csr = A[i,j]:csr + B[i,j]:csr - C[i,j]:csr",
    "Y[i,j] = A[i]:coo * B[j]:coo",
    "Y[i,j] = A[i]:coo + B[j]:coo",
    "Y[i,j] = A[i]:coo",
    "Y[i] = A[i]:coo * B[i]:csf * C[i]",
    "Y[] = A[i]:coo * B[i]",
    "Y[] = A[i]:coo * B[]",
    "Y[i] = A[i]:compressed(-ou) * B[]",
    "Y[i,j]:like(A) = A[i,j]:csr * B[i]:coo * C[j]",
    "Y[i,j] = A[i,j,k]:csf * B[i,j,k]:csf",
    "Y[i,j,k] = A[i,j,k]:csf + B[i,j,k]:coo",
    "Y[i,j,k] = A[i,j,k]:dense,compressed,dense + B[i,j,k]:csf",
    "Y[i,j,k] = A[i,j,k]:compressed,dense,compressed - B[i,j,k]:coo",
    "Y[i,j] = A[i,k,l]:csf * B[k,l,j]:csf",
    "Y[i,l] = A[i,j,k,l]:csf * B[j,k]:csr",
    "Y[i,j,k,l]:like(A) = A[i,j,k,l]:coo * B[i,j] * C[k,l]",
    "Y[i,m] = A[i,j,k,l]:dense,compressed,dense,dense * B[j,k,l,m]",
    "Y[i,k,l] = A[i,j,k,l]:dense,compressed,dense,dense@1,0,2,3 * B[j]",
    "Y[i,k,l]:compressed(-ou),singleton,dense = A[i,j,l] * B[j,k]",
    "Y[i,j,k]:dense,compressed,dense = A[i,j]:csr * B[j,k]",
    "Y[i,k] = A[i,j]:csr * B[j,k]:csr * C[k]:coo",
    "Y[i,l] = A[i,j]:csr * B[j,k]:csr * C[k,l]:csr",
    "Y[n,i,k] = A[n,i,j]:dense,dense,compressed * B[n,j,k]",
    "Y[n,i,k] = A[i,j]:csr * B[n,j,k]",
    "Y[i,j] = A[i,j]:dense,compressed(-ou) + B[i,j]",
]


def rows() -> list[str]:
    out = [t.format(f) for t in ONE_SPARSE for f in MATRIX]
    out += [t.format(f) for t in SHARED for f in [*ORDERED, "dense,compressed(-o)", "compressed(-ou),singleton(-o)"]]
    out += [t.format(f) for t in SAMPLED for f in MATRIX]
    plain = [("csr", "csr"), ("csr", "csc"), ("csc", "csr"), ("coo", "csr"), ("dcsr", "coo"), ("coo", "coo")]
    plain += [("compressed,dense", "csr"), ("csr", "compressed,dense@1,0")]
    out += [t.format(f, g) for t in PAIRS for f, g in plain]
    out += [t.format(f) for t in THREE for f in CUBE]
    return out + OTHERS


ROWS = rows()


def has_duplicates(text: str) -> bool:
    """Whether the row shares a pattern that may hold an entry twice."""
    a = assignment(text)
    if a.shares is None:
        return False
    f = a.operands[a.shares].format
    return not f.levels[max(f.sparse_levels)].unique


ROWS = [r for r in ROWS if not has_duplicates(r)]


def check(text: str, dtype: str, extent: dict[str, int], density: float = 0.4) -> None:
    p = problem(assignment(text, dtype), extent, density)
    sizes = tuple(extent[v] for v in p.assignment.vars)
    plan = auto.plan(p.assignment, sizes, p.sizes)
    q = p.laid_out(plan.assignment)
    pipeline.lower(Spec(plan.assignment, plan.schedule))
    np.testing.assert_array_equal(interpreted(q, plan.schedule), q.expected, f"interpreter, {directives.show(plan.schedule)}")
    np.testing.assert_array_equal(referenced(q), q.expected, "reference")


@pytest.mark.parametrize("text", ROWS)
def test_values(text: str) -> None:
    check(text, "float32", EXTENTS)

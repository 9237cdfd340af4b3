# SPDX-License-Identifier: Apache-2.0
"""Lowering without a compiler: the interpreter and `reference` against dense NumPy.

A row of the tables is an assignment without dtypes.  Operands are made at random with small integer
values, so that sums are exact in every dtype and order; index arrays and values have capacity
beyond their entries, filled with what must not be read.  XLA takes longer to compile a row than the
interpreter to run it, so `reference` has a third of the long tables, most of it as slow tests.
"""

from __future__ import annotations

import contextlib
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
from jsparse.ir import interpret
from jsparse.ir.index import PATTERN, Access, Assignment, Term, parse_assignment
from jsparse.ir.loop import Kernel
from jsparse.lower import assemble as patterns
from jsparse.lower import chunks, draft
from jsparse.pipeline import Spec
from jsparse.schedule import auto, directives, notation
from jsparse.schedule.directives import (
    Gallop,
    Parallelize,
    Precompute,
    Reorder,
    Rfactor,
    Schedule,
    Unroll,
    Vectorize,
)

Array = np.ndarray[Any, Any]

THREADS = 3  # of patterns
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
    """Index arrays of a sparse tensor in storage order, and the coordinates of its positions."""

    arrays: list[Array]
    entries: list[tuple[int, ...]]
    capacities: list[int]  # of each group of levels
    room: int  # positions of the last sparse level


def pack(
    f: Format,
    extents: tuple[int, ...],
    coords: list[tuple[int, ...]],
    pad: int,
    rng: np.random.Generator | None,
) -> Packed:
    """Store coordinates (by level, of the sparse part), each level with `pad` spare entries.

    With `rng` the padding is garbage and what need not be ordered is not; without it the padding is
    what assembly leaves there.
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
            groups = [p] if level.branchless else fibers(f, n, p)
            if not level.branchless and not level.ordered and rng is not None:
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


def fibers(f: Format, n: int, coords: list[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """The coordinates by position of level n; it and the singletons below tell positions apart."""
    last = n
    while last + 1 < f.ndim and f.levels[last + 1].branchless:
        last += 1
    if not f.levels[last].unique:
        return [[c] for c in coords]
    same = itertools.groupby(coords, key=lambda c: c[n : last + 1])
    return [list(group) for _, group in same]


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
    return (x + 1j * rng.integers(-3, 4, shape) if "complex" in dtype else x).astype(
        interpret.numpy_dtype(dtype)
    )


def exact(dtype: str) -> Any:
    """The dtype of the oracle."""
    if dtype in (PATTERN, "bool") or "int" in dtype:
        return np.int64
    return np.complex128 if "complex" in dtype else np.float64


def operand(
    access: Access, extent: dict[str, int], rng: np.random.Generator, density: float = 0.4
) -> Operand:
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
    return Operand(
        access, flat, dense.transpose(back), present.transpose(back), entries, packed.room
    )


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
        return [
            x for o in (*self.operands, *([self.pattern] if self.pattern else [])) for x in o.flat
        ]

    @property
    def extents(self) -> list[int]:
        return [self.extent[v] for v in self.assignment.vars]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(o.room for o in (*self.operands, *([self.pattern] if self.pattern else [])))

    def laid_out(self, a: Assignment) -> Problem:
        """The same problem with dense tensors in the layouts of `a`."""
        operands = [
            replace(o, access=x, flat=[_level_order(_mode_order(o.flat[0], o.access), x)])
            if x.format.is_dense
            else o
            for o, x in zip(self.operands, a.operands, strict=True)
        ]
        expected = self.expected
        if not a.sampled:
            expected = _level_order(_mode_order(expected, self.assignment.output), a.output)
        return replace(self, assignment=a, operands=operands, expected=expected)


def _mode_order(x: Array, access: Access) -> Array:
    return x.transpose([access.format.order.index(m) for m in range(x.ndim)])


def _level_order(x: Array, access: Access) -> Array:
    return np.array(x.transpose(access.format.order), order="C")


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
    tail = tuple(
        extent[v] for v in a.output.level_vars[a.output.format.ndim - a.output.format.dense_tail :]
    )
    expected = np.zeros((owner.room, *tail), dense.dtype)
    for p, c in enumerate(owner.entries):
        expected[p] = dense[c]
    if a.shares is not None:  # of two entries at one place each has its own share
        unique = len(set(owner.entries)) == len(owner.entries)
        assert unique, "shared patterns with duplicates have a test of their own"
    return Problem(a, extent, operands, pattern, expected)


def interpreted(p: Problem, schedule: Schedule, threads: int = 1) -> Array:
    kernel = pipeline.lower.__wrapped__(Spec(p.assignment, schedule))  # not from its cache
    result = np.full(
        p.expected.shape, interpret._poison(p.assignment.output.dtype), p.expected.dtype
    )
    interpret.run(kernel, p.flat, [result], p.extents, threads)
    return result


def referenced(p: Problem) -> Array:
    wide = any(x.dtype.name.endswith(("int64", "float64", "128")) for x in (*p.flat, p.expected))
    with jax.enable_x64(wide):
        flat = [jnp.asarray(x) for x in p.flat]
        y = jax.jit(lambda flat: reference.einsum(p.assignment, tuple(p.extents), flat))(flat)
        assert y.dtype == p.expected.dtype and y.shape == p.expected.shape
        return np.asarray(y)


# ---------------------------------------------------------------------- tables
ORDERED = [
    "csr",
    "csc",
    "coo",
    "dcsr",
    "dcsc",
    "csr/int64",
    "compressed,dense",
    "compressed,dense@1,0",
]
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
]


def rows() -> list[str]:
    out = [t.format(f) for t in ONE_SPARSE for f in MATRIX]
    out += [
        t.format(f)
        for t in SHARED
        for f in [*ORDERED, "dense,compressed(-o)", "compressed(-ou),singleton(-o)"]
    ]
    out += [t.format(f) for t in SAMPLED for f in MATRIX]
    plain = [
        ("csr", "csr"),
        ("csr", "csc"),
        ("csc", "csr"),
        ("coo", "csr"),
        ("dcsr", "coo"),
        ("coo", "coo"),
    ]
    plain += [("compressed,dense", "csr"), ("csr", "compressed,dense@1,0")]
    out += [t.format(f, g) for t in PAIRS for f, g in plain]
    out += [t.format(f) for t in THREE for f in CUBE]
    return out + OTHERS


def duplicates_shared(text: str) -> bool:
    a = assignment(text)
    f = a.operands[a.shares].format if a.shares is not None else a.output.format
    return a.shares is not None and not f.levels[max(f.sparse_levels)].unique


ROWS = [r for r in rows() if not duplicates_shared(r)]  # these have a test of their own
WAYS = pytest.mark.parametrize("way", ["interpreter", "reference"])


def ways(rows: list[str], stride: int) -> pytest.MarkDecorator:
    """Each row with the interpreter, and every third with `reference`, which costs a compilation:
    every `stride`-th of these is a quick test.
    """
    params = [pytest.param(row, "interpreter", id=f"{row} interpreter") for row in rows]
    for n, row in enumerate(rows[::3]):
        marks = [pytest.mark.slow] if n % stride else []
        params.append(pytest.param(row, "reference", marks=marks, id=f"{row} reference"))
    return pytest.mark.parametrize(("text", "way"), params)


def planned(p: Problem) -> tuple[Problem, Schedule]:
    plan = auto.plan(p.assignment, tuple(p.extents), p.sizes)
    return p.laid_out(plan.assignment), plan.schedule


def check(way: str, p: Problem) -> None:
    p, schedule = planned(p)
    if way == "reference":
        np.testing.assert_array_equal(referenced(p), p.expected)
        return
    np.testing.assert_array_equal(interpreted(p, schedule), p.expected, notation.show(schedule))


# ---------------------------------------------------------------------- values
@ways(ROWS, 11)
def test_values(text: str, way: str) -> None:
    check(way, problem(assignment(text), EXTENTS))


FEW = [
    "Y[i] = A[i,j]:csr * B[j]",
    "Y[i,k] = A[i,j]:csr * B[j,k]",
    "Y[j,k] = A[i,j]:coo * B[i,k]",
    "Y[i,j]:like(A) = A[i,j]:csr * B[i,k] * C[j,k]",
    "Y[i,k]:csr = A[i,j]:csr * B[j,k]:csr",
    "Y[i,j] = A[i,j]:csr + B[i,j]:csr",
    "Y[i,j] = A[i,j]:csr:pattern * B[i,j]:dcsr",
    "Y[i,k] = A[i,j,k]:dense,compressed,dense * B[j]",
    "Y[] = A[i,j]:csr * B[i,j]:csr",
]
DTYPES = ["float64", "float16", "bfloat16", "complex64", "complex128", "bool"]
DTYPES += [f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64)]


@ways([f"{dtype} {row}" for dtype in DTYPES for row in FEW], 7)
def test_dtypes(text: str, way: str) -> None:
    dtype, _, row = text.partition(" ")
    check(way, problem(assignment(row, dtype), EXTENTS))


SHAPES = {
    "wide": WIDE,
    "ones": dict.fromkeys(EXTENTS, 1),
    **{f"no {v}": EXTENTS | {v: 0} for v in "ijk"},
}


@ways([f"{shape}: {row}" for shape in SHAPES for row in FEW], 4)
def test_shapes(text: str, way: str) -> None:
    shape, _, row = text.partition(": ")
    check(way, problem(assignment(row), SHAPES[shape]))


@WAYS
@pytest.mark.parametrize("density", [0.0, 1.0])
@pytest.mark.parametrize("text", FEW)
def test_empty_and_full(text: str, density: float, way: str) -> None:
    check(way, problem(assignment(text), EXTENTS, density))


@WAYS
@pytest.mark.parametrize("f", ["dense,compressed(-u)", "compressed(-u),singleton(-u)"])
def test_each_duplicate_of_a_shared_pattern_has_its_share(f: str, way: str) -> None:
    a = assignment(f"Y[i,j]:like(A) = A[i,j]:{f} * B[i] * C[j]")
    rng = seed(f)
    operands = [operand(x, EXTENTS, rng) for x in a.operands]
    values, entries = operands[0].flat[0], operands[0].entries
    assert len(set(entries)) < len(entries)
    expected = np.zeros_like(values)
    for p, (i, j) in enumerate(entries):
        expected[p] = values[p] * operands[1].dense[i] * operands[2].dense[j]
    check(way, Problem(a, EXTENTS, operands, None, expected))


@WAYS
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("text", ["Y[i] = A[i,j]:csr * B[j]", "Y[j] = A[i,j]:csc * B[i]"])
def test_short_floats_are_summed_wide(text: str, dtype: str, way: str) -> None:
    a = assignment(text, dtype)
    n = 2049  # neither dtype can count so far by ones
    kind = interpret.numpy_dtype(dtype)
    extent = {"i": 1, "j": n} if a.output.vars == ("i",) else {"i": n, "j": 1}
    ones = np.ones(n, kind)
    flat = [ones, np.array([0, n], np.int32), np.arange(n, dtype=np.int32)]
    sparse = Operand(a.operands[0], flat, np.ones(0), np.ones(0), [], n)
    dense = Operand(a.operands[1], [ones], ones.astype(float), np.ones(0), [], 0)
    check(way, Problem(a, extent, [sparse, dense], None, np.array([n], np.float32).astype(kind)))


NOTHING = {  # assignment: the operand to spoil where no entry of A is
    "Y[i] = A[i,j]:csr * B[j]": (1, "j"),
    "Y[i,k] = A[i,j]:csc * B[j,k]": (1, "j"),
    "Y[i,k] = A[i,j]:csr:pattern * B[j,k]": (1, "j"),
    "Y[i,j]:like(A) = A[i,j]:csr * B[j]": (1, "j"),
    "Y[i,j] = A[i,j]:csr * B[i,j]:csr": (1, "ij"),
    "Y[i,k] = A[i,j]:csr * B[j,k]:csr": (1, "j"),
    "Y[i,k]:csr = A[i,j]:csr * B[j,k]": (1, "j"),
    "Y[i,k]:csr = A[i,j]:csr * B[j,k]:csr": (1, "j"),
    "Y[i,j] = A[i,j]:csr * B[i,j] + C[i,j]:csr": (1, "ij"),
    "Y[i] = A[i,j]:compressed,dense * B[i]": (1, "i"),
}


@WAYS
@pytest.mark.parametrize("text", NOTHING)
def test_nothing_is_read_where_there_is_no_entry(text: str, way: str) -> None:
    p = problem(assignment(text), EXTENTS, density=0.25)
    n, names = NOTHING[text]
    a, b = p.operands[0], p.operands[n]
    gone = tuple(k for k, v in enumerate(a.access.vars) if v not in names)
    absent = ~a.present.any(axis=gone)
    shape = [EXTENTS[v] if v in names else 1 for v in b.access.vars]
    absent = np.broadcast_to(absent.reshape(shape), b.dense.shape)
    values = b.flat[0].copy()
    assert absent.any()
    if b.access.format.is_dense:
        values[absent] = np.nan
    else:
        for q, c in enumerate(b.entries):
            values[q] = np.nan if absent[c] else values[q]
    operands = [*p.operands]
    operands[n] = replace(b, flat=[values, *b.flat[1:]])
    check(way, replace(p, operands=operands))


def test_a_stored_zero_is_an_ordinary_value() -> None:
    p, schedule = planned(problem(assignment("Y[i] = A[i,j]:csr * B[j]"), EXTENTS, 1.0))
    p.operands[0].flat[0][:] = 0
    p.operands[1].flat[0][:] = np.inf
    assert np.isnan(interpreted(p, schedule)).all() and np.isnan(referenced(p)).all()


# ------------------------------------------------------------------- schedules
def schedules(a: Assignment, rng: random.Random) -> tuple[Assignment, Schedule]:
    """A legal schedule at random, and the assignment with dense tensors laid out for it."""
    order = list(a.vars)
    rng.shuffle(order)
    schedule: Schedule = (Reorder(tuple(order)),)
    v = rng.choice(order)
    if rng.random() < 0.6:
        a = auto.relayout(a, v)
    more = [
        Vectorize(v, rng.choice([2, 4]), rng.choice([1, 2, 3])),
        Unroll(rng.choice(order), rng.choice([2, 3])),
        Precompute(rng.choice(order)),
        *[Gallop(x.name, v) for x in a.stored for v in x.vars if rng.random() < 0.5],
        Parallelize(order[0]),
        Rfactor(order[0], rng.choice([2, 5])),
    ]
    rng.shuffle(more)
    for directive in more:
        try:
            directives.apply((*schedule, directive), a)
            schedule = (*schedule, directive)
        except ScheduleError:
            pass
    return a, schedule


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.sampled_from(ROWS), st.randoms(use_true_random=False), st.sampled_from([1, 3]))
def test_schedules_keep_the_result(text: str, rng: random.Random, threads: int) -> None:
    p = problem(assignment(text, "float64"), EXTENTS)
    if not p.assignment.vars:
        return
    a, schedule = schedules(p.assignment, rng)
    p = p.laid_out(a)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "GRAIN", 4)  # several chunks
        y = interpreted(p, schedule, threads)
    np.testing.assert_array_equal(y, p.expected, notation.show(schedule))


# -------------------------------------------------------------------- assembly
def pattern_of(text: str) -> Assignment:
    """An assignment of patterns; dense operands, if any, keep a dtype."""
    a = assignment(text)
    return replace(
        a,
        output=replace(a.output, dtype=PATTERN),
        operands=tuple(x if x.format.is_dense else replace(x, dtype=PATTERN) for x in a.operands),
    )


MERGES = [
    "Y[i,k]:{} = A[i,j]:csr * B[j,k]:csr",
    "Y[i,k]:{} = A[i,j]:csc * B[j,k]:csr",
    "Y[i,k]:{} = A[i,j]:coo * B[j,k]:dcsr",
    "Y[i,j]:{} = A[i,j]:csr + B[i,j]:csr",
    "Y[i,j]:{} = A[i,j]:coo - B[i,j]:dcsr",
    "Y[i,j]:{} = A[i,j]:csr * B[i,j]:csr",
    "Y[j,i]:{} = A[i,j]:csr * B[i,j]:csr",
    "Y[i,j]:{} = A[i,j]:csr * B[i,j]:coo + C[i,j]:dcsr",
    "Y[i,j]:{} = A[i]:coo * B[j]:coo",
    "Y[i,j]:{} = A[i,j]",
    "Y[j,i]:{} = A[i,j]",
    "Y[i,j]:{} = A[i,j]:csr * B[i,j]",
    "Y[i,k]:{} = A[i,j,k]:csf",
    "Y[i,l]:{} = A[i,j]:csr * B[j,k]:csr * C[k,l]:csr",
]
TARGETS = ["csr", "csc", "coo", "dcsr", "dcsc", "csr/int64", "dense,compressed", "compressed,dense"]
MERGE_ROWS = [t.format(f) for t in MERGES for f in TARGETS] + [
    "Y[i]:coo = A[i,j]:csr",
    "Y[j]:coo = A[i,j]:csr * B[i]:coo",
    "Y[i,j,k]:csf = A[i,j,k]:csf + B[i,j,k]:csf",
    "Y[i,j,k]:coo = A[i,j,k]:csf * B[i,j,k]:coo",
    "Y[i,j,l]:csf = A[i,j,k]:csf * B[k,l]:csr",
    "Y[i,j,l]:dense,compressed,compressed = A[i,k]:csr * B[k,j,l]:csf",
    "Y[i,j,l]:compressed,dense,compressed = A[i,k]:csr * B[k,j,l]:csf",
    "Y[i,j,l]:dense,dense,compressed = A[i,j,k]:dense,dense,compressed * B[k,l]:csr",
    "Y[i,j,l]:compressed(-u),singleton,compressed = A[i,k]:csr * B[k,j,l]:csf",
    "Y[i,j,k]:csf = A[i,j,k]",
    "Y[i,j,k]:dense,compressed,dense = A[i,j,k]",
    "Y[i,j,k,l]:csf = A[i,j]:csr * B[k,l]:csr",
]
SOURCES = [f for f in MATRIX if "compressed,dense" not in f]
SORT_TARGETS = [
    *[t for t in TARGETS if t != "compressed,dense"],
    "dense,compressed(-u)@1,0",
    "compressed(-u),singleton(-u)",
]
SORT_ROWS = [f"Y[i,j]:{g} = A[i,j]:{f}" for f in SOURCES for g in SORT_TARGETS] + [
    f"Y[k,i,j]:{g} = A[i,j,k]:{f}"
    for f in [
        "csf",
        "coo",
        "compressed(-ou),singleton(-ou),singleton(-ou)",
        "dense,dense,compressed",
    ]
    for g in [
        "csf",
        "coo",
        "dense,compressed,compressed",
        "compressed,dense,compressed",
        "dense,dense,compressed",
    ]
]


@dataclass(frozen=True)
class Assembly:
    """A pattern to compute, and what is expected of it."""

    assignment: Assignment
    work: str
    extents: list[int]
    flat: list[Array]
    sizes: tuple[int, ...]
    capacity: list[int]
    counts: Array
    expected: list[Array]
    gallops: bool = False  # whether whatever can be is searched

    def run(self, count: bool) -> list[Array]:
        """The kernel on the interpreter, in several chunks."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chunks, "GRAIN", 2)
            return self.interpreted(count)

    def interpreted(self, count: bool) -> list[Array]:
        a = self.assignment
        order = a.vars
        if self.work == "merge":
            order = auto.pattern_order(a, tuple(self.extents), self.sizes)
        schedule = galloping(a, order) if self.gallops else (Reorder(order),)
        kernel = pipeline.lower(Spec(a, schedule, self.work, count))
        results = [np.full_like(x, 7) for x in ([self.counts] if count else self.expected)]
        flat = self.flat
        if self.work == "merge" and count:
            return [self.starts(kernel)[-len(self.counts) :]]
        if self.work == "merge":
            flat = [*flat, self.starts(pipeline.lower(Spec(a, schedule, self.work, True)))]
        interpret.run(kernel, flat, results, self.extents, THREADS)
        return results

    def starts(self, kernel: Kernel) -> Array:
        starts = np.full(patterns.starts_size(self.assignment), 7, np.int64)
        interpret.run(kernel, self.flat, [starts], self.extents, THREADS)
        return starts

    def reference(self, count: bool) -> list[Array]:
        call = functools.partial(
            reference.assemble,
            self.assignment,
            self.work,
            count,
            tuple(self.extents),
            tuple(self.capacity),
        )
        wide = any(x.dtype == np.int64 for x in self.flat)
        flat = self.flat if count or self.work == "sort" else [*self.flat, self.counts]
        with jax.enable_x64(wide):
            out = [np.asarray(x) for x in jax.jit(lambda *flat: call(flat))(*flat)]
        return [x[-len(self.counts) :] for x in out] if count else out


def assembly(text: str, work: str, extent: dict[str, int], pad: int = 2) -> Assembly:
    a = pattern_of(text)
    rng = seed(text)
    operands = [operand(x, extent, rng, 0.3) for x in a.operands]
    f = a.output.format
    shape = tuple(extent[v] for v in a.output.level_vars)
    depth = f.ndim - f.dense_tail
    perm = starts = None
    coords: list[tuple[int, ...]]
    if work == "sort":
        source = operands[0]
        places = [
            tuple(
                dict(zip(source.access.level_vars, c, strict=True))[v] for v in a.output.level_vars
            )
            for c in source.entries
        ]
        order = sorted(range(len(places)), key=lambda p: (places[p], p))
        coords = [places[p] for p in order]
        unique = sorted(set(coords))
        if f.levels[max(f.sparse_levels)].unique:
            starts = np.array([*[coords.index(c) for c in unique], *[len(coords)] * (pad + 1)])
            coords = unique
        else:
            starts = np.array([*range(len(coords)), *[len(coords)] * (pad + 1)])
        perm = np.array([*order, *[source.room] * (source.room - len(order))])
    else:
        present: Any = False
        for term in a.terms:
            one = replace(
                a,
                terms=(replace(term, factors=tuple(range(len(term.factors))), sign=1),),
                operands=tuple(a.operands[n] for n in term.factors),
            )
            masks = [replace(o, dense=(o.present & (o.dense != 0)).astype(int)) for o in operands]
            present = present | (oracle(one, extent, [masks[n] for n in term.factors]) != 0)
        there = _level_order(present, a.output)
        there = there.any(axis=tuple(range(depth, f.ndim)))
        coords = [tuple(int(x) for x in c) for c in np.argwhere(there)]
    packed = pack(f, shape, coords, pad, None)
    expected = [*packed.arrays]
    if work == "sort":
        expected += [perm.astype(f.index), starts.astype(f.index)]  # type: ignore[union-attr]
    counts = np.array([c - pad for c in packed.capacities], np.int64)
    flat = [x for o in operands for x in o.flat]
    sizes = tuple(o.room for o in operands)
    return Assembly(
        a, work, [extent[v] for v in a.vars], flat, sizes, packed.capacities, counts, expected
    )


@ways([f"merge {t}" for t in MERGE_ROWS] + [f"sort {t}" for t in SORT_ROWS], 29)
def test_patterns(text: str, way: str) -> None:
    work, _, row = text.partition(" ")
    check_pattern(assembly(row, work, EXTENTS), way)


SHAPED = [
    "merge Y[i,k]:csr = A[i,j]:csr * B[j,k]:csr",
    "merge Y[i,j]:coo = A[i,j]",
    "sort Y[i,j]:csc = A[i,j]:coo",
]


@ways([f"{shape}: {row}" for row in SHAPED for shape in SHAPES], 2)
def test_pattern_shapes(text: str, way: str) -> None:
    shape, _, line = text.partition(": ")
    work, _, row = line.partition(" ")
    check_pattern(assembly(row, work, SHAPES[shape]), way)


def galloping(a: Assignment, order: tuple[str, ...]) -> Schedule:
    """The schedule in which all fibers that can be searched are."""
    schedule: Schedule = (Reorder(order),)
    for x in a.stored:
        for v in dict.fromkeys(x.vars):
            with contextlib.suppress(ScheduleError):
                directives.apply((*schedule, Gallop(x.name, v)), a)
                schedule = (*schedule, Gallop(x.name, v))
    return schedule


GALLOPED = [
    *[f"Y[i,j]:{f} = A[i,j]:{g} * B[i,j]:{g}" for f in ("csr", "dcsr", "coo") for g in ORDERED[:6]],
    "Y[i,j]:csr = A[i,j]:csr * B[i,j]:dcsr * C[i,j]:coo",
    "Y[i]:coo = A[i]:coo * B[i]:coo",
    "Y[i]:coo = A[i,j]:csr * B[i,j]:csr",
    "Y[i,j,k]:csf = A[i,j,k]:csf * B[i,j,k]:csf",
    "Y[i,k]:csr = A[i,j]:csr * B[i,j]:csr * C[j,k]:csr",
]


@pytest.mark.parametrize("text", GALLOPED)
@pytest.mark.parametrize("extent", [EXTENTS, EXTENTS | {"i": 1, "j": 40}, EXTENTS | {"j": 0}])
def test_patterns_of_galloped_intersections(text: str, extent: dict[str, int]) -> None:
    p = replace(assembly(text, "merge", extent), gallops=True)
    check_pattern(p, "interpreter")


def check_pattern(p: Assembly, way: str) -> None:
    run = p.run if way == "interpreter" else p.reference
    for got, want in ((run(count=True), [p.counts]), (run(count=False), p.expected)):
        assert len(got) == len(want)
        for x, y in zip(got, want, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


DRAFTS = [
    *[
        f"Y[i,j]:{f} = {text}"
        for f in ("csr", "csr/int64", "dense,compressed(-u)")
        for text in (
            "A[i,j]:csr + B[i,j]:csr",
            "A[i,j]:csr - B[i,j]:csr + C[i,j]:csr",
            "A[i,j]:csr * B[i,j]:csr",
            "A[i,j]:csr + B[i,j]:csr * C[i,j]:csr",
            "A[i,j]:csr * B[j,i]:csc",
            "A[i,k]:csr * B[k,j]:csr",
            "A[i,k]:csr * B[k,j]:dcsr",
            "A[i,k]:csr * B[k,l]:csr * C[l,j]:csr",
        )
    ],
    "Y[j,i]:csc = A[j,i]:csc + B[j,i]:csc",
    "Y[i,k]:csr = A[i,j,k]:dense,compressed,compressed",
    "Y[i,j,l]:dense,dense,compressed = A[i,j,k]:dense,dense,compressed * B[k,l]:csr",
    "Y[i,j,k]:dense,dense,compressed = A[i,j,k]:dense,compressed,compressed "
    "+ B[i,j,k]:dense,dense,compressed",
]


def drafted(p: Assembly, dtype: str) -> tuple[list[Array], Array]:
    """Index arrays and values by the three steps of a draft, on the interpreter."""
    a = p.assignment
    order = auto.pattern_order(a, tuple(p.extents), p.sizes)
    assert draft.can_draft(a, order)
    out, rng = replace(a.output, dtype=dtype), seed(str(a))
    valued = replace(a, output=out, operands=tuple(replace(x, dtype=dtype) for x in a.operands))
    flat: list[Array] = []
    at = 0
    for x, n in zip(a.operands, p.sizes, strict=True):
        count = len(x.format.array_names())
        flat += [rng.integers(1, 4, n).astype(dtype), *p.flat[at : at + count]]
        at += count

    def run(b: Any, work: str, flat: list[Array], results: list[Array], n: int) -> list[Array]:
        kernel = pipeline.lower(Spec(b, (Reorder(order if n else b.vars),), work, work == "bound"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chunks, "GRAIN", 2)
            interpret.run(kernel, flat, results, p.extents[: n or len(b.vars)], THREADS)
        return results

    n = len(p.extents)
    (starts,) = run(a, "bound", p.flat, [np.full(patterns.starts_size(a), 7, np.int64)], n)
    assert starts[-1] >= p.counts[-1]
    most = draft.room(a, order, p.sizes)
    assert most is None or most >= starts[-1]
    room = int(starts[-1])
    index = a.output.format.index
    gaps = [np.full(room if m % 2 else len(x), 7, index) for m, x in enumerate(p.expected)]
    table = np.full(draft.TABLE, 7, np.int64)
    *gaps, values, table = run(valued, "draft", flat, [*gaps, np.full(room, 7, dtype), table], n)
    move = Assignment(out, (replace(out, name="D", trusted=True),), (Term((0,)),))
    results = [*[np.full_like(x, 7) for x in p.expected], np.full(p.capacity[-1], 7, dtype)]
    *arrays, values = run(move, "pack", [values, *gaps, table], results, 0)
    with pytest.raises(interpret.Fault, match=f"{room}, {room - 1}"):
        short = [*gaps[:-1], gaps[-1][:-1], values[: room - 1], table]
        run(valued, "draft", flat, short, n)
    return arrays, values


@pytest.mark.parametrize("text", DRAFTS)
def test_drafts(text: str) -> None:
    """One walk with gaps, then packed: the arrays that counting and filling gives."""
    p = assembly(text, "merge", EXTENTS)
    arrays, values = drafted(p, "float32")
    for x, y in zip(arrays, p.expected, strict=True):
        np.testing.assert_array_equal(x, y)
    n = int(p.counts[-1])
    assert (values[:n] != 0).all() or "-" in text
    assert not values[n:].any()


def test_too_small_a_capacity_is_a_fault_that_says_what_was_needed() -> None:
    p = assembly("Y[i,k]:csr = A[i,j]:csr * B[j,k]:csr", "merge", EXTENTS, pad=0)
    pos, crd = p.expected
    n = len(crd)
    short = replace(p, capacity=[n - 1], expected=[pos, crd[:-1]])
    with pytest.raises(interpret.Fault) as info:
        short.run(count=False)
    assert info.value.args[-2:] == (n, n - 1)
    got = short.reference(count=False)
    np.testing.assert_array_equal(got[0], np.minimum(pos, n - 1))
    np.testing.assert_array_equal(got[1], crd[:-1])


# ------------------------------------------------------- reference under JAX
@pytest.mark.parametrize("text", FEW)
def test_reference_is_differentiated_and_batched(text: str) -> None:
    p = problem(assignment(text, "float64"), EXTENTS)
    with jax.enable_x64(True):
        flat = [jnp.asarray(x) for x in p.flat]
        at = [n for n, x in enumerate(flat) if x.dtype == jnp.float64]

        def f(*values: Any) -> Any:
            given = dict(zip(at, values, strict=True))
            operands = [given.get(n, x) for n, x in enumerate(flat)]
            return reference.einsum(p.assignment, tuple(p.extents), operands)

        values = [flat[n] for n in at]
        rng = seed(text)
        steps = [jnp.asarray(rng.integers(-2, 3, x.shape).astype(float)) for x in values]
        for n, step in enumerate(steps):  # linear in each operand: differences are exact
            moved = [x + step if m == n else x for m, x in enumerate(values)]
            y, pull = jax.vjp(f, *values)
            _, push = jax.jvp(f, values, [step if m == n else 0 * s for m, s in enumerate(steps)])
            np.testing.assert_allclose(push, f(*moved) - y, atol=1e-9)
            ct = jnp.asarray(rng.integers(-2, 3, y.shape).astype(float))
            ours = jnp.sum(pull(ct)[n] * step)
            np.testing.assert_allclose(ours, jnp.sum(ct * push), atol=1e-9)
        stack = [jnp.stack([x, 2 * x, -x]) for x in values]
        batched = jax.vmap(f)(*stack)
        np.testing.assert_array_equal(batched[1], f(*[x[1] for x in stack]))


def test_reference_is_exported_with_symbolic_extents() -> None:
    p = problem(assignment("Y[i,k] = A[i,j]:csr * B[j,k]"), EXTENTS)
    (k,) = jax.export.symbolic_shape("k")
    i, _, j = p.extents
    f = jax.jit(lambda *flat: reference.einsum(p.assignment, (i, flat[3].shape[1], j), flat))
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in p.flat[:3]]
    shapes.append(jax.ShapeDtypeStruct((j, k), np.float32))
    y = jax.export.export(f)(*shapes).call(*p.flat)
    np.testing.assert_array_equal(y, p.expected)

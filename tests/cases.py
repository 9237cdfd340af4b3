# SPDX-License-Identifier: Apache-2.0
"""The one table of cases, einsum x formats x extents x fill, and operands made from it.

A `Case` says nothing about values: `operands(case)` makes them with a generator seeded by the case.
Arrays are packed and unpacked on the host, in NumPy, so that neither the operands nor the oracle go
through a kernel of ours:

    coords, values --pack--> SparseArray --unpack--> dense NumPy array

    ops = operands(case)
    assert_same(js.einsum(case.einsum, *ops.arrays), expected(case, ops.dense))
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jsparse as js
from jsparse.format import parse_format

Array = np.ndarray[Any, Any]

# ------------------------------------------------------------------ the table
_LISTED = """
    ij,jk->ik  ij,kj->ik  ji,jk->ik  ji,kj->ik  ij,j->i  ij,i->j  i,ij,j->  ij,ij->ij  ij,ij->
    ij->i  ij->j  ij->  ij->ji  ii->i  ii->  ij,j->ij  ij,i->ij  ij,i->i  i,j->ij
    ij,ik,jk->ij  ij,ik,kj->ij  ij,jk,kl->il  ij,jk,ki->
    ijk,kl,jl->il  ijk,kl->ijl  ijk,k->ij  ijk,jk->i  ijk,ijk->  ijk,ijk->ijk  ijkl,ijkl->ijkl
    bij,bjk->bik  bhij,bhjd->bhid
"""
# Implicit output, an ellipsis, a scalar, more operands, a mode summed in one operand alone, ...
_MORE = """
    ij,jk  ij  ...ij,...jk->...ik  ...j->...  ,ij->ij  ij,jk,kl,lm->im  ij,ij,ij->ij  i,ij,jk,k->
    ij,kl->il  ijk->ik  ijk->kij  iij->ij  iji->j
"""
EINSUMS, EXTRA = tuple(_LISTED.split()), tuple(_MORE.split())

MATRIX = ("csr", "csc", "coo", "dcsr")
SPARSE = {
    1: ("coo",),
    2: MATRIX,
    3: (
        "csf",
        "coo",
        "compressed,compressed,compressed@2,0,1",
        "dense,compressed,compressed",
        "dense,dense,compressed",
        "dense,compressed,dense",
    ),
    4: (
        "csf",
        "coo",
        "compressed,compressed,compressed,compressed@1,0,3,2",
        "dense,dense,dense,compressed",
    ),
}
OTHER = {
    2: (
        *("dcsc", "compressed,dense", "csr/int64", "coo/int64", "compressed(-u),singleton@1,0"),
        *("dia", "diagonal,dense@0,1"),
    )
}

EXTENTS: dict[str, dict[str, int]] = {
    "rect": {},
    "wide": {"k": 37, "l": 19, "d": 33},
    "one": {"i": 1},
    "column": {"j": 1},
    "unit": dict.fromkeys("ijklmbhd", 1),
    "no_i": {"i": 0},
    "no_j": {"j": 0},
    "no_k": {"k": 0, "l": 0},
}
RECT = {"i": 5, "j": 7, "k": 4, "l": 3, "m": 6, "b": 2, "h": 3, "d": 6}

FILLS = (
    "plain",
    "empty",
    "empty_rows",
    "full_row",
    "zeros",
    "duplicates",
    "unsorted",
    "padded",
    "messy",
)
LOOSE = ("duplicates", "unsorted", "messy")  # fills whose format promises less


@dataclass(frozen=True, slots=True)
class Case:
    """An einsum, the format of each operand, a name of `EXTENTS` and a name of `FILLS`."""

    einsum: str
    formats: tuple[str, ...]
    extents: str = "rect"
    fill: str = "plain"

    def __str__(self) -> str:
        what = [w for w in (self.extents, self.fill) if w not in ("rect", "plain")]
        return " ".join([self.einsum, "*".join(self.formats), *what])

    @property
    def sparse(self) -> tuple[int, ...]:
        """Numbers of the sparse operands."""
        return tuple(n for n, f in enumerate(self.formats) if f != "dense")

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        size = {**RECT, **EXTENTS[self.extents]}
        return tuple(tuple(size[v] for v in names) for names in subscripts(self.einsum))


def subscripts(einsum: str) -> tuple[str, ...]:
    """The letters of each operand; an ellipsis stands for the mode b here."""
    return tuple(einsum.split("->")[0].replace("...", "b").split(","))


def combinations(einsum: str) -> list[tuple[str, ...]]:
    """Every choice of formats with a sparse operand, those with the fewest first."""
    choices = [("dense", *SPARSE.get(len(names), ())) for names in subscripts(einsum)]
    every = [c for c in itertools.product(*choices) if set(c) != {"dense"}]
    return sorted(every, key=lambda c: sum(f != "dense" for f in c))


def _some(einsum: str, most: int) -> list[tuple[str, ...]]:
    """At most `most` combinations, drawn evenly."""
    every = combinations(einsum)
    return (
        every
        if len(every) <= most
        else random.Random(zlib.crc32(einsum.encode())).sample(every, most)
    )


def _variants(einsum: str, number: int, share: int) -> Iterator[Case]:
    """The einsum with other extents and fills; formats and variants take turns."""
    kinds = [(e, "plain") for e in EXTENTS if e != "rect"] + [
        ("rect", f) for f in FILLS if f != "plain"
    ]
    kinds += [("wide", "messy"), ("one", "empty")]
    formats = combinations(einsum)
    for n, (extents, fill) in enumerate(kinds):
        if n % share == number % share:
            yield Case(einsum, formats[(5 * n + number) % len(formats)], extents, fill)


def _quick() -> Iterator[Case]:
    for number, einsum in enumerate(EINSUMS + EXTRA):
        most = 1 + number % 2 if einsum in EINSUMS else 1
        for formats in _some(einsum, most):
            yield Case(einsum, formats)
        yield from _variants(einsum, number, share=9)
    for f in OTHER[2]:
        yield Case("ij,jk->ik", (f, "dense"))
        yield Case("ij->j", (f,), fill="padded")


def _slow() -> Iterator[Case]:
    for number, einsum in enumerate(EINSUMS + EXTRA):
        for formats in _some(einsum, 24 if einsum.count(",") < 2 else 5):
            yield Case(einsum, formats)
        yield from _variants(einsum, number, share=4)
    for f in OTHER[2]:
        yield Case("ij,ij->ij", (f, "csr"), fill="zeros")
        yield Case("ij,jk->ik", ("csr", f))


QUICK: tuple[Case, ...] = tuple(dict.fromkeys(_quick()))
SLOW: tuple[Case, ...] = tuple(c for c in dict.fromkeys(_slow()) if c not in set(QUICK))


def parameters(*more: Case) -> list[Any]:
    """All cases for `pytest.mark.parametrize("case", …)`, the slow ones marked."""
    quick = [pytest.param(c, id=str(c)) for c in (*QUICK, *more)]
    return quick + [pytest.param(c, id=str(c), marks=pytest.mark.slow) for c in SLOW]


def some_slow(values: Sequence[Any], quick: Sequence[Any]) -> list[Any]:
    """`values` for `pytest.mark.parametrize`, those that are not in `quick` marked slow."""
    return [pytest.param(v, marks=[] if v in quick else [pytest.mark.slow]) for v in values]


# ------------------------------------------------------------------- operands
@dataclass(frozen=True, slots=True)
class Operands:
    """What a case is called with, and the same as dense NumPy arrays."""

    arrays: tuple[Any, ...]
    dense: tuple[Array, ...]


def seed(*what: object) -> np.random.Generator:
    """A generator that is the same for equal `what` in every process."""
    return np.random.default_rng(zlib.crc32(" ".join(map(str, what)).encode()))


def operands(case: Case, dtype: Any = np.float64) -> Operands:
    """Operands of a case: `SparseArray`s, dynamic, and JAX arrays."""
    rng = seed(case, dtype)
    pairs = [
        operand(rng, shape, format, case.fill, dtype)
        for shape, format in zip(case.shapes, case.formats, strict=True)
    ]
    return Operands(tuple(x for x, _ in pairs), tuple(d for _, d in pairs))


def operand(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    format: str,
    fill: str = "plain",
    dtype: Any = np.float64,
) -> tuple[Any, Array]:
    """One operand and its dense oracle."""
    if format == "dense":
        x = values(rng, shape, dtype)
        return jnp.asarray(x), x
    coords = coordinates(rng, shape, fill)
    data = values(rng, coords.shape[1:], dtype)
    if fill in ("zeros", "messy"):
        data[::3] = 0
    room = 6 if fill in ("padded", "messy") else 0
    return pack(coords, data, shape, format, fill in LOOSE, room), scatter(coords, data, shape)


def values(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Random values of any dtype: normal, or small integers."""
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return rng.random(shape) < 0.7
    if kind.kind in "iu":
        return rng.integers(0 if kind.kind == "u" else -4, 5, shape).astype(kind)
    x = rng.standard_normal(shape)
    return (
        (x + 1j * rng.standard_normal(shape)).astype(kind) if kind.kind == "c" else x.astype(kind)
    )


def coordinates(rng: np.random.Generator, shape: tuple[int, ...], fill: str = "plain") -> Array:
    """Coordinates, (ndim, n), in row-major order unless the fill says otherwise."""
    mask = rng.random(shape) < 0.35
    if fill == "empty":
        mask[...] = False
    elif mask.size:
        mask.reshape(-1)[rng.integers(mask.size)] = True
        if fill in ("empty_rows", "messy"):
            mask[::2] = False
        if fill == "full_row":
            mask[mask.shape[0] // 2] = True
    coords = np.stack(np.nonzero(mask)).astype(np.int64)
    if fill in ("duplicates", "messy"):
        coords = np.repeat(coords, 1 + np.arange(coords.shape[1]) % 3, axis=1)
    if fill in ("unsorted", "messy"):
        coords = coords[:, rng.permutation(coords.shape[1])]
    return coords


def scatter(coords: Array, data: Array, shape: tuple[int, ...]) -> Array:
    """The dense array; duplicates add up (booleans: or)."""
    out = np.zeros(shape, data.dtype)
    (np.logical_or if data.dtype == np.bool_ else np.add).at(out, tuple(coords), data)
    return out


# ------------------------------------------------------------ pack and unpack
def pack(
    coords: Array,
    data: Array,
    shape: tuple[int, ...],
    format: str,
    loose: bool = False,
    room: int = 0,
) -> js.SparseArray:
    """A dynamic array in any format.

    `loose` leaves entries in the order given, and takes the format's promises away.  `room` is
    capacity beyond the entries of every level that has any, filled with what must not be read.
    """
    f = parse_format(format, len(shape))
    if f.relative:
        return _pack_diagonals(coords, data, shape, f)
    wide = coords if loose else coords[:, np.lexsort(coords[list(reversed(f.order))])]
    data = data if loose else data[np.lexsort(coords[list(reversed(f.order))])]
    n = wide.shape[1]
    at, parents, total = (
        np.zeros(n, np.int64),
        1,
        1,
    )  # position of each entry; positions in use; with capacity
    last = max(f.sparse_levels)
    arrays: list[Array] = []
    for level, (kind, mode) in enumerate(zip(f.levels, f.order, strict=True)):
        c, extent = wide[mode], shape[mode]
        if kind.full:
            at, parents, total = at * extent + c, parents * extent, total * extent
        elif kind.branchless:
            arrays.append(_with_room(_placed(c, at, parents), total - parents))
        else:
            each = level == last and loose or (level < last and f.levels[level + 1].branchless)
            above, at = at, _children(at, c, each)
            used = int(at.max()) + 1 if n else 0
            pos = np.zeros(total + 1, np.int64)
            first = _placed(above, at, used)  # the parent of each child
            pos[1 : parents + 1] = np.cumsum(np.bincount(first, minlength=parents))
            pos[parents + 1 :] = used
            arrays += [pos, _with_room(_placed(c, at, used), room)]
            parents, total = used, used + room
    out = np.zeros(total, data.dtype)
    (np.logical_or if data.dtype == np.bool_ else np.add).at(out, at, data)
    stored = total // max(int(np.prod(shape_of_tail(f, shape))), 1) if n or room else 0
    if total > parents:
        out[parents:] = np.nan if data.dtype.kind in "fc" else 1
    index = f.index
    f = f.loosen(ordered=not loose, unique=not loose)
    leaf = out.reshape((stored, *shape_of_tail(f, shape)))
    return js.SparseArray(jnp.asarray(leaf), tuple(jnp.asarray(a, index) for a in arrays), shape, f)


def _pack_diagonals(
    coords: Array, data: Array, shape: tuple[int, ...], f: js.Format
) -> js.SparseArray:
    """A matrix of diagonals; what lies outside of it is NaN, or one, and must not be read."""
    own, base = f.order
    n, offset = shape[base], coords[own] - coords[base]
    offsets, at = np.unique(offset, return_inverse=True)
    out = np.zeros((offsets.size, n), data.dtype)
    (np.logical_or if data.dtype == np.bool_ else np.add).at(out, (at, coords[base]), data)
    reached = np.arange(n) + offsets[:, None]
    out[(reached < 0) | (reached >= shape[own])] = np.nan if data.dtype.kind in "fc" else 1
    return js.SparseArray(jnp.asarray(out), (jnp.asarray(offsets, f.index),), shape, f)


def _unpack_diagonals(a: js.SparseArray) -> Array:
    own, base = a.format.order
    offsets, data = np.asarray(a.arrays[0]), np.asarray(a.data)
    assert offsets.dtype == a.format.index
    assert (np.diff(offsets) > 0).all(), offsets
    assert ((offsets > -a.shape[base]) & (offsets < a.shape[own])).all(), offsets
    assert data.shape == (offsets.size, a.shape[base])
    c = np.stack([np.add.outer(offsets, np.arange(a.shape[base])), np.indices(data.shape)[1]])
    held = (c[0] >= 0) & (c[0] < a.shape[own])
    where = np.stack([c[(own, base).index(m)][held] for m in range(2)])
    return scatter(where, data[held], a.shape)


def shape_of_tail(f: js.Format, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Extents of the dense levels after the last sparse one."""
    return tuple(shape[m] for m in f.order[f.ndim - f.dense_tail :])


def _children(parent: Array, c: Array, each: bool) -> Array:
    """Positions one level down: by parent, then by first appearance; `each` entry has its own."""
    key = np.arange(c.size) if each else c
    first: dict[tuple[int, int], int] = {}
    for n, pair in enumerate(zip(parent.tolist(), key.tolist(), strict=True)):
        first.setdefault(pair, n)
    ranked = {pair: k for k, pair in enumerate(sorted(first, key=lambda p: (p[0], first[p])))}
    pairs = zip(parent.tolist(), key.tolist(), strict=True)
    return np.fromiter((ranked[p] for p in pairs), np.int64, c.size)


def _placed(c: Array, at: Array, size: int) -> Array:
    out = np.zeros(size, np.int64)
    out[at] = c
    return out


def _with_room(crd: Array, room: int) -> Array:
    """Coordinates with capacity behind them, filled with nonsense."""
    return np.concatenate([crd, np.resize(np.array([2**30, -1, 0]), room)])


def unpack(a: js.SparseArray) -> Array:
    """The dense array, read in NumPy; asserts that the index arrays keep the format's promises."""
    f = a.format
    if f.relative:
        return _unpack_diagonals(a)
    by_name = dict(zip(f.array_names(), map(np.asarray, a.arrays), strict=True))
    assert all(x.dtype == f.index for x in by_name.values()), (
        f,
        [x.dtype for x in by_name.values()],
    )
    at, coords = np.zeros(1, np.int64), {}
    for level, (kind, mode) in enumerate(zip(f.levels, f.order, strict=True)):
        above = None
        if kind.full:
            grid = np.arange(a.shape[mode])
            at, c = (np.add.outer(at * a.shape[mode], grid)).reshape(-1), np.tile(grid, at.size)
            coords = {m: np.repeat(x, a.shape[mode]) for m, x in coords.items()}
        else:
            if (level, "pos") in by_name:
                pos = by_name[level, "pos"]
                count = pos[at + 1] - pos[at]
                assert (count >= 0).all(), f"level {level}: pos {pos}"
                offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
                above = np.repeat(np.arange(at.size), count)
                coords = {m: x[above] for m, x in coords.items()}
                at = pos[at][above] + offset
            c = by_name[level, "crd"][at]
            assert ((c >= 0) & (c < a.shape[mode])).all(), f"level {level}: crd {c}"
        if above is not None:
            inner = above[1:] == above[:-1]
            if kind.ordered:
                assert (c[1:] >= c[:-1])[inner].all(), f"level {level} is not ordered: {c}"
            if kind.unique and kind.ordered:
                assert (c[1:] != c[:-1])[inner].all(), f"level {level} is not unique: {c}"
        coords[mode] = c
    where = np.stack([coords[m] for m in range(a.ndim)])
    if f.canonical and where.shape[1] > 1:  # also across the levels of coo
        keys = [tuple(w) for w in where[list(f.order)].T]
        assert keys == sorted(set(keys)), f"{f}: entries are not in order, or not unique"
    return scatter(where, np.asarray(a.data).reshape(-1)[at], a.shape)


# -------------------------------------------------------------------- oracles
def expected(case: Case, dense: Sequence[Array]) -> Array:
    """The result by NumPy, in the dtype of the operands."""
    return np.asarray(np.einsum(case.einsum, *dense))


def dense_of(x: Any) -> Array:
    """A result of any kind as a NumPy array, without a kernel of ours."""
    return unpack(x) if isinstance(x, js.SparseArray) else np.asarray(x)


def assert_same(got: Any, want: Any, rtol: float = 1e-12) -> None:
    """Equal shape and dtype, close values; `got` may be sparse."""
    x, want = dense_of(got), np.asarray(want)
    assert x.shape == want.shape
    assert x.dtype == want.dtype
    if want.dtype.kind in "fc" or want.dtype.name == "bfloat16":
        exact = np.complex128 if want.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(x.astype(exact), want.astype(exact), rtol=rtol, atol=rtol)
    else:
        np.testing.assert_array_equal(x, want)

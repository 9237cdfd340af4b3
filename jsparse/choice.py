# SPDX-License-Identifier: Apache-2.0
"""The format that is predicted cheapest for a pattern: what `a.to("auto")` converts to.

Each row of `CANDIDATES` says in which formats of its kind a pattern could be stored, and what a
product with it would then cost in nanoseconds.  The least wins, ties by the order of the table.

Costs are measured, for float32 on one core, relative to an entry of csr.  Blocks cost per element,
also for those that only fill them up: what is left of their advantage is what pays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jsparse.array import SparseArray
from jsparse.blocks import split_shape
from jsparse.concrete import traced
from jsparse.errors import FormatError, UnsupportedError
from jsparse.record import record

USES = {"spmv": 1, "spmm": 64}
ENTRY = 1.5  # nanoseconds for an entry of csr and one column of the dense factor
COLUMN = 0.14  # for each column more
ROW = 3.0  # for a row of csr, empty or not
STORED_ROW = 5.0  # for a row whose number is stored
DENSE = (0.3, 0.45)  # an element of a dense array: times a vector, times a matrix
UNIFORM = 0.75  # for an entry in a fiber that is spelled out, in entries of csr
SPELLED = 16  # entries of such a fiber at most
COLUMNS = (8, 32)  # of the dense factor, where it was found to pay
PLACE = 0.42  # for a place of a diagonal, in entries of csr
BLOCK = 2.0  # for a block of any size
SIDES = (1, 2, 3, 4, 5, 6, 7, 8, 16)  # of blocks
LEAST = 0.35  # the share of a block that entries fill where blocks could pay
SAMPLE = 1 << 18  # entries that are looked at for blocks
WINDOW = 1680  # rows that are looked at together: a multiple of every side


@record
class Facts:
    """A pattern's coordinates in row-major order, each once, and the columns of the dense factor
    that it is chosen for.
    """

    shape: tuple[int, int]
    rows: np.ndarray
    cols: np.ndarray
    width: int

    @property
    def entry(self) -> float:
        return ENTRY + COLUMN * (self.width - 1)

    @property
    def matrix(self) -> bool:
        """Whether the dense factor has enough columns to run along them."""
        return self.width >= 8


Candidates = Iterator[tuple[str, float]]


def _csr(f: Facts) -> Candidates:
    yield "csr", ROW * f.shape[0] + f.entry * f.rows.size


def _dcsr(f: Facts) -> Candidates:
    stored = np.count_nonzero(np.diff(f.rows)) + min(f.rows.size, 1)
    yield "dcsr", STORED_ROW * stored + f.entry * f.rows.size


def _dense(f: Facts) -> Candidates:
    yield "dense", DENSE[f.matrix] * f.entry * f.shape[0] * f.shape[1]


def element(r: int, c: int, matrix: bool) -> float:
    """The cost of an element of an r x c block in entries of csr."""
    if matrix:  # a row of the block is a sum that stays in registers
        return 1.0 if r == 1 else 0.9 if r == 2 else 0.8
    return 0.35


def _blocks(f: Facts) -> Candidates:
    sample = _sampled(f)
    total = sample.rows.size
    if not total:
        return
    tall = [r for r in SIDES if _filled(sample, r, 1) > LEAST]
    wide = [c for c in SIDES if _filled(sample, 1, c) > LEAST]
    for r in tall:  # a block is no fuller than its columns, nor than its rows
        for c in wide:
            cost = element(r, c, f.matrix)
            if r * c == 1 or min(r, *f.shape) < r or min(c, *f.shape) < c:
                continue
            blocks = f.rows.size / (_filled(sample, r, c) * r * c)
            rows = ROW * -(-f.shape[0] // r)
            yield f"csr[{r},{c}]", rows + blocks * (BLOCK + cost * f.entry * r * c)


def _dia(f: Facts) -> Candidates:
    if f.matrix:  # columns in vectors: no faster than csr
        return
    held = np.zeros(sum(f.shape), bool)
    held[f.cols - f.rows + f.shape[0]] = True
    yield "dia", PLACE * f.entry * f.shape[0] * int(np.count_nonzero(held))


def _uniform(f: Facts) -> Candidates:
    if not f.rows.size or not COLUMNS[0] <= f.width <= COLUMNS[1]:
        return
    most = int(np.max(np.bincount(f.rows)))
    if most <= SPELLED:
        yield f"dense,uniform({most})", UNIFORM * f.entry * f.shape[0] * most


CANDIDATES: tuple[Callable[[Facts], Candidates], ...] = (
    *(_csr, _dcsr, _dia, _uniform, _blocks, _dense),
)


def _sampled(f: Facts) -> Facts:
    """The pattern, or some windows of whole rows of it where it has many entries."""
    windows = -(-f.shape[0] // WINDOW)
    keep = max(1, int(SAMPLE / max(f.rows.size / windows, 1))) if windows else 0
    if keep >= windows:
        return f
    chosen = np.unique(np.linspace(0, windows - 1, keep).astype(int)) * WINDOW
    ends = np.searchsorted(f.rows, [chosen, chosen + WINDOW])
    at = np.concatenate([np.arange(lo, hi) for lo, hi in ends.T])
    return Facts(f.shape, f.rows[at], f.cols[at], f.width)


def _filled(f: Facts, r: int, c: int) -> float:
    """The share of the elements of r x c blocks around the entries that are entries."""
    if r == 1:  # blocks of one row lie in order
        new = (np.diff(f.cols // c) != 0) | (np.diff(f.rows) != 0)
        blocks = int(np.count_nonzero(new)) + min(f.rows.size, 1)
    else:
        blocks = _ascending(f.rows // r * (-(-f.shape[1] // c)) + f.cols // c).size
    return float(f.rows.size / max(blocks * r * c, 1))


def _ascending(keys: np.ndarray) -> np.ndarray:
    """The keys in order, each once; in a tenth of the time of `np.unique`."""
    if np.any(keys[1:] <= keys[:-1]):
        keys = np.sort(keys)
        keys = keys[np.concatenate([[True], keys[1:] != keys[:-1]])]
    return keys


def width_of(use: str | int) -> int:
    """The number of columns that a use means."""
    if isinstance(use, int) and not isinstance(use, bool) and use > 0:
        return use
    if not isinstance(use, str) or use not in USES:
        raise FormatError(
            f"to('auto'): use={use!r}, expected {' or '.join(map(repr, USES))}, or the number of "
            f"columns of the dense factor"
        )
    return USES[use]


def chosen(a: SparseArray, use: str | int) -> str:
    """The format of least predicted cost for the pattern of a matrix.

    Raises `UnsupportedError` if its index arrays are traced, `FormatError` if it is not a matrix.
    """
    width = width_of(use)
    if a.ndim != 2:
        raise FormatError(f"to('auto'): got {a.ndim} mode(s), expected a matrix; name a format")
    if traced(*a.arrays):
        raise UnsupportedError(
            "to('auto'): the index arrays are traced, so nothing is known of the pattern; convert "
            "outside of jit, or freeze the array"
        )
    rows, cols = coordinates(a)
    flat = _ascending(rows * max(a.shape[1], 1) + cols)
    shape = (a.shape[0], a.shape[1])
    facts = Facts(shape, flat // max(shape[1], 1), flat % max(shape[1], 1), width)
    found = [x for candidates in CANDIDATES for x in candidates(facts)]
    return min(found, key=lambda x: x[1])[0]


def coordinates(a: SparseArray) -> list[np.ndarray]:
    """The coordinates of the stored entries of a concrete array by mode, int64."""
    f, block = a.format.split, a.format.block
    shape = split_shape(a.shape, block) if block else a.shape
    host = a.pattern.arrays if a.pattern is not None else a.structure
    arrays = [np.asarray(x) for x in host]
    by_name = dict(zip(f.array_names(), arrays, strict=True))
    if f.relative:
        own, base = f.order
        at_base = np.tile(np.arange(shape[base]), by_name[0, "crd"].size)
        at_own = np.repeat(by_name[0, "crd"].astype(np.int64), shape[base]) + at_base
        kept = (at_own >= 0) & (at_own < shape[own])
        return [x[kept] for x in ((at_own, at_base) if own == 0 else (at_base, at_own))]
    at: dict[int, Any] = {}  # coordinates of the positions of the present level, by mode
    lo, hi = 0, 1  # positions in use
    for n, (level, mode) in enumerate(zip(f.levels, f.order, strict=True)):
        if (n, "pos") in by_name:
            pos = by_name[n, "pos"][lo : hi + 1].astype(np.int64)
            lo, hi, counts = int(pos[0]), int(pos[-1]), np.diff(pos)
        elif level.full:
            counts = np.full(hi - lo, shape[mode])
            lo, hi = lo * shape[mode], hi * shape[mode]
        else:
            counts = np.full(hi - lo, level.children)
            lo, hi = level.positions(lo, 0, 0), level.positions(hi, 0, 0)
        at = {m: np.repeat(x, counts) for m, x in at.items()}
        if level.full:
            at[mode] = np.tile(np.arange(shape[mode]), counts.size)
        else:
            at[mode] = by_name[n, "crd"][lo:hi].astype(np.int64)
    if not block:
        return [at[m] for m in range(a.ndim)]
    inner = iter(range(a.ndim, len(at)))
    out = [at[m] * b + (at[next(inner)] if b != 1 else 0) for m, b in enumerate(block)]
    inside = np.ones(hi - lo, bool)
    for x, n in zip(out, a.shape, strict=True):
        inside &= x < n
    return [x[inside] for x in out]

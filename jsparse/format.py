# SPDX-License-Identifier: Apache-2.0
"""Formats: how a sparse array is stored, as a value.

A `Format` is a tuple of levels (outermost first), the mode that each stores, and the width of the
index arrays.  It prints as text that parses back:

    csr                                   dense rows, compressed columns
    csc                                   the same with the modes exchanged
    compressed,compressed                 dcsr, and csf for two modes
    dense,compressed(-u)                  csr that may hold a coordinate twice
    dense,dense,compressed@0,2,1/int64    three modes, the last two exchanged, 64-bit index arrays
    dia                                   diagonal,dense@1,0: columns relative to dense rows
    dense,uniform(8)                      ell: eight entries in every row
    csr[4,4]                              csr of dense 4 x 4 blocks
    dense[1,2:4]                          2 entries in every 4 consecutive columns of a row

A format may *split* modes: with a `block` of 4 for a mode of extent n, the mode is stored as an
outer part of extent ceil(n / 4) and an inner part of extent 4.  Levels and order then describe the
split array, whose modes are the outer parts followed by the inner parts of the split modes;
the inner parts are dense levels, innermost.  csr[4,4] has the levels dense, compressed,
dense(4), dense(4), and data of shape (blocks, 4, 4).  An inner part of extent 4 that stores 2
coordinates only is written 2:4: dense[1,2:4] has the levels dense, dense, uniform(2:4).

A level that is not `ordered` (-o) or not `unique` (-u) promises less; kernels that need the
promise convert first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jsparse.errors import FormatError
from jsparse.levels import LEVELS, Compressed, Dense, Diagonal, Level, Singleton, Uniform
from jsparse.record import replace

INDEX_DTYPES = ("int32", "int64")


@dataclass(frozen=True, slots=True)
class Format:
    """Levels outermost first; `order[l]` is the mode that level l stores; `index` is the dtype of
    pos and crd; `block` the size of a block along each mode, empty if no mode is split.
    """

    levels: tuple[Level, ...]
    order: tuple[int, ...]
    index: str = "int32"
    block: tuple[int, ...] = ()
    is_dense: bool = field(default=True, init=False, repr=False, compare=False)
    """Whether every coordinate is stored: such a tensor is an ordinary array."""
    sparse_levels: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)
    """Numbers of the levels that store coordinates."""
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        return self._hash  # part of every jit cache key: computed once

    def __reduce__(self) -> Any:
        return Format, (self.levels, self.order, self.index, self.block)

    def __post_init__(self) -> None:
        sparse = tuple(n for n, level in enumerate(self.levels) if not level.full)
        object.__setattr__(self, "sparse_levels", sparse)
        object.__setattr__(self, "is_dense", not sparse)
        object.__setattr__(self, "_hash", hash((self.levels, self.order, self.index, self.block)))
        if sorted(self.order) != list(range(len(self.levels))):
            raise FormatError(
                f"format: mode order {self.order} is not a permutation of the "
                f"{len(self.levels)} levels; give each mode once"
            )
        if self.index not in INDEX_DTYPES:
            raise FormatError(f"format: index dtype {self.index!r}; expected one of {INDEX_DTYPES}")
        for above, level in zip((None, *self.levels), self.levels, strict=False):
            if level.branchless and (above is None or above.full):
                raise FormatError(
                    f"format: a {level.kind} level needs a compressed or singleton level above it, "
                    f"got {above}"
                )

            if level.branchless and above is not None and above.unique:
                raise FormatError(
                    f"format: a {level.kind} level needs a level above it that may repeat a "
                    f"coordinate; write {above.kind}(-u)"
                )
        for n, level in enumerate(self.levels):
            if level.relative and (n or self.ndim < 2 or self.block or not self.levels[1].full):
                raise FormatError(
                    f"format: a {level.kind} level must be the first, with a dense one below it "
                    f"and without blocks, got {','.join(str(x) for x in self.levels)}"
                )
            if level.relative and not (level.ordered and level.unique):
                raise FormatError(f"format: {level}: a {level.kind} level keeps both promises")
            if not (level.appended or level.relative) and n != sparse[-1]:
                raise FormatError(
                    f"format: a {level.kind} level must be the last that stores coordinates, got "
                    f"{','.join(str(x) for x in self.levels)}"
                )
        if self.block:
            self._check_block()

    def _check_block(self) -> None:
        outer, sizes = len(self.block), [b for b in self.block if b != 1]
        fits = len(self.levels) == outer + len(sizes) and bool(sizes) and min(sizes) > 1
        inner = dict(zip(self.order[outer:], self.levels[outer:], strict=True))
        if not fits or any(inner[m].fixed != b for m, b in enumerate(sizes, outer) if m in inner):
            raise FormatError(
                f"format: block {self.block} does not fit the levels "
                f"{','.join(str(level) for level in self.levels)}; expected a size from 1 up for "
                f"each mode, and innermost a level of that extent for each that is not 1"
            )
        if sorted(inner) != list(range(outer, len(self.levels))) or self.is_dense:
            raise FormatError(
                f"format: block {self.block} on levels stored as {self.order}; expected the outer "
                f"parts, one of them sparse, outside of the inner parts"
            )

    def __str__(self) -> str:
        return _text(self)

    def __repr__(self) -> str:
        return f"Format('{self}')"

    @property
    def ndim(self) -> int:
        """Number of logical modes."""
        return len(self.block) or len(self.levels)

    @property
    def split(self) -> Format:
        """The format of the split array: the same storage, every level a mode of its own."""
        return replace(self, block=()) if self.block else self

    @property
    def outer(self) -> Format:
        """The format of the outer parts."""
        n = self.ndim
        return Format(self.levels[:n], self.order[:n], self.index) if self.block else self

    @property
    def whole(self) -> Format:
        """The format without blocks: the levels of the outer parts, for the modes themselves; the
        last one compressed if only inner parts store coordinates.
        """
        f = self.outer
        if f.is_dense and self.block:
            return replace(f, levels=(*f.levels[:-1], _COMPRESSED))
        return f

    @property
    def appendable(self) -> Format:
        """A format without blocks with levels for the same coordinates that can be built entry by
        entry, as far as there are such levels.
        """
        return replace(self, levels=tuple(level.appendable for level in self.levels))

    @property
    def dense_tail(self) -> int:
        """How many dense levels follow the last sparse one: trailing axes of the data array."""
        sparse = self.sparse_levels
        return len(self.levels) - 1 - (sparse[-1] if sparse else -1)

    @property
    def relative(self) -> bool:
        """Whether the first level's coordinates are stored relative to the second's."""
        return bool(self.levels) and self.levels[0].relative

    @property
    def appended(self) -> bool:
        """Whether a pattern in this format can be built entry by entry."""
        return all(level.appended for level in self.levels)

    @property
    def free_tail(self) -> int:
        """How many trailing dense levels there are whose coordinates no level above depends on."""
        return self.dense_tail - self.relative

    @property
    def full_levels(self) -> tuple[bool, ...]:
        """Whether each level stores every coordinate."""
        return _full_levels(self)

    @property
    def fixed_levels(self) -> tuple[tuple[int, int], ...]:
        """Numbers of the levels whose extent the format fixes, with these extents."""
        return _fixed_levels(self)

    @property
    def canonical(self) -> bool:
        """Whether coordinates ascend and no entry is stored twice."""
        last = max(self.sparse_levels, default=-1)
        return all(self.levels[n].ordered for n in self.sparse_levels) and (
            last < 0 or self.levels[last].unique
        )

    def loosen(self, *, ordered: bool = True, unique: bool = True) -> Format:
        """The format without the promise of order, or of unique entries."""
        levels = list(self.levels)
        for n in () if self.relative else self.sparse_levels:
            keep_unique = levels[n].unique and (unique or n != self.sparse_levels[-1])
            levels[n] = replace(
                levels[n], ordered=levels[n].ordered and ordered, unique=keep_unique
            )
        return replace(self, levels=tuple(levels))

    def tighten(self) -> Format:
        """The format with both promises: what sorting and summing duplicates gives."""
        levels = list(self.levels)
        for n in self.sparse_levels:
            grouped = n + 1 < len(levels) and levels[n + 1].branchless
            levels[n] = replace(levels[n], ordered=True, unique=not grouped)
        return replace(self, levels=tuple(levels))

    def with_index(self, index: str) -> Format:
        return replace(self, index=index)

    def transpose(self, axes: tuple[int, ...]) -> Format:
        """The format of the array with its modes permuted (new mode m is old mode axes[m]); the
        same storage.
        """
        if not self.block:
            return replace(self, order=tuple(axes.index(m) for m in self.order))
        split = [m for m, b in enumerate(self.block) if b != 1]  # of each inner part
        block = tuple(self.block[a] for a in axes)
        inner = [m for m, b in enumerate(block) if b != 1]
        n = len(axes)
        order = tuple(
            axes.index(m) if m < n else n + inner.index(axes.index(split[m - n]))
            for m in self.order
        )
        return replace(self, order=order, block=block)

    def array_names(self) -> tuple[tuple[int, str], ...]:
        """(level, role) of every index array, in storage order."""
        return _array_names(self)


@cache
def dtype_name(dtype: Any) -> str:
    """The name of a NumPy dtype; remembered, for NumPy puts it together anew each time."""
    return str(dtype)


@cache
def _array_names(f: Format) -> tuple[tuple[int, str], ...]:
    return tuple((n, role) for n, level in enumerate(f.levels) for role in level.arrays)


@cache
def _fixed_levels(f: Format) -> tuple[tuple[int, int], ...]:
    return tuple((n, x.fixed) for n, x in enumerate(f.levels) if x.fixed is not None)


@cache
def _full_levels(f: Format) -> tuple[bool, ...]:
    return tuple(level.full for level in f.levels)


_COMPRESSED, _DENSE = Compressed(), Dense()


def _coo(n: int) -> tuple[Level, ...]:
    if n == 1:
        return (_COMPRESSED,)
    return (Compressed(unique=False), *[Singleton(unique=False)] * (n - 2), Singleton())


@cache
def _preset(name: str, ndim: int) -> Format | None:
    """The preset `name` for `ndim` modes, or None where it has no meaning."""
    forward, backward = tuple(range(ndim)), tuple(reversed(range(ndim)))
    match name:
        case "dense":
            return Format((_DENSE,) * ndim, forward)
        case "coo" if ndim >= 1:
            return Format(_coo(ndim), forward)
        case "csf" if ndim >= 1:
            return Format((_COMPRESSED,) * ndim, forward)
        case "csr" if ndim == 2:
            return Format((_DENSE, _COMPRESSED), forward)
        case "csc" if ndim == 2:
            return Format((_DENSE, _COMPRESSED), backward)
        case "dcsr" if ndim == 2:
            return Format((_COMPRESSED, _COMPRESSED), forward)
        case "dcsc" if ndim == 2:
            return Format((_COMPRESSED, _COMPRESSED), backward)
        case "dia" if ndim == 2:
            return Format((Diagonal(), _DENSE), backward)
    return None


PRESETS = ("dense", "csr", "csc", "coo", "dcsr", "dcsc", "csf", "dia")
_SHOWN = ("dense", "csr", "csc", "dcsr", "dcsc", "dia", "coo", "csf")  # csf of two modes reads dcsr


@cache
def _text(f: Format) -> str:
    suffix = "" if f.index == "int32" else f"/{f.index}"
    if f.block:
        return _block_text(f) + suffix
    plain = f.with_index("int32")
    for name in _SHOWN:
        if plain == _preset(name, f.ndim):
            return name + suffix
    order = "" if f.order == tuple(range(f.ndim)) else "@" + ",".join(str(m) for m in f.order)
    return ",".join(str(level) for level in f.levels) + order + suffix


def _block_text(f: Format) -> str:
    """The outer parts' format followed by the block, the order where it is not the usual one."""
    outer, n = f.outer.with_index("int32"), f.ndim
    split = [m for m, b in enumerate(f.block) if b != 1]
    pairs = zip(f.order[n:], f.levels[n:], strict=True)
    parts: dict[int, Level] = {split[m - n]: level for m, level in pairs}
    texts = [parts[m].part + parts[m].flags if m in parts else "1" for m in range(n)]
    body, _, order = str(outer).partition("@")
    if f.split.with_index("int32") != blocked(outer, f.block, parts).split:
        body = ",".join(str(level) for level in outer.levels)
        order = ",".join(str(m) for m in f.order)
    return f"{body}[{','.join(texts)}]" + ("@" + order if order else "")


def blocked(
    outer: Format, block: tuple[int, ...], parts: Mapping[int, Level] | None = None
) -> Format:
    """`outer` with its modes split: below each of its positions a block, whose modes are in the
    order of the outer ones, stored as dense levels, or those of `parts` by mode.

    Raises `FormatError` if the block does not have a size from 1 up for each mode.
    """
    if len(block) != outer.ndim or outer.block or min(block, default=1) < 1:
        raise FormatError(f"format {outer}: block {block}, expected a size for each mode")
    if max(block, default=1) == 1:
        return outer
    split = [m for m, b in enumerate(block) if b != 1]
    inner = [m for m in outer.order if block[m] != 1]
    known = parts or {}
    levels = (*outer.levels, *(known.get(m, Dense(size=block[m])) for m in inner))
    order = (*outer.order, *(outer.ndim + split.index(m) for m in inner))
    return Format(levels, order, outer.index, block)


_LEVEL = re.compile(r"([a-z]+)(?:\((\d+)(?::(\d+))?\))?(?:\(-([ou]+)\))?$")
_BLOCK = re.compile(r"([^\[]+)\[([\d:,(\-ou)]+)\](@[\d,]+)?$")
_PART = re.compile(r"(?:(\d+):)?(\d+)(?:\(-([ou]+)\))?$")


@cache
def parse_format(text: str, ndim: int) -> Format:
    """The format that `text` names for an array of `ndim` modes.

    Raises `FormatError` for an unknown name, or one with no meaning at that rank.

    >>> str(parse_format("csr/int64", 2)), parse_format("csc", 2).order
    ('csr/int64', (1, 0))
    >>> str(parse_format("csf@2,0,1", 3))
    'compressed,compressed,compressed@2,0,1'
    """
    body, _, index = text.partition("/")
    if "[" in body:
        return _parse_block(body, ndim).with_index(index or "int32")
    body, _, order_text = body.partition("@")
    if body in PRESETS:
        preset = _preset(body, ndim)
        if preset is None:
            raise FormatError(
                f"format {body!r} has no meaning for {ndim} mode(s); "
                f"use 'coo' or 'csf', which have any number of modes"
            )
        if not order_text:
            return preset.with_index(index or "int32")
        if preset.order != tuple(range(ndim)):
            raise FormatError(
                f"format {text!r}: {body!r} has a mode order of its own; write its levels instead"
            )
        body = ",".join(str(level) for level in preset.levels)
    if ndim == 0 and not body:
        return Format((), (), index or "int32")
    levels = []
    for part in body.split(","):
        match = _LEVEL.match(part.strip())
        if match is None or match[1] not in LEVELS:
            raise FormatError(
                f"no format or level {part!r}; formats: {', '.join(PRESETS)}; "
                f"levels: {', '.join(LEVELS)}"
            )
        given = _promises(match[4])
        if match[2]:
            given["size"] = int(match[2])
        if match[3]:
            given["of"] = int(match[3])
        try:
            levels.append(LEVELS[match[1]](**given))
        except TypeError:
            raise FormatError(f"format {text!r}: a {match[1]} level has no size") from None
    if len(levels) != ndim:
        raise FormatError(f"format {text!r} has {len(levels)} levels, the array {ndim} mode(s)")
    try:
        order = tuple(int(m) for m in order_text.split(",")) if order_text else tuple(range(ndim))
    except ValueError:
        raise FormatError(f"format {text!r}: mode order {order_text!r} is not numbers") from None
    return Format(tuple(levels), order, index or "int32")


def _parse_block(text: str, ndim: int) -> Format:
    """The format of `csr[4,4]`, or of levels with a block; the order may name the inner parts."""
    match = _BLOCK.match(text)
    found = [_PART.match(b) for b in match[2].split(",")] if match else []
    block = tuple(int(b[2]) for b in found if b)
    if match is None or len(found) != ndim or len(block) != ndim or min(block) < 1:
        raise FormatError(
            f"format {text!r}: expected a block with a size for each of {ndim} mode(s), "
            f"as in csr[4,4]"
        )
    order = match[3] or ""
    parts: dict[int, Level] = {
        m: Uniform(size=int(b[1]), of=int(b[2]), **_promises(b[3]))
        for m, b in enumerate(found)
        if b and b[1]
    }
    if order.count(",") < ndim:
        return blocked(parse_format(match[1] + order, ndim), block, parts)
    outer = parse_format(match[1], ndim)
    numbers = tuple(int(m) for m in order[1:].split(",") if m)
    split = [m for m, b in enumerate(block) if b != 1]
    if sorted(numbers) != list(range(ndim + len(split))):
        raise FormatError(f"format {text!r}: expected an order of the outer and inner parts")
    modes = [split[m - ndim] for m in numbers[ndim:] if m >= ndim]
    inner = tuple(parts.get(m, Dense(size=block[m])) for m in modes)
    return Format((*outer.levels, *inner), numbers, outer.index, block)


def _promises(flags: str | None) -> dict[str, Any]:
    return {"ordered": "o" not in (flags or ""), "unique": "u" not in (flags or "")}


def as_format(f: Format | str, ndim: int) -> Format:
    """`f` as a `Format` for `ndim` modes."""
    if isinstance(f, str):
        return parse_format(f, ndim)
    if not isinstance(f, Format):
        raise FormatError(f"format: got {type(f).__name__}, expected a Format or its text")
    if f.ndim != ndim:
        raise FormatError(f"format {f} has {f.ndim} modes, the array has {ndim}")
    return f

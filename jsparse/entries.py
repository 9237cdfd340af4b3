# SPDX-License-Identifier: Apache-2.0
"""A sparse tensor's entries as coordinates, and as lines of text.

NumPy's C tokenizer reads the text; what it or a check refuses is read once more, slowly and line by
line, to say where and what is wrong.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jsparse.errors import FileError, StructureError

LARGEST = int(np.iinfo(np.int64).max)
_INTEGER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True, eq=False)
class Coordinates:
    """A sparse tensor as a list of entries: `data[n]` is at the 0-based place `coords[:, n]`."""

    shape: tuple[int, ...]
    coords: np.ndarray  # (ndim, nse) int64
    data: np.ndarray  # (nse,)

    def __post_init__(self) -> None:
        expected = (len(self.shape), len(self.data))
        if self.coords.shape != expected or self.data.ndim != 1:
            raise StructureError(
                f"coords and data disagree: got coords of shape {self.coords.shape}, expected "
                f"(ndim, nse) = {expected}; give coords one row a mode and one column an entry"
            )


def fault(
    path: object, line: int | None, what: str, got: object, expected: str, todo: str
) -> FileError:
    where = f"{path}:{line}" if line else f"{path}"
    return FileError(f"{where}: {what}: got {got}, expected {expected}; {todo}")


def quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "...")


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a text file; those that are blank or start with `comment` hold no entry."""

    path: str | os.PathLike[str]
    lines: list[str]
    comment: str

    @classmethod
    def of(cls, path: str | os.PathLike[str], content: bytes, comment: str) -> Lines:
        text = content.decode("ascii", errors="replace")
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not text.strip():
            raise fault(path, 1, "empty file", f"{len(content)} bytes", "text", "fetch it again")
        return cls(path, text.split("\n"), comment)

    def fault(
        self, line: int | None, what: str, got: object, expected: str, todo: str
    ) -> FileError:
        return fault(self.path, line, what, got, expected, todo)

    def entries(self, start: int = 0) -> Iterator[tuple[int, list[str]]]:
        """The numbers, from 1, and words of the lines that hold an entry, after `start` lines."""
        for number, line in enumerate(itertools.islice(self.lines, start, None), start + 1):
            words = line.split()
            if words and not words[0].startswith(self.comment):
                yield number, words

    def line_of(self, start: int, entry: int) -> int:
        return next(itertools.islice(self.entries(start), int(entry), None))[0]

    def end(self) -> int:
        return len(self.lines) - (self.lines[-1] == "")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a text file: what its numbers are, and for an index their range."""

    name: str
    kind: Literal["index", "integer", "unsigned", "real"]
    base: int = 0
    extent: int = LARGEST - 1
    below: str = "count from 1"  # what to do about an index just below base

    def dtype(self, wide: bool) -> type[np.number[Any]]:
        match self.kind:
            case "real":
                return np.float64
            case "index":
                return np.int64
            case _:
                return np.uint64 if wide or self.kind == "unsigned" else np.int64

    def complaint(self, word: str) -> tuple[str, str, str] | None:
        """What is wrong with one word of the column, what was expected, and what to do."""
        if self.kind == "real":
            try:
                float(word)
            except ValueError:
                return f"the {self.name} is not a number", "a number", "correct it"
            return (f"the {self.name} is not a number", "digits", "drop _") if "_" in word else None
        if not _INTEGER.fullmatch(word):
            return f"the {self.name} is not an integer", "an integer", "correct it or the header"
        number = int(word) if len(word) < 40 else math.inf * (-1 if word[0] == "-" else 1)
        if self.kind == "index":
            last = self.base + self.extent - 1
            if not self.base <= number <= last:
                todo = self.below if number == self.base - 1 else "correct it or the extents"
                return f"the {self.name} is out of range", f"{self.base} to {last}", todo
            return None
        low = 0 if self.kind == "unsigned" else -LARGEST - 1
        if not low <= number < 2**64:
            todo = "declare the field real"
            return f"the {self.name} is out of range", f"{low} to {2**64 - 1}", todo
        return None


def numbers(lines: list[str], dtype: np.typing.DTypeLike) -> np.ndarray:
    """One number, or one record of them, a line; ValueError where a line holds something else."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no entry at all, or an integer written as a float
        try:
            return np.loadtxt(lines, dtype, comments=None, ndmin=1)
        except (OverflowError, Warning) as error:
            raise ValueError(str(error)) from None


def table(
    text: Lines, start: int, columns: Sequence[Column], count: int | None
) -> list[np.ndarray]:
    """The entries after `start` lines, `count` of them where it is known: one array a column.

    Indices are checked against their extent and made 0-based.
    """
    body = text.lines[start:]
    if any(text.comment in line for line in body):
        body = [line for line in body if not line.lstrip().startswith(text.comment)]
    if next(text.entries(start), None) is None and not count:
        return [np.empty(0, column.dtype(wide=False)) for column in columns]
    for wide in (False, True):
        dtype = np.dtype([(column.name, column.dtype(wide)) for column in columns])
        try:
            table = numbers(body, dtype)
            break
        except ValueError:
            if wide:
                raise _why(text, start, columns, count) from None
    if count is not None and len(table) != count:
        raise _why(text, start, columns, count)
    arrays = []
    for column in columns:
        array = np.ascontiguousarray(table[column.name])
        if column.kind == "index":
            if array.min() < column.base or array.max() - column.base >= column.extent:
                raise _why(text, start, columns, count)
            array -= column.base
        arrays.append(array)
    return arrays


def _why(text: Lines, start: int, columns: Sequence[Column], count: int | None) -> FileError:
    """Why `table` refused this text: the first thing that is wrong with it."""
    names = ", ".join(column.name for column in columns)
    seen = 0
    for line, words in text.entries(start):
        if seen == count:
            todo = "correct the count or drop the entries"
            return text.fault(line, "more entries than declared", "another", f"{count}", todo)
        if len(words) != len(columns):
            got, expected = quoted(" ".join(words)), f"{len(columns)} ({names})"
            todo = "correct the line or the header"
            return text.fault(line, "wrong number of words in an entry", got, expected, todo)
        for column, word in zip(columns, words, strict=True):
            if complaint := column.complaint(word):
                return text.fault(line, complaint[0], quoted(word), *complaint[1:])
        seen += 1
    if count is not None and seen < count:
        todo = "fetch the file again or correct the count"
        return text.fault(
            text.end(), "the file ends too early", f"{seen} entries", f"{count}", todo
        )
    got, expected = "integers below 0 and above 2^63 - 1", "one 64-bit type to hold them all"
    return text.fault(start + 1, "no type for the values", got, expected, "declare the field real")


def repeats(coords: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The entries that repeat another's coordinates: (the earlier, the later) of each pair."""
    order = np.lexsort(coords[::-1])
    same = np.all(np.diff(coords[:, order]) == 0, axis=0)
    return order[:-1][same], order[1:][same]


def joined(arrays: Sequence[np.ndarray]) -> bytes:
    words = [map(str if a.dtype.kind in "iub" else repr, a.tolist()) for a in arrays]
    return "".join(line + "\n" for line in map(" ".join, zip(*words, strict=True))).encode()

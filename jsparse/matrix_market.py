# SPDX-License-Identifier: Apache-2.0
"""Matrix Market text: a banner, comments, a line of sizes, one line an entry.

Beside the matrices of the format's definition it holds vectors (1 mode) and tensors (any number).
"""

from __future__ import annotations

import math
import re
from typing import Literal

import numpy as np

from jsparse.entries import (
    LARGEST,
    Column,
    Coordinates,
    Lines,
    fault,
    joined,
    quoted,
    repeats,
    table,
)
from jsparse.errors import FileError

_FIELDS: dict[str, Literal["integer", "unsigned", "real", "complex", "pattern"]] = {
    "real": "real",
    "double": "real",
    "integer": "integer",
    "unsigned-integer": "unsigned",
    "complex": "complex",
    "pattern": "pattern",
}
_WORDS = (
    ("%%matrixmarket",),
    ("matrix", "vector", "tensor"),
    ("coordinate", "array"),
    tuple(_FIELDS),
    ("general", "symmetric", "skew-symmetric", "hermitian"),
)


def parse(text: Lines) -> Coordinates:
    """The object that a banner, comments, a line of sizes and one line an entry describe."""
    banner = text.lines[0].lower().split()
    legal = len(banner) == 5 and all(w in known for w, known in zip(banner, _WORDS, strict=True))
    if not legal:
        expected = "%%MatrixMarket " + " ".join("|".join(known) for known in _WORDS[1:])
        todo = "correct the first line"
        raise text.fault(1, "wrong banner", quoted(text.lines[0]), f"'{expected}'", todo)
    _, rank, layout, named_field, symmetry = banner
    field = _FIELDS[named_field]
    if (
        (field == "pattern" and (layout == "array" or symmetry not in ("general", "symmetric")))
        or (symmetry == "hermitian" and field != "complex")
        or (symmetry == "skew-symmetric" and field == "unsigned")
    ):
        expected = "a field that has this layout and symmetry"
        got = f"{layout} {named_field} {symmetry}"
        raise text.fault(1, "impossible banner", got, expected, "correct the first line")

    start, shape, count = _sizes(text, rank, layout, symmetry)
    comments = "\n".join(text.lines[1:start])
    typed = re.search(r"^%%GraphBLAS\s+type\s+(\S.*)$", comments, re.MULTILINE | re.IGNORECASE)
    if typed and field == "integer" and typed[1].strip().lower() in ("float", "double"):
        field = "real"

    columns: list[Column] = []
    if layout == "coordinate":
        names = ("row index", "column index") if len(shape) == 2 else None
        for mode, extent in enumerate(shape):
            name = names[mode] if names else f"index {mode + 1}"
            columns.append(Column(name, "index", 1, extent))
    ndim = len(columns)
    match field:
        case "complex":
            columns += [Column("real part", "real"), Column("imaginary part", "real")]
        case "real" | "integer" | "unsigned":
            columns.append(Column("value", field))
        case "pattern":
            words = next(text.entries(start), (0, []))[1]
            columns += [Column("value", "real")] * (len(words) == ndim + 1)  # read, and not used
    arrays = table(text, start, columns, count)

    match field:
        case "pattern":
            data = np.ones(count)
        case "complex":
            data = np.empty(count, np.complex128)
            data.real, data.imag = arrays[-2:]
        case _:
            data = arrays[-1]
    if layout == "coordinate":
        coords = np.stack(arrays[:ndim])
    elif symmetry == "general":
        coords = np.stack(np.unravel_index(np.arange(count), shape, order="F")).astype(np.int64)
    else:  # the lower triangle, column by column
        coords = np.stack(np.triu_indices(shape[0], k=symmetry == "skew-symmetric")[::-1])
    if typed and (repeated := repeats(coords)[1]).size:
        line = text.line_of(start, repeated.min())
        got = f"{tuple((coords[:, repeated.min()] + 1).tolist())} again"
        todo = "add the entries up, or drop the %%GraphBLAS line to have repeated entries added"
        raise text.fault(line, "repeated entry", got, "each entry once", todo)
    if symmetry == "general":
        return Coordinates(shape, coords, data)
    return Coordinates(shape, *_mirrored(text, start, symmetry, coords, data))


def _sizes(text: Lines, rank: str, layout: str, symmetry: str) -> tuple[int, tuple[int, ...], int]:
    """From the line of sizes: how many lines it ends, the shape, and the number of entries."""
    line, words = next(text.entries(1), (text.end(), []))
    names = {"matrix": ["rows", "columns"], "vector": ["rows"], "tensor": ["extents"]}[rank]
    names = [*names, "entries"] if layout == "coordinate" else names
    sizes = [int(w) if re.fullmatch(r"[0-9]{1,19}", w) else -1 for w in words]
    enough = len(sizes) >= len(names) if rank == "tensor" else len(sizes) == len(names)
    if not enough or min(sizes) < 0 or max(sizes) > LARGEST:
        expected = f"{', '.join(names)}: integers from 0 to 2^63 - 1"
        got = quoted(" ".join(words)) if words else "the end of the file"
        raise text.fault(line, "wrong line of sizes", got, expected, "correct this line")
    if layout == "coordinate":
        shape, count = tuple(sizes[:-1]), sizes[-1]
    else:
        shape, count = tuple(sizes), math.prod(sizes)
    if symmetry != "general":
        if len(shape) != 2 or shape[0] != shape[1]:
            todo = "correct this line or declare the matrix general"
            raise text.fault(line, f"not a square matrix, but {symmetry}", shape, "n, n", todo)
        if layout == "array":
            count = shape[0] * (shape[0] + (-1 if symmetry == "skew-symmetric" else 1)) // 2
    return line, shape, count


def _mirrored(
    text: Lines, start: int, symmetry: str, coords: np.ndarray, data: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Both triangles, from the entries of one."""

    def refuse(entry: int, what: str, got: object, expected: str) -> FileError:
        todo = "correct the entry or declare the matrix general"
        return text.fault(text.line_of(start, entry), what, got, expected, todo)

    rows, columns = coords
    aside, upper = rows != columns, rows < columns
    if upper.any() and (rows > columns).any():
        earlier, later = repeats(np.stack([np.maximum(rows, columns), np.minimum(rows, columns)]))
        if (both := later[upper[earlier] != upper[later]]).size:
            got = f"{tuple((coords[:, both.min()] + 1).tolist())} and its mirror image"
            raise refuse(both.min(), f"both triangles of a {symmetry} matrix", got, "one of them")
    match symmetry:
        case "symmetric":
            mirror = data[aside]
        case "hermitian":
            mirror = data[aside].conj()
            if (wrong := np.flatnonzero(~aside & (data.imag != 0))).size:
                got = data[wrong[0]]
                raise refuse(wrong[0], "complex diagonal of a hermitian matrix", got, "a real one")
        case "skew-symmetric":
            mirror = -data[aside]
            if (wrong := np.flatnonzero(~aside)).size:
                got = f"an entry in row {rows[wrong[0]] + 1}"
                raise refuse(wrong[0], "diagonal of a skew-symmetric matrix", got, "none")
            integers = data.dtype.kind in "iu"
            if integers and (wrong := np.flatnonzero((data > LARGEST) | (data < -LARGEST))).size:
                got = data[wrong[0]]
                raise refuse(wrong[0], "no type for the negative value", got, "at most 2^63 - 1")
        case _:
            raise AssertionError(symmetry)
    return np.hstack([coords, coords[::-1, aside]]), np.hstack([data, mirror])


def render(path: object, c: Coordinates, comment: str, symmetry: str, tensor: bool) -> bytes:
    if symmetry not in _WORDS[4]:
        raise fault(path, None, "unknown symmetry", repr(symmetry), ", ".join(_WORDS[4]), "use one")
    if (len(c.shape) != 2 and not tensor) or not c.shape:
        raise fault(path, None, "no matrix", f"shape {c.shape}", "2 modes", "write .ttx or .npz")
    coords, data = c.coords, c.data
    if symmetry != "general":
        kept = _lower(path, c, symmetry)
        coords, data = coords[:, kept], data[kept]
    match data.dtype.kind:
        case "b":
            pattern = bool(data.all()) and symmetry in ("general", "symmetric")
            field, values = ("pattern", []) if pattern else ("integer", [data.astype(np.int64)])
        case "i" | "u":
            field, values = "integer", [data]
        case "c":
            data = data.astype(np.complex128)
            field, values = "complex", [data.real, data.imag]
        case _:
            field, values = "real", [data.astype(np.float64)]
    rank = "tensor" if tensor else "matrix"
    head = [f"%%MatrixMarket {rank} coordinate {field} {symmetry}"]
    head += [f"% {line}" for line in comment.splitlines()]
    head.append(" ".join(map(str, (*c.shape, data.size))))
    return "".join(line + "\n" for line in head).encode() + joined([*(coords + 1), *values])


def _lower(path: object, c: Coordinates, symmetry: str) -> np.ndarray:
    """Where the lower triangle's entries are, once the upper is known to mirror them."""
    rows, columns = c.coords if len(c.shape) == 2 else np.zeros((2, c.data.size), np.int64)
    lower = np.flatnonzero(rows > columns)
    upper = np.flatnonzero(rows < columns)
    lower = lower[np.lexsort((columns[lower], rows[lower]))]
    upper = upper[np.lexsort((rows[upper], columns[upper]))]
    diagonal = c.data[rows == columns]
    right = len(c.shape) == 2 and c.shape[0] == c.shape[1] and lower.size == upper.size
    right = right and np.array_equal(c.coords[:, lower], c.coords[::-1, upper])
    if right:
        mirror = c.data[upper]
        match symmetry:
            case "hermitian":
                mirror = mirror.conj()
                right = c.data.dtype.kind == "c" and not np.any(diagonal.imag)
            case "skew-symmetric":
                right = c.data.dtype.kind in "ifc" and diagonal.size == 0
                mirror = -mirror if right else mirror
        inexact = c.data.dtype.kind in "fc"
        right = right and np.array_equal(c.data[lower], mirror, equal_nan=inexact)
    if not right:
        got = "an entry without its mirror image, or an impossible shape, diagonal or type"
        todo = "write it with symmetry='general'"
        raise fault(path, None, f"the tensor is not {symmetry}", got, "both triangles", todo)
    return np.flatnonzero(rows >= columns)

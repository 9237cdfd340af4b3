# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors in files: Matrix Market (.mtx, .ttx), SciPy's .npz, FROSTT (.tns) and .smtx.

`read` returns coordinates, `write` takes them; a suffix `.gz` may follow any of the others. NumPy's
C tokenizer reads the text; what it or a check refuses is read once more, slowly and line by line,
to say where and what is wrong. What the formats leave open is decided so:

- Entries come in the order of the file and repeated ones are kept: they add up, as in SciPy. Only
  a Matrix Market file with a `%%GraphBLAS type` line may not repeat an entry (LAGraph, whose line
  that is, refuses it), and a symmetric one may not state both triangles, which would double it.
- Values: real -> float64, integer -> int64, or uint64 where int64 is too small or the field is
  unsigned-integer, complex -> complex128, none (pattern, .smtx) -> ones in float64, .tns ->
  float64, .npz -> as stored. An integer field that GraphBLAS types as float or double is real.
  Numbers that end the lines of a pattern are not used: its banner says that it has no values.
- A .tns file counts from 1, unless an index is 0, and ends each line with a value, unless told
  otherwise or its last column can only be one of indices. Its extents
  come from its header (a line with the order, a line with the extents) or are the largest indices.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np

from jsparse import matrix_market
from jsparse.entries import (
    LARGEST,
    Column,
    Coordinates,
    Lines,
    fault,
    joined,
    numbers,
    quoted,
    repeats,
    table,
)
from jsparse.errors import FileError

__all__ = ["Coordinates", "read", "write"]

_SUFFIXES = (".mtx", ".ttx", ".npz", ".tns", ".smtx")


def read(
    path: str | os.PathLike[str],
    *,
    shape: Sequence[int] | None = None,
    index_base: int | None = None,
    values: bool | None = None,
) -> Coordinates:
    """Reads the sparse tensor in `path`, in the format that its suffix names.

    `shape`, `index_base` (0 or 1) and `values` (whether lines end with a value) say of a .tns file
    what it may not say of itself. Whatever is wrong with a file raises `FileError`.
    """
    suffix = _suffix(path)
    if suffix != ".tns" and (shape is not None or index_base is not None or values is not None):
        got = "shape, index_base or values"
        raise fault(path, None, "option of another format", got, "none, as not .tns", "omit it")
    content = _content(path)
    match suffix:
        case ".mtx" | ".ttx":
            return matrix_market.parse(Lines.of(path, content, comment="%"))
        case ".npz":
            return _read_npz(path, content)
        case ".tns":
            return _based(Lines.of(path, content, comment="#"), shape, index_base, values)
        case ".smtx":
            return _read_smtx(Lines.of(path, content, comment="#"))
        case _:
            raise AssertionError(suffix)


def write(
    path: str | os.PathLike[str],
    coordinates: Coordinates,
    *,
    comment: str = "",
    symmetry: str = "general",
) -> None:
    """Writes a sparse tensor to `path`, in the format that its suffix names; `read` gives it back.

    A `symmetry` other than general (Matrix Market only) stores one triangle of a tensor that has
    that symmetry. Floats are written with all their digits. A .tns file gets header lines only
    where the largest indices do not tell its extents; an .smtx file holds ones, sorted by row.
    """
    suffix, c = _suffix(path), coordinates
    if symmetry != "general" and suffix not in (".mtx", ".ttx"):
        got, expected = f"symmetry={symmetry!r}", "general, as not Matrix Market"
        raise fault(path, None, "option of another format", got, expected, "omit it")
    if comment and suffix in (".npz", ".smtx"):
        raise fault(path, None, "no place for a comment", quoted(comment), "none", "omit it")
    if c.data.size and (np.any(c.coords < 0) or np.any(c.coords.max(axis=1) >= c.shape)):
        expected = f"places inside of {c.shape}"
        raise fault(path, None, "coordinates out of range", "others", expected, "correct them")
    data = c.data if c.data.dtype.kind in "biufc" else c.data.astype(np.float64)
    c = Coordinates(c.shape, c.coords, data)
    match suffix:
        case ".mtx" | ".ttx":
            content = matrix_market.render(path, c, comment, symmetry, tensor=suffix == ".ttx")
        case ".npz":
            content = _npz(c)
        case ".tns":
            content = _tns(path, c, comment)
        case ".smtx":
            content = _smtx(path, c)
        case _:
            raise AssertionError(suffix)
    zipped = Path(path).suffix.lower() == ".gz"
    Path(path).write_bytes(gzip.compress(content, 4, mtime=0) if zipped else content)


def _suffix(path: str | os.PathLike[str]) -> str:
    suffixes = [s.lower() for s in Path(path).suffixes]
    suffix = suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:]
    if suffix and suffix[0] in _SUFFIXES:
        return suffix[0]
    known = ", ".join(_SUFFIXES)
    got = quoted("".join(suffixes[-2:]))
    raise fault(path, None, "unknown format", got, f"one of {known}, or these + .gz", "rename it")


def _content(path: str | os.PathLike[str]) -> bytes:
    if os.path.isdir(path):
        raise fault(path, None, "not a file", "a directory", "a file", "name a file in it")
    content = Path(path).read_bytes()
    if Path(path).suffix.lower() == ".gz":
        try:
            return gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            todo = "fetch the file again, or drop .gz from the name of a plain file"
            got = f"{len(content)} bytes ({error})"
            raise fault(path, None, "broken gzip", got, "a whole gzip stream", todo) from None
    return content


# ---- .npz ----


def _read_npz(path: object, content: bytes) -> Coordinates:
    """A tensor as `scipy.sparse.save_npz` stores it; nothing pickled is ever loaded."""

    def refuse(what: str, got: object, expected: str) -> FileError:
        todo = "write it with scipy.sparse.save_npz"
        return fault(path, None, what, got, expected, todo)

    try:
        with np.load(BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, KeyError, AttributeError, TypeError) as error:
        raise refuse("no archive of plain arrays", error, "an .npz file, not pickled") from None
    except (zipfile.BadZipFile, zlib.error, RuntimeError, MemoryError) as error:
        raise refuse("broken archive", error, "a whole .npz file") from None

    def array(name: str, ndim: int, kinds: str = "iu") -> np.ndarray:
        if name not in arrays:
            raise refuse(f"no array {name!r}", sorted(arrays), "the arrays of a sparse tensor")
        found = arrays[name]
        if found.ndim != ndim or found.dtype.kind not in kinds:
            got = f"{found.ndim}-d {found.dtype}"
            raise refuse(f"wrong array {name!r}", got, f"{ndim}-d, one of the kinds {kinds!r}")
        if kinds == "iu":
            if found.size and int(found.max()) > LARGEST:
                raise refuse(f"array {name!r} is out of range", found.max(), "less than 2^63")
            return np.asarray(found, np.int64)
        return np.asarray(found, found.dtype.newbyteorder("="))

    def inside(name: str, indices: np.ndarray, extent: int) -> np.ndarray:
        if indices.size and not 0 <= indices.min() <= indices.max() < extent:
            got = f"{indices.min()} to {indices.max()}"
            raise refuse(f"{name} out of range", got, f"0 to {extent - 1}")
        return indices

    format = str(array("format", 0, "SU").astype(str))
    shape = tuple(array("shape", 1).tolist())
    if min(shape, default=0) < 0 or (len(shape) != 2 and format != "coo"):
        raise refuse("wrong shape", shape, "extents from 0 up, 2 of them unless the format is coo")
    data = array("data", {"bsr": 3, "dia": 2}.get(format, 1), "biufc")
    match format:
        case "csr" | "csc" | "bsr":
            block = data.shape[1:] if format == "bsr" else (1, 1)
            if not all(b > 0 and n % b == 0 for n, b in zip(shape, block, strict=True)):
                raise refuse("wrong block", block, f"a divisor of the shape {shape}")
            major, minor = (n // b for n, b in zip(shape, block, strict=True))
            major, minor = (minor, major) if format == "csc" else (major, minor)
            indptr, indices = array("indptr", 1), array("indices", 1)
            _check_pointers(refuse, "indptr", indptr, major, len(indices))
            inside("indices", indices, minor)
            if len(data) != len(indices):
                raise refuse("wrong length of data", len(data), f"{len(indices)}, as indices")
            coords = np.stack([np.repeat(np.arange(major), np.diff(indptr)), indices])
            coords = coords[::-1] if format == "csc" else coords
            if format == "bsr":
                places = np.indices(block).reshape(2, 1, -1)
                coords = coords[:, :, None] * np.array(block)[:, None, None] + places
            return Coordinates(shape, coords.reshape(2, -1), data.reshape(-1))
        case "coo":
            rows = array("coords", 2) if "coords" in arrays else [array("row", 1), array("col", 1)]
            if len(rows) != len(shape) or any(len(row) != len(data) for row in rows):
                got = [len(row) for row in rows]
                raise refuse("wrong lengths of coords", got, f"{len(shape)} times {len(data)}")
            for mode, (row, extent) in enumerate(zip(rows, shape, strict=True)):
                inside(f"coords of mode {mode}", row, extent)
            return Coordinates(shape, np.array(rows).reshape(len(shape), len(data)), data)
        case "dia":  # zeros are padding, as in SciPy
            offsets = array("offsets", 1)
            if len(offsets) != len(data):
                raise refuse("wrong length of offsets", len(offsets), f"{len(data)}, as data")
            diagonal, columns = np.nonzero(data)
            rows = columns - offsets[diagonal]
            held = (rows >= 0) & (rows < shape[0]) & (columns < shape[1])
            kept = np.stack([rows[held], columns[held]])
            return Coordinates(shape, kept, data[diagonal[held], columns[held]])
        case _:
            raise refuse("unknown format", quoted(format), "csr, csc, bsr, coo or dia")


def _check_pointers(
    refuse: Callable[[str, object, str], FileError],
    name: str,
    pointers: np.ndarray,
    extent: int,
    nse: int,
) -> None:
    if len(pointers) != extent + 1:
        raise refuse(f"wrong length of {name}", len(pointers), f"{extent + 1}")
    if pointers[0] != 0 or pointers[-1] != nse:
        got = f"{pointers[0]} to {pointers[-1]}"
        raise refuse(f"wrong ends of {name}", got, f"0 to {nse}, the number of indices")
    if (falls := np.flatnonzero(np.diff(pointers) < 0)).size:
        got = f"{pointers[falls[0]]}, then {pointers[falls[0] + 1]}"
        raise refuse(f"{name} falls after place {falls[0]}", got, "numbers that never fall")


def _npz(c: Coordinates) -> bytes:
    arrays = {"format": np.array(b"coo"), "shape": np.array(c.shape, np.int64), "data": c.data}
    arrays["_is_array"] = np.array(True)
    if len(c.shape) == 2:
        arrays["row"], arrays["col"] = c.coords
    else:
        arrays["coords"] = c.coords
    buffer = BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


# ---- .tns ----


def _based(
    text: Lines, shape: Sequence[int] | None, index_base: int | None, values: bool | None
) -> Coordinates:
    """A .tns file that counts from 1, or, if one of its indices is 0, from 0."""
    if index_base is not None:
        return _read_tns(text, shape, index_base, values)
    try:
        return _read_tns(text, shape, 1, values)
    except FileError:
        with contextlib.suppress(FileError):
            c = _read_tns(text, shape, 0, values)
            if c.coords.size and c.coords.min() == 0:
                return c
        raise


def _read_tns(
    text: Lines, shape: Sequence[int] | None, index_base: int, values: bool | None
) -> Coordinates:
    """A line an entry: its indices and, mostly, its value; maybe header lines before them."""
    if index_base not in (0, 1):
        raise fault(text.path, None, "unknown index_base", index_base, "0 or 1", "pass one of them")
    entries, start = text.entries(), 0
    line, words = next(entries, (1, []))
    order = len(shape) if shape is not None else None
    if len(words) == 1:  # the order, then the extents
        start, dims = next(entries, (line, []))
        todo = "correct the two header lines, or give each entry an index and a value"
        if not re.fullmatch("[0-9]{1,4}", words[0]):
            got = quoted(words[0])
            raise text.fault(line, "wrong header", got, "the number of extents", todo)
        if not all(re.fullmatch("[0-9]{1,18}", w) for w in dims) or len(dims) != int(words[0]):
            got = quoted(" ".join(dims))
            raise text.fault(start, "wrong header", got, f"{words[0]} extents", todo)
        if order not in (None, len(dims)):
            raise text.fault(line, "wrong order", len(dims), f"{order}", "correct shape=")
        order = len(dims)
        shape = tuple(map(int, dims)) if shape is None else shape
        line, words = next(entries, (line, []))
    if not words and order is None:
        todo = "pass shape="
        raise text.fault(text.end(), "no entry", "no line of numbers", "at least one", todo)
    guessed = order is None and values is None
    if order is None:
        order = len(words) - (values is not False)
    if values is None:
        values = len(words) != order
    if order < 1:
        raise text.fault(line, "no index", quoted(" ".join(words)), "index ... value", "add one")
    below = "pass index_base=0 if the file counts from 0" if index_base else "count from 0"
    columns = [
        Column(
            f"index {n + 1}", "index", index_base, LARGEST - 1 if shape is None else shape[n], below
        )
        for n in range(order)
    ]
    arrays = table(text, start, [*columns, *([Column("value", "real")] * values)], None)
    coords = np.stack(arrays[:order])
    data = arrays[-1] if values else np.ones(coords.shape[1])
    if guessed and words[-1].isdigit() and _is_index(text, start, coords, data, index_base):
        return _read_tns(text, None, index_base, False)
    if shape is None:
        shape = (coords.max(axis=1) + 1).tolist()
    return Coordinates(tuple(map(int, shape)), coords, data)


def _is_index(
    text: Lines, start: int, coords: np.ndarray, data: np.ndarray, index_base: int
) -> bool:
    """Whether the last column holds indices rather than values: as values it gives some coordinates
    several values; as indices no line repeats.
    """
    earlier, later = repeats(coords)
    unlike = later[data[earlier] != data[later]]
    if unlike.size == 0 or not index_base <= data.min() <= data.max() < LARGEST:
        return False
    if not all(words[-1].isdigit() for _, words in text.entries(start)):
        return False
    return repeats(np.vstack([coords, data.astype(np.int64)]))[0].size == 0


def _tns(path: object, c: Coordinates, comment: str) -> bytes:
    data, kind = c.data, c.data.dtype.kind
    wide = kind in "iu" and bool(np.any((data < -(2**53)) | (data > 2**53)))
    if not c.shape or kind == "c" or wide:
        got = f"{data.dtype} in {len(c.shape)} modes"
        expected = "1 mode or more of numbers that float64 holds"
        raise fault(path, None, "no FROSTT tensor", got, expected, "write .ttx or .npz")
    head = [f"# {line}" for line in comment.splitlines()]
    if not c.data.size or tuple((c.coords.max(axis=1) + 1).tolist()) != c.shape:
        head += [f"{len(c.shape)}", " ".join(map(str, c.shape))]
    columns = [*(c.coords + 1), data.astype(np.float64)]
    return "".join(line + "\n" for line in head).encode() + joined(columns)


# ---- .smtx ----


def _read_smtx(text: Lines) -> Coordinates:
    """Three lines: `rows, columns, entries`; the rows' offsets; the entries' column indices."""
    arrays, none = [], np.empty(0, np.int64)
    for line in range(1, 4):
        words = text.lines[line - 1].replace(",", " ").split() if line <= text.end() else []
        try:
            arrays.append(numbers(words, np.int64) if words else none)
        except ValueError:
            wrong = next(w for w in words if not re.fullmatch("[+-]?[0-9]{1,18}", w))
            expected = "an integer of 64 bits"
            raise text.fault(
                line, "not an integer", quoted(wrong), expected, "correct it"
            ) from None
    sizes, offsets, indices = arrays
    if len(sizes) != 3 or int(np.min(sizes)) < 0:
        got = quoted(text.lines[0])
        raise text.fault(1, "wrong line of sizes", got, "rows, columns, entries", "correct it")
    rows, columns, nse = sizes.tolist()
    if len(indices) != nse:
        todo = "correct the first line, or fetch the file again"
        raise text.fault(3, "wrong number of column indices", len(indices), f"{nse}", todo)

    def refuse(what: str, got: object, expected: str) -> FileError:
        return text.fault(2, what, got, expected, "correct the offsets, or fetch the file again")

    _check_pointers(refuse, "row offsets", offsets, rows, nse)
    if (wrong_ones := indices[(indices < 0) | (indices >= columns)]).size:
        todo = "count from 0, or correct the first line"
        expected = f"0 to {columns - 1}"
        raise text.fault(3, "column index out of range", wrong_ones[0], expected, todo)
    surplus = next(text.entries(3), None)
    if surplus:
        got = quoted(" ".join(surplus[1]))
        raise text.fault(surplus[0], "text after the end", got, "three lines", "remove it")
    coords = np.stack([np.repeat(np.arange(rows), np.diff(offsets)), indices])
    return Coordinates((rows, columns), coords, np.ones(nse))


def _smtx(path: object, c: Coordinates) -> bytes:
    if len(c.shape) != 2 or np.any(c.data != 1):
        got, expected = f"values in {len(c.shape)} modes", "ones in 2, as the format has no values"
        raise fault(path, None, "no .smtx matrix", got, expected, "write .mtx or .npz")
    rows, columns = c.coords[:, np.argsort(c.coords[0], kind="stable")]
    offsets = np.searchsorted(rows, np.arange(c.shape[0] + 1))
    lines = [", ".join(map(str, (*c.shape, c.data.size)))]
    lines += [" ".join(map(str, offsets.tolist())), " ".join(map(str, columns.tolist()))]
    return "".join(line + "\n" for line in lines).encode()

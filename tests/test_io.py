# SPDX-License-Identifier: Apache-2.0
"""Files: what `io.read` gives and refuses, in which words, and that `io.write` round-trips."""

import gzip
import io as stdio
import itertools
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from jsparse import io
from jsparse.errors import FileError

DATA = Path(
    os.environ.get("JSPARSE_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)
MANIFEST = json.loads((DATA / "manifest.json").read_text()) if DATA.is_dir() else {"files": []}
needs_data = pytest.mark.skipif(not MANIFEST["files"], reason="no files in $JSPARSE_TEST_DATA")


def save(path, text):
    content = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def dense(c):
    out = np.zeros(c.shape, c.data.dtype)
    np.add.at(out, tuple(c.coords), c.data)
    return out


def same(a, b):
    assert a.shape == b.shape
    np.testing.assert_array_equal(a.coords, b.coords)
    np.testing.assert_array_equal(a.data, b.data)


def mtx(tmp_path, text, name="a.mtx"):
    return io.read(save(tmp_path / name, text))


# ---- Matrix Market: what is read ----

VALUES = {
    "real": ("1.5", "-2e-3", np.array([1.5, -2e-3])),
    "double": ("1.5", "-2e-3", np.array([1.5, -2e-3])),
    "integer": ("7", "-9223372036854775808", np.array([7, -(2**63)])),
    "unsigned-integer": ("7", "18446744073709551615", np.array([7, 2**64 - 1], np.uint64)),
    "complex": ("1 2", "3.5 -4", np.array([1 + 2j, 3.5 - 4j])),
    "pattern": ("", "", np.array([1.0, 1.0])),
}


@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz", ".MTX"])
@pytest.mark.parametrize("field", VALUES)
def test_coordinate_fields(tmp_path, field, suffix):
    first, second, data = VALUES[field]
    text = f"%%MatrixMarket matrix coordinate {field} general\n2 3 2\n2 1 {first}\n1 3 {second}\n"
    c = mtx(tmp_path, text, "a" + suffix)
    assert c.shape == (2, 3) and c.coords.dtype == np.int64 and c.data.dtype == data.dtype
    np.testing.assert_array_equal(c.coords, [[1, 0], [0, 2]])
    np.testing.assert_array_equal(c.data, data)


def test_integers_beyond_int64_are_uint64(tmp_path):
    head = "%%MatrixMarket matrix coordinate integer general\n1 2 2\n1 1 3\n1 2 "
    assert mtx(tmp_path, head + f"{2**63 - 1}\n").data.tolist() == [3, 2**63 - 1]
    c = mtx(tmp_path, head + f"{2**64 - 1}\n")
    assert c.data.dtype == np.uint64 and c.data.tolist() == [3, 2**64 - 1]


def test_free_form(tmp_path):
    text = (
        "%%matrixmarket  MATRIX\tCoordinate REAL   General  \r\n%\r\n\r\n% a comment\r\n"
        "  2\t3    2  \r\n\r\n%in the body\r\n   1 1    +1.E1\r\n \t \r\n  % more\r\n2\t3\t.5"
    )
    c = mtx(tmp_path, text)
    np.testing.assert_array_equal(dense(c), [[10, 0, 0], [0, 0, 0.5]])


@pytest.mark.parametrize("word", ["nan", "NaN", "-NAN", "+nan", "inf", "-Inf", "INFINITY"])
def test_not_finite(tmp_path, word):
    c = mtx(tmp_path, f"%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 {word}\n")
    np.testing.assert_array_equal(c.data, [float(word)])


@pytest.mark.parametrize("kind", ["float", "double"])
def test_graphblas_type_makes_an_integer_field_real(tmp_path, kind):
    banner = "%%MatrixMarket matrix coordinate integer general\n"
    text = f"{banner}%%GraphBLAS type {kind}\n1 2 2\n1 1 -inf\n1 2 3\n"
    c = mtx(tmp_path, text)
    assert c.data.dtype == np.float64 and c.data.tolist() == [-np.inf, 3]
    text = text.replace(kind, "int8_t").replace("-inf", "4")
    assert mtx(tmp_path, text).data.dtype == np.int64


SYMMETRIES = {  # from the entries of the lower triangle to the whole of a 3 × 3 matrix
    "symmetric": lambda a: a + np.tril(a, -1).T,
    "skew-symmetric": lambda a: a - a.T,
    "hermitian": lambda a: a + np.tril(a, -1).conj().T,
}


def lower_triangle(symmetry, field):
    a = np.tril(np.arange(9).reshape(3, 3) + 1, -1 if symmetry == "skew-symmetric" else 0)
    return a + 1j * np.tril(a, -1) if field == "complex" else a


@pytest.mark.parametrize("layout", ["coordinate", "array"])
@pytest.mark.parametrize("field", ["real", "integer", "complex"])
@pytest.mark.parametrize("symmetry", SYMMETRIES)
def test_symmetries_are_expanded(tmp_path, symmetry, field, layout):
    if symmetry == "hermitian" and field != "complex":
        pytest.skip("only complex matrices are hermitian")
    a = lower_triangle(symmetry, field)
    columns, rows = np.nonzero(a.T)
    lines = []
    for i, j in zip(rows, columns, strict=True):
        value = f"{a[i, j].real} {a[i, j].imag}" if field == "complex" else f"{a[i, j]}"
        lines.append(f"{i + 1} {j + 1} {value}" if layout == "coordinate" else value)
    size = f"3 3 {len(lines)}" if layout == "coordinate" else "3 3"
    banner = f"%%MatrixMarket matrix {layout} {field} {symmetry}"
    path = save(tmp_path / "a.mtx", "\n".join([banner, size, *lines, ""]))
    c = io.read(path)
    np.testing.assert_array_equal(dense(c), SYMMETRIES[symmetry](a))
    theirs = scipy.io.mmread(path, spmatrix=False)
    theirs = theirs if isinstance(theirs, np.ndarray) else theirs.toarray()
    np.testing.assert_array_equal(dense(c), theirs)


def test_symmetric_may_hold_the_upper_triangle(tmp_path):
    head = "%%MatrixMarket matrix coordinate real symmetric\n3 3 3\n"
    c = mtx(tmp_path, head + "1 2 5\n3 1 6\n2 2 7\n")
    np.testing.assert_array_equal(dense(c), [[0, 5, 6], [5, 7, 0], [6, 0, 0]])


@pytest.mark.parametrize("shape", [(2, 3), (3, 0), (0, 2), (1, 1)])
def test_array_is_column_major_and_keeps_zeros(tmp_path, shape):
    a = np.arange(np.prod(shape)).reshape(shape)
    body = "".join(f"{x}\n" for x in a.ravel(order="F"))
    c = mtx(tmp_path, f"%%MatrixMarket matrix array integer general\n{shape[0]} {shape[1]}\n{body}")
    assert c.data.size == a.size and c.coords.shape == (2, a.size)
    np.testing.assert_array_equal(dense(c), a)


def test_vectors_and_tensors(tmp_path):
    c = mtx(tmp_path, "%%MatrixMarket vector coordinate real general\n5 2\n2 1.5\n5 2\n")
    np.testing.assert_array_equal(dense(c), [0, 1.5, 0, 0, 2])
    c = mtx(tmp_path, "%%MatrixMarket vector array real general\n2\n3\n4\n")
    np.testing.assert_array_equal(dense(c), [3, 4])
    text = "%%MatrixMarket tensor coordinate integer general\n2 3 4 2\n2 3 4 9\n1 1 2 -1\n"
    c = mtx(tmp_path, text, "a.ttx")
    assert c.shape == (2, 3, 4) and c.coords.T.tolist() == [[1, 2, 3], [0, 0, 1]]
    body = "\n".join(map(str, range(24)))
    text = f"%%MatrixMarket tensor array real general\n4 3 2\n{body}\n"
    c = mtx(tmp_path, text, "b.ttx.gz")
    np.testing.assert_array_equal(dense(c), np.arange(24).reshape((4, 3, 2), order="F"))


def test_repeated_entries_are_kept_in_order(tmp_path):
    c = mtx(tmp_path, "%%MatrixMarket matrix coordinate real general\n2 2 3\n2 2 3\n1 1 1\n2 2 4\n")
    assert c.coords.T.tolist() == [[1, 1], [0, 0], [1, 1]] and c.data.tolist() == [3, 1, 4]


@pytest.mark.parametrize("size", ["0 0", "0 1", "1 0", "3 4", f"{2**40} {2**62}"])
def test_no_entry(tmp_path, size):
    for field, dtype in ("real", float), ("pattern", float), ("integer", int), ("complex", complex):
        c = mtx(tmp_path, f"%%MatrixMarket matrix coordinate {field} general\n{size} 0\n")
        assert c.shape == tuple(map(int, size.split())) and c.coords.shape == (2, 0)
        assert c.data.dtype == dtype


def test_numbers_after_a_pattern_are_not_used(tmp_path):
    banner = "%%MatrixMarket matrix coordinate pattern general\n"
    assert mtx(tmp_path, banner + "2 2 2\n1 1 7\n2 2 8\n").data.tolist() == [1, 1]


# ---- Matrix Market: what is refused ----

HEAD = "%%MatrixMarket matrix coordinate real general\n"
BAD_MTX = {
    "empty": ("", 1, "empty file: got 0 bytes"),
    "blank": ("\n \n", 1, "empty file"),
    "no banner": ("2 2 1\n1 1 1\n", 1, "wrong banner: got '2 2 1', expected '%%MatrixMarket"),
    "short banner": ("%%MatrixMarket matrix coordinate real\n1 1 0\n", 1, "wrong banner"),
    "junk": (bytes(range(256)), 1, "wrong banner"),
    "png": (b"\x89PNG\r\n\x1a\n\0\0\0", 1, "wrong banner"),
    "object": (HEAD.replace("matrix c", "graph c") + "1 1 0\n", 1, "wrong banner"),
    "field": (HEAD.replace("real", "quaternion") + "1 1 0\n", 1, "wrong banner"),
    "hermitian": (HEAD.replace("general", "hermitian") + "1 1 0\n", 1, "impossible banner"),
    "pattern array": (
        "%%MatrixMarket matrix array pattern general\n1 1\n1\n",
        1,
        "impossible banner: got array pattern general",
    ),
    "skew pattern": (
        "%%MatrixMarket matrix coordinate pattern skew-symmetric\n1 1 0\n",
        1,
        "impossible banner",
    ),
    "no sizes": (HEAD + "% only\n", 2, "wrong line of sizes: got the end of the file"),
    "two sizes": (HEAD + "2 2\n1 1 1\n", 2, "expected rows, columns, entries"),
    "four sizes": (HEAD + "2 2 1 1\n1 1 1\n", 2, "wrong line of sizes"),
    "negative rows": (HEAD + "-2 2 1\n1 1 1\n", 2, "got '-2 2 1'"),
    "negative count": (HEAD + "2 2 -1\n", 2, "wrong line of sizes"),
    "float size": (HEAD + "2.0 2 1\n1 1 1\n", 2, "wrong line of sizes"),
    "size above int64": (HEAD + f"{2**63} 2 1\n1 1 1\n", 2, "wrong line of sizes"),
    "not square": (HEAD.replace("general", "symmetric") + "2 3 0\n", 2, "not a square matrix"),
    "truncated": (HEAD + "2 2 3\n1 1 1\n2 2 2\n", 4, "got 2 entries, expected 3"),
    "cut line": (HEAD + "2 2 2\n1 1 1\n2 ", 4, "got '2', expected 3 (row index, column index, val"),
    "nothing after": (HEAD + "2 2 3\n", 2, "got 0 entries, expected 3"),
    "huge count": (HEAD + f"2 2 {2**62}\n1 1 1\n", 3, "the file ends too early"),
    "huge array": (
        f"%%MatrixMarket matrix array real general\n{2**62} {2**62}\n1\n",
        3,
        "the file ends too early",
    ),
    "surplus": (HEAD + "2 2 1\n1 1 1\n\n2 2 2\n", 5, "more entries than declared"),
    "surplus of none": (HEAD + "2 2 0\n1 1 1\n", 3, "more entries than declared"),
    "surplus word": (HEAD + "2 2 1\n1 1 1 1\n", 3, "wrong number of words in an entry"),
    "compensating lines": (HEAD + "2 2 2\n1 1 1 2\n2 3\n", 3, "wrong number of words"),
    "comment after": (HEAD + "2 2 1\n1 1 1 % one\n", 3, "wrong number of words"),
    "zero-based": (HEAD + "2 2 1\n% c\n0 1 1\n", 4, "got '0', expected 1 to 2; count from 1"),
    "row": (HEAD + "2 9 1\n3 1 1\n", 3, "the row index is out of range: got '3', expected 1 to 2"),
    "column": (HEAD + "9 2 2\n1 1 1\n1 3 1\n", 4, "the column index is out of range: got '3'"),
    "no such row": (HEAD + "0 2 1\n1 1 1\n", 3, "the row index is out of range"),
    "negative index": (HEAD + "2 2 1\n-1 1 1\n", 3, "the row index is out of range: got '-1'"),
    "lowest index": (HEAD + f"2 2 1\n-{2**63} 1 1\n", 3, "the row index is out of range"),
    "index above int64": (HEAD + f"2 2 1\n1 {10**30} 1\n", 3, "the column index is out of range"),
    "endless index": (HEAD + f"2 2 1\n1 {'9' * 9999} 1\n", 3, "the column index is out of range"),
    "float index": (HEAD + "2 2 1\n1.0 1 1\n", 3, "the row index is not an integer: got '1.0'"),
    "text index": (HEAD + "2 2 1\n1 x 1\n", 3, "the column index is not an integer: got 'x'"),
    "text": (HEAD + "2 2 2\n1 1 1\n2 2 two\n", 4, "the value is not a number: got 'two'"),
    "fortran": (HEAD + "2 2 1\n1 1 1.5D+03\n", 3, "the value is not a number: got '1.5D+03'"),
    "underscore": (HEAD + "2 2 1\n1 1 1_0\n", 3, "the value is not a number: got '1_0'"),
    "nul": (HEAD + "2 2 1\n1 1 1\0\n", 3, "the value is not a number"),
    "no-break space": (HEAD + "2 2 1\n1 1\u00a01\n", 3, "wrong number of words"),
    "integer": (HEAD.replace("real", "integer") + "2 2 1\n1 1 1.5\n", 3, "the value is not an int"),
    "inf integer": (HEAD.replace("real", "integer") + "2 2 1\n1 1 inf\n", 3, "not an integer"),
    "unsigned": (
        HEAD.replace("real", "unsigned-integer") + "2 2 1\n1 1 -1\n",
        3,
        "the value is out of range",
    ),
    "above uint64": (
        HEAD.replace("real", "integer") + f"2 2 1\n1 1 {2**64}\n",
        3,
        "declare the field real",
    ),
    "mixed": (
        HEAD.replace("real", "integer") + f"2 2 2\n1 1 -1\n2 2 {2**63}\n",
        3,
        "no type for the values",
    ),
    "imaginary": (HEAD.replace("real", "complex") + "2 2 1\n1 1 1\n", 3, "real part, imaginary pa"),
    "imaginary text": (
        HEAD.replace("real", "complex") + "2 2 1\n1 1 1 1j\n",
        3,
        "the imaginary part is not a number: got '1j'",
    ),
    "skew diagonal": (
        HEAD.replace("general", "skew-symmetric") + "2 2 2\n2 1 1\n2 2 0\n",
        4,
        "diagonal of a skew-symmetric matrix: got an entry in row 2",
    ),
    "skew uint64": (
        "%%MatrixMarket matrix coordinate integer skew-symmetric\n2 2 1\n" + f"2 1 {2**63}\n",
        3,
        "no type for the negative value",
    ),
    "hermitian diagonal": (
        "%%MatrixMarket matrix coordinate complex hermitian\n2 2 1\n1 1 1 1\n",
        3,
        "complex diagonal of a hermitian matrix",
    ),
    "both triangles": (
        HEAD.replace("general", "symmetric") + "3 3 3\n2 1 5\n3 3 1\n1 2 5\n",
        5,
        "both triangles of a symmetric matrix: got (1, 2) and its mirror image",
    ),
    "graphblas repeat": (
        HEAD + "%%GraphBLAS type double\n2 2 3\n1 1 1\n2 1 1\n1 1 1\n",
        6,
        "repeated entry: got (1, 1) again, expected each entry once",
    ),
    "short array": (
        "%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n",
        5,
        "got 3 entries, expected 4",
    ),
    "long array": (
        "%%MatrixMarket matrix array real symmetric\n2 2\n1\n2\n3\n4\n",
        6,
        "more entries than declared: got another, expected 3",
    ),
    "tensor": (
        "%%MatrixMarket tensor coordinate real general\n2 2 2 1\n1 1 3 1\n",
        3,
        "index 3 is out of range",
    ),
}


def refused(path, line, words, **options):
    where = f"{path}:{line}: " if line else f"{path}: "
    with pytest.raises(FileError) as caught:
        io.read(path, **options)
    message = str(caught.value)
    assert message.startswith(where) and words in message
    assert re.search(r": got .*, expected .*; .", message, re.DOTALL), message


@pytest.mark.parametrize("case", BAD_MTX)
@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz"])
def test_bad_matrix_market(tmp_path, case, suffix):
    text, line, words = BAD_MTX[case]
    refused(save(tmp_path / f"a{suffix}", text), line, words)


# ---- any file ----


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        io.read(tmp_path / "none.mtx")
    (tmp_path / "folder.mtx").mkdir()
    refused(tmp_path / "folder.mtx", None, "not a file: got a directory")
    for name in ("a.txt", "a", "a.gz", "a.mtx.bz2"):
        refused(save(tmp_path / name, "1"), None, "unknown format")
    refused(save(tmp_path / "a.mtx", "1"), None, "option of another format", index_base=0)
    assert issubclass(FileError, ValueError)


@pytest.mark.parametrize("cut", [1, 10, 30, -1])
def test_broken_gzip(tmp_path, cut):
    path = save(tmp_path / "a.mtx.gz", HEAD + "2 2 1\n1 1 1\n")
    path.write_bytes(path.read_bytes()[:cut])
    refused(path, None, "broken gzip")
    path.write_bytes(b"plain text")
    refused(path, None, "broken gzip")


@pytest.mark.parametrize("suffix", [".mtx", ".mtx.gz", ".npz", ".tns", ".smtx"])
def test_damaged_files_never_raise_anything_else(tmp_path, suffix):
    rng = np.random.default_rng(0)
    path = tmp_path / f"a{suffix}"
    io.write(path, io.Coordinates((5, 6), np.array([[0, 2, 4], [1, 0, 5]]), np.ones(3)))
    content = path.read_bytes()
    for _ in range(300):
        damaged = bytearray(content[: rng.integers(len(content)) if rng.random() < 0.3 else None])
        for at in rng.integers(0, max(len(damaged), 1), rng.integers(0, 4)) if damaged else ():
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            c = io.read(path)
        except FileError:
            continue
        assert np.all(c.coords >= 0) and np.all(c.coords.max(axis=1, initial=-1) < c.shape)


# ---- .npz ----


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.complex64, bool, ">f8"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr", "dia"])
def test_scipy_npz(tmp_path, format, kind, dtype):
    a = scipy.sparse.random_array((6, 8), density=0.4, rng=np.random.default_rng(0))
    a = (a * 9).astype(np.dtype(dtype).newbyteorder("="))
    a = getattr(scipy.sparse, f"{format}_{kind}")(a.asformat(format))
    scipy.sparse.save_npz(tmp_path / "a.npz", a)
    c = io.read(tmp_path / "a.npz")
    theirs = scipy.sparse.load_npz(tmp_path / "a.npz").tocoo()
    assert c.shape == (6, 8) and c.data.dtype == a.dtype and c.data.dtype.isnative
    np.testing.assert_array_equal(dense(c), a.toarray())
    assert sorted(zip(*c.coords, c.data, strict=True)) == sorted(
        zip(theirs.row, theirs.col, theirs.data, strict=True)
    )


def arrays(**changes):
    csr = {
        "format": np.array("csr"),
        "shape": np.array([2, 3]),
        "indptr": np.array([0, 3, 4]),
        "indices": np.array([2, 0, 2, 1]),
        "data": np.array([1.0, 2, 3, 4], np.float32),
    }
    return {name: a for name, a in (csr | changes).items() if a is not None}


def test_npz_keeps_order_and_repeats(tmp_path):
    np.savez(tmp_path / "a.npz", **arrays())
    c = io.read(tmp_path / "a.npz")
    assert c.coords.tolist() == [[0, 0, 0, 1], [2, 0, 2, 1]] and c.data.dtype == np.float32
    assert c.data.tolist() == [1, 2, 3, 4]
    np.savez(tmp_path / "a.npz", **arrays(format=np.array(b"csc"), shape=np.array([3, 2])))
    assert io.read(tmp_path / "a.npz").coords.tolist() == [[2, 0, 2, 1], [0, 0, 0, 1]]


coo = {
    "format": np.array("coo"),
    "row": np.array([0, 1]),
    "col": np.array([0, 1]),
    "data": np.ones(2),
}
BAD_NPZ = {
    "no format": (arrays(format=None), "no array 'format': got ['data', 'indices', 'indptr', "),
    "no indptr": (arrays(indptr=None), "no array 'indptr'"),
    "unknown": (arrays(format=np.array("lil")), "unknown format: got 'lil'"),
    "shape": (arrays(shape=np.array([2, -3])), "wrong shape"),
    "rank": (arrays(shape=np.array([2, 3, 1])), "wrong shape"),
    "float shape": (arrays(shape=np.array([2.0, 3])), "wrong array 'shape': got 1-d float64"),
    "falling": (arrays(indptr=np.array([0, 5, 4])), "indptr falls after place 1: got 5, then 4"),
    "short indptr": (arrays(indptr=np.array([0, 4])), "wrong length of indptr: got 2, expected 3"),
    "empty indptr": (arrays(indptr=np.array([], int)), "wrong length of indptr"),
    "first": (arrays(indptr=np.array([1, 3, 4])), "wrong ends of indptr: got 1 to 4"),
    "last": (arrays(indptr=np.array([0, 3, 5])), "expected 0 to 4, the number of indices"),
    "float indptr": (arrays(indptr=np.array([0.0, 3, 4])), "wrong array 'indptr'"),
    "high": (arrays(indices=np.array([2, 0, 3, 1])), "indices out of range: got 0 to 3"),
    "low": (arrays(indices=np.array([2, 0, -1, 1])), "indices out of range: got -1 to 2"),
    "uint64": (arrays(indices=np.array([2, 0, 2**64 - 1, 1], np.uint64)), "less than 2^63"),
    "lengths": (arrays(data=np.ones(5)), "wrong length of data: got 5, expected 4"),
    "text": (arrays(data=np.array(list("abcd"))), "wrong array 'data'"),
    "matrix of data": (arrays(data=np.ones((4, 1))), "wrong array 'data': got 2-d float64"),
    "block": (arrays(format=np.array("bsr"), data=np.ones((4, 2, 2))), "wrong block: got (2, 2)"),
    "empty block": (arrays(format=np.array("bsr"), data=np.ones((4, 0, 0))), "wrong block"),
    "coo": (arrays(**coo | {"row": np.array([0, 2])}), "coords of mode 0 out of range: got 0 to 2"),
    "coo lengths": (arrays(**coo | {"row": np.array([0])}), "wrong lengths of coords: got [1, 2]"),
    "coo rank": (arrays(**coo, shape=np.array([2, 3, 4])), "wrong lengths of coords"),
    "dia": (
        arrays(format=np.array("dia"), data=np.ones((2, 3)), offsets=np.array([0])),
        "wrong length of offsets",
    ),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_bad_npz(tmp_path, case):
    content, words = BAD_NPZ[case]
    np.savez(tmp_path / "a.npz", **content)
    refused(tmp_path / "a.npz", None, words)


def test_npz_is_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("unpickled",))

    for name in ("data", "format", "shape", "other"):
        content = arrays(**{name: np.array([Trap()], object)})
        np.savez(tmp_path / "a.npz", **content)
        refused(tmp_path / "a.npz", None, "no archive of plain arrays")
    np.array([Trap()], object).dump(tmp_path / "b.npz")
    refused(tmp_path / "b.npz", None, "no archive of plain arrays")


def test_npz_that_is_none(tmp_path):
    refused(save(tmp_path / "a.npz", "text"), None, "no archive of plain arrays")
    refused(save(tmp_path / "a.npz", ""), None, "no archive of plain arrays")
    buffer = stdio.BytesIO()
    np.save(buffer, np.ones(3))
    refused(save(tmp_path / "a.npz", buffer.getvalue()), None, "no archive of plain arrays")
    np.savez(tmp_path / "a.npz", **arrays())
    content = (tmp_path / "a.npz").read_bytes()
    refused(save(tmp_path / "a.npz", content[: len(content) // 2]), None, "broken archive")


# ---- .tns ----


@pytest.mark.parametrize("suffix", [".tns", ".tns.gz"])
def test_tns(tmp_path, suffix):
    path = save(tmp_path / f"a{suffix}", "# c\n\n 1 2 3  4.5\n# c\n2 1 1 -1e3\n1 2 3 1\n")
    c = io.read(path)
    assert c.shape == (2, 2, 3) and c.data.tolist() == [4.5, -1e3, 1]
    assert c.coords.T.tolist() == [[0, 1, 2], [1, 0, 0], [0, 1, 2]]
    assert io.read(path, shape=(4, 4, 4)).shape == (4, 4, 4)
    assert io.read(path, index_base=0).coords.T.tolist() == [[1, 2, 3], [2, 1, 1], [1, 2, 3]]


def test_tns_without_values(tmp_path):
    path = save(tmp_path / "a.tns", "1 2 3\n1 2 4\n2 1 1\n")
    for options in {}, {"values": False}, {"shape": (2, 2, 4)}:  # indices: no line repeats
        c = io.read(path, **options)
        assert c.shape == (2, 2, 4) and c.data.tolist() == [1, 1, 1]
    for options in {"values": True}, {"shape": (2, 2)}:
        c = io.read(path, **options)
        assert c.shape == (2, 2) and c.data.tolist() == [3, 4, 1]
    clear = ("1 1 2\n1 1 2\n", "1 1 2\n1 1 3.0\n", "1 1 0\n1 1 5\n", "1 1 2\n1 2 2\n")
    for text in clear:  # repeats whole, no integer, no index, no repeat
        assert io.read(save(path, text)).coords.shape == (2, 2)


def test_tns_header(tmp_path):
    head = "# c\n3\n 4 4\t3\n"
    c = io.read(save(tmp_path / "a.tns", head + "1 1 1 2.5\n"))
    assert c.shape == (4, 4, 3) and c.data.tolist() == [2.5]
    c = io.read(save(tmp_path / "a.tns", head + "1 1 1\n4 4 3\n"))
    assert c.shape == (4, 4, 3) and c.data.tolist() == [1, 1]
    assert io.read(tmp_path / "a.tns", shape=(9, 9, 9)).shape == (9, 9, 9)
    c = io.read(save(tmp_path / "a.tns", head))
    assert c.shape == (4, 4, 3) and c.coords.shape == (3, 0)


BAD_TNS = {
    "empty": ("", 1, "empty file", {}),
    "comments": ("# a\n# b\n", 2, "no entry", {}),
    "zero": ("1 0 2.5\n", 1, "pass index_base=0 if the file counts from 0", {"index_base": 1}),
    "negative": ("0 -1 2.5\n", 1, "index 2 is out of range: got '-1'", {"index_base": 0}),
    "words": ("1 1 1 2.5\n1 1 2.5\n", 2, "wrong number of words", {}),
    "text": ("1 1 1 one\n", 1, "the value is not a number: got 'one'", {}),
    "no index": ("1 1.5 1 2\n", 1, "the index 2 is not an integer", {}),
    "above int64": (f"1 {2**63} 1.5\n", 1, "index 2 is out of range", {}),
    "last of int64": (f"1 {2**63 - 1} 1.5\n", 1, "index 2 is out of range", {"index_base": 0}),
    "shape": ("1 1 1.5\n3 1 2.5\n", 2, "expected 1 to 2", {"shape": (2, 2)}),
    "header": ("3\n4 4\n1 1 1 2.5\n", 2, "wrong header: got '4 4', expected 3 extents", {}),
    "one number a line": ("1.5\n2.5\n", 1, "wrong header: got '1.5'", {}),
    "header text": ("3\n4 four 4\n1 1 1 2.5\n", 2, "wrong header", {}),
    "header alone": ("3\n", 1, "wrong header", {}),
    "order": ("3\n4 4 4\n1 1 1 2.5\n", 1, "wrong order: got 3, expected 2", {"shape": (4, 4)}),
    "beyond header": ("2\n4 4\n1 5 2.5\n", 3, "expected 1 to 4", {}),
    "index_base": ("1 1 1.5\n", None, "unknown index_base: got 2", {"index_base": 2}),
    "junk": (b"\x89PNG\r\n\x1a\n\0\0\0 \1\2 \3", 1, "", {}),
}


@pytest.mark.parametrize("case", BAD_TNS)
def test_bad_tns(tmp_path, case):
    text, line, words, options = BAD_TNS[case]
    refused(save(tmp_path / "a.tns", text), line, words, **options)


# ---- .smtx ----


@pytest.mark.parametrize("suffix", [".smtx", ".smtx.gz"])
def test_smtx(tmp_path, suffix):
    c = io.read(save(tmp_path / f"a{suffix}", "3, 4, 5\n0 3 3 5 \n3 0 3 1 2 \n"))
    assert c.shape == (3, 4) and c.data.tolist() == [1.0] * 5
    assert c.coords.tolist() == [[0, 0, 0, 2, 2], [3, 0, 3, 1, 2]]
    assert io.read(save(tmp_path / f"a{suffix}", "2, 4, 0\n0 0 0\n\n")).coords.shape == (2, 0)
    assert io.read(save(tmp_path / f"a{suffix}", "0, 4, 0\n0")).shape == (0, 4)


BAD_SMTX = {
    "empty": ("", 1, "empty file"),
    "sizes": ("3, 4\n0 0 0 0\n\n", 1, "wrong line of sizes: got '3, 4'"),
    "negative": ("-3, 4, 0\n0\n\n", 1, "wrong line of sizes"),
    "text": ("3, 4, 1\n0 0 one 1\n0\n", 2, "not an integer: got 'one'"),
    "float": ("1, 4, 1\n0 1\n1.0\n", 3, "not an integer: got '1.0'"),
    "above int64": (f"1, 4, 1\n0 1\n{10**20}\n", 3, "not an integer"),
    "offsets": ("3, 4, 1\n0 0 1\n0\n", 2, "wrong length of row offsets: got 3, expected 4"),
    "ends": ("2, 4, 1\n0 0 2\n0\n", 2, "wrong ends of row offsets: got 0 to 2, expected 0 to 1"),
    "falling": ("3, 4, 1\n0 2 0 1\n0\n", 2, "row offsets falls after place 1"),
    "columns": ("1, 4, 1\n0 1\n4\n", 3, "column index out of range: got 4, expected 0 to 3"),
    "low columns": ("1, 4, 1\n0 1\n-1\n", 3, "column index out of range: got -1"),
    "truncated": ("1, 4, 3\n0 3\n1 2\n", 3, "wrong number of column indices: got 2, expected 3"),
    "one line": ("1, 4, 3\n", 3, "wrong number of column indices: got 0, expected 3"),
    "surplus": ("1, 4, 1\n0 1\n1\n\n5\n", 5, "text after the end: got '5'"),
}


@pytest.mark.parametrize("case", BAD_SMTX)
def test_bad_smtx(tmp_path, case):
    text, line, words = BAD_SMTX[case]
    refused(save(tmp_path / "a.smtx", text), line, words)


# ---- write ----

SUFFIXES = [s + z for s in (".mtx", ".ttx", ".npz", ".tns", ".smtx") for z in ("", ".gz")]
FLOATS = [0.1, -1 / 3, 5e-324, 1.7976931348623157e308, -0.0, np.inf, -np.inf, np.nan, 0.0, 1e22]
SINGLES = np.array([0.1, -1 / 3, 1e-45, -0.0, np.inf, np.nan], np.float32)


def some(shape, data):
    coords = np.random.default_rng(1).integers(0, np.array(shape)[:, None], (len(shape), len(data)))
    return io.Coordinates(tuple(shape), coords, np.asarray(data))


@pytest.mark.parametrize("suffix", [s for s in SUFFIXES if not s.startswith(".smtx")])
@pytest.mark.parametrize(
    "data", [FLOATS, SINGLES, np.arange(-3, 4), np.zeros(0)], ids=["f64", "f32", "int", "empty"]
)
def test_round_trip(tmp_path, suffix, data):
    for shape in [(5, 7), (30, 1), (3, 4, 5), (6,), (2, 3, 2, 3)]:
        if suffix.startswith(".mtx") and len(shape) != 2:
            continue
        c = some(shape, data)
        io.write(tmp_path / f"a{suffix}", c)
        back = io.read(tmp_path / f"a{suffix}")
        same(back, c)
        assert np.array_equal(np.signbit(back.data), np.signbit(c.data))


@pytest.mark.parametrize("suffix", [".mtx", ".ttx.gz", ".npz"])
def test_round_trip_of_types(tmp_path, suffix):
    for data in (
        np.array([2**64 - 1, 0, 7], np.uint64),
        np.array([-(2**63), 2**63 - 1, 0]),
        np.array([complex(0.1, -np.inf), complex(np.nan, 1 / 3), 0j]),
        np.array([True, True, True]),
        np.array([True, False, True]),
    ):
        c = some((2**62, 2**40), data)
        io.write(tmp_path / f"a{suffix}", c)
        same(io.read(tmp_path / f"a{suffix}"), c)


@pytest.mark.parametrize("suffix", [".smtx", ".smtx.gz"])
def test_round_trip_of_smtx(tmp_path, suffix):
    coords = np.array([[0, 0, 2, 2, 2], [3, 0, 1, 1, 0]])
    c = io.Coordinates((4, 5), coords, np.ones(5))
    io.write(tmp_path / f"a{suffix}", c)
    same(io.read(tmp_path / f"a{suffix}"), c)
    shuffled = io.Coordinates((4, 5), coords[:, [2, 0, 3, 1, 4]], np.ones(5))
    io.write(tmp_path / f"a{suffix}", shuffled)
    same(io.read(tmp_path / f"a{suffix}"), c)
    empty = io.Coordinates((0, 3), np.zeros((2, 0), np.int64), np.ones(0))
    io.write(tmp_path / f"a{suffix}", empty)
    same(io.read(tmp_path / f"a{suffix}"), empty)


@pytest.mark.parametrize("dtype", [float, int, complex, bool])
def test_scipy_reads_what_is_written(tmp_path, dtype):
    a = scipy.sparse.random_array((6, 8), density=0.4, rng=np.random.default_rng(0))
    a = (a * 9).astype(dtype).tocoo()
    c = io.Coordinates(a.shape, np.array(a.coords, np.int64), a.data)
    io.write(tmp_path / "a.mtx", c, comment="two\nlines")
    io.write(tmp_path / "a.npz", c)
    theirs = scipy.io.mmread(tmp_path / "a.mtx", spmatrix=False)
    np.testing.assert_array_equal(theirs.toarray(), a.toarray())
    theirs = scipy.sparse.load_npz(tmp_path / "a.npz")
    np.testing.assert_array_equal(theirs.toarray(), a.toarray())
    assert theirs.dtype == dtype


@pytest.mark.parametrize("field", ["real", "integer", "complex"])
@pytest.mark.parametrize("symmetry", SYMMETRIES)
def test_symmetric_write(tmp_path, symmetry, field):
    a = SYMMETRIES[symmetry](lower_triangle(symmetry, field))
    a = a.astype({"real": float, "integer": int, "complex": complex}[field])
    rows, columns = np.nonzero(a)
    order = np.random.default_rng(0).permutation(rows.size)
    coords = np.stack([rows, columns])[:, order]
    c = io.Coordinates(a.shape, coords, a[tuple(coords)])
    path = tmp_path / "a.mtx"
    if symmetry == "hermitian" and field != "complex":
        with pytest.raises(FileError, match="the tensor is not hermitian"):
            io.write(path, c, symmetry=symmetry)
        return
    io.write(path, c, symmetry=symmetry)
    lines = path.read_text().splitlines()
    assert lines[0] == f"%%MatrixMarket matrix coordinate {field} {symmetry}"
    assert len(lines) == 2 + np.count_nonzero(rows >= columns)
    np.testing.assert_array_equal(dense(io.read(path)), a)
    for broken in (
        io.Coordinates(c.shape, c.coords, c.data + (c.coords[0] == 2)),
        io.Coordinates(c.shape, c.coords[:, c.coords[0] < 2], c.data[c.coords[0] < 2]),
        io.Coordinates((3, 4), c.coords, c.data),
    ):
        with pytest.raises(FileError, match=f"the tensor is not {symmetry}"):
            io.write(path, broken, symmetry=symmetry)


def test_tns_gets_a_header_only_where_it_needs_one(tmp_path):
    path = tmp_path / "a.tns"
    c = io.Coordinates((2, 3), np.array([[0, 1], [2, 0]]), np.array([0.5, 2]))
    io.write(path, c, comment="one\ntwo")
    assert path.read_text() == "# one\n# two\n1 3 0.5\n2 1 2.0\n"
    io.write(path, io.Coordinates((2, 4), c.coords, c.data))
    assert path.read_text() == "2\n2 4\n1 3 0.5\n2 1 2.0\n"


def test_written_gzip_is_reproducible(tmp_path):
    c = some((3, 4), [1.0, 2.0])
    contents = []
    for name in ("a.mtx.gz", "b.mtx.gz"):
        io.write(tmp_path / name, c)
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1]


def test_what_write_refuses(tmp_path):
    c = some((3, 4), [1.0, 2.0])
    outside = io.Coordinates((3, 4), np.array([[0, 3], [0, 0]]), np.ones(2))
    tensor = some((3, 4, 5), [1.0])
    for name, tensor_, options, words in (
        ("a.txt", c, {}, "unknown format"),
        ("a.mtx", outside, {}, "coordinates out of range"),
        ("a.mtx", tensor, {}, "no matrix: got shape (3, 4, 5)"),
        ("a.mtx", c, {"symmetry": "upper"}, "unknown symmetry: got 'upper'"),
        ("a.npz", c, {"symmetry": "symmetric"}, "option of another format"),
        ("a.npz", c, {"comment": "c"}, "no place for a comment"),
        ("a.smtx", c, {}, "no .smtx matrix"),
        ("a.smtx", some((3, 4, 5), [1.0]), {}, "no .smtx matrix"),
        ("a.tns", some((3, 4), [1j]), {}, "no FROSTT tensor: got complex128"),
        ("a.tns", some((3, 4), [2**53 + 1]), {}, "no FROSTT tensor: got int64"),
    ):
        with pytest.raises(FileError) as caught:
            io.write(tmp_path / name, tensor_, **options)
        assert words in str(caught.value) and ", expected " in str(caught.value)
        assert not (tmp_path / name).exists()


def test_coordinates_agree_with_themselves():
    with pytest.raises(ValueError, match="coords and data disagree"):
        io.Coordinates((3, 4), np.zeros((2, 3), np.int64), np.ones(4))
    with pytest.raises(ValueError, match="coords and data disagree"):
        io.Coordinates((3, 4, 5), np.zeros((2, 3), np.int64), np.ones(3))


# ---- real files ----


def files(*folders):
    chosen = [f for f in MANIFEST["files"] if f["file"].split("/")[0] in folders]
    return [pytest.param(f, id=f["file"], marks=pytest.mark.data) for f in chosen]


def load(entry):
    options = {}
    if entry["file"].startswith("tns"):
        options = {"index_base": entry["index_base"], "shape": entry["shape"]}
    return io.read(DATA / entry["file"], **options)


@needs_data
@pytest.mark.parametrize("entry", [p for p in files("mtx", "npz", "tns") if p.values[0]["shape"]])
def test_real_file(entry):
    c = load(entry)
    assert list(c.shape) == entry["shape"] and c.data.size == entry["nnz_stored"]
    assert c.data.size == 0 or (c.coords.min() >= 0 and np.all(c.coords.max(axis=1) < c.shape))
    assert np.count_nonzero(c.data == 0) == entry["explicit_zeros"]
    assert np.count_nonzero(~np.isfinite(c.data)) == entry["nonfinite"]
    order = np.lexsort(c.coords[::-1])
    places = np.flatnonzero(np.any(np.diff(c.coords[:, order], prepend=-1) != 0, axis=0))
    assert places.size == entry["nnz_unique"]
    if "check" not in entry:
        return
    data = c.data if c.data.dtype.kind == "c" else c.data.astype(np.float64)
    weights = np.ones(data.size)
    for axis, indices in enumerate(c.coords):
        weights *= (indices % 11 * (7 + 2 * axis)) % 11 - 5.0
    sums = np.add.reduceat(data[order], places) if places.size else np.zeros(0)
    for ours, name, scale in (
        (data.sum(), "sum", np.abs(data).sum()),
        ((weights * data).sum(), "weighted_sum", np.abs(weights * data).sum()),
        ((np.abs(sums) ** 2).sum(), "sum_abs2_after_dedup", (np.abs(sums) ** 2).sum()),
    ):
        theirs = entry["check"][name]
        theirs = complex(*theirs) if isinstance(theirs, list) else theirs
        assert abs(ours - theirs) <= 1e-12 * scale, name


UNREADABLE_BY_SCIPY = {"fullrsa", "matrix_fp32", "matrix_fp64", "matrix_uint64", "west0067_jumbled"}


@needs_data
@pytest.mark.parametrize("entry", [p for p in files("mtx", "npz") if p.values[0]["shape"]])
def test_real_file_as_scipy_reads_it(entry):
    path = DATA / entry["file"]
    if path.name.split(".")[0] in UNREADABLE_BY_SCIPY:
        pytest.skip("SciPy refuses this file")
    c = load(entry)
    npz = path.suffix == ".npz"
    theirs = scipy.sparse.load_npz(path) if npz else scipy.io.mmread(path, spmatrix=False)
    if isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(dense(c), theirs)
        return
    theirs = theirs.tocoo()
    same(c, io.Coordinates(theirs.shape, np.array([theirs.row, theirs.col], np.int64), theirs.data))


@needs_data
@pytest.mark.parametrize("entry", files("bad"))
def test_real_bad_file(entry):
    path = DATA / entry["file"]
    refused(path, re.search(r":(\d+): ", message_of(path))[1], "expected")


def message_of(path):
    with pytest.raises(FileError) as caught:
        io.read(path)
    return str(caught.value)


@needs_data
def test_real_files_that_say_little():
    assert "no array 'format'" in message_of(DATA / "npz" / "cora_labels.npz")
    c = io.read(DATA / "tns" / "kg_jf17k_3.tns.gz")  # no value column
    assert c.shape == (104, 11540, 11541, 11539)
    c = io.read(DATA / "tns" / "splatt_small4_zeroidx.tns")  # counts from 0
    assert c.shape == (3, 3, 4, 3)


@needs_data
@pytest.mark.parametrize("suffix", [".mtx", ".npz", ".tns", ".ttx.gz"])
def test_real_files_round_trip(tmp_path, suffix):
    chosen = itertools.islice((p.values[0] for p in files("mtx", "npz", "tns")), 0, None, 7)
    for entry in chosen:
        if entry["shape"] is None or (suffix == ".mtx" and len(entry["shape"]) != 2):
            continue
        c = load(entry)
        if suffix == ".tns" and c.data.dtype in (np.complex128, np.uint64):
            continue
        io.write(tmp_path / f"a{suffix}", c)
        same(io.read(tmp_path / f"a{suffix}"), c)

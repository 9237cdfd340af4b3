# SPDX-License-Identifier: Apache-2.0
"""Every error that a user can cause: its type, and the words that its message must have."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jsparse as js
from jsparse.errors import (
    CapacityError,
    EinsumError,
    FormatError,
    JsparseError,
    ScheduleError,
    StructureError,
    UnsupportedError,
)

XLA = (jax.errors.JaxRuntimeError, ValueError)  # what a failed kernel reaches Python as
Call = Callable[[], Any]


def matrix() -> js.SparseArray:
    """3 x 4 with entries on its diagonal."""
    return js.csr(np.ones(3, np.float32), [0, 1, 2], [0, 1, 2, 3], (3, 4))


def tensor() -> js.SparseArray:
    return js.coo(np.ones(2, np.float32), [[0, 1], [1, 0], [2, 3]], (2, 3, 4))


A, T = matrix(), tensor()
B = np.ones((4, 5), np.float32)
E = js.einsum


def row(call: Call, error: Any, *words: str) -> Any:
    """A row of the table; its id is the text between the words."""
    return pytest.param(call, error, words, id=" ".join(words)[:60])


def check(call: Call, error: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        jax.block_until_ready(call())
    message = str(caught.value)
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"
    assert not isinstance(caught.value, AssertionError), "our own invariant, not the user's error"


SUBSCRIPTS = [
    row(
        lambda: E("ij,jk->ik", A, np.ones((3, 5))),
        EinsumError,
        "einsum 'ij,jk->ik'",
        "index 'j'",
        "extent 4",
        "operand 0 (mode 1)",
        "3 in operand 1 (mode 0)",
    ),
    row(lambda: E("ii->i", A), EinsumError, "einsum 'ii->i'", "index 'i'", "extent 3", "4"),
    row(lambda: E("ij,jk->ik", A), EinsumError, "einsum 'ij,jk->ik'", "2 subscripts", "1 operand"),
    row(lambda: E("ij,jk->ik", A, B, B), EinsumError, "2 subscripts", "3 operand"),
    row(lambda: E("ijk->i", A), EinsumError, "operand 0", "2 mode(s)", "'ijk'", "name 3"),
    row(lambda: E("...ijk->ijk", A), EinsumError, "operand 0", "2 mode(s)", "'...ijk'"),
    row(lambda: E("ij->ik", A), EinsumError, "index 'k'", "output", "no operand"),
    row(lambda: E("ij->ii", A), EinsumError, "index 'i'", "twice in the output"),
    row(lambda: E("i1->i", A), EinsumError, "unexpected '1'", "operand 0", "letters"),
    row(lambda: E("ij->i_", A), EinsumError, "unexpected '_'", "output"),
    row(lambda: E("ij->i->j", A), EinsumError, "more than one '->'"),
    row(lambda: E("ij-i", A), EinsumError, "unexpected '-'"),
    row(lambda: E("...ij->ij", T), EinsumError, "'...'", "output"),
    row(lambda: E("......ij->...ij", T), EinsumError, "unexpected '.'"),
    row(lambda: E(3, A), EinsumError, "subscripts", "int", "string"),
    row(
        lambda: E("...ij,...jk->...ik", T, np.ones((5, 4, 2))),
        EinsumError,
        "'...'",
        "extent 2",
        "5",
        "operand 1",
    ),
]

OPERANDS = [
    row(
        lambda: E("ij,jk->ik", A, [[1.0]]),
        EinsumError,
        "einsum 'ij,jk->ik'",
        "operand 1",
        "list",
        "array",
    ),
    row(lambda: E("ij,jk->ik", A, "text"), EinsumError, "operand 1", "str", "SparseArray"),
    row(lambda: E("ij,jk->ik", A, None), EinsumError, "operand 1", "None"),
    row(lambda: E("ij,jk->ik", A, print), EinsumError, "operand 1", "function"),
    row(lambda: A * None, EinsumError, "multiply", "operand 1", "None"),
    row(lambda: A + "x", EinsumError, "add", "operand 1", "str"),
    row(lambda: A @ "x", EinsumError, "matmul", "operand 1", "str"),
    row(lambda: A @ 2.0, EinsumError, "matmul", "scalar", "*"),
    row(lambda: A @ A, EinsumError, "index 'j'", "extent 4", "3"),
    row(lambda: A + A.T, EinsumError, "add", "(3, 4)", "(4, 3)", "broadcast"),
    row(lambda: A - np.ones((4, 3)), EinsumError, "subtract", "(3, 4)", "(4, 3)", "broadcast"),
    row(lambda: A * A.T, EinsumError, "multiply", "(3, 4)", "(4, 3)", "broadcast"),
    row(lambda: A / np.ones((4, 3)), EinsumError, "(3, 4)", "(4, 3)", "broadcast"),
    row(lambda: A / A, UnsupportedError, "divide", "sparse divisor", "todense()"),
    row(lambda: A.astype(bool) - A.astype(bool), TypeError, "subtract", "bool"),
    row(lambda: js.vdot(A, A.T), EinsumError, "vdot", "(3, 4)", "(4, 3)"),
    row(lambda: js.tensordot(A, A, 3), EinsumError, "tensordot", "axes=3", "2"),
    row(lambda: js.tensordot(A, A, ((0,), (0, 1))), EinsumError, "tensordot", "1 axes", "2"),
    row(lambda: js.outer(A, A), EinsumError, "operand 0", "2 mode(s)"),
    row(lambda: js.sum(A, axis=2), ValueError, "axis 2", "2 mode(s)"),
    row(lambda: js.mean(A, axis=-3), ValueError, "axis -3", "2 mode(s)"),
    row(lambda: js.sum(np.ones(3)), FormatError, "sum", "ndarray", "SparseArray", "js.asarray"),
]

FORMATS = [
    row(
        lambda: E("ij,jk->ik", A, B, out_format="cssr"),
        FormatError,
        "'cssr'",
        "csr, csc, coo",
        "compressed",
    ),
    row(
        lambda: E("ijk->ijk", T, out_format="csr"),
        FormatError,
        "'csr'",
        "3 mode(s)",
        "'coo' or 'csf'",
    ),
    row(lambda: E("ij,jk->ik", A, B, out_format=3), FormatError, "int", "Format"),
    row(lambda: E("ij,jk->ik", A, B, like=A), FormatError, "like=", "(3, 4)", "(3, 5)"),
    row(lambda: E("ij,jk->ik", A, B, like=np.ones((3, 5))), FormatError, "like=", "SparseArray"),
    row(lambda: A.to("foo"), FormatError, "'foo'", "csr"),
    row(lambda: A.to(3), FormatError, "int", "Format"),
    row(lambda: T.to("csr"), FormatError, "'csr'", "3 mode(s)"),
    row(lambda: A.to("coo/int16"), FormatError, "'int16'", "int32", "int64"),
    row(lambda: A.to("singleton,compressed"), FormatError, "singleton", "above"),
    row(lambda: A.to("dense,singleton"), FormatError, "singleton", "above", "dense"),
    row(lambda: A.to("dense,compressed@0,0"), FormatError, "(0, 0)", "permutation"),
    row(lambda: A.to("dense,compressed@0,x"), FormatError, "'0,x'", "not numbers"),
    row(lambda: A.to("dense,compressed,dense"), FormatError, "3 levels", "2 mode(s)"),
    row(lambda: js.Format(A.format.levels, (0, 0)), FormatError, "(0, 0)", "permutation"),
    row(lambda: js.Format(A.format.levels, (0, 1), "int8"), FormatError, "'int8'", "int32"),
    row(lambda: js.fromdense(np.eye(3), "dense"), FormatError, "fromdense", "'dense'"),
    row(lambda: js.fromdense(np.float64(1)), FormatError, "fromdense", "without modes"),
    row(lambda: js.fromdense(np.ones((2, 2, 2)), "csc"), FormatError, "'csc'", "3 mode(s)"),
]

SCHEDULES = [
    row(
        lambda: E("ij,jk->ik", A, B, schedule="reorder(i,j)"),
        ScheduleError,
        "reorder(i,j)",
        "permutation of i,j,k",
    ),
    row(
        lambda: E("ij,jk->ik", A, B, schedule="reorder(i,j,q)"),
        ScheduleError,
        "reorder(i,j,q)",
        "permutation",
    ),
    row(
        lambda: E("ij,jk->ik", A, B, schedule="foo(i)"),
        ScheduleError,
        "foo(i)",
        "reorder",
        "vectorize",
        "parallelize",
    ),
    row(
        lambda: E("ij,jk->ik", A, B, schedule="vectorize(k)"),
        ScheduleError,
        "vectorize(k)",
        "lanes",
    ),
    row(
        lambda: E("ij,jk->ik", A, B, schedule="vectorize(k,x,1)"),
        ScheduleError,
        "vectorize(k,x,1)",
        "lanes",
    ),
    row(
        lambda: E("ij,jk->ik", A, B, schedule="vectorize(k,7,1)"),
        ScheduleError,
        "lanes",
        "power of two",
    ),
    row(
        lambda: E("ij,jk->ik", A, B, schedule="vectorize(j,8,1)"),
        ScheduleError,
        "vectorize(j,8,1)",
        "dense",
        "A",
    ),
    row(
        lambda: E("ij,jk->ik", A, B, schedule="parallelize(k)"),
        ScheduleError,
        "parallelize(k)",
        "outermost",
    ),
    row(
        lambda: E("ij,i->j", A, np.ones(3), schedule="reorder(i,j) parallelize(i)"),
        ScheduleError,
        "parallelize(i)",
        "reduction",
    ),
    row(
        lambda: E("ij,jk->ik", A, B, schedule="unroll(i,4)"),
        ScheduleError,
        "unroll(i,4)",
        "reduction",
    ),
    row(lambda: E("ij,jk->ik", A, B, schedule="unroll(j,99)"), ScheduleError, "unroll(j,99)", "16"),
    row(
        lambda: E("ij,jk->ik", A, B, schedule="rfactor(i,4)"),
        ScheduleError,
        *("rfactor(i,4)", "reduction", "outermost"),
    ),
    row(
        lambda: E("ij->j", A, schedule="reorder(i,j) rfactor(i,1)"),
        ScheduleError,
        "rfactor(i,1)",
        "2 to 64",
    ),
    row(lambda: E("ij,jk->ik", A, B, schedule=7), ScheduleError, "int"),
]

CONSTRUCTORS = [
    row(
        lambda: js.csr([1.0], [4], [0, 1, 1, 1], (3, 4)),
        StructureError,
        "csr",
        "level 1",
        "mode 1",
        "coordinate 4",
        "position 0",
        "0 <= coordinate < 4",
    ),
    row(
        lambda: js.csr([1.0], [-1], [0, 1, 1, 1], (3, 4)),
        StructureError,
        "coordinate -1",
        "position 0",
    ),
    row(
        lambda: js.csc([1.0], [3], [0, 1, 1, 1, 1], (3, 4)),
        StructureError,
        "csc",
        "mode 0",
        "coordinate 3",
        "< 3",
    ),
    row(
        lambda: js.csr([1.0], [1], [0, 1, 1], (3, 4)),
        StructureError,
        "csr",
        "indptr",
        "length 3",
        "expected 4",
        "(3, 4)",
    ),
    row(
        lambda: js.csr([1.0], [1], [0, 1, 0, 1], (3, 4)),
        StructureError,
        "pos[2] is 0",
        "pos[1] = 1",
    ),
    row(
        lambda: js.csr([1.0], [1], [0, 1, 1, 2], (3, 4)),
        StructureError,
        "csr",
        "2",
        "1 coordinates",
    ),
    row(lambda: js.csr([1.0], [1], [-1, 1, 1, 1], (3, 4)), StructureError, "pos[0] is -1"),
    row(
        lambda: js.csr([1.0, 2.0], [1], [0, 1, 1, 1], (3, 4)),
        StructureError,
        "lengths differ",
        "data 2",
        "indices 1",
    ),
    row(
        lambda: js.csr([1.0], [1.5], [0, 1, 1, 1], (3, 4)),
        StructureError,
        "indices",
        "float64",
        "integers",
    ),
    row(
        lambda: js.csr([1.0], [[1]], [0, 1, 1, 1], (3, 4)),
        StructureError,
        "indices",
        "(1, 1)",
        "one axis",
    ),
    row(
        lambda: js.csr([[1.0]], [1], [0, 1, 1, 1], (3, 4)),
        StructureError,
        "data",
        "(1, 1)",
        "(nse,)",
    ),
    row(
        lambda: js.csr([1.0], [1], [0, 1, 1, 1], (3, 4, 5)), StructureError, "csr", "(3, 4, 5)", "2"
    ),
    row(
        lambda: js.csr([1.0], [1], [0, 1, 1, 1], (3, -4)), StructureError, "(3, -4)", "non-negative"
    ),
    row(lambda: js.csr([1.0], [1], [0, 1, 1, 1], 3), StructureError, "shape 3", "tuple"),
    row(lambda: js.csr([1.0], [1], [0, 1, 1, 1], (3, 4.5)), StructureError, "csr", "4.5"),
    row(
        lambda: js.csr([1.0], [2**63 + 1], [0, 1, 1, 1], (3, 4)),
        StructureError,
        "indices",
        "64-bit",
    ),
    row(
        lambda: js.csr([1.0, 1.0], [1, 0], [0, 2, 2, 2], (3, 4), sorted=True),
        StructureError,
        "sorted=True",
        "ascend",
    ),
    row(
        lambda: js.csr([1.0, 1.0], [1, 1], [0, 2, 2, 2], (3, 4), unique=True),
        StructureError,
        "unique=True",
        "twice",
    ),
    row(
        lambda: js.coo([1.0], [[3], [0]], (3, 4)),
        StructureError,
        "coo",
        "mode 0",
        "coordinate 3",
        "< 3",
    ),
    row(
        lambda: js.coo([1.0], [[0], [4]], (3, 4)),
        StructureError,
        "coo",
        "mode 1",
        "coordinate 4",
        "< 4",
    ),
    row(
        lambda: js.coo([1.0], [[0]], (3, 4)),
        StructureError,
        "coo",
        "1 mode(s)",
        "expected 2",
        "(3, 4)",
    ),
    row(
        lambda: js.coo([1.0], [[0, 1], [0, 1]], (3, 4)),
        StructureError,
        "lengths differ",
        "data 1",
        "coords[0] 2",
    ),
    row(lambda: js.coo([1.0], 5, (3, 4)), StructureError, "coo", "coords"),
    row(
        lambda: js.csf([1.0], [[0], [0], [9]], (3, 4, 5)),
        StructureError,
        "csf",
        "coordinate 9",
        "< 5",
    ),
    row(lambda: js.eye(-1), StructureError, "eye", "-1"),
    row(
        lambda: js.random(jax.random.key(0), (3, 3), density=1.5),
        StructureError,
        "density",
        "1.5",
        "0 to 1",
    ),
    row(lambda: js.random(0, (3, 3)), (StructureError, TypeError), "random", "key"),
    row(
        lambda: js.diags([[1.0, 2.0], [1.0]], [0]),
        StructureError,
        "diags",
        "2 diagonals",
        "1 offsets",
    ),
    row(
        lambda: js.diags([[1.0, 2.0, 3.0]], [0], shape=(2, 2)),
        StructureError,
        "diagonal 0",
        "length 3",
        "expected 2",
    ),
    row(lambda: js.diags([], []), StructureError, "diags", "no diagonals"),
    row(lambda: A.with_data(jnp.ones(9)), StructureError, "with_data", "(9,)", "(3,)"),
    row(lambda: A.with_data(None), StructureError, "with_data", "None", "(3,)"),
    row(lambda: js.csr(["a"], [1], [0, 1, 1, 1], (3, 4)), TypeError, "U1"),
    row(lambda: js.asarray(None), (ValueError, TypeError), "None"),
]

CAPACITIES = [
    row(
        lambda: jax.jit(lambda a: E("ij,kj->ik", a, a).data)(A),
        CapacityError,
        "einsum 'ij,kj->ik'",
        "under jit",
        "nse=",
        "like=",
        "freeze",
    ),
    row(
        lambda: jax.jit(lambda a: (a + a.to("csc")).data)(A),
        CapacityError,
        "add",
        "under jit",
        "nse=",
    ),
    row(lambda: jax.jit(js.fromdense)(np.eye(3)), CapacityError, "fromdense", "under jit", "nse="),
    row(lambda: js.fromdense(np.eye(3), nse=2), XLA, "needs 3", "capacity is 2", "nse=3"),
    row(
        lambda: jax.jit(lambda x: js.fromdense(x, nse=2))(np.eye(3)),
        XLA,
        "needs 3",
        "capacity is 2",
        "nse=3",
    ),
    row(lambda: A.to("csc", nse=1), XLA, "needs 3", "capacity is 1", "nse=3"),
    row(lambda: E("ij,kj->ik", A, A, nse=2), XLA, "needs 3", "capacity is 2", "nse=3"),
    row(
        lambda: jax.jit(lambda a: js.add(a, a.to("coo"), nse=2))(A), XLA, "needs 3", "capacity is 2"
    ),
    row(lambda: E("ij,kj->ik", A, A, nse=-1), JsparseError, "nse", "-1"),
    row(lambda: E("ij,kj->ik", A, A, nse=2.5), (JsparseError, TypeError), "nse", "2.5"),
    row(lambda: js.fromdense(np.eye(3), nse=-2), JsparseError, "nse", "-2"),
    row(lambda: A.to("csc", nse=-2), JsparseError, "nse", "-2"),
]

TRACED = [
    row(
        lambda: jax.jit(lambda a: a.freeze().data)(A),
        UnsupportedError,
        "freeze",
        "traced",
        "outside of jit",
    ),
    row(
        lambda: jax.jit(lambda a: a.to_scipy())(A),
        UnsupportedError,
        "to_scipy",
        "traced",
        "outside of jit",
    ),
    row(
        lambda: jax.jit(lambda k: js.random(k, (3, 3)).data)(jax.random.key(0)),
        UnsupportedError,
        "random",
        "traced",
    ),
    row(lambda: jax.jit(lambda i: A[i])(1), NotImplementedError, "static", "todense"),
    row(lambda: A[[0, 1]], NotImplementedError, "list", "static", "todense"),
    row(lambda: A[5], IndexError, "5", "mode 0", "extent 3"),
    row(lambda: A[0, 0, 0], IndexError, "3 indices", "2 mode(s)"),
    row(lambda: A[..., ...], IndexError, "'...'"),
]

SHAPES = [
    row(lambda: A.transpose((0, 0)), ValueError, "transpose", "(0, 0)", "permutation"),
    row(lambda: A.reshape((5,)), ValueError, "reshape", "(5,)", "12", "(3, 4)"),
    row(lambda: A.reshape((-1, 5)), ValueError, "reshape", "12"),
    row(
        lambda: js.concatenate([A, js.asarray(B)], 1),
        ValueError,
        "concatenate",
        "array 1",
        "(4, 5)",
        "(3, 4)",
    ),
    row(lambda: js.concatenate([]), ValueError, "concatenate", "no arrays"),
    row(lambda: js.stack([A, A.T]), ValueError, "stack", "(3, 4)", "(4, 3)"),
    row(lambda: js.expand_dims(A, 5), ValueError, "axis 5"),
]


def with_structure(*arrays: Any) -> js.SparseArray:
    return replace(A, structure=arrays)


POS, CRD = A.structure
DAMAGED = [
    row(lambda: replace(A, data=jnp.ones(7)) @ B, StructureError, "values", "[7]", "3"),
    row(lambda: with_structure(POS[:2], CRD) @ B, StructureError, "level 1", "pos", "[2]", "[4]"),
    row(lambda: with_structure() @ B, StructureError, "structure"),
    row(lambda: with_structure(POS, CRD, CRD) @ B, StructureError, "structure"),
    row(
        lambda: with_structure(POS.astype("int16"), CRD.astype("int16")) @ B,
        StructureError,
        "int16",
        "int32",
    ),
    row(
        lambda: with_structure(POS, CRD.astype(jnp.float32)) @ B, StructureError, "float32", "int32"
    ),
    row(
        lambda: jax.jit(lambda a: a @ B)(with_structure(POS.astype("uint8"), CRD)),
        StructureError,
        "uint8",
        "int32",
    ),
    row(
        lambda: replace(A, format=A.format.with_index("int64")) @ B,
        StructureError,
        "int32",
        "int64",
    ),
    row(
        lambda: with_structure(POS, CRD.at[1].set(9)) @ B,
        XLA,
        *("Y[i,k] = A[i,j] * B[j,k]", "operand 0, A[i,j]:csr, level 1 (index j)", "9", "4"),
    ),
    row(
        lambda: with_structure(POS, CRD.at[1].set(9)).T @ jnp.ones((3, 2)),
        XLA,
        *("operand 0, A[i,j]:csc, level 1 (index i)", "9", "4"),
    ),
    row(lambda: with_structure(POS, CRD.at[1].set(-9)) @ B, XLA, "operand 0", "level 1", "-9"),
    row(
        lambda: with_structure(POS.at[1].set(5), CRD) @ B, XLA, "operand 0", "level 1", "pos[", "5"
    ),
    row(
        lambda: with_structure(POS.at[3].set(5), CRD) @ B,
        XLA,
        "operand 0",
        "level 1",
        "pos[3] is 5",
        "3",
    ),
    row(
        lambda: E("ij,ij->", js.eye(3, 4), with_structure(POS, CRD.at[1].set(9))),
        XLA,
        "operand 1",
        "level 1",
        "9",
    ),
    row(
        lambda: with_structure(POS, CRD.at[1].set(9)).freeze(),
        StructureError,
        "freeze",
        "level 1",
        "coordinate 9",
        "position 1",
    ),
    row(
        lambda: with_structure(POS.at[1].set(3), CRD).freeze(),
        StructureError,
        "freeze",
        "pos[2] is 2",
        "pos[1] = 3",
    ),
]

TABLE = [
    *SUBSCRIPTS,
    *OPERANDS,
    *FORMATS,
    *SCHEDULES,
    *CONSTRUCTORS,
    *CAPACITIES,
    *TRACED,
    *SHAPES,
    *DAMAGED,
]


@pytest.mark.parametrize(("call", "error", "words"), TABLE)
def test_errors(call: Call, error: Any, words: tuple[str, ...]) -> None:
    check(call, error, words)


@pytest.mark.parametrize(("call", "error", "words"), [r for r in DAMAGED if r.values[1] is XLA][:4])
def test_a_second_call_gives_the_same_error(call: Call, error: Any, words: tuple[str, ...]) -> None:
    """JAX's fast path for later calls reports a kernel's error as well as the first call does."""
    for _ in range(3):
        check(call, error, words)
    assert np.asarray(A @ B).shape == (3, 5)


def test_errors_are_what_a_numpy_user_expects() -> None:
    for error in (EinsumError, FormatError, StructureError, ScheduleError, CapacityError):
        assert issubclass(error, JsparseError) and issubclass(error, ValueError)
    assert issubclass(UnsupportedError, NotImplementedError)


def test_large_shapes_without_x64_say_what_to_set() -> None:
    with jax.enable_x64(False):
        check(
            lambda: js.coo(np.ones(1), [[0], [2**40]], (3, 2**41)),
            StructureError,
            ("jax_enable_x64", "64-bit"),
        )


def test_unknown_keywords() -> None:
    with pytest.raises(TypeError, match="bogus"):
        E("ij->i", A, bogus=1)


def test_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        js.load(tmp_path / "nowhere.mtx")
    (tmp_path / "a.mtx").write_text(
        "%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 1.0\n"
    )
    check(lambda: js.load(tmp_path / "a.mtx"), ValueError, ("a.mtx", "3"))
    check(lambda: js.load(tmp_path / "a.xyz"), ValueError, (".xyz", ".mtx"))
    check(lambda: js.save(tmp_path / "a.xyz", A), ValueError, (".xyz", ".mtx"))


def test_config_names() -> None:
    with pytest.raises(TypeError, match="nonsense"):
        js.config.update(nonsense=1)


def test_messages_have_no_machine_addresses() -> None:
    """Nothing like <object at 0x7f…> in what a user reads."""
    for param in TABLE:
        call, error, _ = param.values
        try:
            jax.block_until_ready(call())
        except Exception as caught:
            assert not re.search(r" at 0x[0-9a-f]+>", str(caught)), str(caught)

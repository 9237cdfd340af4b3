# SPDX-License-Identifier: Apache-2.0
"""Functions named as NumPy's and the operators of `SparseArray`, eager and jitted, against NumPy.

A row of the tables is a function of operands that NumPy's dense arrays and ours both take.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from cases import assert_same, operand, seed

import jsparse as js
from jsparse.errors import CapacityError, EinsumError, UnsupportedError

pytestmark = pytest.mark.usefixtures("x64")

Function = Callable[..., Any]
FORMATS3 = ("csf", "coo", "dense,dense,compressed")


def both_ways(f: Function, sparse: tuple[Any, ...], want: Any, kind: type | None = None) -> None:
    """`f` gives `want`: eagerly, and jitted (with frozen operands where that needs a pattern)."""
    got = f(*sparse)
    assert_same(got, want)
    assert kind is None or isinstance(got, kind)
    try:
        assert_same(jax.jit(f)(*sparse), want)
    except CapacityError:
        frozen = [x.freeze() if isinstance(x, js.SparseArray) else x for x in sparse]
        assert_same(jax.jit(f)(*frozen), want)


# ------------------------------------------------------------------- products
@pytest.mark.parametrize("format", cases.some_slow(cases.MATRIX, ("csr",)))
def test_matmul(format: str) -> None:
    a, x = operand(seed(format, "a"), (5, 7), format)
    b, y = operand(seed(format, "b"), (7, 6), format)
    d, v, w = (values_of(n, s) for n, s in enumerate([(7, 3), (7,), (5,)]))
    both_ways(js.matmul, (a, d), x @ d, jax.Array)
    both_ways(js.matmul, (d.T, b), d.T @ y, jax.Array)
    both_ways(js.matmul, (a, v), x @ v, jax.Array)
    both_ways(js.matmul, (w, a), w @ x, jax.Array)
    both_ways(js.matmul, (a, b), x @ y, js.SparseArray)
    both_ways(lambda a: a @ a.T, (a,), x @ x.T)
    both_ways(lambda a, b: (a @ b) @ b.T, (a, b), x @ y @ y.T)


def values_of(name: object, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return seed("dense", name).standard_normal(shape)


def test_matmul_of_batches() -> None:
    a, x = operand(seed("batch"), (2, 5, 7), "dense,dense,compressed")
    m, y = operand(seed("one"), (5, 7), "csr")
    d = values_of("d", (2, 7, 3))
    assert_same(a @ d, x @ d)
    assert_same(a @ d[0], x @ d[0])
    assert_same(m @ d, y @ d)
    assert_same(values_of("e", (4, 5)) @ m, values_of("e", (4, 5)) @ y)
    assert_same(a @ d[0, :, 0], x @ d[0, :, 0])
    s, z = operand(seed("batch2"), (2, 7, 4), "csf")
    assert_same(a @ s, x @ z)


def test_matmul_capacity_under_jit() -> None:
    a, x = operand(seed("cap"), (6, 6), "csr")
    exact = a @ a
    got = jax.jit(lambda a: js.matmul(a, a, nse=exact.nse + 2))(a)
    assert got.nse == exact.nse + 2
    assert_same(got, x @ x)


def test_operators_take_what_numpy_and_jax_hold() -> None:
    """np.ndarray, jax.Array, SciPy and scalars, on either side."""
    a, x = operand(seed("either"), (5, 7), "csr")
    d, square = values_of("d", (7, 3)), values_of("s", (4, 5))
    assert_same(a @ d, x @ d)
    assert_same(a @ jnp.asarray(d), x @ d)
    assert_same(square @ a, square @ x)
    assert_same(jnp.asarray(square) @ a, square @ x)
    full = values_of("full", (5, 7))
    for other in (full, jnp.asarray(full)):
        for f in (lambda p, q: p + q, lambda p, q: q + p, lambda p, q: p - q, lambda p, q: q - p):
            got = f(a, other)
            assert isinstance(got, jax.Array)
            assert_same(got, f(x, full))
        for f in (lambda p, q: p * q, lambda p, q: q * p):
            got = f(a, other)
            assert isinstance(got, js.SparseArray)
            assert_same(got, f(x, full))
    m = sp.csr_array(values_of("m", (7, 2)))
    assert_same(a @ m, x @ m.toarray())
    assert_same(js.add(a, sp.coo_array(full)), x + full)


def test_dot_vdot_outer_tensordot() -> None:
    a, x = operand(seed("dot"), (5, 7), "csr")
    b, y = operand(seed("dot2"), (7, 4), "coo")
    v, w = values_of("v", (7,)), values_of("w", (5,))
    assert_same(js.dot(a, v), np.dot(x, v))
    assert_same(js.dot(w, a), np.dot(w, x))
    assert_same(js.dot(a, b), np.dot(x, y))
    assert_same(js.dot(a, 2.0), np.dot(x, 2.0))
    assert_same(js.vdot(a, a), np.vdot(x, x))
    c, z = operand(seed("complex"), (5, 7), "csr", dtype=np.complex128)
    assert_same(js.vdot(c, a), np.vdot(z, x))
    s, t = operand(seed("vector"), (6,), "coo")
    assert_same(js.vdot(s, s), np.vdot(t, t))
    both_ways(js.outer, (s, v), np.outer(t, v))
    both_ways(js.outer, (s, s), np.outer(t, t))
    both_ways(lambda a: js.tensordot(a, a, 2), (a,), np.tensordot(x, x, 2))
    both_ways(lambda a, b: js.tensordot(a, b, 1), (a, b), np.tensordot(x, y, 1))
    both_ways(lambda a: js.tensordot(a, a, ((1,), (1,))), (a,), np.tensordot(x, x, ((1,), (1,))))
    e, g = operand(seed("tensor"), (5, 7, 4), "csf")
    both_ways(lambda e, b: js.tensordot(e, b, 2), (e, b), np.tensordot(g, y, 2))
    assert_same(js.tensordot(e, v, ((1,), (0,))), np.tensordot(g, v, ((1,), (0,))))
    assert_same(js.tensordot(e, v, ((-2,), (-1,))), np.tensordot(g, v, ((-2,), (-1,))))
    assert_same(js.dot(e, values_of("last", (4, 3))), np.dot(g, values_of("last", (4, 3))))


# ------------------------------------------------------------------ elementwise
ELEMENTWISE: dict[str, Function] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
}


def pairs(formats: tuple[str, ...], *quick: str) -> list[Any]:
    """All pairs of formats, those that are not named ("csr csc") marked slow."""
    every = list(itertools.product(formats, formats))
    marks = [[] if " ".join(p) in quick else [pytest.mark.slow] for p in every]
    return [pytest.param(*p, marks=m) for p, m in zip(every, marks, strict=True)]


QUICK2 = ("csr csr", "coo coo", "csr csc", "dcsr coo", "dcsc csr", "dcsc compressed,dense")
QUICK3 = ("csf csf", "coo csf", "dense,dense,compressed coo")


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize(
    ("left", "right"), pairs((*cases.MATRIX, "dcsc", "compressed,dense"), *QUICK2)
)
def test_elementwise_matrices(left: str, right: str, name: str) -> None:
    a, x = operand(seed(left, 1), (5, 7), left)
    b, y = operand(seed(right, 2), (5, 7), right)
    f = ELEMENTWISE[name]
    got = f(a, b)
    assert_same(got, f(x, y))
    assert isinstance(got, js.SparseArray)
    assert_same(jax.jit(f)(a.freeze(), b.freeze()), f(x, y))
    if name == "multiply":  # the pattern and its values in two kernels
        roomy = jax.jit(lambda a, b: js.einsum("ij,ij->ij", a, b, nse=35))
        assert_same(roomy(a, b), f(x, y))
    if left == right:
        assert got.format == a.format


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize(("left", "right"), pairs(FORMATS3, *QUICK3))
def test_elementwise_tensors(left: str, right: str, name: str) -> None:
    a, x = operand(seed(left, 1), (4, 3, 5), left)
    b, y = operand(seed(right, 2), (4, 3, 5), right)
    f = ELEMENTWISE[name]
    assert_same(f(a, b), f(x, y))


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("fill", cases.some_slow(cases.FILLS, ("empty", "zeros", "messy")))
def test_elementwise_fills(fill: str, name: str) -> None:
    """Duplicates add up before they are multiplied; capacity and order do not matter."""
    f = ELEMENTWISE[name]
    for n, (left, right) in enumerate([("csr", "coo"), ("coo", "csr")]):
        a, x = operand(seed(fill, n), (5, 7), left, fill)
        b, y = operand(seed(n, fill), (5, 7), right, fill)
        c, z = operand(seed("plain"), (5, 7), "csr")
        assert_same(f(a, b), f(x, y))
        assert_same(f(a, c), f(x, z))
        assert_same(f(c, b), f(z, y))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 6), (6, 1)])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_small_shapes(shape: tuple[int, int], name: str) -> None:
    f = ELEMENTWISE[name]
    for left, right in (("csr", "csr"), ("coo", "csc")):
        a, x = operand(seed(shape, 1), shape, left)
        b, y = operand(seed(shape, 2), shape, right)
        assert_same(f(a, b), f(x, y))


def test_sums_of_several() -> None:
    (a, x), (b, y), (c, z) = (
        operand(seed("several", n), (5, 7), f) for n, f in enumerate(("csr", "csc", "coo"))
    )
    both_ways(lambda a, b, c: a + b + c, (a, b, c), x + y + z, js.SparseArray)
    both_ways(lambda a, b, c: a - b + c - a, (a, b, c), x - y + z - x)
    both_ways(lambda a, b, c: a * b + c * 2.0 - a, (a, b, c), x * y + z * 2 - x)
    both_ways(lambda a, b, c: -(a + b) * c, (a, b, c), -(x + y) * z)
    assert_same(sum([a, b, c][1:], start=a), x + y + z)


def test_add_capacity_under_jit() -> None:
    a, x = operand(seed("add"), (5, 7), "csr")
    b, y = operand(seed("add2"), (5, 7), "csc")
    for f, want in ((js.add, x + y), (js.subtract, x - y), (js.multiply, x * y)):
        got = jax.jit(lambda a, b, f=f: f(a, b, nse=70))(a, b)
        assert got.nse == 70
        assert_same(got, want)


def test_union_keeps_cancelled_entries() -> None:
    a, x = operand(seed("cancel"), (5, 7), "csr")
    zero = a - a
    assert zero.nse == a.nse
    assert_same(zero, 0 * x)


@pytest.mark.parametrize("format", cases.MATRIX)
def test_scalars(format: str) -> None:
    a, x = operand(seed("scalar"), (5, 7), format)
    for s in (2, 2.5, np.float64(3.0), jnp.asarray(4.0)):
        for got, want in ((a * s, x * s), (s * a, s * x), (a / s, x / s)):
            assert isinstance(got, js.SparseArray) and got.format == a.format and got.nse == a.nse
            assert_same(got, want)
    assert_same(-a, -x)
    assert_same(+a, x)
    assert_same(js.negative(a), -x)
    assert_same(jax.jit(lambda a, s: a * s / 2)(a, 3.0), x * 1.5)


@pytest.mark.parametrize(
    "format", cases.some_slow([*cases.MATRIX, "compressed,dense"], ("csr", "coo"))
)
def test_broadcast_over_rows_and_columns(format: str) -> None:
    a, x = operand(seed("broadcast"), (5, 7), format)
    row, column = values_of("row", (7,)) + 3, values_of("column", (5, 1)) + 3
    for d in (row, row[None], column):
        for f in (lambda p, q: p * q, lambda p, q: q * p, lambda p, q: p / q):
            both_ways(f, (a, d), f(x, d), js.SparseArray)
        both_ways(lambda p, q: p + q, (a, d), x + d)
        both_ways(lambda p, q: q - p, (a, d), d - x)


def test_broadcast_of_sparse_rows() -> None:
    """A sparse row or column times a matrix: a mode of extent 1 broadcasts as in NumPy."""
    a, x = operand(seed("matrix"), (5, 7), "csr")
    row, y = operand(seed("row"), (1, 7), "csr")
    column, z = operand(seed("column"), (5, 1), "csr")
    v, t = operand(seed("vector"), (7,), "coo")
    for b, d in ((row, y), (column, z), (v, t)):
        assert_same(a * b, x * d)
        assert_same(b * a, d * x)
        assert_same(a + b, x + d)
    full = values_of("full", (5, 7))
    assert_same(row * full, y * full)
    assert_same(column * row, z * y)


def test_dtypes_of_operators() -> None:
    """Promotion as JAX's, division of integers included."""
    i, x = operand(seed("int"), (5, 7), "csr", dtype=np.int32)
    f, y = operand(seed("float"), (5, 7), "csr", dtype=np.float32)
    for got, want in (
        (i + f, jnp.asarray(x) + y),
        (i * f, jnp.asarray(x) * y),
        (i * 2, jnp.asarray(x) * 2),
        (i * 2.5, jnp.asarray(x) * 2.5),
        (i / 2, jnp.asarray(x) / 2),
        (f / 2, jnp.asarray(y) / 2),
        (-i, -jnp.asarray(x)),
        (i - i, jnp.asarray(x) - x),
        (i / np.full(7, 2, np.int32), jnp.asarray(x) / np.full(7, 2, np.int32)),
        (f * np.ones(7, np.float64), jnp.asarray(y) * np.ones(7)),
        (f * 1j, jnp.asarray(y) * 1j),
    ):
        assert_same(got, want, rtol=1e-6)
    b, z = operand(seed("bool"), (5, 7), "csr", dtype=np.bool_)
    assert_same(b * b, z & z)
    assert_same(b + b, z | z)
    assert_same(b * 3, jnp.asarray(z) * 3)


def test_division_refuses_a_sparse_divisor() -> None:
    a, x = operand(seed("div"), (5, 7), "csr")
    with pytest.raises(UnsupportedError, match="todense"):
        a / a
    with pytest.raises((UnsupportedError, TypeError)):
        2.0 / a
    assert_same(js.divide(a, np.full((5, 7), 2.0)), x / 2)


def test_shapes_that_do_not_broadcast() -> None:
    a, _ = operand(seed("shape"), (5, 7), "csr")
    b, _ = operand(seed("shape"), (7, 5), "csr")
    for f in ELEMENTWISE.values():
        with pytest.raises(ValueError, match=r"\(5, 7\).*\(7, 5\)|broadcast"):
            f(a, b)
    with pytest.raises(EinsumError, match="scalar"):
        a @ 3.0
    with pytest.raises(EinsumError, match="extent"):
        a @ a


# ------------------------------------------------------------------ reductions
@pytest.mark.parametrize("format", cases.some_slow(cases.MATRIX, ("csr", "coo")))
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 1), ()])
@pytest.mark.parametrize("keepdims", [False, True])
def test_sum_and_mean(format: str, axis: Any, keepdims: bool) -> None:
    a, x = operand(seed("sum"), (5, 7), format)
    assert_same(a.sum(axis, keepdims=keepdims), x.sum(axis, keepdims=keepdims))
    if axis != ():
        assert_same(a.mean(axis, keepdims=keepdims), x.mean(axis, keepdims=keepdims))
    both_ways(lambda a: js.sum(a, axis=axis), (a,), np.sum(x, axis=axis))


@pytest.mark.parametrize("axis", [None, 0, (0, 2), (1, 2), -1])
def test_sum_of_tensors(axis: Any) -> None:
    for format in FORMATS3:
        a, x = operand(seed("sum"), (5, 7, 4), format)
        assert_same(js.sum(a, axis), x.sum(axis))
        assert_same(js.mean(a, axis), x.mean(axis))


def test_sum_dtypes() -> None:
    i, x = operand(seed("int"), (5, 7), "csr", dtype=np.int32)
    b, z = operand(seed("bool"), (5, 7), "csr", dtype=np.bool_)
    assert_same(i.sum(dtype=np.float64), x.sum(dtype=np.float64))
    assert int(b.sum()) == z.sum()
    assert_same(b.sum(0), jnp.asarray(z).sum(0))
    assert_same(i.mean(0), jnp.asarray(x).mean(0))
    for dtype in (np.int8, np.uint16, np.int32, np.float32, np.float16):
        a, y = operand(seed(dtype), (5, 7), "csr", dtype=dtype)
        assert a.sum(0).dtype == jnp.asarray(y).sum(0).dtype
        assert a.mean().dtype == jnp.asarray(y).mean().dtype
    full = js.fromdense(np.full((2, 100), 100, np.int8))
    assert np.asarray(full.sum(1)).tolist() == [10000, 10000]
    with pytest.raises(ValueError, match="out of range"):
        i.sum(2)


# ------------------------------------------------------------------- structure
@pytest.mark.parametrize("format", cases.some_slow(FORMATS3, ("csf",)))
@pytest.mark.parametrize(
    "shape", [(28, 5), (7, 4, 5), (140,), (2, 2, 7, 5), (-1, 10), (4, 7, 5, 1)]
)
def test_reshape(format: str, shape: tuple[int, ...]) -> None:
    for fill in ("plain", "padded", "messy"):
        a, x = operand(seed(fill), (4, 7, 5), format, fill)
        assert_same(js.reshape(a, shape), x.reshape(shape))
    assert_same(jax.jit(lambda a: a.reshape(shape))(a), x.reshape(shape))
    assert_same(jax.jit(lambda a: a.reshape(shape))(a.freeze()), x.reshape(shape))


def test_reshape_of_matrices() -> None:
    for format in (*cases.MATRIX, "compressed,dense"):
        a, x = operand(seed("reshape"), (6, 4), format)
        for shape in ((4, 6), (24,), (2, 3, 4), (1, 24), (24, 1), (-1,)):
            assert_same(a.reshape(shape), x.reshape(shape))
    e, _ = operand(seed("reshape"), (0, 4), "csr")
    assert_same(e.reshape((4, 0)), np.zeros((4, 0)))
    for bad in ((5, 5), (-1, 7), (-1, -1)):
        with pytest.raises(ValueError, match="reshape"):
            a.reshape(bad)


@pytest.mark.parametrize("format", cases.some_slow(cases.MATRIX, ("csr",)))
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concatenate(format: str, axis: int) -> None:
    a, x = operand(seed("cat1"), (5, 5), format)
    b, y = operand(seed("cat2"), (5, 5), "csr", "padded")
    c, z = operand(seed("cat3"), (5, 5), "coo", "messy")
    both_ways(lambda a, b: js.concatenate([a, b], axis), (a, b), np.concatenate([x, y], axis))
    got = js.concatenate([a, b, c], axis)
    assert_same(got, np.concatenate([x, y, z], axis))
    assert_same(
        js.concatenate([a, np.ones((5, 5))], axis), np.concatenate([x, np.ones((5, 5))], axis)
    )
    assert str(js.concatenate([a, b], axis).format) == format


def test_concatenate_of_different_extents() -> None:
    a, x = operand(seed("cat1"), (2, 5), "csr")
    b, y = operand(seed("cat2"), (0, 5), "csr")
    c, z = operand(seed("cat3"), (4, 5), "csc", dtype=np.float32)
    assert_same(js.concatenate([a, b, c]), np.concatenate([x, y, z]))
    with pytest.raises(ValueError, match="array 1"):
        js.concatenate([a, c], 1)
    with pytest.raises(ValueError, match="no arrays"):
        js.concatenate([])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_stack_and_expand_dims(axis: int) -> None:
    a, x = operand(seed("stack1"), (4, 5), "csr")
    b, y = operand(seed("stack2"), (4, 5), "coo", "unsorted")
    both_ways(lambda a, b: js.stack([a, b], axis), (a, b), np.stack([x, y], axis))
    both_ways(lambda a: js.expand_dims(a, axis), (a,), np.expand_dims(x, axis))


def test_stack_of_vectors() -> None:
    parts = [operand(seed("stack", n), (6,), "coo") for n in range(3)]
    assert_same(js.stack([a for a, _ in parts]), np.stack([x for _, x in parts]))


def test_transpose_function() -> None:
    a, x = operand(seed("t"), (5, 7, 4), "csf")
    assert_same(js.transpose(a), x.T)
    assert_same(js.transpose(a, (1, 2, 0)), np.transpose(x, (1, 2, 0)))
    for bad in ((0, 1), (0, 0, 1)):
        with pytest.raises(ValueError, match="permutation"):
            a.transpose(bad)


# -------------------------------------------------------------------- indexing
INDICES: list[Any] = [
    0,
    -1,
    slice(1, 4),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(4, 1, -2),
    slice(3, 3),
    slice(-2, None),
    (slice(None), 2),
    (slice(None), -1),
    (1, 2),
    (-1, -1),
    (slice(1, 3), slice(2, 6)),
    (slice(None, None, -2), slice(1, None, 3)),
    ...,
    (..., 1),
    (1, ...),
    None,
    (None, 1),
    (slice(None), None),
    (..., None),
    (2, None, slice(1, 5)),
    slice(10, 20),
    (),
    np.int64(2),
    (slice(-100, 100), 3),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_of_matrices(index: Any) -> None:
    for format, fill in (("csr", "plain"), ("coo", "messy")):
        a, x = operand(seed(format, fill), (5, 7), format, fill)
        assert_same(a[index], x[index])
    a, x = operand(seed("jit"), (5, 7), "csr")
    assert_same(jax.jit(lambda a: a[index])(a), x[index])
    assert_same(jax.jit(lambda a: a[index])(a.freeze()), x[index])


@pytest.mark.parametrize(
    "index",
    [
        1,
        (1, 2),
        (0, 1, 2),
        (slice(None), 1),
        (..., 3),
        (slice(1, 3), ..., slice(None, None, 2)),
        (None, 2, None),
    ],
    ids=str,
)
def test_indexing_of_tensors(index: Any) -> None:
    for format in FORMATS3:
        a, x = operand(seed(format), (4, 3, 5), format)
        assert_same(a[index], x[index])


def test_indexing_keeps_the_format() -> None:
    for format, fill in zip(cases.MATRIX, ("plain", "padded", "messy", "zeros"), strict=True):
        a, x = operand(seed(format), (5, 7), format, fill)
        assert_same(a[3:0:-1, 1:], x[3:0:-1, 1:])
        assert a[1:4].format == a.format
        assert a[1:4, ::2].nse == a[1:4, ::2].nnz


def test_indices_that_are_refused() -> None:
    a, _ = operand(seed("refuse"), (5, 7), "csr")
    for index in (5, -6, (0, 7), (0, 0, 0), (..., ...)):
        with pytest.raises(IndexError):
            a[index]
    for index in ([0, 1], np.array([0, 1]), np.ones(5, bool), jnp.asarray(1), "x", True):
        with pytest.raises((NotImplementedError, IndexError), match="static"):
            a[index]
    with pytest.raises(ValueError, match="step"):
        a[::0]


def test_iteration_is_not_endless() -> None:
    """`for row in A` gives the rows, or says that it does not."""
    a, x = operand(seed("iter"), (3, 4), "csr")
    try:
        rows = list(itertools.islice(iter(a), 5))
    except TypeError:
        return
    assert len(rows) == 3
    for row, want in zip(rows, x, strict=True):
        assert_same(row, want)


def test_numpy_functions_do_not_scatter_a_sparse_array() -> None:
    """An accidental `np.asarray(A)` must not give an object array of A."""
    a, x = operand(seed("asarray"), (3, 4), "csr")
    try:
        got = np.asarray(a)
    except (TypeError, NotImplementedError):
        return
    assert got.dtype != object
    np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("format", ["csr", "coo", "csc"])
def test_booleans_stored_twice_count_once(format: str) -> None:
    """They add up to True before they become numbers, whatever asks for numbers."""
    a, x = operand(seed("twice", format), (4, 5), format, "messy", np.bool_)
    ones = np.ones(5, np.int32)
    calls = [
        (lambda a: a.sum(0), lambda x: x.sum(0)),
        (lambda a: a @ ones, lambda x: x @ ones),
        (lambda a: a.astype("int32"), lambda x: x.astype(np.int32)),
        (lambda a: a * 2, lambda x: x * 2),
        (lambda a: a + a.astype("int8"), lambda x: x + x.astype(np.int8)),
        (
            lambda a: js.concatenate([a.astype("int32"), a]),
            lambda x: np.concatenate([x.astype(np.int32), x]),
        ),
    ]
    for f, g in calls:
        assert_same(f(a), g(x))

# SPDX-License-Identifier: Apache-2.0
"""What only levels with one number of coordinates in each fiber have, ELL and N:M: which ones fill
a fiber up, kernels that spell short fibers out, fibers with too many entries, damage.

What they share with the other formats that store zeros is in the tests of the table of `filled`.
"""

from __future__ import annotations

import math

import cases
import jax
import numpy as np
import pytest
from filled import UNIFORM, make, same, unpack

import jsparse as js
from jsparse import pipeline
from jsparse.errors import CapacityError, FormatError, StructureError
from jsparse.format import Format, blocked, parse_format
from jsparse.ir import interpret
from jsparse.ir.index import parse_assignment
from jsparse.levels import Dense, Uniform

XLA = (jax.errors.JaxRuntimeError, ValueError)  # what a failed kernel reaches Python as
pytestmark = pytest.mark.usefixtures("x64")


# ----------------------------------------------------------------------- text
def test_parts_are_levels() -> None:
    f = parse_format("dense[1,2:4]", 2)
    assert f.split == parse_format("dense,dense,uniform(2:4)", 3)
    assert (f.outer, f.whole) == (parse_format("dense", 2), parse_format("csr", 2))
    assert str(f.transpose((1, 0))) == "dense,dense[2:4,1]@1,0"
    assert f == blocked(f.outer, (1, 4), {1: Uniform(size=2, of=4)})
    ell = parse_format("dense,uniform(8)", 2)
    assert ell.appendable == parse_format("csr", 2)
    assert not ell.appended
    assert not Uniform(size=2).keeps(Uniform(size=3))
    assert Uniform(size=2).keeps(Uniform(size=2, ordered=False))


@pytest.mark.parametrize(
    "text",
    [
        *("dense,uniform", "dense,uniform(0)", "dense,uniform(4:2)", "uniform(2),compressed"),
        *("dense[1,4:4]", "dense[1,0:4]", "dense[1,2:4:6]", "dense[1,2:]", "dense,compressed(2:4)"),
        "dense[2:4,2:4]",
    ],
)
def test_text_that_says_no_format(text: str) -> None:
    with pytest.raises(FormatError, match="format"):
        parse_format(text, 2)


def test_which_coordinates_fill_up() -> None:
    """The least ones that a fiber does not use, with zeros, also where they are the last places."""
    x = np.zeros((4, 6))
    x[0, 4], x[1, 0], x[1, 5], x[3, :3] = 1, 2, 3, 4
    a = js.fromdense(x, "dense,uniform(3)")
    assert np.asarray(a.structure[0]).reshape(4, 3).tolist() == [
        [0, 1, 4],
        [0, 1, 5],
        [0, 1, 2],
        [0, 1, 2],
    ]
    assert np.asarray(a.data).reshape(4, 3).tolist() == [[0, 0, 1], [2, 0, 3], [0, 0, 0], [4, 4, 4]]
    assert (a.nse, a.nnz) == (12, 12)
    assert js.fromdense(x[:, :3], "dense,uniform(3)").nnz == 12


# -------------------------------------------------------------------- kernels
@pytest.mark.parametrize("fmt", UNIFORM)
def test_a_conversion_is_interpreted(fmt: str) -> None:
    """The fit by the interpreter and by the kernel are the same."""
    a, _ = make(fmt, (6, 9), "float64")
    s = a.split()
    f, plain = s.format, s.format.appendable
    source = js.fromdense(unpack(s), plain)
    names = ",".join("ijkl"[: f.ndim])
    text = f"Y[{names}]:{f}:pattern = A[{names}]:{plain}:pattern"
    spec = pipeline.Spec(parse_assignment(text), (), "fit")
    assert pipeline.from_recipe(spec.recipe()) == spec
    size = math.prod(np.asarray(s.arrays[-1]).shape)
    results = [np.full(size, -7, f.index), np.full(size, -7, f.index)]
    numbers = [s.shape["ijkl".index(v)] for v in spec.assignment.vars]
    kernel = pipeline.lower.__wrapped__(spec)
    interpret.run(kernel, [np.asarray(y) for y in source.arrays], results, numbers)
    np.testing.assert_array_equal(results[0], s.arrays[-1])
    data = np.append(np.asarray(source.data).reshape(source.data.shape[0], -1), 0)
    if not f.dense_tail:
        np.testing.assert_array_equal(data[results[1]], np.asarray(s.data))


def test_kernels_spell_short_fibers_out() -> None:
    a, _ = make("dense,uniform(3)", (40, 30))
    text = str(js.explain("ij,j->i", a, np.ones(30)))
    assert text.count("* B_vals[j]") == 3
    assert "A1_pos" not in text
    n, _ = make("dense[1,2:4]", (8, 32))
    text = str(js.explain("ij,jk->ik", n, np.ones((32, 8))))
    assert "dense[1,2:4]" in text
    assert "j_in_dim" not in text
    assert "pA2_end" not in text


# --------------------------------------------------------------------- errors
def test_a_fiber_with_too_many_entries() -> None:
    x = np.zeros((4, 6))
    x[2, 1:5] = 1
    a = js.fromdense(x)
    words = r"row 2 has 4 entries, expected at most 3; the most in one are 4"
    for b in (a, a.freeze(), js.fromdense(x, "coo"), js.fromdense(x, "csc")):
        with pytest.raises(CapacityError, match=words):
            b.to("dense,uniform(3)")
    with pytest.raises(CapacityError, match="row 2 has 4"):
        js.fromdense(x, "dense,uniform(3)")
    with pytest.raises(CapacityError, match=r"fiber 4 has 3 entries, expected at most 2"):
        a.to("dense[1,2:4]")
    for f in (lambda a: a.to("dense,uniform(3)").data, lambda a: a.to("dense[1,2:4]").data):
        with pytest.raises(XLA, match=r"fiber \d has \d entries, expected at most \d"):
            jax.block_until_ready(jax.jit(f)(a))
    with pytest.raises(XLA, match=r"fiber 2 has 4 entries, expected at most 3"):
        jax.block_until_ready(jax.jit(lambda x: js.fromdense(x, "dense,uniform(3)").data)(x))


def test_errors() -> None:
    a = js.fromdense(np.eye(4, 3))
    with pytest.raises(FormatError, match=r"stores 4 different .* an extent of 3"):
        a.to("dense,uniform(4)")
    with pytest.raises(FormatError, match=r"stores 1 different .* an extent of 0"):
        js.fromdense(np.zeros((4, 0)), "dense,uniform(1)")
    for fmt in ("dense,uniform(2)", "dense[1,2:4]"):
        with pytest.raises(CapacityError, match="no capacity"):
            a.to(fmt, nse=7)
    b = js.fromdense(np.eye(4, 6), "dense,uniform(2)")
    damaged = np.array([0, 6, *np.asarray(b.structure[0])[2:]], "int32")
    c = js.SparseArray(b.data, (damaged,), b.shape, b.format)
    with pytest.raises(XLA, match=r"crd\[1\] is 6, expected 0 <= crd < 6"):
        jax.block_until_ready(c @ np.ones(6))
    with pytest.raises(StructureError, match=r"coordinate 6 at position 1 is out of range"):
        c.freeze()
    for wrong in (damaged[:-1], damaged[:-2], np.zeros(0, "int32")):
        d = js.SparseArray(b.data, (wrong,), b.shape, b.format)
        with pytest.raises(StructureError, match=r"expected int32\[8\]"):
            d @ np.ones(6)
        with pytest.raises(StructureError, match=r"expected \(8,\)"):
            d.freeze()
    fewer = js.SparseArray(b.data[:-1], b.structure, b.shape, b.format)
    with pytest.raises(StructureError, match="expected float64 and 8 of them"):
        fewer @ np.ones(6)
    with pytest.raises(FormatError, match="block"):
        Format((Dense(), Dense(), Uniform(size=2)), (0, 1, 2), "int32", (1, 4))


def test_what_does_not_ascend_is_never_out_of_bounds() -> None:
    """Index arrays that break the promises give wrong values at worst, with an order given up
    right ones.
    """
    a, x = make("dense,uniform(3)", (6, 9))
    crd = np.asarray(a.structure[0]).reshape(6, 3)[:, ::-1].reshape(-1)
    data = np.asarray(a.data).reshape(6, 3)[:, ::-1].reshape(-1)
    bad = js.SparseArray(jax.device_put(data), (jax.device_put(crd),), a.shape, a.format)
    for y in (bad @ x.T, bad + a, bad * a, bad.to("csr"), bad.T @ x):
        jax.block_until_ready(y)
    loose = parse_format("dense,uniform(3)(-o)", 2)
    b = js.SparseArray(jax.device_put(data), (jax.device_put(crd),), a.shape, loose)
    for c in (b, b.freeze()):
        same(c @ x.T, x @ x.T)
        same(c + a, 2 * x)
        same(c * a, x * x)
        same(c.to("csr"), x)
        same(c.to("dense,uniform(3)"), x)
        same(c.T @ x, x.T @ x)


def test_auto_finds_rows_of_one_length() -> None:
    """For products with some columns, if rows have nearly the same number of few entries."""
    x = np.zeros((60, 90), np.float32)
    rng = cases.seed("auto", "uniform")
    for i in range(60):
        x[i, rng.choice(90, 7 + (i % 9 > 0), replace=False)] = 1
    for a in (js.fromdense(x), js.fromdense(x, "csc").freeze()):
        b = a.to("auto", use=16)
        assert str(b.format) == "dense,uniform(8)"
        assert b.frozen == a.frozen
        same(b, x)
        assert str(b.to("csr").to("auto").format) == "csr"
        assert str(a.to("auto", use="spmm").format) == "csr"
    x[3, :40] = 1
    assert str(js.fromdense(x).to("auto", use=16).format) == "csr"

# SPDX-License-Identifier: Apache-2.0
"""The one table of formats that store zeros: blocks, diagonals, fibers of one length.

    make("csr[4,4]", (9, 13))  ->  the array, and the dense NumPy array that it stands for

What an array stores beyond its extents (ends of diagonals, edges of blocks) is NaN in all that is
made here, so every test sees that it is never read.  Arrays are read on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Array

import jsparse as js
from jsparse import pipeline
from jsparse.format import Format, parse_format
from jsparse.ir import interpret
from jsparse.ir.index import parse_assignment
from jsparse.schedule import auto

# ------------------------------------------------------------------ the table
BLOCKS = (
    *("csr[4,4]", "csc[2,3]", "csr[1,4]", "coo[2,2]", "dcsr[3,2]", "dcsc[2,1]", "csr[2,4]"),
    *("csc[3,2]", "csc[3,1]", "coo[3,2]", "csr[2,2]", "csr[2,2]/int64"),
    "dense,compressed[4,2]@0,1,3,2",  # blocks stored column by column
)
DIAGONALS = ("dia", "diagonal,dense", "dia/int64")
ELL = ("dense,uniform(3)", "dense,uniform(2)@1,0", "dense,uniform(1)", "compressed,uniform(2)")
NM = ("dense[1,2:4]", "dense,dense[2:4,1]@1,0", "csr[1,2:4]", "dense[2,1:3]", "dense[2:4,2]")
UNIFORM = (*ELL, *NM, "dense,uniform(2)/int64", "dense[1,2:4]/int64")

FAMILIES = {"blocks": BLOCKS, "diagonals": DIAGONALS, "uniform": UNIFORM}
FILLED = (*BLOCKS, *DIAGONALS, *UNIFORM)
QUICK = ("csr[4,4]", "dia", "dense,uniform(3)", "dense[1,2:4]")  # what every quick property meets

SHAPES = ((9, 13), (8, 12), (1, 5), (3, 3), (0, 4), (5, 0), (3, 1))
FORMS = ("eager", "eager frozen", "jit", "jit frozen")


def dtype_of(format: str) -> str:
    """The dtype that a format of the table has where a test does not choose one."""
    return "float32" if format in BLOCKS else "float64"


def turns(shift: int = 0, quick: tuple[str, ...] = QUICK) -> list[Any]:
    """Pairs of format and form for `pytest.mark.parametrize`: forms take turns over the formats,
    so that each family meets all of them, and each format others by `shift`.
    """
    pairs = [
        (family[k % len(family)], FORMS[(k + shift) % len(FORMS)])
        for family in FAMILIES.values()
        for k in range(max(len(family), len(FORMS)))
    ]
    return [
        pytest.param(*p, id=" ".join(p), marks=() if p[0] in quick else pytest.mark.slow)
        for p in pairs
    ]


def called(form: str, f: Callable[..., Any], *ops: Any) -> Any:
    """`f(*ops)` in one of the forms of a call."""
    return (jax.jit(f) if "jit" in form else f)(*frozen(form, *ops))


def frozen(form: str, *ops: Any) -> tuple[Any, ...]:
    """Operands, sparse ones frozen if the form says so."""
    if "frozen" not in form:
        return ops
    return tuple(x.freeze() if isinstance(x, js.SparseArray) else x for x in ops)


def fits(format: str, shape: tuple[int, ...]) -> bool:
    """Whether the mode of a level with fibers of one length has as many coordinates."""
    f = parse_format(format, len(shape))
    n = f.sparse_levels[-1]
    return f.appended or f.relative or bool(f.block) or f.levels[n].children <= shape[f.order[n]]


# ------------------------------------------------------------ dense and sparse
def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Small integers or multiples of a quarter, whose sums of products are exact in most dtypes."""
    kind = jnp.dtype(dtype)
    whole = kind == np.bool_ or kind.kind in "iu"
    x = rng.integers(-8, 9, shape) / (1 if whole else 4)
    return (x + 1j * rng.integers(-8, 9, shape) if kind.kind == "c" else x).astype(kind)


def full(name: str, shape: tuple[int, ...], dtype: Any = "float64") -> Array:
    """A dense array, the same for equal arguments."""
    return numbers(cases.seed(name, shape), shape, dtype)


def dense(format: str, shape: tuple[int, ...], dtype: Any = None) -> Array:
    """A random array that fits a format: some diagonals, as many coordinates in each fiber as it
    stores, fewer or none.
    """
    f, rng = parse_format(format, len(shape)), cases.seed(format, shape)
    x = numbers(rng, shape, dtype or dtype_of(format))
    if f.relative:
        offset = np.subtract(*reversed(np.indices(shape)))
        some = rng.permutation(np.arange(1 - shape[0], shape[1]))[:4]
        return np.where(np.isin(offset, [0, *some]), x, 0).astype(x.dtype)
    drop = rng.random(shape) < 0.65
    if f.appended:
        return np.where(drop, 0, x).astype(x.dtype)
    size = f.levels[f.sparse_levels[-1]].children
    kept: dict[int, set[int]] = {}
    fiber = fiber_of(f, shape).reshape(2, -1).T
    for place in rng.permutation(len(fiber)):
        at, c = (int(k) for k in fiber[place])
        seen = kept.setdefault(at, set())
        if not drop.flat[place] and (c in seen or len(seen) < size):
            seen.add(c)
        else:
            x.flat[place] = 0
    return x


def fiber_of(f: Format, shape: tuple[int, ...]) -> Array:
    """The number of the fiber of its uniform level that each place of an array lies in, and its
    coordinate there.
    """
    block = f.block or (1,) * len(shape)
    at = np.indices(shape)
    outer = [c // b for c, b in zip(at, block, strict=True)]
    inner = [c % b for c, b in zip(at, block, strict=True) if b != 1]
    coords = [(*outer, *inner)[m] for m in f.order]
    n = f.sparse_levels[-1]
    fiber = np.zeros(shape, np.int64)
    for c in coords[:n]:
        fiber = fiber * (int(c.max(initial=0)) + 1) + c
    return np.stack([fiber, coords[n]])


@cache
def make(format: str, shape: tuple[int, ...], dtype: Any = None) -> tuple[js.SparseArray, Array]:
    """An array of the table's format, NaN beyond its extents, and the dense array; made once."""
    x, f = dense(format, shape, dtype), parse_format(format, len(shape))
    if not f.block:
        return spoilt(js.fromdense(x, f)), x
    whole = np.pad(x, [(0, -n % b) for n, b in zip(shape, f.block, strict=True)])
    pairs = zip(whole.shape, f.block, strict=True)
    y = whole.reshape([k for n, b in pairs for k in ((n,) if b == 1 else (n // b, b))])
    stored = [n for pair in parts(f.block) for n in pair]
    y = np.ascontiguousarray(y.transpose(np.argsort(stored)))  # on the host: XLA would compile it
    return spoilt(js.fromdense(y, f.split).join(shape, f.block)), x


def spoilt(a: js.SparseArray) -> js.SparseArray:
    """The array with NaN, or one, where its storage reaches beyond it."""
    data = np.array(a.data)
    data[~inside(a)] = np.nan if data.dtype.kind in "fc" else 1
    return a.with_data(jax.device_put(data))


def inside(a: js.SparseArray) -> Array:
    """Which elements of the data stand for a place of the array."""
    each = np.arange(1, a.data.size + 1).reshape(a.data.shape)
    return np.isin(each, unpack(a.with_data(each)))


def stored(a: js.SparseArray) -> Array:
    """Which places of the array are stored."""
    return unpack(a.with_data(np.ones(a.data.shape, bool)))


def unpack(a: js.SparseArray) -> Array:
    """The dense array, read in NumPy; asserts that the index arrays keep the format's promises."""
    f = a.format
    arrays = a.pattern.arrays if a.pattern is not None else a.structure
    if f.block:
        outer = tuple(-(-n // b) for n, b in zip(a.shape, f.block, strict=True))
        shape = (*outer, *(b for b in f.block if b != 1))
        y = unpack(js.SparseArray(a.data, arrays, shape, f.split))
        y = y.transpose([n for pair in parts(f.block) for n in pair])
        y = y.reshape([n * b for n, b in zip(outer, f.block, strict=True)])
        return y[tuple(slice(n) for n in a.shape)]
    if not f.appended and not f.relative:
        *above, crd = arrays
        pos = np.arange(0, crd.size + 1, f.levels[f.sparse_levels[-1]].children, f.index)
        return cases.unpack(js.SparseArray(a.data, (*above, pos, crd), a.shape, f.appendable))
    return cases.unpack(js.SparseArray(a.data, tuple(arrays), a.shape, f))


def parts(block: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The modes of the split array that each mode became: the outer one, and the inner if any."""
    inner = len(block)
    for n, b in enumerate(block):
        yield (n,) if b == 1 else (n, inner)
        inner += b != 1


def same(got: Any, want: Any, rtol: float = 1e-6) -> None:
    """Equal shape, close values; index arrays of a sparse result as its format promises."""
    x, want = unpack(got) if isinstance(got, js.SparseArray) else np.asarray(got), np.asarray(want)
    assert x.shape == want.shape
    exact = np.complex128 if "c" in (x.dtype.kind, want.dtype.kind) else np.float64
    np.testing.assert_allclose(x.astype(exact), want.astype(exact), rtol=rtol, atol=rtol)


# ---------------------------------------------------------------- interpreter
INTERPRETED = ("ij,j->i", "ij,i->j", "ij,j->ij", "ij,kj->ki")


def interpreted(einsum: str, a: js.SparseArray, x: Array, threads: int) -> None:
    """The kernel that the scheduler plans, run by the interpreter: loads and stores within bounds,
    each value written, for any number of chunks.
    """
    inputs, output = einsum.split("->")
    block = a.format.block or (1, 1)
    extent = dict(zip("ij", a.shape, strict=True)) | {"k": 3}
    size = dict(zip("ij", block, strict=True))
    s = a.split()

    def names(modes: str, sparse: bool) -> tuple[str, ...]:
        inner = {v: v.upper() for v in modes if size.get(v, 1) != 1}
        if sparse:
            return (*modes, *inner.values())
        return tuple(w for v in modes for w in (v, inner.get(v)) if w)

    left, right = inputs.split(",")
    b = full(f"interpreted {einsum}", tuple(extent[v] for v in right), a.dtype)
    want = np.einsum(einsum, x, b)
    kept = output == left
    access = f"{{}}[{{}}]:{{}}:{a.dtype}".format
    y = parse_assignment(
        access("Y", ",".join(names(output, kept)), "like(A)" if kept else "dense")
        + " = " + access("A", ",".join(names(left, True)), s.format)
        + " * " + access("B", ",".join(names(right, False)), "dense")
    )  # fmt: skip
    of = {v: -(-n // size.get(v, 1)) for v, n in extent.items()}
    of |= {v.upper(): n for v, n in size.items()}
    plan = auto.plan(y, tuple(of[v] for v in y.vars), (s.data.shape[0], 0))
    kernel = pipeline.lower.__wrapped__(pipeline.Spec(plan.assignment, plan.schedule))
    padded = np.pad(b, [(0, -b.shape[n] % size.get(v, 1)) for n, v in enumerate(right)])
    cut = padded.reshape([of[v] for v in names(right, False)])
    layout = plan.assignment.operands[1].format.order
    args = [np.asarray(x) for x in (s.data, *s.arrays)]
    args.append(np.ascontiguousarray(cut.transpose(layout)))
    order = plan.assignment.output.format.order
    shape = a.data.shape if kept else [of[names(output, False)[m]] for m in order]
    got = np.full(shape, np.nan, a.dtype)
    interpret.run(kernel, args, [got], [of[v] for v in plan.assignment.vars], threads)
    assert np.isfinite(got).all()
    if kept:
        same(a.with_data(got), want)
    else:
        whole = got.transpose(np.argsort(order)).reshape([of[v] * size.get(v, 1) for v in output])
        same(whole[tuple(slice(n) for n in want.shape)], want)

# SPDX-License-Identifier: Apache-2.0
"""Conversions between formats, and from and to dense arrays.

A conversion lists the coordinates of the source, sorts them by the modes that are out of order
and packs them into the target's levels, all in one generated kernel (`lower.assemble`, work
"sort"); values follow by the permutation, so that conversions are differentiable.  Duplicates are
summed where the target promises unique entries.  Called eagerly, a conversion counts first and
allocates exactly; under `jit` the capacity is that of the source, or `nse`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jsparse import blocks, choice, fitting, reblock
from jsparse.array import Pattern, SparseArray, index_dtype
from jsparse.assembly import count_and_fill, draft_and_pack, drafts, eager
from jsparse.concrete import on_device, traced
from jsparse.contract import contract
from jsparse.diagonals import Diagonals, of_coordinates
from jsparse.errors import CapacityError, FormatError, StructureError, UnsupportedError
from jsparse.format import Format, as_format, dtype_name, parse_format
from jsparse.gather import moved
from jsparse.ir.index import PATTERN, Access, Assignment, Term
from jsparse.lower import assemble
from jsparse.primitive import assemble_p, vary_together
from jsparse.record import replace

_LETTERS = "ijklmnopqrstuvwxyzabcdefgh"


def letters(ndim: int) -> tuple[str, ...]:
    """Index variables for an array of `ndim` modes."""
    if ndim > len(_LETTERS):
        raise UnsupportedError(f"an array of {ndim} modes; at most {len(_LETTERS)} are supported")
    return tuple(_LETTERS[:ndim])


def access_of(a: SparseArray, name: str, names: tuple[str, ...], dtype: str) -> Access:
    """The access of a sparse operand; raises `StructureError` if index arrays are missing."""
    want = len(a.format.array_names())
    if len(a.arrays) != want:
        raise StructureError(
            f"operand {name} ({a.format}) has {len(a.arrays)} index arrays, expected {want}; build "
            f"it with a constructor, or keep its structure"
        )
    return Access(name, names, a.format, dtype, a.frozen, a.pattern)


# ----------------------------------------------------------------- conversions
_assumed: ContextVar[tuple[int, Callable[[str], None]] | None] = ContextVar(
    "jsparse_assumed", default=None
)


@contextmanager
def assume_capacity(nse: int, tell: Callable[[str], None]) -> Iterator[None]:
    """Within, a pattern of unknown size gets the capacity `nse` instead of an error, and `tell` is
    called with what asked: to look at programs that will not run (`js.explain`).
    """
    token = _assumed.set((nse, tell))
    try:
        yield
    finally:
        _assumed.reset(token)


def checked_nse(nse: Any, where: str) -> int | None:
    """`nse` as a capacity, or None."""
    if nse is None:
        return None
    try:
        out = operator.index(nse)
    except TypeError:
        out = -1
    if out < 0:
        raise CapacityError(f"{where}: nse={nse!r}, expected a non-negative integer")
    return out


def assemble_pattern(
    a: Assignment,
    extents: dict[str, int],
    flat: list[Any],
    nse: int | None,
    where: str,
    work: str = "merge",
) -> list[Any]:
    """The index arrays of `a.output`; for "sort" also the permutation and segment starts, for
    "merge" the values if it has a dtype.

    Allocates exactly if the operands are concrete and `nse` is not given.  Raises
    `CapacityError` where neither is the case.
    """
    numbers = tuple(extents[v] for v in a.vars)
    groups = assemble.groups(a)
    nse = checked_nse(nse, where)
    known = {"extents": numbers}
    capacity = (nse or 0,) * len(groups)
    if not traced(*flat):
        with jax.ensure_compile_time_eval():  # constants of a trace, if there is one around
            call = partial(eager, **known)
            if nse is None and work == "merge":
                worth, most = drafts(a, numbers, flat)
                done = draft_and_pack(a, numbers, flat, most) if worth else None
                if done is not None:
                    return done
            return count_and_fill(call, a, flat, work, capacity if nse is not None else None)
    assumed = _assumed.get()
    if nse is None and assumed is not None:
        assumed[1](where)
        capacity = (assumed[0],) * len(groups)
    elif nse is None:
        raise CapacityError(
            f"{where}: the result is sparse and its number of entries is not known under jit; "
            f"pass nse= (a capacity) or like= (an array with the pattern), or freeze the operands"
        )
    flat = vary_together(flat)
    return count_and_fill(partial(assemble_p.bind, batch=(), **known), a, flat, work, capacity)


@lru_cache(maxsize=1024)
def _conversion(
    source: Format, target: Format, shape: tuple[int, ...], trusted: bool
) -> Assignment:
    names = letters(len(shape))
    a = Access("A", names, source, PATTERN, trusted)
    return Assignment(Access("Y", names, target, PATTERN), (a,), (Term((0,)),))


def to(
    a: SparseArray, format: Format | str, *, nse: int | None = None, use: str | int = "spmv"
) -> Any:
    """`a` in another format.  A target that promises order or unique entries sorts and sums
    duplicates as needed.

    Args:
      a: the array.
      format: target; "dense" gives a `jax.Array`.  "auto" is the one that is predicted cheapest
        for the concrete pattern of a matrix: csr, dcsr, diagonals, blocks, rows of one length, or
        dense if nearly full.
      nse: capacity of the result; by default eagerly exact, under `jit` the capacity of `a`, and
        as many blocks as `a` has entries where these are gathered in blocks.
      use: for "auto": products with a vector ("spmv"), with a matrix ("spmm"), or the number of
        columns of that.

    Raises:
      FormatError: whole diagonals that would take many times the room of the entries.
      CapacityError: a fiber with more entries than `uniform` stores; stored zeros count.
      UnsupportedError: "auto" or diagonals for an array whose pattern is traced.
    """
    format = choice.chosen(a, use) if format == "auto" else format
    target = as_format(format, a.ndim)
    if target.is_dense:
        return todense(a)
    if isinstance(format, str) and "/" not in format:
        target = target.with_index(a.format.index)
    if target.index != a.format.index:
        if target.index == "int32":
            index_dtype_check(a.shape, a.nse)
        else:
            index_dtype(a.shape, 2**31)  # raises if JAX has no 64-bit integers
    if a.format.block or target.block:
        return reblock.to(a, target, nse, to)
    if nse is None and _promises(a.format, target):
        return a._relabel(a.shape, target)
    if not target.appended:
        if nse is not None:
            raise CapacityError(f"to: {target} has no capacity, got nse={nse}; leave it out")
        if target.appendable.appended:
            return fitting.fit(a, target, to)
        return _to_diagonals(a, target)
    tail = target.dense_tail
    same = a.format.order[a.ndim - a.format.dense_tail :] == target.order[a.ndim - tail :]
    if tail and (a.format.relative or not same):
        return _through_values(a, target, nse)
    return _sorted(a, target, nse)


def diagonals_of(a: SparseArray) -> Diagonals:
    """The diagonals that hold the entries of a concrete matrix, places of a stored diagonal
    included: how many there are, and how full.  Remembered with a frozen pattern.
    """

    def find() -> Diagonals:
        with jax.ensure_compile_time_eval():
            ones = replace(a, data=jnp.ones(a.data.shape, bool))
            _, (rows, columns), count = coo_parts(canonical(ones))
            rows, columns = (np.asarray(x)[: int(count)] for x in (rows, columns))
        return of_coordinates(rows, columns, a.shape)

    return find() if a.pattern is None else a.pattern.derived(("diagonals",), find)


def _to_diagonals(a: SparseArray, target: Format) -> SparseArray:
    """Conversion to a relative first level: the diagonals in use, then the values sampled there."""
    if a.ndim != 2:
        raise UnsupportedError(f"to: {target} of {a.ndim} modes; only matrices become diagonals")
    if traced(*a.arrays):
        raise UnsupportedError(
            f"to: the index arrays are traced, and how many diagonals there are decides the shape "
            f"of {target}; convert outside of jit, or freeze the array first"
        )
    a = canonical(a)
    found = diagonals_of(a if target.order == (1, 0) else a.T)
    found.check(jnp.dtype(a.dtype).itemsize, f"to {target}")
    if index_dtype(a.shape, found.places) == "int64":  # positions must fit, too
        target = target.with_index("int64")
    arrays = (np.asarray(found.offsets, target.index),)
    pattern = Pattern(arrays, a.shape, target) if a.frozen else None
    structure = tuple(on_device(x) for x in arrays)
    data = _sampled_at(a, target, structure, pattern)
    return SparseArray(data, () if pattern else structure, a.shape, target, pattern)


def _sampled_at(
    a: SparseArray, target: Format, arrays: tuple[Any, ...], known: Pattern | None
) -> Any:
    """The values of `a` at a pattern."""
    names = letters(a.ndim)
    dtype = dtype_name(a.dtype)
    out = Access("Y", names, target, dtype, known is not None, known)
    b = Assignment(out, (access_of(a, "A", names, dtype),), (Term((0,)),))
    return contract(b, dict(zip(names, a.shape, strict=True)), [a.data, *a.arrays, *arrays])


def index_dtype_check(shape: tuple[int, ...], nse: int) -> None:
    if max((*shape, nse)) >= 2**31:
        raise FormatError(
            f"shape {shape} does not fit 32-bit index arrays; use a format with /int64"
        )


def _promises(have: Format, want: Format) -> bool:
    """Whether storage in format `have` is already storage in format `want`, which may promise
    less.
    """
    if have == want:
        return True
    if have.order != want.order or have.index != want.index:
        return False
    return all(h.keeps(w) for h, w in zip(have.levels, want.levels, strict=True))


def _sorted(a: SparseArray, target: Format, nse: int | None) -> SparseArray:
    """Conversion by sorting; for a frozen array done once and remembered with its pattern.

    Dense levels below the leaf move along with their entry if the target has the same ones; else
    each of their elements becomes an entry.
    """
    merge = _merges(a.format, target)
    if target.dense_tail:
        head = _headed(a)
        out = _sorted(head, head_of(target), nse)
        pattern = None if out.pattern is None else _tailed(out.pattern, a.shape, target)
        return SparseArray(out.data, out.structure, a.shape, target, pattern)
    data = a.data.reshape(-1) if a.format.dense_tail else a.data
    if a.pattern is not None:
        r = rearranged(a.pattern, target, nse)
        moved = permuted(data, r.perm, r.start, merge, r.inside)
        return SparseArray(moved, (), a.shape, target, r.pattern)
    room = data.shape[0] if nse is None and traced(*a.arrays) else nse
    *arrays, perm, start = _arrange(a.format, target, a.shape, list(a.arrays), False, room)
    return SparseArray(permuted(data, perm, start, merge), tuple(arrays), a.shape, target)


def head_of(f: Format) -> Format:
    """The format without its dense tail, modes renumbered."""
    kept = f.order[: f.ndim - f.dense_tail]
    ranks = {m: n for n, m in enumerate(sorted(kept))}
    return Format(f.levels[: len(kept)], tuple(ranks[m] for m in kept), f.index)


def _headed(a: SparseArray) -> SparseArray:
    """The array of entries whose values are the dense tails: fewer modes, data with more axes."""
    kept = sorted(a.format.order[: a.ndim - a.format.dense_tail])
    shape, f = tuple(a.shape[m] for m in kept), head_of(a.format)
    pattern = a.pattern
    if pattern is not None:
        old = pattern
        pattern = old.derived(("head",), lambda: Pattern(old.arrays, shape, f))
    return SparseArray(a.data, a.structure, shape, f, pattern)


def _tailed(p: Pattern, shape: tuple[int, ...], f: Format) -> Pattern:
    return p.derived(("tail", shape, f), lambda: Pattern(p.arrays, shape, f))


def _merges(source: Format, target: Format) -> bool:
    """Whether entries of `source` may become one in `target`."""
    return target.levels[target.sparse_levels[-1]].unique and not source.canonical


def _arrange(
    source: Format,
    target: Format,
    shape: tuple[int, ...],
    arrays: list[Any],
    trusted: bool,
    room: int | None,
) -> list[Any]:
    """The index arrays in another format, the permutation, and where each entry starts in it."""
    extents = dict(zip(letters(len(shape)), shape, strict=True))
    a = _conversion(source, target, shape, trusted)
    return assemble_pattern(a, extents, arrays, room, "to", "sort")


class Rearranged(NamedTuple):
    """A frozen pattern in another format: its entry q takes the values of the entries
    perm[start[q]:start[q+1]] of the old one.  `inside`: no element of `perm` stands for padding.
    """

    pattern: Pattern
    perm: Any
    start: Any
    inside: bool


def rearranged(pattern: Pattern, target: Format, nse: int | None = None) -> Rearranged:
    """A frozen pattern in another format; made once."""

    def make() -> Rearranged:
        *arrays, perm, start = _arrange(
            pattern.format, target, pattern.shape, list(pattern.device()), True, nse
        )
        new = Pattern(tuple(np.asarray(x) for x in arrays), pattern.shape, target)
        f = pattern.format
        tail = f.order[f.ndim - f.dense_tail :]
        stored = pattern.arrays[-1].shape[0] * math.prod(pattern.shape[m] for m in tail)
        return Rearranged(new, perm, start, bool((np.asarray(perm) < stored).all()))

    return pattern.derived(("to", target, nse), make)


def permuted(data: Any, perm: Any, start: Any, merge: bool, inside: bool = False) -> Any:
    """Values in the new order; entries that became one are summed: y[q] = sum of
    data[perm[start[q]:start[q+1]]].  `inside`: `perm` has no padding.
    """
    nse = start.shape[0] - 1
    if merge:
        names = Access(
            "A",
            ("q0", "p0"),
            parse_format("csr", 2).with_index(dtype_name(perm.dtype)).loosen(ordered=False),
            PATTERN,
        )
        rest = letters(data.ndim - 1)  # elements of dense tails
        dense = parse_format("dense", data.ndim)
        values = Access("B", ("p0", *rest), dense, dtype_name(data.dtype))
        out = Access("Y", ("q0", *rest), dense, dtype_name(data.dtype))
        m = Assignment(out, (names, values), (Term((0, 1)),))
        extents = {"q0": nse, "p0": data.shape[0], **dict(zip(rest, data.shape[1:], strict=True))}
        return contract(m, extents, [start, perm, data])
    return moved(data, perm, nse, inside)


def _through_values(a: SparseArray, target: Format, nse: int | None) -> SparseArray:
    """Conversion to a format with trailing dense levels: its pattern, then the values sampled at
    it.
    """
    a = to(a, a.format.tighten()) if not a.format.canonical else a
    names = letters(a.ndim)
    extents = dict(zip(names, a.shape, strict=True))
    source = access_of(a, "A", names, PATTERN)
    p = Assignment(Access("Y", names, target.tighten(), PATTERN), (source,), (Term((0,)),))
    room = nse if nse is not None else a.nse if traced(*a.arrays) else None
    arrays = assemble_pattern(p, extents, list(a.arrays), room, "to")
    data = _sampled_at(a, target.tighten(), tuple(arrays), None)
    return SparseArray(data, tuple(arrays), a.shape, target.tighten())


def astype(a: SparseArray, dtype: Any) -> SparseArray:
    """The array with values of another dtype.

    Booleans stored twice become one first: they add up to True, not to 2.
    """
    last = a.format.sparse_levels[-1]
    if a.dtype == jnp.bool_ and jnp.dtype(dtype) != jnp.bool_ and not a.format.levels[last].unique:
        a = to(a, a.format.tighten())
    return replace(a, data=jnp.asarray(a.data).astype(dtype))


def todense(a: SparseArray) -> Any:
    """The dense array; duplicates add up.  A dense array passes through."""
    if not isinstance(a, SparseArray):
        return jnp.asarray(a)
    s, block = a.split(), a.format.block
    names = letters(s.ndim)
    extents = dict(zip(names, s.shape, strict=True))
    stored = blocks.interleaved(names, block) if block else names
    out = Access("Y", stored, parse_format("dense", s.ndim), dtype_name(a.dtype))
    b = Assignment(out, (access_of(s, "A", names, dtype_name(a.dtype)),), (Term((0,)),))
    y = contract(b, extents, [s.data, *s.arrays])
    return blocks.join_dense(y, a.shape, block) if block else y


def coo_parts(a: SparseArray) -> tuple[Any, list[Any], Any]:
    """Values, coordinates by mode, and how many are in use, in storage order; trailing dense
    levels are expanded.
    """
    a = to(a, a.format.whole) if a.format.block else a
    plain = parse_format("coo", a.ndim).with_index(a.format.index)
    loose = plain.loosen(ordered=False, unique=False)
    c = to(a, loose) if a.frozen else _sorted(a, loose, None)  # the kernel checks the index arrays
    pos, *crds = c.arrays
    return c.data, crds, pos[-1] if traced(pos) else int(np.asarray(pos)[-1])


def canonical(a: SparseArray) -> SparseArray:
    """`a` with ascending coordinates and every entry once."""
    return a if a.format.canonical else to(a, a.format.tighten())

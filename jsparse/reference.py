# SPDX-License-Identifier: Apache-2.0
"""Assignments and patterns in plain `jax.numpy`: what runs where no kernel can, and an oracle.

Takes and returns what the primitives do, traces with static shapes, and is differentiated and
batched by JAX itself.

    Y[i,k] = A[i,j]:csr * B[j,k]      i, j of every stored position p of A       `_entries`
                                      y[p,k] = A[p] * B[j[p],k]                  `_at`, `_contract`
                                      Y[i[p],k] += y[p,k]                        `_scatter`

One sparse operand of a term drives, or the pattern of a sampled output; the other operands are
gathered at its coordinates, further sparse ones from a dense copy, with a mask so that nothing is
read where they have no entry.  Positions that hold no entry get coordinates past the extent:
gathers give zero there, and scatters drop.

Unlike a kernel it cannot fail: an entry with a coordinate out of range is absent, and an assembled
pattern that exceeds its capacity is cut off (`count` says what is needed).  A float32 sum is XLA's,
without the kernels' wider accumulators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jsparse import fibers
from jsparse.format import parse_format
from jsparse.ir.index import PATTERN, Access, Assignment, Term
from jsparse.lower import assemble as patterns
from jsparse.record import replace

Arrays = Sequence[Any]
Extents = dict[str, Any]
POSITION = ""  # the axis of the driver's stored positions, among axes named by index variables

# Where products are computed and summed: 16-bit floats wider, booleans as counts of true products.
COMPUTE = {"float16": "float32", "bfloat16": "float32", "bool": "int32"}


@dataclass(frozen=True, slots=True)
class Factor:
    """An array whose axes are named by index variables."""

    x: Any
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entries:
    """The stored positions of a sparse tensor: the coordinates of its sparse part, and the values.

    `coords` equal the extent where a position holds no entry; values are zero there.
    """

    coords: dict[str, Any]
    valid: Any
    values: Factor  # axes (POSITION, *variables of the dense tail)

    @property
    def count(self) -> Any:
        return self.valid.shape[0]


# ---------------------------------------------------------------------- values
def einsum(a: Assignment, extents: Sequence[Any], flat: Arrays) -> Any:
    """The values of an assignment.

    Args:
      a: what to compute.
      extents: the extent of each of `a.vars`; may be symbolic where only dense operands have it.
      flat: the operands in the order of `lower.buffers`, dense ones in the order of their levels.

    Returns:
      A dense output in the order of its levels; or of a sampled one the values at the pattern's
      positions, of shape (nse, *dense tail), zero beyond the stored entries.
    """
    extent: Extents = dict(zip(a.vars, extents, strict=True))
    parts = _split(a, flat)
    dtype = a.output.dtype
    owner: Entries | None = None
    if a.shares is not None:
        owner = _entries(a.operands[a.shares], parts[a.shares], extent, dtype)
    elif a.pattern is not None:
        owner = _entries(a.pattern, parts[-1], extent, dtype)
    total: Any = None
    for term in a.terms:
        y = _term(a, term, owner, extent, parts, dtype)
        if dtype == "bool":
            total = y if total is None else total + y
        else:
            y = -y if total is None and term.sign < 0 else y
            total = y if total is None else total - y if term.sign < 0 else total + y
    if a.output.format.relative:  # the data have an axis for each level
        total = total.reshape(-1, *(extent[v] for v in a.output.level_vars[1:]))
    return total.astype(dtype)


def _split(a: Assignment, flat: Arrays) -> list[list[Any]]:
    """Flat operands by access; last those of the output's own pattern, if it has one."""
    rest, parts = list(flat), []
    for access in a.stored:
        n = len(access.format.array_names()) + (access.dtype != PATTERN)
        parts.append(rest[:n])
        rest = rest[n:]
    return parts


def _term(
    a: Assignment,
    term: Term,
    owner: Entries | None,
    extent: Extents,
    parts: list[list[Any]],
    dtype: str,
) -> Any:
    """One product without its sign, summed over the variables that the output lacks."""
    sparse = [n for n in term.factors if not a.operands[n].format.is_dense]
    number = a.shares
    driver = owner
    if owner is None and sparse:
        number = max(sparse, key=lambda n: a.operands[n].format.ndim)
        driver = _entries(a.operands[number], parts[number], extent, dtype)
    coords = driver.coords if driver is not None else {}
    factors: list[Factor] = []
    masks: list[Factor] = []
    for n in term.factors:
        access = a.operands[n]
        if driver is not None and n == number:
            factors.append(driver.values)
        elif access.format.is_dense:
            factors.append(_at(_dense(access, parts[n], extent, dtype), coords))
        else:
            copy, present = _densify(_entries(access, parts[n], extent, dtype), extent, dtype)
            factors.append(_at(copy, coords))
            masks.append(_at(present, coords))
    if len(factors) > 1:
        factors = [_masked(f, masks) for f in factors]
    names = a.output.level_vars
    if driver is None:
        return _contract(factors, names, extent)
    if owner is not None:
        tail = tuple(v for v in names if v not in coords)
        y = _contract(factors, (POSITION, *tail), {**extent, POSITION: owner.count})
        return jnp.where(_align(Factor(owner.valid, (POSITION,)), (POSITION, *tail)), y, 0)
    return _scatter(factors, names, driver, extent)


def _scatter(
    factors: list[Factor], names: tuple[str, ...], driver: Entries, extent: Extents
) -> Any:
    """A product over a driver's positions, added up at the driver's coordinates."""
    bound = tuple(v for v in names if v in driver.coords)
    free = tuple(v for v in names if v not in driver.coords)
    if not bound:
        return _contract(factors, free, extent)
    y = _contract(factors, (POSITION, *free), {**extent, POSITION: driver.count})
    out = jnp.zeros([extent[v] for v in (*bound, *free)], y.dtype)
    out = out.at[tuple(driver.coords[v] for v in bound)].add(y, mode="drop")
    return jnp.transpose(out, [(*bound, *free).index(v) for v in names])


# -------------------------------------------------------------------- operands
def _entries(
    access: Access, arrays: Arrays, extent: Extents, dtype: str, tail: bool = False
) -> Entries:
    """Every position of the sparse part of a tensor, with its coordinates and values; with `tail`
    every position of all of it.
    """
    arrays = list(arrays)
    values = arrays.pop(0) if access.dtype != PATTERN else None
    narrow = [x.astype(jax.dtypes.canonicalize_dtype(x.dtype)) for x in arrays]
    by_name = dict(zip(access.format.array_names(), narrow, strict=True))
    depth = access.format.ndim - (0 if tail else access.format.free_tail)
    count: Any = 1  # positions of the level, of which [lo, hi) hold entries
    lo, hi = jnp.int32(0), jnp.int32(1)
    columns: list[Any] = []
    for n in range(depth):
        level = access.format.levels[n]
        if level.full:
            e = extent[access.level_vars[n]]
            columns = [_repeat(c[:, None], count, e) for c in columns]
            columns.append(_repeat(jnp.arange(e)[None, :], count, e))
            count, lo, hi = count * e, lo * e, hi * e
            if n and access.format.levels[n - 1].relative:
                columns[n - 1] += columns[n].astype(columns[n - 1].dtype)
            continue
        crd = by_name[n, "crd"]
        if "pos" in level.arrays:
            pos = by_name[n, "pos"]
            pos = pos[jnp.clip(jnp.arange(pos.shape[0]), lo, hi)]  # beyond is capacity
            at = jnp.arange(crd.shape[0], dtype=pos.dtype)
            parent = jnp.searchsorted(pos, at, side="right") - 1
            columns = [_take(c, parent) for c in columns]
            count, lo, hi = crd.shape[0], pos[0], pos[-1]
        elif level.relative:
            count, hi = crd.shape[0], jnp.int32(crd.shape[0])
        elif level.children != 1:
            each = level.children or 0
            columns = [jnp.repeat(c, each) for c in columns]
            count, lo, hi = count * each, lo * each, hi * each
        columns.append(crd)
    at = jnp.arange(count, dtype=columns[-1].dtype)
    valid = (at >= lo) & (at < hi)
    coords: dict[str, Any] = {}
    for v, c in zip(access.level_vars, columns, strict=False):
        valid &= (c >= 0) & (c < jnp.asarray(extent[v], c.dtype))
        valid &= c == coords.setdefault(v, c)  # a repeated variable: the diagonal
    coords = {v: jnp.where(valid, c, jnp.asarray(extent[v], c.dtype)) for v, c in coords.items()}
    axes = (POSITION, *access.level_vars[depth:])
    shape = (count, *[extent[v] for v in axes[1:]])
    x = _cast(jnp.ones(shape, bool) if values is None else values.reshape(shape), dtype)
    x = jnp.where(valid.reshape(count, *[1] * (len(axes) - 1)), x, 0)
    f = Factor(x, axes)
    if any(v in coords for v in axes[1:]):
        f = _at(f, {**coords, POSITION: at})
    return Entries(coords, valid, _diagonal(f))


def _dense(access: Access, arrays: Arrays, extent: Extents, dtype: str) -> Factor:
    names = access.level_vars
    x = jnp.ones([extent[v] for v in names], bool) if access.dtype == PATTERN else arrays[0]
    return _diagonal(Factor(_cast(x, dtype), names))


def _cast(x: Any, dtype: str) -> Any:
    """Values as an output of `dtype` computes with them; a truth counts one."""
    return (x != 0 if dtype == "bool" else x).astype(COMPUTE.get(dtype, dtype))


def _densify(e: Entries, extent: Extents, dtype: str) -> tuple[Factor, Factor]:
    """A dense copy of a sparse tensor, duplicates added, and where it has entries."""
    names, index = tuple(e.coords), tuple(e.coords.values())
    shape = [extent[v] for v in names]
    x = e.values.x
    copy = jnp.zeros((*shape, *x.shape[1:]), x.dtype).at[index].add(x, mode="drop")
    if dtype == "bool":
        copy = (copy != 0).astype(copy.dtype)
    present = jnp.zeros(shape, bool).at[index].set(True, mode="drop")
    return Factor(copy, (*names, *e.values.axes[1:])), Factor(present, names)


# ------------------------------------------------------------------- named axes
def _repeat(column: Any, parents: Any, e: Any) -> Any:
    return jnp.broadcast_to(column, (parents, e)).reshape(parents * e)


def _take(x: Any, index: Any) -> Any:
    """x[index], clipped; zeros where there is nothing to take."""
    return x.at[index].get(mode="clip") if x.shape[0] != 0 else jnp.zeros(index.shape, x.dtype)


def _diagonal(f: Factor) -> Factor:
    """The factor with each axis once."""
    distinct = tuple(dict.fromkeys(f.axes))
    if distinct == f.axes:
        return f
    letters = _letters(f.axes)
    spec = "".join(letters[v] for v in f.axes) + "->" + "".join(letters[v] for v in distinct)
    return Factor(jnp.einsum(spec, f.x), distinct)


def _at(f: Factor, coords: dict[str, Any]) -> Factor:
    """The factor at coordinates: the axes that they name become one axis of positions, in front."""
    bound = [k for k, v in enumerate(f.axes) if v in coords]
    if not bound:
        return f
    free = [k for k in range(len(f.axes)) if k not in bound]
    axes = (POSITION, *[f.axes[k] for k in free])
    index = tuple(coords[f.axes[k]] for k in bound)
    if any(f.x.shape[k] == 0 for k in bound):
        return Factor(
            jnp.zeros((index[0].shape[0], *[f.x.shape[k] for k in free]), f.x.dtype), axes
        )
    x = jnp.transpose(f.x, (*bound, *free))
    return Factor(x.at[index].get(mode="fill", fill_value=0), axes)


def _align(f: Factor, axes: tuple[str, ...]) -> Any:
    """The array with its axes in the order of `axes`, of length 1 where it has none."""
    have = [v for v in axes if v in f.axes]
    x = jnp.transpose(f.x, [f.axes.index(v) for v in have])
    return x.reshape([x.shape[have.index(v)] if v in have else 1 for v in axes])


def _masked(f: Factor, masks: list[Factor]) -> Factor:
    """The factor with zeros where a mask is false, so that no product has what is read there."""
    for m in masks:
        axes = (*f.axes, *[v for v in m.axes if v not in f.axes])
        f = Factor(jnp.where(_align(m, axes), _align(f, axes), 0), axes)
    return f


def _letters(axes: Sequence[str]) -> dict[str, str]:
    return {v: chr(ord("a") + n) for n, v in enumerate(dict.fromkeys(axes))}


def _contract(factors: list[Factor], axes: tuple[str, ...], extent: Extents) -> Any:
    """The product of factors summed over all but `axes`, repeated along those that none has."""
    letters = _letters([v for f in factors for v in f.axes])
    inputs = ",".join("".join(letters[v] for v in f.axes) for f in factors)
    have = tuple(v for v in axes if v in letters)
    output = "".join(letters[v] for v in have)
    highest = lax.Precision.HIGHEST
    y = jnp.einsum(f"{inputs}->{output}", *[f.x for f in factors], precision=highest)
    return jnp.broadcast_to(_align(Factor(y, have), axes), [extent[v] for v in axes])


# -------------------------------------------------------------------- patterns
def assemble(
    a: Assignment,
    work: str,
    count: bool,
    extents: Sequence[int],
    capacity: tuple[int, ...],
    flat: Arrays,
) -> list[Any]:
    """The index arrays of an output whose pattern is computed, as `lower.assemble` has them.

    Returns:
      With `count` one array, int64: the entries of each group, behind the starts of chunks for
      "merge" (here all is one chunk); else the output's index arrays, and for "sort" the
      permutation and the start of each entry in it.  Beyond the entries are coordinates 0,
      positions of the end, and in the permutation its length.
    """
    extent: Extents = dict(zip(a.vars, extents, strict=True))
    if work == "fit":
        return [_as(x, a.output.format.index) for x in fibers.fitted(a, extent, flat)]
    flat = list(flat) if count or work == "sort" else list(flat)[:-1]  # without the starts
    if work == "sort":
        coords, valid, perm = _sorted(a, extent, flat)
    else:
        coords, valid = _merged(a, extent, flat)
    new, rank = _numbering(a, coords, valid, work)
    groups = patterns.groups(a)
    if count:
        counts = jnp.stack([jnp.sum(new[g.first]) for g in groups])
        if work == "merge":
            head = jnp.array([1] + [0] * len(groups), counts.dtype)
            counts = jnp.concatenate([head, jnp.tile(counts, patterns.MOST_CHUNKS)])
        return [_as(counts, "int64")]
    room = dict(zip([g.first for g in groups], capacity, strict=True))
    out = _packed(a, extent, coords, new, rank, room)
    if work == "sort":
        starts = jnp.zeros(capacity[-1] + 1, int)
        starts = starts.at[rank[groups[-1].first] + 1].add(valid, mode="drop")
        out += [perm, jnp.cumsum(starts)]
    return [_as(x, a.output.format.index) for x in out]


def _as(x: Any, dtype: str) -> Any:
    """`x` as `dtype`, which may be 64 bits wide also where JAX's default is 32."""
    with jax.enable_x64(True):
        return lax.convert_element_type(x, jnp.dtype(dtype))


def _stored(a: Assignment) -> tuple[str, ...]:
    """The output's variables down to its last sparse level."""
    return a.output.level_vars[: max(a.output.format.sparse_levels) + 1]


def _merged(a: Assignment, extent: Extents, flat: Arrays) -> tuple[list[Any], Any]:
    """The coordinates where any term has an entry, ascending; found in a dense array of truths."""
    names = _stored(a)
    output = Access(a.output.name, names, parse_format("dense", len(names)), "bool")
    terms = tuple(replace(t, sign=1) for t in a.terms)
    b = replace(a, output=output, terms=terms, shares=None)
    present = einsum(b, [extent[v] for v in b.vars], flat)
    coords = jnp.nonzero(present, size=present.size, fill_value=0)
    return list(coords), jnp.arange(present.size) < jnp.sum(present)


def _sorted(a: Assignment, extent: Extents, flat: Arrays) -> tuple[list[Any], Any, Any]:
    """The coordinates of the one operand, sorted stably, and the position each came from."""
    e = _entries(a.operands[0], list(flat), extent, "bool", tail=True)
    columns = [e.coords[v] for v in _stored(a)]
    order = jnp.lexsort((*reversed(columns), ~e.valid))
    valid = e.valid[order]
    return [c[order] for c in columns], valid, jnp.where(valid, order, e.count)


def _numbering(
    a: Assignment, coords: list[Any], valid: Any, work: str
) -> tuple[dict[int, Any], dict[int, Any]]:
    """For each group of levels: which sorted entries begin a position in it, and that of each."""
    new: dict[int, Any] = {}
    rank: dict[int, Any] = {}
    groups = patterns.groups(a)
    for g in groups:
        keep = g == groups[-1] and not a.output.format.levels[g.last].unique
        changed = jnp.arange(valid.shape[0]) == 0
        for c in coords[: g.last + 1]:
            changed |= c != jnp.roll(c, 1)
        new[g.first] = valid if keep else valid & changed
        rank[g.first] = jnp.cumsum(new[g.first]) - 1
    return new, rank


def _packed(
    a: Assignment,
    extent: Extents,
    coords: list[Any],
    new: dict[int, Any],
    rank: dict[int, Any],
    room: dict[int, int],
) -> list[Any]:
    """The arrays of the output's levels: coordinates put in place, children counted and summed."""
    out: list[Any] = []
    parent: Any = jnp.zeros(coords[0].shape, int)  # of each entry, among `parents` positions
    parents: Any = 1
    for n, level in enumerate(a.output.format.levels[: len(coords)]):
        if level.full:
            e = extent[a.output.level_vars[n]]
            parent, parents = parent * e + coords[n], parents * e
            continue
        if not level.branchless:
            first, size = n, room[n]
            fits = new[n] & (rank[n] < size)
            pos = jnp.zeros(parents + 1, int)
            out.append(jnp.cumsum(pos.at[parent + 1].add(fits, mode="drop")))
            parent, parents = rank[n], size
        at = jnp.where(new[first], rank[first], size)
        out.append(jnp.zeros(size, coords[n].dtype).at[at].set(coords[n], mode="drop"))
    return out

# SPDX-License-Identifier: Apache-2.0
"""Constructors of sparse arrays: from parts, from dense arrays, from other libraries, generated.

Concrete index arrays are validated, and what they show is what the format promises; traced ones are
believed and promise nothing unless told to.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from jsparse.array import SparseArray, index_dtype
from jsparse.blocks import interleaved, split_dense
from jsparse.concrete import compact, on_device, traced
from jsparse.contract import contract
from jsparse.convert import assemble_pattern, letters, to
from jsparse.errors import FormatError, StructureError, UnsupportedError
from jsparse.format import Format, as_format, blocked, parse_format
from jsparse.ir.index import PATTERN, Access, Assignment, Term
from jsparse.validate import validate


def _index_array(x: Any, what: str) -> Any:
    """Indices as an array of a signed integer dtype, on the host if concrete."""
    if not isinstance(x, jax.core.Tracer):
        x = np.asarray(x)
    if not np.issubdtype(x.dtype, np.integer):
        if x.size:
            raise StructureError(f"{what}: got dtype {x.dtype}, expected integers")
        x = x.astype(np.int32)
    if x.ndim != 1:
        raise StructureError(f"{what}: got shape {x.shape}, expected one axis")
    if x.dtype not in (np.int32, np.int64):
        if isinstance(x, np.ndarray) and x.size and int(x.max()) > np.iinfo(np.int64).max:
            raise StructureError(f"{what}: {int(x.max())} does not fit 64-bit signed indices")
        x = x.astype(np.int64 if isinstance(x, np.ndarray) else np.int32)
    return x


def shape_of(shape: Any, ndim: int | None, where: str) -> tuple[int, ...]:
    try:
        out = tuple(operator.index(s) for s in shape)
    except TypeError:
        raise StructureError(f"{where}: shape {shape!r} is not a tuple of integers") from None
    if any(s < 0 for s in out) or (ndim is not None and len(out) != ndim):
        raise StructureError(
            f"{where}: got shape {out}, expected {ndim or 'some'} non-negative extents"
        )
    return out


def build(
    data: Any,
    arrays: tuple[Any, ...],
    shape: tuple[int, ...],
    format: Format,
    where: str,
    sorted: bool | None = None,
    unique: bool | None = None,
) -> SparseArray:
    """A sparse array from its parts: concrete index arrays are validated, traced ones believed.

    `format` is meant without its promises; those come from the concrete arrays, or from `sorted`
    and `unique`.
    """
    if traced(*arrays):
        ordered, once = bool(sorted), bool(unique) and bool(sorted)
        index = "int64" if any(a.dtype == np.int64 for a in arrays) else "int32"
    else:
        arrays = tuple(np.asarray(a) for a in arrays)
        ordered, once = validate(format, shape, arrays, where)
        if sorted and not ordered:
            raise StructureError(
                f"{where}: sorted=True, but coordinates do not ascend in every fiber"
            )
        if unique and not once:
            raise StructureError(
                f"{where}: unique=True, but an entry is stored twice, or order hides it"
            )
        ordered, once = ordered and sorted is not False, once and unique is not False
        nse = max((a.shape[0] for a in arrays), default=0)
        index = index_dtype(shape, nse)
    levels = format.with_index(index).loosen(ordered=ordered, unique=once)
    structure = tuple(on_device(a, index) for a in arrays)
    return SparseArray(_values(data), structure, shape, levels)


def _values(data: Any) -> Any:
    data = on_device(data)
    if data.dtype == jax.dtypes.float0:
        raise StructureError("data: float0 values; gradients of integer leaves have no values")
    return data


def _check_lengths(where: str, **lengths: int) -> None:
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"{k} {v}" for k, v in lengths.items())
        raise StructureError(
            f"{where}: lengths differ: {text}; expected one value for each coordinate"
        )


def csr(
    data: Any,
    indices: Any,
    indptr: Any,
    shape: Any,
    *,
    sorted: bool | None = None,
    unique: bool | None = None,
) -> SparseArray:
    """A matrix in compressed sparse rows.

    Args:
      data: (nse,) values.
      indices: (nse,) integer column of each entry.
      indptr: (rows + 1,) where each row starts; entries beyond the last are capacity.
      shape: (rows, columns).
      sorted, unique: what to promise.  By default what concrete arrays show; traced arrays promise
        nothing.

    Raises:
      StructureError: if concrete index arrays are out of range, not monotone or of the wrong
        length.
    """
    return _compressed_matrix(data, indices, indptr, shape, "csr", sorted, unique)


def csc(
    data: Any,
    indices: Any,
    indptr: Any,
    shape: Any,
    *,
    sorted: bool | None = None,
    unique: bool | None = None,
) -> SparseArray:
    """A matrix in compressed sparse columns: as `csr`, with row indices and column offsets."""
    return _compressed_matrix(data, indices, indptr, shape, "csc", sorted, unique)


def _compressed_matrix(
    data: Any,
    indices: Any,
    indptr: Any,
    shape: Any,
    name: str,
    sorted: bool | None,
    unique: bool | None,
) -> SparseArray:
    shape = shape_of(shape, 2, name)
    data = _values(data)
    if data.ndim != 1:
        raise StructureError(f"{name}: data has shape {data.shape}, expected (nse,)")
    pos, crd = _index_array(indptr, f"{name}: indptr"), _index_array(indices, f"{name}: indices")
    _check_lengths(name, data=data.shape[0], indices=crd.shape[0])
    outer = shape[0] if name == "csr" else shape[1]
    if pos.shape != (outer + 1,):
        raise StructureError(
            f"{name}: indptr has length {pos.shape[0]}, expected {outer + 1} for shape {shape}"
        )
    return build(data, (pos, crd), shape, parse_format(name, 2), name, sorted, unique)


def bcsr(
    data: Any,
    indices: Any,
    indptr: Any,
    shape: Any,
    *,
    sorted: bool | None = None,
    unique: bool | None = None,
) -> SparseArray:
    """A matrix in compressed sparse rows of dense blocks, all of one shape: format csr[r,c].

    Args:
      data: (blocks, r, c) values.
      indices: (blocks,) column of blocks of each block.
      indptr: (rows of blocks + 1,) where each row of blocks starts; blocks beyond the last are
        capacity.
      shape: (rows, columns), which need not be multiples of r and c: what the last blocks hold
        beyond them is never read.
      sorted, unique: what to promise, as for `csr`.

    Raises:
      StructureError: if concrete index arrays are out of range, not monotone or of the wrong
        length.
    """
    shape = shape_of(shape, 2, "bcsr")
    data = _values(data)
    if data.ndim != 3 or max(data.shape[1:]) < 2 or 0 in data.shape[1:]:
        raise StructureError(
            f"bcsr: data has shape {data.shape}, expected (blocks, r, c) with r or c above 1"
        )
    pos, crd = _index_array(indptr, "bcsr: indptr"), _index_array(indices, "bcsr: indices")
    _check_lengths("bcsr", data=data.shape[0], indices=crd.shape[0])
    format = blocked(parse_format("csr", 2), tuple(int(b) for b in data.shape[1:]))
    rows = -(-shape[0] // int(data.shape[1]))
    if pos.shape != (rows + 1,):
        raise StructureError(
            f"bcsr: indptr has length {pos.shape[0]}, expected {rows + 1} for shape {shape} in "
            f"blocks of {data.shape[1:]}"
        )
    small = [b for b in (1, 2) if data.shape[b] == 1]
    values = data.reshape([n for k, n in enumerate(data.shape) if k not in small])
    return build(values, (pos, crd), shape, format, "bcsr", sorted, unique)


def coo(
    data: Any, coords: Any, shape: Any, *, sorted: bool | None = None, unique: bool | None = None
) -> SparseArray:
    """An array of coordinates.

    Args:
      data: (nse,) values.
      coords: (ndim, nse) integers, or one array for each mode.
      shape: extent of each mode.
      sorted, unique: what to promise; see `csr`.
    """
    return _coordinates(data, coords, shape, "coo", sorted, unique)


def _coordinates(
    data: Any,
    coords: Any,
    shape: Any,
    where: str,
    sorted: bool | None = None,
    unique: bool | None = None,
) -> SparseArray:
    shape = shape_of(shape, None, where)
    data = _values(data)
    try:
        coords = list(coords)
    except TypeError:
        raise StructureError(
            f"{where}: coords is a {type(coords).__name__}, expected (ndim, nse) integers"
        ) from None
    rows = [_index_array(c, f"{where}: coords[{n}]") for n, c in enumerate(coords)]
    if len(rows) != len(shape) or not shape:
        raise StructureError(
            f"{where}: coords for {len(rows)} mode(s), expected {len(shape)} for shape {shape}"
        )
    for n, c in enumerate(rows):
        _check_lengths(where, data=data.shape[0], **{f"coords[{n}]": c.shape[0]})
    nse = data.shape[0]
    arrays = (np.array([0, nse], rows[0].dtype), *rows)
    return build(data, arrays, shape, parse_format("coo", len(shape)), where, sorted, unique)


def csf(data: Any, coords: Any, shape: Any, *, nse: int | None = None) -> SparseArray:
    """An array of compressed fibers, one compressed level for each mode; arguments as for `coo`,
    duplicates are summed.
    """
    return to(_coordinates(data, coords, shape, "csf"), "csf", nse=nse)


def dia(data: Any, offsets: Any, shape: Any) -> SparseArray:
    """A matrix of diagonals.

    Args:
      data: (diagonals, rows) values: data[d, i] is at row i, column i + offsets[d].  SciPy aligns
        them with columns instead; `asarray` takes its arrays.
      offsets: (diagonals,) integers that ascend.
      shape: (rows, columns).  Places outside of it are padding, which is never read.

    Raises: StructureError: if offsets that are concrete do not ascend or are out of range.
    """
    shape = shape_of(shape, 2, "dia")
    data, crd = _values(data), _index_array(offsets, "dia: offsets")
    if data.shape != (crd.shape[0], shape[0]):
        raise StructureError(
            f"dia: data has shape {data.shape}, expected (diagonals, rows) = "
            f"{(crd.shape[0], shape[0])}"
        )
    out = build(data, (crd,), shape, parse_format("dia", 2), "dia")
    if data.size >= 2**31:  # positions must fit, too
        index = index_dtype(shape, data.size)
        out = SparseArray(data, (out.arrays[0].astype(index),), shape, out.format.with_index(index))
    return out


def fromdense(x: Any, format: Format | str = "csr", nse: int | None = None) -> SparseArray:
    """The nonzeros of a dense array.

    Args:
      x: array of any rank ≥ 1.
      format: format of the result; for other than two modes by default "csf".
      nse: capacity; under `jit` needed, eagerly by default the number of nonzeros.

    Raises:
      CapacityError: under `jit` without `nse`, or if `nse` is too small.
    """
    x = on_device(x)
    if x.ndim == 0:
        raise FormatError("fromdense: an array without modes is not sparse")
    if isinstance(format, str) and format == "csr" and x.ndim != 2:
        format = "csf"
    fmt = as_format(format, x.ndim)
    if fmt.is_dense:
        raise FormatError("fromdense: format 'dense' is the array itself")
    if fmt.block:
        room = None if nse is None else -(-nse // math.prod(fmt.block))
        places = tuple(str(m) for m in range(fmt.split.ndim))
        stored = interleaved(places, fmt.block)
        parts = split_dense(x, fmt.block).transpose([stored.index(v) for v in places])
        return fromdense(parts, fmt.split, room).join(x.shape, fmt.block)
    if not fmt.appended:
        plain = fmt.appendable if fmt.appendable.appended else "csr"
        if nse is None and traced(x) and plain != "csr":
            nse = x.size  # that a fiber has too many is then said of the fiber
        return to(fromdense(x, plain, nse), format)
    fmt = fmt.with_index(index_dtype(x.shape, 2**31 if fmt.index == "int64" else 0))
    names = letters(x.ndim)
    source = Access("A", names, parse_format("dense", x.ndim), str(x.dtype))
    a = Assignment(Access("Y", names, fmt.tighten(), PATTERN), (source,), (Term((0,)),))
    arrays = assemble_pattern(a, dict(zip(names, x.shape, strict=True)), [x], nse, "fromdense")
    out = Access("Y", names, fmt.tighten(), str(x.dtype))
    b = Assignment(out, (source,), (Term((0,)),))
    data = contract(b, dict(zip(names, x.shape, strict=True)), [x, *arrays])
    return SparseArray(data, tuple(arrays), x.shape, fmt.tighten())


def fromscipy(m: Any) -> SparseArray:
    """A SciPy sparse matrix or array; csr, csc, coo, dia and bsr keep their format, others become
    csr.
    """
    if m.format == "bsr" and max(m.blocksize) > 1:
        return bcsr(m.data, m.indices, m.indptr, m.shape)
    if m.format in ("csr", "csc"):
        make = csr if m.format == "csr" else csc
        return make(m.data, m.indices, m.indptr, m.shape)
    if m.format == "dia":
        return _fromdia(m)
    if m.format != "coo":
        return fromscipy(m.tocsr())
    coords = m.coords if hasattr(m, "coords") else (m.row, m.col)
    return coo(m.data, coords, m.shape)


def _fromdia(m: Any) -> SparseArray:
    """SciPy's diagonals, aligned with columns and in any order, as ours."""
    rows, columns = m.shape
    offsets = np.asarray(m.offsets, np.int64)
    order = np.argsort(offsets, kind="stable")
    order = order[(offsets[order] > -rows) & (offsets[order] < columns)]
    data = np.zeros((order.size, rows), m.data.dtype)
    for d, k in enumerate(order):
        first, beyond = max(0, offsets[k]), min(columns, rows + offsets[k], m.data.shape[1])
        if first < beyond:
            data[d, first - offsets[k] : beyond - offsets[k]] = m.data[k, first:beyond]
    return dia(data, offsets[order], m.shape)


def frombcoo(m: Any) -> SparseArray:
    """A `jax.experimental.sparse.BCOO` without batch or dense modes; its padding is dropped."""
    if m.n_batch or m.n_dense:
        raise UnsupportedError(
            "asarray: a BCOO with batch or dense modes; use vmap, or todense() first"
        )
    data, indices = m.data, m.indices
    inside = (indices < np.asarray(m.shape)).all(axis=1)
    if traced(indices):
        data, coords, count = compact(data, list(indices.T), inside)
        index = "int64" if indices.dtype == np.int64 else "int32"
        pos = jnp.stack([jnp.zeros((), index), count.astype(index)])
        promise = {"ordered": m.indices_sorted, "unique": m.indices_sorted and m.unique_indices}
        coo_format = parse_format("coo", len(m.shape)).with_index(index).loosen(**promise)
        return SparseArray(data, (pos, *(c.astype(index) for c in coords)), m.shape, coo_format)
    if not inside.all():
        keep = np.flatnonzero(np.asarray(inside))
        data, indices = data[keep], np.asarray(indices)[keep]
    return coo(data, indices.T, m.shape)


def frombcsr(m: Any) -> SparseArray:
    """A `jax.experimental.sparse.BCSR` without batch or dense modes."""
    if m.n_batch or m.n_dense:
        raise UnsupportedError(
            "asarray: a BCSR with batch or dense modes; use vmap, or todense() first"
        )
    return csr(m.data, m.indices, m.indptr, m.shape)


def asarray(obj: Any, format: Format | str | None = None, *, nse: int | None = None) -> SparseArray:
    """Anything sparse or dense as a `SparseArray`: ours, SciPy's, BCOO, BCSR, NumPy or JAX arrays.

    `format` converts, "auto" as in `SparseArray.to`; by default sparse sources keep theirs and
    dense ones become csr (csf if not two modes).
    """
    if isinstance(obj, SparseArray):
        out = obj
    elif sp.issparse(obj):
        wanted = None if format is None else as_format(format, len(obj.shape))
        if obj.format == "dia" and wanted is not None and wanted.appended:
            obj = obj.tocsr()  # without the zeros that fill its diagonals up
        out = fromscipy(obj)
    elif type(obj).__name__ in ("BCOO", "BCSR"):
        out = frombcoo(obj) if type(obj).__name__ == "BCOO" else frombcsr(obj)
    else:
        out = fromdense(obj, "csr" if format in (None, "auto") else format, nse)
    return out if format is None else to(out, format, nse=nse)

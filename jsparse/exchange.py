# SPDX-License-Identifier: Apache-2.0
"""Sparse arrays as those of SciPy and of `jax.experimental.sparse`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from jsparse.array import SparseArray
from jsparse.blocks import ragged
from jsparse.concrete import traced
from jsparse.convert import coo_parts, to
from jsparse.errors import UnsupportedError
from jsparse.format import parse_format
from jsparse.validate import validate


def toscipy(a: SparseArray) -> Any:
    """A SciPy sparse array: csr_array, csc_array, dia_array, bsr_array or coo_array by format;
    capacity beyond the entries is dropped.

    The arrays are copies, which SciPy may write to.  Raises under `jit`.
    """
    if traced(a.data, *a.arrays):
        raise UnsupportedError("to_scipy: the array is traced; call it outside of jit")
    if not a.frozen:
        validate(a.format, a.shape, tuple(np.asarray(x) for x in a.structure), "to_scipy")
    block = a.format.block
    if block and (ragged(a.shape, block) or not str(a.format.tighten()).startswith("csr[")):
        return toscipy(to(a, a.format.whole))
    if not block and a.format.appendable != a.format:
        return toscipy(to(a, a.format.appendable))
    name = str(a.format.tighten().with_index("int32"))
    if block:
        pos, crd = (np.array(x) for x in a.arrays)
        used, shape = int(pos[-1]), (-1, *block)
        return sp.bsr_array((np.array(a.data).reshape(shape)[:used], crd[:used], pos), a.shape)
    if name in ("csr", "csc"):
        pos, crd = (np.array(x) for x in a.arrays)
        n = int(pos[-1])
        make = sp.csr_array if name == "csr" else sp.csc_array
        return make((np.array(a.data)[:n], crd[:n], pos), shape=a.shape)
    if name == "dia":
        return _todia(a)
    c = to(
        a,
        parse_format("coo", a.ndim).with_index(a.format.index).loosen(ordered=False, unique=False),
    )
    pos, *crds = (np.array(x) for x in c.arrays)
    n = int(pos[-1])
    return sp.coo_array((np.array(c.data)[:n], tuple(x[:n] for x in crds)), shape=a.shape)


def _todia(a: SparseArray) -> Any:
    """Our diagonals, aligned with rows, as SciPy's."""
    rows, columns = a.shape
    offsets, ours = np.array(a.arrays[0]), np.asarray(a.data)
    data = np.zeros((offsets.size, columns), ours.dtype)
    for d, k in enumerate(offsets):
        first, beyond = max(0, -k), min(rows, columns - k)
        data[d, first + k : beyond + k] = ours[d, first:beyond]
    return sp.dia_array((data, offsets), shape=a.shape)


def tobcoo(a: SparseArray) -> Any:
    """A `jax.experimental.sparse.BCOO`; capacity becomes padding that BCOO ignores."""
    from jax.experimental import sparse as jsparse_experimental

    data, crds, count = coo_parts(a)
    used = jnp.arange(data.shape[0]) < count
    indices = jnp.stack(
        [
            jnp.where(used, crd, size).astype(crd.dtype)
            for crd, size in zip(crds, a.shape, strict=True)
        ],
        axis=1,
    )
    data = jnp.where(used, data, jnp.zeros((), data.dtype))
    return jsparse_experimental.BCOO((data, indices), shape=a.shape)

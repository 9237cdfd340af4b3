# SPDX-License-Identifier: Apache-2.0
"""`js.load` and `js.save`: files as sparse arrays.  The formats are those of `jsparse.io`."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from jsparse import construct, convert, io
from jsparse.array import SparseArray
from jsparse.concrete import traced
from jsparse.errors import UnsupportedError
from jsparse.format import Format

HYPERSPARSE = 4  # more rows than this for each entry: compress the rows too


def load(
    path: str | os.PathLike[str], format: Format | str | None = None, **options: Any
) -> SparseArray:
    """The sparse array in a file.

    Args:
      path: Matrix Market (`.mtx`), SciPy (`.npz`), FROSTT (`.tns`) or `.smtx`; all but `.npz` also
        with `.gz`.
      format: format of the result.  By default csr for a matrix (dcsr if most rows are empty), csf
        otherwise; entries that a file repeats add up.
      **options: `shape=`, `index_base=`, `values=` for `.tns`; see `jsparse.io.read`.

    Raises:
      FileError: a malformed file; the text names file and line.
      StructureError: extents that need 64-bit index arrays while jax_enable_x64 is off.
    """
    c = io.read(path, **options)
    if format is None:
        nse = c.data.shape[0]
        if len(c.shape) == 2:
            format = "csr" if c.shape[0] <= HYPERSPARSE * nse + 4096 else "dcsr"
        else:
            format = "csf"
    return convert.to(construct.coo(c.data, c.coords, c.shape), format)


def save(
    path: str | os.PathLike[str], a: Any, *, comment: str = "", symmetry: str = "general"
) -> None:
    """Write a sparse array to a file whose suffix names the format; `load` reads it back exactly.

    Args:
      path: as for `load`.
      a: a `SparseArray`, or anything `js.asarray` takes.
      comment: text for the head of the file, where the format has comments.
      symmetry: for Matrix Market: "general", "symmetric", "skew-symmetric" or "hermitian".
    """
    a = construct.asarray(a)
    if traced(a.data, *a.arrays):
        raise UnsupportedError("save: the array is traced; call it outside of jit")
    data, coords, count = convert.coo_parts(a)
    entries = io.Coordinates(
        a.shape,
        np.stack([np.asarray(c)[:count] for c in coords]).astype(np.int64),
        np.asarray(data)[:count],
    )
    io.write(path, entries, comment=comment, symmetry=symmetry)

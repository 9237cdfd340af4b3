# SPDX-License-Identifier: Apache-2.0
"""Row blocks for `jax.shard_map`: a sparse array cut so that each device has its share of entries.

blocks = js.shard_rows(A, mesh, "x")
f = jax.shard_map(lambda a, B: a.local() @ B, mesh=mesh,
                  in_specs=(P("x"), P()), out_specs=P("x"))
y = blocks.rows_of(f(blocks, B))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jsparse.array import SparseArray
from jsparse.concrete import traced
from jsparse.convert import to
from jsparse.errors import FormatError, UnsupportedError
from jsparse.format import parse_format


@partial(jax.tree_util.register_dataclass, data_fields=["stacked"], meta_fields=["starts", "shape"])
@dataclass(frozen=True, eq=False)
class RowBlocks:
    """A matrix in row blocks of equal capacity, stacked along a leading axis of every leaf.

    Attributes:
      stacked: the blocks as one csr `SparseArray` whose leaves have the block axis in front; its
        shape is that of one block: (most rows in a block, columns).
      starts: row at which each block starts, and the number of rows.
      shape: shape of the whole matrix.
    """

    stacked: SparseArray
    starts: tuple[int, ...]
    shape: tuple[int, int]

    def local(self) -> SparseArray:
        """The block of this device, within `shard_map`."""
        return jax.tree.map(lambda x: x[0], self.stacked)

    def __matmul__(self, other: Any) -> Any:
        raise UnsupportedError(
            "row blocks are multiplied on their devices: within jax.shard_map, blocks.local() @ x; "
            "then blocks.rows_of(y)"
        )

    def rows_of(self, y: Any) -> Any:
        """The rows of the whole matrix from the blocks' rows laid end to end, padding dropped.

        `y` has shape (blocks * rows in a block, …); where all blocks have the same number of rows
        this is `y` itself.
        """
        height = self.stacked.shape[0]
        sizes = np.diff(self.starts)
        if (sizes == height).all():
            return y
        keep = np.concatenate([b * height + np.arange(n) for b, n in enumerate(sizes)])
        mesh = jax.typeof(y).sharding.mesh
        if AxisType.Explicit in getattr(mesh, "axis_types", ()):  # no device has all the rows
            return y.at[keep].get(out_sharding=NamedSharding(mesh, PartitionSpec()))
        return jnp.take(y, keep, axis=0)


def shard_rows(a: SparseArray, mesh: Mesh, axis: str) -> RowBlocks:
    """Cut a matrix into one block of consecutive rows for each device along a mesh axis.

    Multiply within `jax.shard_map`, by `blocks.local()`: see the example at the top of this module.

    Blocks have about equal numbers of entries (a row counts as one besides its entries) and equal
    capacity; the leaves are placed on the devices, so that `shard_map` moves nothing.

    Args:
      a: a concrete matrix; formats other than csr are converted.
      mesh: the devices.
      axis: name of the mesh axis that the blocks go along.

    Raises:
      FormatError: if `a` is not a matrix.
      UnsupportedError: if `a` is traced.
    """
    if a.ndim != 2:
        raise FormatError(f"shard_rows: got {a.ndim} modes, expected a matrix")
    if traced(a.data, *a.arrays):
        raise UnsupportedError("shard_rows: the array is traced; call it outside of jit")
    if axis not in mesh.shape:
        raise FormatError(f"shard_rows: the mesh has axes {tuple(mesh.shape)}, not {axis!r}")
    count = mesh.shape[axis]
    plain = to(a.unfreeze(), parse_format("csr", 2).with_index(a.format.index))
    pos, crd = (np.asarray(x) for x in plain.structure)
    rows = a.shape[0]
    work = (pos - pos[0]).astype(np.int64) + np.arange(rows + 1)
    inner = np.searchsorted(work, work[-1] * np.arange(1, count) / count)
    starts = np.maximum.accumulate([0, *inner, rows])
    height = int(np.diff(starts).max(initial=0))
    room = int(np.diff(pos[starts]).max(initial=0))
    stacked_pos = np.zeros((count, height + 1), pos.dtype)
    stacked_crd = np.zeros((count, room), crd.dtype)
    source = np.full((count, room), plain.nse)
    for b, (lo, hi) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
        first, last = int(pos[lo]), int(pos[hi])
        stacked_pos[b, : hi - lo + 1] = pos[lo : hi + 1] - first
        stacked_pos[b, hi - lo + 1 :] = last - first
        stacked_crd[b, : last - first] = crd[first:last]
        source[b, : last - first] = np.arange(first, last)
    data = jnp.take(plain.data, source, mode="fill", fill_value=0)
    place = NamedSharding(mesh, PartitionSpec(axis))
    leaves = [jax.device_put(x, place) for x in (data, stacked_pos, stacked_crd)]
    block = SparseArray(leaves[0], tuple(leaves[1:]), (height, a.shape[1]), plain.format)
    return RowBlocks(block, tuple(int(s) for s in starts), (a.shape[0], a.shape[1]))

# SPDX-License-Identifier: Apache-2.0
"""`SparseArray`: values, index arrays and a format, as a pytree.

    data        the stored values, (nse,) or (nse, extents of trailing dense levels…)
    structure   the index arrays, level by level: for csr (pos, crd)

*Dynamic* (the default): the index arrays are leaves, so one compiled program serves every matrix
of that format and capacity; the true number of entries is in the last `pos`.  *Frozen*: the index
arrays are a static `Pattern`, equal by content, and `data` is the only leaf, so that plain
`jax.grad` and optimizers see values alone.

An absent entry is a structural zero: it is never read, so 0 * NaN at an absent place is not
computed.  A stored zero is an ordinary value.
"""

from __future__ import annotations

import hashlib
import math
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jsparse import diagonals
from jsparse.blocks import inside, ragged, split_shape
from jsparse.concrete import library, on_device
from jsparse.errors import FormatError, StructureError, UnsupportedError
from jsparse.format import Format
from jsparse.record import replace
from jsparse.validate import validate


class Pattern:
    """The structure of a frozen array: index arrays on the host, interned by content.

    Equal patterns are the same object: comparing them is comparing identities, and what is
    derived from one (a transposed pattern, a product's pattern) is computed once in a process:
    see `derived`.
    """

    __slots__ = (
        "__weakref__",
        "_derived",
        "_device",
        "_lock",
        "arrays",
        "digest",
        "format",
        "shape",
    )
    arrays: tuple[np.ndarray, ...]
    shape: tuple[int, ...]
    format: Format
    digest: bytes
    _derived: dict[Any, Any]
    _device: tuple[jax.Array, ...] | None
    _lock: threading.RLock
    _known: weakref.WeakValueDictionary[bytes, Pattern] = weakref.WeakValueDictionary()
    _known_lock = threading.Lock()

    def __new__(
        cls, arrays: tuple[np.ndarray, ...], shape: tuple[int, ...], format: Format
    ) -> Pattern:
        h = hashlib.sha256(f"{shape} {format}".encode())
        for a in arrays:
            h.update(str(a.shape).encode())
            h.update(np.ascontiguousarray(a).tobytes())
        digest = h.digest()
        with cls._known_lock:
            known = cls._known.get(digest)
            if known is not None:
                return known
            self = super().__new__(cls)
            self.arrays = tuple(np.array(a) for a in arrays)
            for a in self.arrays:
                a.flags.writeable = False
            self.shape, self.format, self.digest = shape, format, digest
            self._derived = {}
            self._device = None
            self._lock = threading.RLock()
            cls._known[digest] = self
            return self

    def __repr__(self) -> str:
        return f"Pattern({self.format}, {self.shape}, {self.digest.hex()[:8]})"

    def __reduce__(self) -> Any:
        return (Pattern, (self.arrays, self.shape, self.format))

    def device(self) -> tuple[jax.Array, ...]:
        """The index arrays as JAX arrays, transferred once."""
        if self._device is not None:
            return self._device
        with self._lock:
            if self._device is None:
                with jax.ensure_compile_time_eval():
                    self._device = tuple(jax.device_put(a) for a in self.arrays)
            return self._device

    def derived(self, key: Any, make: Callable[[], Any]) -> Any:
        """`make()`, remembered under `key` as long as the pattern lives."""
        with self._lock:
            if key not in self._derived:
                with jax.ensure_compile_time_eval():
                    self._derived[key] = make()
            return self._derived[key]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["data", "structure"],
    meta_fields=["shape", "format", "pattern"],
)
@dataclass(frozen=True, eq=False, repr=False)
class SparseArray:
    """A sparse array of any number of modes; build one with `js.csr`, `js.fromdense`,
    `js.asarray`, `js.load`, ….

    Attributes:
      data: the stored values, shape (nse, …).
      structure: the index arrays, level by level; empty if frozen.
      shape: extent of each mode.
      format: how it is stored.
      pattern: the structure of a frozen array, else None.
    """

    data: Any
    structure: tuple[Any, ...]
    shape: tuple[int, ...]
    format: Format
    pattern: Pattern | None = None

    __array_priority__ = 1000  # so that `ndarray @ SparseArray` comes to us

    if TYPE_CHECKING:  # what `functions.install` adds: those layers are above this one

        def to(
            self, format: Format | str, *, nse: int | None = None, use: str | int = "spmv"
        ) -> Any: ...
        def todense(self) -> Any: ...
        def astype(self, dtype: Any) -> SparseArray: ...
        def to_scipy(self) -> Any: ...
        def to_bcoo(self) -> Any: ...
        def sum(self, axis: Any = None, *, keepdims: bool = False, dtype: Any = None) -> Any: ...
        def mean(self, axis: Any = None, *, keepdims: bool = False) -> Any: ...
        def reshape(self, *shape: Any) -> Any: ...
        def conj(self) -> SparseArray: ...
        def __getitem__(self, key: Any) -> Any: ...
        def __neg__(self) -> SparseArray: ...
        def __matmul__(self, other: Any) -> Any: ...
        def __rmatmul__(self, other: Any) -> Any: ...
        def __mul__(self, other: Any) -> Any: ...
        def __rmul__(self, other: Any) -> Any: ...
        def __add__(self, other: Any) -> Any: ...
        def __radd__(self, other: Any) -> Any: ...
        def __sub__(self, other: Any) -> Any: ...
        def __rsub__(self, other: Any) -> Any: ...
        def __truediv__(self, other: Any) -> Any: ...
        def __rtruediv__(self, other: Any) -> Any: ...

    # ------------------------------------------------------------- properties
    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    @property
    def size(self) -> int:
        """Number of elements of the dense array."""
        return int(np.prod(self.shape, dtype=object)) if self.shape else 1

    @property
    def nse(self) -> int:
        """Capacity: how many entries the arrays have room for, also in blocks; of diagonals all
        their places.  Static, also under `jit`.
        """
        f = self.format
        return math.prod(self.data.shape if f.block else self.data.shape[: 1 + f.relative])

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The index arrays, frozen or not."""
        return self.pattern.device() if self.pattern is not None else self.structure

    @property
    def indices(self) -> Any:
        """The coordinates of the last sparse level, (nse,): the column indices of csr."""
        names = self.format.array_names()
        return self.arrays[max(n for n, (_, role) in enumerate(names) if role == "crd")]

    @property
    def indptr(self) -> Any:
        """The `pos` array of the last compressed level: the row offsets of csr."""
        names = self.format.array_names()
        return self.arrays[max(n for n, (_, role) in enumerate(names) if role == "pos")]

    @property
    def nnz(self) -> Any:
        """Stored entries in use, explicit zeros included, as in SciPy: an int, or a traced scalar
        under `jit`.
        """
        count = _entries(self)
        return count if isinstance(count, jax.core.Tracer) else int(count)

    @property
    def frozen(self) -> bool:
        return self.pattern is not None

    @property
    def T(self) -> SparseArray:
        """The transposed array; the same storage."""
        return self.transpose()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a SparseArray without modes")
        return self.shape[0]

    def __repr__(self) -> str:
        kind = "frozen " if self.frozen else ""
        dtype = getattr(self.data, "dtype", type(self.data).__name__)
        try:
            stored: Any = self.nse
            used = self.nnz
            stored = (
                f"nse={stored}"
                if isinstance(used, jax.core.Tracer) or used == stored
                else f"nnz={used}, nse={stored}"
            )
        except Exception:  # leaves may be anything while JAX handles the tree
            stored = "nse=?"
        return f"SparseArray({kind}{self.format}, shape={self.shape}, dtype={dtype}, {stored})"

    # ---------------------------------------------------------------- methods
    def split(self) -> SparseArray:
        """The array with a mode for each part of its modes, its padding zero; itself if it has no
        blocks.
        """
        f = self.format
        if not f.block:
            return self
        out = self._relabel(split_shape(self.shape, f.block), f.split)
        if not ragged(self.shape, f.block):
            return out
        kept = inside(f, self.shape, out.structure, out.pattern)
        xp = library(kept, out.data)
        zeroed = xp.where(kept, out.data, xp.zeros((), out.data.dtype))
        return replace(out, data=on_device(zeroed))

    def join(self, shape: tuple[int, ...], block: tuple[int, ...]) -> SparseArray:
        """The array of that shape and block of which this is the split form."""
        return self._relabel(shape, replace(self.format, block=block))

    def transpose(self, axes: tuple[int, ...] | None = None) -> SparseArray:
        """The array with modes permuted as by `numpy.transpose`; only the format changes."""
        axes = (
            tuple(reversed(range(self.ndim)))
            if axes is None
            else tuple(a % self.ndim for a in axes)
        )
        if sorted(axes) != list(range(self.ndim)):
            raise ValueError(
                f"transpose: axes {axes} are not a permutation of the {self.ndim} modes"
            )
        shape = tuple(self.shape[a] for a in axes)
        return self._relabel(shape, self.format.transpose(axes))

    def _relabel(self, shape: tuple[int, ...], format: Format) -> SparseArray:
        """The same storage read as another shape and format."""
        pattern = self.pattern
        if pattern is not None:
            old = pattern
            pattern = old.derived(
                ("relabel", shape, format), lambda: Pattern(old.arrays, shape, format)
            )
        return replace(self, shape=shape, format=format, pattern=pattern)

    def with_data(self, data: Any) -> SparseArray:
        """The same pattern with other values; `data` must have this array's data shape."""
        if getattr(data, "shape", None) != self.data.shape:
            raise StructureError(
                f"with_data: got values of shape {getattr(data, 'shape', None)}, expected "
                f"{self.data.shape}"
            )
        return replace(self, data=data)

    def freeze(self) -> SparseArray:
        """The array with its structure static: hashed by content, checked once, looked at by the
        compiler.

        Raises `UnsupportedError` under `jit` if the structure is traced, `StructureError` if it
        is damaged.
        """
        if self.frozen:
            return self
        if any(isinstance(a, jax.core.Tracer) for a in self.structure):
            raise UnsupportedError(
                "freeze: the index arrays are traced; freeze the array outside of jit"
            )
        arrays = tuple(np.asarray(a) for a in self.structure)
        validate(self.format, self.shape, arrays, "freeze")
        return replace(self, structure=(), pattern=Pattern(arrays, self.shape, self.format))

    def unfreeze(self) -> SparseArray:
        """The array with its index arrays as leaves again."""
        if self.pattern is None:
            return self
        return SparseArray(self.data, self.pattern.device(), self.shape, self.format)

    def block_until_ready(self) -> SparseArray:
        jax.block_until_ready((self.data, self.structure))
        return self


def _entries(a: SparseArray) -> Any:
    """How many stored entries are in use: positions of the last sparse level, or the elements of
    blocks that are inside of the array.
    """
    f = a.format
    if f.block and ragged(a.shape, f.block):
        pattern = a.pattern and a._relabel(split_shape(a.shape, f.block), f.split).pattern
        kept = inside(f, a.shape, a.structure, pattern)
        return (kept if isinstance(kept, jax.core.Tracer) else np.asarray(kept)).sum()
    shape = split_shape(a.shape, f.block) if f.block else a.shape
    host = a.pattern.arrays if a.pattern is not None else a.structure
    host = tuple(x if isinstance(x, jax.core.Tracer) else np.asarray(x) for x in host)
    by_name = dict(zip(f.array_names(), host, strict=True))
    positions: Any = 1
    if f.relative:
        return diagonals.inside(by_name[0, "crd"], *(a.shape[m] for m in f.order[:2]))
    for n, (level, mode) in enumerate(zip(f.levels, f.order, strict=True)):
        if (n, "pos") in by_name:
            positions = by_name[n, "pos"][positions]
        elif n <= max(f.sparse_levels) or f.block:
            positions = level.positions(positions, shape[mode], 0)
    return positions


# ------------------------------------------------------------------ validation
def index_dtype(shape: tuple[int, ...], nse: int) -> str:
    """The narrowest index dtype for these extents and entries; raises if JAX cannot hold it."""
    if max((*shape, nse), default=0) < 2**31:
        return "int32"
    if not jax.config.read("jax_enable_x64"):
        raise StructureError(
            f"an array of shape {shape} with {nse} entries needs 64-bit index arrays; "
            f"set jax_enable_x64, or build it within jax.enable_x64(True)"
        )
    return "int64"


def same_pattern(a: SparseArray, b: SparseArray) -> bool:
    """Whether two arrays are known to have the same pattern: one frozen pattern, or the very same
    index arrays.
    """
    if a.format != b.format or a.shape != b.shape:
        return False
    if a.pattern is not None or b.pattern is not None:
        return a.pattern == b.pattern
    return len(a.structure) == len(b.structure) and all(
        x is y for x, y in zip(a.structure, b.structure, strict=True)
    )


def require_sparse(x: Any, where: str) -> SparseArray:
    if not isinstance(x, SparseArray):
        raise FormatError(
            f"{where}: got {type(x).__name__}, expected a SparseArray; use js.asarray"
        )
    return x

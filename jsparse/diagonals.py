# SPDX-License-Identifier: Apache-2.0
"""The diagonals of a pattern: how many there are, and how full.

[10  0 20]      offsets 0 2       two diagonals, of the 6 places in three rows of them
[ 0 30  0]  ->  entries 4         4 hold an entry: fill 2/3
[ 0  0 40]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jsparse.errors import FormatError, StructureError

MOST = 16  # places for each entry, from which storing diagonals is refused
SMALL = 1 << 16  # places that are stored in any case


@dataclass(frozen=True, slots=True, eq=False)
class Diagonals:
    """The diagonals that hold the `entries` of a pattern; each is stored with `rows` places."""

    offsets: np.ndarray  # ascending: column - row
    rows: int
    entries: int

    @property
    def count(self) -> int:
        return int(self.offsets.size)

    @property
    def places(self) -> int:
        return self.count * self.rows

    @property
    def fill(self) -> float:
        """The share of the places that hold an entry; 1 if there is no place."""
        return self.entries / self.places if self.places else 1.0

    def check(self, itemsize: int, where: str) -> None:
        """Raise `FormatError` if the places are by far more than the entries."""
        if self.places <= max(MOST * self.entries, SMALL):
            return
        size, now = (n * itemsize / 2**20 for n in (self.places, self.entries))
        raise FormatError(
            f"{where}: {self.entries} entries lie on {self.count} diagonals: as diagonals of "
            f"{self.rows} places each they would take {size:.1f} MiB, got {now:.1f} MiB of values; "
            f"expected at most {MOST} times as much; keep csr, or reorder rows and columns first "
            f"(scipy.sparse.csgraph.reverse_cuthill_mckee)"
        )


def of_coordinates(rows: Any, columns: Any, shape: tuple[int, ...]) -> Diagonals:
    """The diagonals of distinct concrete coordinates in a matrix of this shape."""
    n = shape[0]
    offsets = np.asarray(columns, np.int64) - np.asarray(rows, np.int64)
    seen = np.zeros(n + shape[1], bool)
    seen[offsets + n] = True
    return Diagonals(np.flatnonzero(seen) - n, n, offsets.size)


def inside(offsets: Any, extent: int, below: int) -> Any:
    """How many places of a relative level lie inside of its extent; offsets may be traced."""
    return ((extent - offsets).clip(max=below) - (-offsets).clip(min=0)).sum()


def check_offsets(crd: np.ndarray, extent: int, below: int, what: str) -> None:
    """That the coordinates of a relative level ascend, and that each has a place in the matrix."""
    outside = np.flatnonzero((crd <= -below) | (crd >= extent))
    if outside.size:
        k = int(outside[0])
        raise StructureError(
            f"{what}: offset {int(crd[k])} at position {k} is out of range, "
            f"expected {-below} < offset < {extent}"
        )
    down = np.flatnonzero(crd[1:] <= crd[:-1])
    if down.size:
        k = int(down[0]) + 1
        raise StructureError(
            f"{what}: offset {int(crd[k])} at position {k} follows {int(crd[k - 1])}, expected "
            f"offsets that ascend; sort the diagonals, and add up those that are there twice"
        )

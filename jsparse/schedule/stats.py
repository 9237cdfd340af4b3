# SPDX-License-Identifier: Apache-2.0
"""What a schedule knows of a pattern: how many positions each level has, so how many children a
position has.

Estimates from the number of stored entries where nothing else is known: the last sparse level has
`nse` positions, an outer compressed level as many as there can be.
"""

from __future__ import annotations

from jsparse.ir.index import Access
from jsparse.record import record


@record
class Stats:
    """Positions of each level; `fan[l]` is the mean number of children of a position above level
    l.
    """

    positions: tuple[float, ...]
    fan: tuple[float, ...]


def estimate(access: Access, extents: dict[str, int], nse: int) -> Stats:
    """Stats of an access with `nse` stored entries."""
    positions: list[float] = []
    fan: list[float] = []
    above = 1.0
    last = max(access.format.sparse_levels, default=-1)
    for n, (level, v) in enumerate(zip(access.format.levels, access.level_vars, strict=True)):
        size = above * extents[v]
        if not level.full:
            size = float(nse) if n == last else min(size, float(nse))
        positions.append(size)
        fan.append(size / above if above else 0.0)
        above = size
    return Stats(tuple(positions), tuple(fan))

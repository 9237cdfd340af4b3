# SPDX-License-Identifier: Apache-2.0
"""Level formats.  A new one is a file here and a line in `LEVELS`."""

from __future__ import annotations

from jsparse.levels.compressed import Compressed
from jsparse.levels.dense import Dense
from jsparse.levels.diagonal import Diagonal
from jsparse.levels.level import Level, Storage, Tie
from jsparse.levels.singleton import Singleton
from jsparse.levels.uniform import Uniform

_KINDS: tuple[type[Level], ...] = (Dense, Compressed, Singleton, Diagonal, Uniform)
LEVELS: dict[str, type[Level]] = {c.kind: c for c in _KINDS}

__all__ = [
    "LEVELS",
    "Compressed",
    "Dense",
    "Diagonal",
    "Level",
    "Singleton",
    "Storage",
    "Tie",
    "Uniform",
]

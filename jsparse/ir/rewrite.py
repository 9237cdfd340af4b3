# SPDX-License-Identifier: Apache-2.0
"""Traversal of loop IR: a node's children."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from jsparse.ir import loop

Node = Any

NODES = frozenset(c for c in vars(loop).values() if isinstance(c, type) and is_dataclass(c))
_PLAIN = {"name", "dtype", "lanes", "op", "step", "mutable", "zero", "kind", "operand", "level"}
_PLAIN |= {"number", "where", "axis", "text"}
_FIELDS = {c: tuple(f.name for f in fields(c) if f.name not in _PLAIN) for c in NODES}


def children(node: Node) -> Iterator[Node]:
    """The direct child nodes, in field order."""
    for name in _FIELDS[type(node)]:
        value = getattr(node, name)
        if type(value) in NODES:
            yield value
        elif type(value) is tuple:
            for v in value:
                if type(v) in NODES:
                    yield v

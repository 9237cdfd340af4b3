# SPDX-License-Identifier: Apache-2.0
"""Traversal of loop IR: a node's children, and what a statement uses.

IR is a graph with shared expressions, so a traversal visits each object once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
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


@dataclass(frozen=True, slots=True)
class Uses:
    """What is used below a node, in order of first use."""

    buffers: list[loop.Buffer]
    allocated: set[str]  # scratch buffers that it allocates
    free: list[loop.Var]  # variables that it does not declare


def uses(node: Node) -> Uses:
    """Buffers and variables below `node`, in one pass."""
    buffers: dict[str, loop.Buffer] = {}
    variables: dict[str, loop.Var] = {}
    declared: set[str] = set()
    allocated: set[str] = set()
    seen: set[int] = set()
    stack = [node]
    while stack:
        n = stack.pop()
        if id(n) in seen:
            continue
        seen.add(id(n))
        kind = type(n)
        if kind is loop.Buffer:
            buffers.setdefault(n.name, n)
        elif kind is loop.Var:
            variables.setdefault(n.name, n)
        elif kind is not loop.Const:
            if kind is loop.Decl or kind is loop.For or kind is loop.Parallel:
                declared.add(n.var.name)
            elif kind is loop.Scratch:
                allocated.add(n.buffer.name)
            below = list(children(n))
            below.reverse()
            stack += below
    free = [v for name, v in variables.items() if name not in declared]
    return Uses(list(buffers.values()), allocated, free)

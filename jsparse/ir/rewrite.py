# SPDX-License-Identifier: Apache-2.0
"""Traversal of loop IR: children, everything below a node, what a node uses.

IR is a graph with shared expressions, so a walk visits each object once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from jsparse.ir import loop

Node = Any

NODES = frozenset(c for c in vars(loop).values() if isinstance(c, type) and is_dataclass(c))
_FIELDS = {c: tuple(f.name for f in fields(c)) for c in NODES}


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


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, parents first, each object once."""
    seen: set[int] = set()
    stack = [node]
    while stack:
        n = stack.pop()
        if id(n) not in seen:
            seen.add(id(n))
            yield n
            stack.extend(reversed(list(children(n))))


def buffers(node: Node) -> list[loop.Buffer]:
    """Buffers used below `node`, in order of first use."""
    return list(dict.fromkeys(n for n in walk(node) if type(n) is loop.Buffer))


def free_vars(node: Node) -> list[loop.Var]:
    """Variables used below `node` but not declared there, in order of first use."""
    used: dict[str, loop.Var] = {}
    declared: set[str] = set()
    for n in walk(node):
        match n:
            case loop.Decl(var, _, _) | loop.For(var, _, _, _, _) | loop.Parallel(var, _, _):
                declared.add(var.name)
            case loop.Var(name, _, _):
                used.setdefault(name, n)
    return [v for name, v in used.items() if name not in declared]

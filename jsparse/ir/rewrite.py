# SPDX-License-Identifier: Apache-2.0
"""Traversal of loop IR: children, bottom-up rewriting, and what a node uses.

A rule maps a node to its replacement, or to None for 'no change'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

from jsparse.ir import loop

Node = Any


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


def is_node(x: object) -> bool:
    return is_dataclass(x) and not isinstance(x, type)


def children(node: Node) -> Iterator[Node]:
    """The direct child nodes, in field order."""
    for name in _field_names(type(node)):
        value = getattr(node, name)
        if is_node(value):
            yield value
        elif isinstance(value, tuple):
            yield from (v for v in value if is_node(v))


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, parents first."""
    yield node
    for child in children(node):
        yield from walk(child)


def map_children(node: Node, f: Callable[[Node], Node]) -> Node:
    """The node with `f` applied to its children; the same object if nothing changed."""
    changed = {}
    for name in _field_names(type(node)):
        value = getattr(node, name)
        if is_node(value):
            new = f(value)
            if new is not value:
                changed[name] = new
        elif isinstance(value, tuple) and any(is_node(v) for v in value):
            items = tuple(f(v) if is_node(v) else v for v in value)
            if any(a is not b for a, b in zip(items, value, strict=True)):
                changed[name] = items
    return replace(node, **changed) if changed else node


def bottom_up(rule: Callable[[Node], Node | None]) -> Callable[[Node], Node]:
    """Apply `rule` to every node, children first, until it rests."""

    def visit(node: Node) -> Node:
        node = map_children(node, visit)
        new = rule(node)
        return node if new is None else visit(new)

    return visit


def buffers(node: Node) -> list[loop.Buffer]:
    """Buffers used below `node`, in order of first use."""
    return list(dict.fromkeys(n for n in walk(node) if isinstance(n, loop.Buffer)))


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

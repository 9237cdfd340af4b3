# SPDX-License-Identifier: Apache-2.0
"""Immutable values that are cheap to build.

Planning a call builds a thousand small nodes.  A frozen dataclass sets each field through
`object.__setattr__`, which makes it three times as slow to build as an ordinary one.  A `record`
is frozen to the type checker only: it compares and hashes by value, and nobody assigns its fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A class with slots whose instances are equal, and hash equal, if their fields are."""
    return dataclass(slots=True, unsafe_hash="__hash__" not in vars(cls))(cls)


@cache
def _given(cls: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls) if f.init)


def replace(x: T, **changes: Any) -> T:
    """A copy of a record with other values in the named fields."""
    kind: Any = type(x)
    for name in _given(kind):
        if name not in changes:
            changes[name] = getattr(x, name)
    return kind(**changes)

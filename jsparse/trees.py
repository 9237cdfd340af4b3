# SPDX-License-Identifier: Apache-2.0
"""Sparse arrays as arguments and results of exported programs: the text form of their pytree node.

`jax.export` writes the structure of a program's arguments.  That of a `SparseArray` is its shape
and format, and the index arrays if it is frozen: JSON, so that reading it runs no code.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
from jax import export

from jsparse.array import Pattern, SparseArray
from jsparse.format import Format, parse_format
from jsparse.sharding import RowBlocks
from jsparse.validate import validate


def _write(node: tuple[tuple[int, ...], Format, Pattern | None]) -> bytes:
    shape, format, pattern = node
    arrays = None
    if pattern is not None:
        arrays = [base64.b64encode(x.tobytes()).decode() for x in pattern.arrays]
    return json.dumps({"shape": shape, "format": str(format), "arrays": arrays}).encode()


def _read(text: bytes | bytearray) -> tuple[tuple[int, ...], Format, Pattern | None]:
    fields = json.loads(bytes(text))
    shape = tuple(fields["shape"])
    format = parse_format(fields["format"], len(shape))
    if fields["arrays"] is None:
        return shape, format, None
    encoded = [base64.b64decode(x) for x in fields["arrays"]]
    arrays = tuple(np.frombuffer(x, format.index) for x in encoded)
    validate(format, shape, arrays, "export")
    return shape, format, Pattern(arrays, shape, format)


def _write_blocks(node: tuple[tuple[int, ...], tuple[int, int]]) -> bytes:
    return json.dumps(node).encode()


def _read_blocks(text: bytes | bytearray) -> Any:
    return tuple(map(tuple, json.loads(bytes(text))))


def register() -> None:
    """Let `jax.export` serialize the trees of programs that take or return sparse arrays."""
    export.register_pytree_node_serialization(
        SparseArray,
        serialized_name="jsparse.SparseArray",
        serialize_auxdata=_write,
        deserialize_auxdata=_read,
    )
    export.register_pytree_node_serialization(
        RowBlocks,
        serialized_name="jsparse.RowBlocks",
        serialize_auxdata=_write_blocks,
        deserialize_auxdata=_read_blocks,
    )

# SPDX-License-Identifier: Apache-2.0
"""Kernels under plain `jit` on several devices: what XLA's partitioner is told.

    lowering         custom call + Shardy's attribute, from `partition.rule`
    Shardy           propagates shardings through the call by that attribute
    SPMD partitioner asks `_partition`: shardings of operands and results -> program of one device,
                     the same kernel with that device's extents, and an all-reduce where it sums

All that an answer needs is in the custom call itself.  That is why this is not
`jax.experimental.custom_partitioning`, which leaves a reference to a Python object in the program:
such a program cannot be exported, is never found in the persistent compilation cache, and needs
its devices when it is lowered.  The hook is jaxlib's, below JAX's public API; without it all
operands would be gathered on every device, and results be the same.

The schedule stays that of the whole extents: with 8 of 64 columns on each device its kernel took
about the time of one planned for 8.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxlib import xla_client

from jsparse import pipeline
from jsparse.partition import Axes, Parts, combined, groups_of, local_shape, parts_of, rule


@dataclass(frozen=True, slots=True)
class Array:
    """An operand or result in a program: shape and dtype."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        """The MLIR type."""
        name = self.dtype
        if name.startswith("complex"):
            element = "complex<f32>" if name == "complex64" else "complex<f64>"
        elif name == "bool":
            element = "i1"
        else:
            element = name.replace("float", "f").replace("uint", "ui").replace("int", "i")
        return f"tensor<{''.join(f'{n}x' for n in self.shape)}{element}>"

    @property
    def layout(self) -> str:
        """Row-major, as an MLIR attribute."""
        minor_first = [str(n) for n in reversed(range(len(self.shape)))]
        values = f"[{', '.join(minor_first)}]" if minor_first else ""
        return f"dense<{values}> : tensor<{len(minor_first)}xindex>"


_EXTENTS = r"extents = (?:dense<([^>]*)> : tensor<\d+xi64>|array<i64: ?([^>]*)>)"


class Call:
    """A custom call as the partitioner sees it: attributes, operands, results."""

    def __init__(self, attributes: str, operands: list[Array], results: list[Array]) -> None:
        recipe = re.search(r'recipe = "([^"]*)"', attributes)
        found = re.search(_EXTENTS, attributes)
        assert recipe and found, attributes
        text = re.sub(r"\\([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), recipe[1])
        self.spec = pipeline.from_recipe(text)
        self.attributes = attributes
        self.operands, self.results = operands, results
        self.rule = rule(self.spec, [x.shape for x in operands], [x.shape for x in results])
        numbers = [int(n) for n in re.findall(r"-?\d+", found[1] or found[2])]
        names = self.spec.assignment.vars
        self.extents = numbers * len(names) if len(numbers) == 1 else numbers

    def local(self, target: str, parts: Parts) -> str:
        """The program of one device, as an MLIR module."""
        r = self.rule
        ins, outs = (
            [
                Array(local_shape(r, axes, parts), x.dtype)
                for x, axes in zip(group, cut, strict=True)
            ]
            for group, cut in ((self.operands, r.operands), (self.results, r.results))
        )
        groups = groups_of(r, parts)
        names = [f"%a{n}" for n in range(len(ins))]
        values = ["%y"] if len(outs) == 1 else [f"%y#{n}" for n in range(len(outs))]
        count = f":{len(outs)}" if len(outs) > 1 else ""
        listed = ", ".join(f"{name}: {x}" for name, x in zip(names, ins, strict=True))
        types = _list(outs)
        return f"""module {{ func.func public @main({listed}) -> ({types}) {{
%y{count} = stablehlo.custom_call @{target}({_list(names)}) {{api_version = 4 : i32,
  backend_config = {self._config(parts)},
  operand_layouts = [{_list(x.layout for x in ins)}],
  result_layouts = [{_list(x.layout for x in outs)}]
}} : ({_list(ins)}) -> ({types})
{"" if groups is None else _all_reduce(groups, outs[0])}
return {_list(values) if groups is None else "%total"} : {types}
}} }}"""

    def _config(self, parts: Parts) -> str:
        """The attributes with the extents of one device (-1: a kernel goes by the shapes)."""
        r = self.rule
        extents = [
            local_shape(r, (r.variables[v],), parts)[0] if v in r.variables and e >= 0 else e
            for v, e in zip(self.spec.assignment.vars, self.extents, strict=True)
        ]
        numbers = f"extents = dense<{extents}> : tensor<{len(extents)}xi64>"
        return re.sub(_EXTENTS, numbers, self.attributes)


def _list(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))


def _all_reduce(groups: np.ndarray, y: Array) -> str:
    """The statement `%total` = the sum of `%y` over each group of devices."""
    scalar = Array((), y.dtype)
    rows, columns = groups.shape
    return (
        f'%total = "stablehlo.all_reduce"(%y) <{{replica_groups = dense<{groups.tolist()}> : '
        f"tensor<{rows}x{columns}xi64>, channel_handle = #stablehlo.channel_handle<handle = 1, "
        f"type = 1>, use_global_device_ids}}> ({{\n^bb0(%l: {scalar}, %r: {scalar}):\n"
        f"%s = stablehlo.add %l, %r : {scalar}\nstablehlo.return %s : {scalar}\n}}) : "
        f"({y}) -> {y}"
    )


# ------------------------------------------------------------- XLA's shardings
def register(target: str) -> None:
    """Have XLA's partitioner ask us about calls of `target`; without effect on a jaxlib that lacks
    the hook, where operands of a call are gathered.
    """
    hook = getattr(xla_client, "register_custom_call_partitioner", None)
    if hook is not None:
        hook(target, _propagate, partial(_partition, target), _infer)


def _call(operands: Sequence[Any], result: Any, attributes: str | bytes) -> Call:
    text = attributes.decode() if isinstance(attributes, bytes) else attributes
    arrays = [
        [Array(tuple(x.dimensions()), str(x.numpy_dtype())) for x in group]
        for group in (operands, _elements(result))
    ]
    return Call(text, *arrays)


def _elements(shape: Any) -> list[Any]:
    return list(shape.tuple_shapes()) if shape.is_tuple() else [shape]


def _places(sharding: Any, rank: int, devices: int) -> np.ndarray:
    """For each axis and each device which part of the axis it has."""
    if not sharding.is_tiled():
        return np.zeros((rank, devices), np.int64)
    grid = sharding.tile_assignment_dimensions()
    where = np.indices(grid).reshape(len(grid), -1)
    out = np.empty((rank, devices), np.int64)
    out[:, sharding.tile_assignment_devices()] = where[:rank]
    return out


def _sharding(axes: Axes, parts: Parts) -> Any:
    """The sharding of an array with these axes."""
    cut = [parts[n] for n in axes if n in parts]
    if not cut:
        return xla_client.HloSharding.replicate()
    grid = [int(parts[n].max()) + 1 if n in parts else 1 for n in axes]
    proto = xla_client.OpSharding()
    proto.type = xla_client.OpSharding.Type.OTHER
    proto.tile_assignment_dimensions = [*grid, cut[0].size // math.prod(grid)]
    order = np.argsort(combined(cut, cut[0].size), kind="stable")
    proto.tile_assignment_devices = [int(d) for d in order]
    proto.replicate_on_last_tile_dim = True
    return xla_client.HloSharding.from_proto(proto)


def _plan(call: Call, operands: Sequence[Any], results: Sequence[Any]) -> tuple[Parts, Any, Any]:
    """What to cut given the shardings that there are, and the shardings that this means."""
    devices = max((s.num_devices() for s in (*operands, *results) if s.is_tiled()), default=1)
    places = [
        [_places(s, len(x.shape), devices) for s, x in zip(group, arrays, strict=True)]
        for group, arrays in ((operands, call.operands), (results, call.results))
    ]
    parts = parts_of(call.rule, *places)
    ins, outs = (
        [
            s if s.is_manual() else _sharding(axes, parts)
            for s, axes in zip(group, arrays, strict=True)
        ]
        for group, arrays in ((operands, call.rule.operands), (results, call.rule.results))
    )
    return parts, ins, outs


def _packed(shape: Any, shardings: list[Any]) -> Any:
    if shape.is_tuple():
        return xla_client.HloSharding.tuple_sharding(shape, shardings)
    return shardings[0]


def _partition(
    target: str,
    operands: Sequence[Any],
    operand_shardings: Sequence[Any],
    result: Any,
    result_sharding: Any,
    attributes: str | bytes,
) -> tuple[bytes, list[Any], Any]:
    call = _call(operands, result, attributes)
    several = result.is_tuple()
    results = result_sharding.tuple_elements() if several else [result_sharding]
    parts, ins, outs = _plan(call, operand_shardings, results)
    return call.local(target, parts).encode(), ins, _packed(result, outs)


def _infer(
    operands: Sequence[Any], shardings: Sequence[Any], result: Any, attributes: str | bytes
) -> Any:
    """The sharding of the result (only the older GSPMD propagation asks)."""
    call = _call(operands, result, attributes)
    whole = xla_client.HloSharding.replicate()
    given = [whole if s is None else s for s in shardings]
    for s in given:
        if s.subgroup_types():  # inside `shard_map` over some axes: stay there, whole on the others
            return _packed(result, [_uncut(s, len(x.shape)) for x in call.results])
    return _packed(result, _plan(call, given, [whole] * len(call.results))[2])


def _uncut(sharding: Any, rank: int) -> Any:
    """The sharding of an array of some rank that is cut along the manual axes only."""
    grid, kinds = sharding.tile_assignment_dimensions(), sharding.subgroup_types()
    split = len(grid) - len(kinds)
    new = xla_client.OpSharding()
    new.type = xla_client.OpSharding.Type.OTHER
    new.tile_assignment_dimensions = [*[1] * rank, math.prod(grid[:split]), *grid[split:]]
    new.last_tile_dims = [xla_client.OpSharding.Type.REPLICATED, *kinds]
    new.tile_assignment_devices = sharding.tile_assignment_devices()
    return xla_client.HloSharding.from_proto(new)


def _propagate(sharding: Any, shape: Any, attributes: str | bytes) -> Any:
    """The sharding that a user of the result asks for (only the older propagation asks)."""
    return sharding

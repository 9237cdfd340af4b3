# SPDX-License-Identifier: Apache-2.0
"""Which axes of a kernel's arrays may be cut across devices.

    Y[i,k]:dense = A[i,j]:csr * B[j,k]:dense      k: cut freely, each device has its columns of Y
    Y[i,j]:like(A) = A[i,j]:csr * B[i,k] * C[j,k] k: each device sums its share, then one all-reduce
    i, j, entries                                 whole on every device: a kernel walks all of A

An axis can be cut if it is one of a batch, or if its variable indexes dense levels only: modes of
dense tensors and dense levels below the leaf of sparse ones.  What does not divide by the devices
is not cut.  `partitioner` tells XLA.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jsparse import pipeline
from jsparse.ir.index import PATTERN, Access

Shape = Sequence[int]
Axes = tuple[int, ...]  # for each axis of an array the number of its factor


@dataclass(frozen=True, slots=True)
class Rule:
    """The axes of operands and results as factors: equal ones are cut together.

    `free` factors may be cut without communication; `summed` ones are absent from the result,
    which is then a sum over devices.
    """

    operands: tuple[Axes, ...]
    results: tuple[Axes, ...]
    sizes: tuple[int, ...]
    free: frozenset[int]
    summed: frozenset[int]
    variables: dict[str, int]
    """The factors of index variables that can be cut."""

    def attribute(self) -> str:
        """The rule in the notation of Shardy; empty if nothing can be cut."""
        if not self.free | self.summed:
            return ""

        def array(axes: Axes) -> str:
            return f"[{', '.join(map(_symbol, axes))}]"

        whole = set(range(len(self.sizes))) - self.free - self.summed
        kinds = {"reduction": self.summed, "need_replication": whole}
        sizes = ", ".join(f"{_symbol(n)}={size}" for n, size in enumerate(self.sizes))
        listed = (
            f" {kind}={{{', '.join(map(_symbol, sorted(which)))}}}"
            for kind, which in kinds.items()
            if which
        )
        arrays = [", ".join(map(array, group)) for group in (self.operands, self.results)]
        return (
            f"#sdy.op_sharding_rule<({arrays[0]})->({arrays[1]}) {{{sizes}}}{''.join(listed)}, "
            "custom>"
        )


def _symbol(factor: int) -> str:
    """i to z, then z_1, z_2, …"""
    return chr(ord("i") + factor) if factor < 18 else f"z_{factor - 17}"


# ----------------------------------------------------------------------- rules
def rule(spec: pipeline.Spec, operands: Sequence[Shape], results: Sequence[Shape]) -> Rule:
    """The rule of a kernel, from the shapes of its operands and results."""
    a, depth = spec.assignment, len(spec.batch)
    flexible = _flexible(spec) if spec.work == "einsum" else set()
    lead = [[axis for axis, mask in enumerate(spec.batch) if mask[n]] for n in range(len(operands))]
    tails: list[list[str]] = []
    for access in a.stored:
        if access.dtype != PATTERN:
            at = len(tails)
            tails.append(_tail(access, len(operands[at]) - len(lead[at])))
        tails += [[] for _ in access.format.array_names()]
    tails += [[] for _ in operands[len(tails) :]]  # where the chunks of a pattern start
    numbers: dict[Any, int] = {}
    sizes: list[int] = []

    def axes(n: int, shape: Shape, batch: list[int], tail: list[str]) -> Axes:
        first = len(shape) - len(tail)
        labels: list[Any] = [*batch, *[(n, k) for k in range(len(batch), first)]]
        labels += [v if v in flexible else (n, v, k) for k, v in enumerate(tail)]
        for label, size in zip(labels, shape, strict=True):
            if label not in numbers:
                numbers[label] = len(sizes)
                sizes.append(size)
        return tuple(numbers[label] for label in labels)

    ins = tuple(
        axes(n, shape, batch, tail)
        for n, (shape, batch, tail) in enumerate(zip(operands, lead, tails, strict=True))
    )
    tail = _tail(a.output, len(results[0]) - depth) if spec.work == "einsum" else []
    outs = tuple(
        axes(len(ins) + n, shape, list(range(depth)), tail) for n, shape in enumerate(results)
    )
    variables = {v: n for v, n in numbers.items() if isinstance(v, str)}
    free = {n for label, n in numbers.items() if isinstance(label, int)}
    free |= {n for v, n in variables.items() if v in a.output.vars}
    return Rule(
        ins,
        outs,
        tuple(sizes),
        frozenset(free),
        frozenset(variables.values()) - free,
        variables,
    )


def _tail(access: Access, rank: int) -> list[str]:
    """The variables of an array's last axes: of all if it is dense, else of the dense levels below
    the leaf, if the array has an axis for each.
    """
    names = access.level_vars
    if access.format.is_dense:
        return list(names)
    tail = access.format.dense_tail
    return list(names[len(names) - tail :]) if tail and rank == 1 + tail else []


def _flexible(spec: pipeline.Spec) -> set[str]:
    """Variables of which a kernel may be given a part: those that index dense levels only, of no
    fixed extent.
    """
    a = spec.assignment
    names = set(a.vars) - set(a.fixed)
    for access in (*a.operands, a.output):
        f, level_vars = access.format, access.level_vars
        names -= {v for v in level_vars if level_vars.count(v) > 1}
        if not f.is_dense:
            names -= set(level_vars[: f.ndim - f.free_tail])
    if a.output.dtype == "bool":  # not a sum
        names -= set(a.reductions)
    return names


def propagated(r: Rule, specs: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The mesh axes of each result's axes, given those of the operands' (as in `PartitionSpec`):
    a free factor is cut in the result as in the first operand that cuts it.
    """
    names: dict[int, Any] = {}
    used: set[Any] = set()
    for spec, axes in zip(specs, r.operands, strict=True):
        for name, n in zip(spec, axes, strict=False):
            group = set(name if isinstance(name, tuple) else () if name is None else (name,))
            if group and not group & used and n in r.free and n not in names:
                names[n] = name
                used |= group
    return [[names.get(n) for n in axes] for axes in r.results]


# ------------------------------------------------------------------- partition
Parts = dict[int, np.ndarray]  # factor -> for each device, which of its parts that one has


def parts_of(r: Rule, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> Parts:
    """Which factors to cut, and how, from the parts that shardings give to devices, axis by axis:
    those of the results first, and only what divides evenly.
    """
    chosen: Parts = {}
    groups = [(results, r.results), (operands, r.operands)]
    for arrays, factors in groups:
        for array, axes in zip(arrays, factors, strict=True):
            for where, n in zip(array, axes, strict=True):
                count = int(where.max(initial=0)) + 1
                if count == 1 or n in chosen or n not in r.free | r.summed:
                    continue
                if r.sizes[n] % count == 0 and _independent([*chosen.values(), where]):
                    chosen[n] = where
    return chosen


def _independent(parts: list[np.ndarray]) -> bool:
    """Whether each combination of parts is on equally many devices."""
    total = math.prod(int(p.max()) + 1 for p in parts)
    devices = np.bincount(combined(parts, parts[0].size), minlength=total)
    return bool((devices == devices[0]).all())


def combined(parts: Sequence[np.ndarray], devices: int) -> np.ndarray:
    """The parts of several factors as one number for each device."""
    out = np.zeros(devices, np.int64)
    for p in parts:
        out = out * (int(p.max()) + 1) + p
    return out


def groups_of(r: Rule, parts: Parts) -> np.ndarray | None:
    """The groups of devices whose results add up, one a row; None if there is nothing to add."""
    summed = [p for n, p in parts.items() if n in r.summed]
    if not summed:
        return None
    devices = summed[0].size
    free = combined([p for n, p in parts.items() if n in r.free], devices)
    share = combined(summed, devices)
    order = np.lexsort((share, free))  # replicas are next to each other
    members = math.prod(int(p.max()) + 1 for p in summed)
    blocks = order.reshape(int(free.max()) + 1, members, -1)
    return np.swapaxes(blocks, 1, 2).reshape(-1, members)


def local_shape(r: Rule, axes: Axes, parts: Parts) -> tuple[int, ...]:
    """The shape of one device's part of an array."""
    return tuple(r.sizes[n] // (int(parts[n].max()) + 1 if n in parts else 1) for n in axes)

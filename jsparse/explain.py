# SPDX-License-Identifier: Apache-2.0
"""`js.explain`: what jsparse does with an einsum, as text: formats, conversions, candidates,
schedule, kernel.

Everything is shown as it would run; nothing is executed but what the decision itself needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax

from jsparse import api, pipeline, primitive
from jsparse.array import SparseArray
from jsparse.convert import assume_capacity
from jsparse.ir.index import Assignment
from jsparse.schedule import auto, notation


@dataclass
class Explanation:
    """The steps of one call.  `str()` shows them all; `kernels` has the C++ texts."""

    headline: str
    steps: list[str] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [self.headline, *self.steps]
        for n, text in enumerate(self.kernels):
            parts += ["", f"--- kernel {n + 1} of {len(self.kernels)}", text.rstrip()]
        return "\n".join(parts)

    __repr__ = __str__


def explain(program: str | Callable[..., Any], *operands: Any, **wish: Any) -> Explanation:
    """What `js.einsum(program, *operands, **wish)` does, or what a function of sparse arrays does:
    `js.explain(lambda a, b: a + b, A, B)`.

    Returns: An `Explanation`, which prints: the operands with formats; the result's format; each
      kernel with its assignment, loop order and schedule, for values also the candidates with
      their predicted costs; and its C++ text.
    """
    title = f"einsum {program!r}" if isinstance(program, str) else _name_of(program)
    out = Explanation(title)
    if not primitive.use_kernel():
        out.headline += "   (no kernel runs: pure JAX instead; these would)"
    for n, x in enumerate(operands):
        out.steps.append(f"  operand {n}: {_describe(x)}")
    counted: list[str] = []
    most = max((x.nse for x in operands if isinstance(x, SparseArray)), default=1)

    def call(*ops: Any) -> Any:
        return api.einsum(program, *ops, **wish) if isinstance(program, str) else program(*ops)

    with _watch(out), assume_capacity(most, counted.append):
        y = jax.eval_shape(call, *operands)
    for x in jax.tree.leaves(y, is_leaf=lambda x: isinstance(x, SparseArray)):
        out.steps.insert(len(operands), f"  result:    {_describe(x, bool(counted))}")
    if counted:
        out.steps.append(
            "  An eager call allocates what it counted; it computes values with the pattern."
        )
    return out


def _name_of(f: Callable[..., Any]) -> str:
    return f"function {getattr(f, '__name__', type(f).__name__)}"


def _describe(x: Any, counted: bool = False) -> str:
    if isinstance(x, SparseArray):
        frozen = "frozen " if x.frozen else ""
        shared = "entries counted at run time"
        entries = shared if counted else f"{x.nse} stored entries"
        return f"{frozen}{x.format} {x.dtype}[{','.join(map(str, x.shape))}], {entries}"
    shape = ",".join(map(str, getattr(x, "shape", ())))
    return f"dense {getattr(x, 'dtype', type(x).__name__)}[{shape}]"


@contextmanager
def _watch(out: Explanation) -> Iterator[None]:
    """Record each kernel as it is planned."""

    def note(
        kind: str, a: Assignment, spec: pipeline.Spec, candidates: tuple[auto.Candidate, ...]
    ) -> None:
        number = len(out.kernels) + 1
        formats = "  ".join(f"{x.name}: {x.format}" for x in (*a.operands, a.output))
        out.steps.append(f"  kernel {number}:  {a.brief()}   ({kind})")
        out.steps.append(f"    formats:    {formats}")
        out.steps.append(f"    schedule:   {notation.show(spec.schedule)}")
        for rank, c in enumerate(candidates):
            vector = f" vectorize({','.join(map(str, c.vector))})" if c.vector else ""
            workspace = f" precompute({c.workspace})" if c.workspace else ""
            label = "    candidates: " if rank == 0 else "                "
            chosen = "   <- chosen: the least" if rank == 0 else ""
            out.steps.append(
                f"{label}{c.cost / 1000:10.1f} us  reorder({','.join(c.order)})"
                f"{workspace}{vector}{chosen}"
            )
        out.kernels.append(pipeline.text(spec))

    before = primitive.set_observer(note)
    try:
        yield
    finally:
        primitive.set_observer(before)

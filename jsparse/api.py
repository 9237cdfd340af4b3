# SPDX-License-Identifier: Apache-2.0
"""Sparse einsum and the operations that come down to it.

    js.einsum("ij,jk->ik", A, B)       dense B: a dense result;  sparse B: a sparse one
    A @ B, A + B, A * d, A.sum(0)      the same through operators and NumPy's names

An einsum is parsed, its output format inferred, operands that the kernel could not co-iterate are
converted, the output's pattern is assembled if it is new, and the values come from the one
primitive.  Called eagerly all of that runs inside a cached `jax.jit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jax

from jsparse.array import SparseArray
from jsparse.concrete import on_device, traced
from jsparse.convert import canonical
from jsparse.errors import ScheduleError
from jsparse.format import Format
from jsparse.ir.index import Term
from jsparse.job import Job, Problem, Wish
from jsparse.parse import extents as extents_of
from jsparse.parse import parse_einsum
from jsparse.record import record, replace
from jsparse.schedule.directives import Directive, Schedule
from jsparse.schedule.notation import parse_schedule
from jsparse.solve import agree, operand, prepare, promote, solve


# ----------------------------------------------------------------------- einsum
def einsum(
    subscripts: str,
    *operands: Any,
    out_format: Format | str | None = None,
    nse: int | None = None,
    like: SparseArray | None = None,
    schedule: str | Schedule | None = None,
) -> Any:
    """Einstein summation over sparse and dense operands.

    Args:
      subscripts: as for `numpy.einsum`: explicit or implicit output, `...`, repeated letters.
      *operands: `SparseArray`s, dense arrays, SciPy matrices, BCOO, BCSR; dtypes promote as in
        JAX.
      out_format: format of the result; "dense" for a `jax.Array`.  By default inferred
        (`schedule.infer`).
      nse: capacity of a sparse result whose pattern is computed; needed under `jit` unless the
        operands are frozen.
      like: a sparse array whose pattern the result takes: only those entries are computed.
      schedule: the loop schedule, as text or directives, instead of the autoscheduler's.

    Returns:
      A `jax.Array`, or a `SparseArray` if the result is sparse.

    Raises:
      EinsumError: subscripts that do not fit the operands.
      CapacityError: a sparse result of unknown size under `jit`.
      ScheduleError: an illegal schedule.
    """
    key = None
    if nse is None and like is None:
        key = (subscripts, out_format, schedule, _signature(operands))
        known = _programs.get(key) if key[-1] is not None else None
        if known is not None:
            return known(operands)
    problem, extent, ops = _pose(subscripts, operands)
    if isinstance(like, SparseArray):
        like = canonical(like)  # each entry of the result once
    wish = Wish(out_format, nse, like, _schedule(schedule))
    return evaluate(problem, extent, ops, wish, key if key and key[-1] is not None else None)


def _pose(subscripts: str, operands: tuple[Any, ...]) -> tuple[Problem, dict[str, int], list[Any]]:
    ops = [operand(x, n, f"einsum {subscripts!r}") for n, x in enumerate(operands)]
    shapes = tuple(x.shape for x in ops)
    parsed = parse_einsum(subscripts, tuple(len(s) for s in shapes))
    problem = Problem(
        f"einsum {subscripts!r}", parsed.inputs, parsed.output, (Term(tuple(range(len(ops)))),)
    )
    return problem, extents_of(subscripts, parsed.inputs, shapes), ops


def _schedule(schedule: Any) -> Schedule | None:
    if schedule is None or isinstance(schedule, str):
        return None if schedule is None else parse_schedule(schedule)
    if isinstance(schedule, tuple) and all(isinstance(d, Directive) for d in schedule):
        return schedule
    raise ScheduleError(
        f"schedule: got {type(schedule).__name__}, expected text such as 'reorder(i,j)' or a tuple "
        f"of directives"
    )


def evaluate(
    problem: Problem, extent: dict[str, int], ops: list[Any], wish: Wish, key: Any = None
) -> Any:
    """The result: through a cached `jit` if everything is concrete, in line inside a trace."""
    if traced(*jax.tree.leaves((ops, wish.like))):
        return solve(prepare(problem, extent, ops, wish))
    return _eager(
        prepare(problem, extent, [_on_device(x) for x in ops], wish, cast=False), wish, key
    )


def _on_device(x: Any) -> Any:
    return x if isinstance(x, (SparseArray, jax.Array)) else on_device(x)


@record
class Program:
    """A jitted einsum whose result is dense or takes an operand's pattern: what a repeated eager
    call runs.
    """

    run: Any
    job: Job
    plain: bool  # a dense result: the values are the result

    def __call__(self, ops: Sequence[Any]) -> Any:
        thawed = tuple(
            x.unfreeze() if type(x) is SparseArray and x.pattern is not None else x for x in ops
        )
        data = self.run(thawed, None)
        return data if self.plain else replace(self.job, ops=tuple(ops)).wrap(data, None)


_programs: dict[Any, Program] = {}
_MOST_PROGRAMS = 4096


_concrete: list[Any] = []  # the type of concrete JAX arrays, known once there is one


def _signature(operands: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What, beside dtypes, decides how concrete operands are run; None if one is traced or of
    another type.

    On the path of every eager call, hence the plain type comparisons.
    """
    if not _concrete:
        with jax.ensure_compile_time_eval():
            _concrete.append(type(jax.device_put(0)))  # unlike jnp.zeros an explicit transfer
    array = _concrete[0]
    parts: list[Any] = []
    for x in operands:
        if type(x) is SparseArray:
            if type(x.data) is not array or (x.structure and type(x.structure[-1]) is not array):
                return None
            parts += (x.format, x.shape, x.pattern)
        elif type(x) is array:
            parts.append(x.shape)
        else:
            return None
    return tuple(parts)


def _eager(job: Job, wish: Wish, key: Any = None) -> Any:
    if job.output.computed and wish.like is None:  # counts its entries, so it cannot be one program
        return solve(promote(job))
    agreed = agree(job, only_frozen=True)
    thawed = tuple(x.unfreeze() if isinstance(x, SparseArray) else x for x in agreed.whole())
    like = wish.like.unfreeze() if wish.like is not None else None
    trusted_like = wish.like is not None and wish.like.frozen
    plain = job.output.format.is_dense
    out_format = "dense" if plain else None  # a rearranged operand might infer otherwise
    run = _jitted(*agreed.origin(), out_format, wish.schedule, agreed.trusted, trusted_like)
    known = plain or (wish.out_format is None and job.layout is None)
    if key is not None and agreed.ops == job.ops and known:
        if len(_programs) >= _MOST_PROGRAMS:
            _programs.clear()
        _programs[key] = Program(run, replace(agreed, ops=()), plain)
    data = run(thawed, like)
    if wish.like is not None:
        return agreed.converted(replace(wish.like, data=data))
    return data if plain else agreed.finish(agreed.wrap(data, None))


@lru_cache(maxsize=4096)
def _jitted(
    problem: Problem,
    extent: tuple[tuple[str, int], ...],
    out_format: Format | str | None,
    schedule: Schedule | None,
    trusted: tuple[bool, ...],
    trusted_like: bool,
) -> Any:
    """The jitted values of a result that is dense, or whose pattern is known."""

    def run(ops: tuple[Any, ...], like: SparseArray | None) -> Any:
        wish = Wish(out_format, None, like, schedule)
        job = replace(prepare(problem, dict(extent), list(ops), wish), trusted=trusted)
        accesses = tuple(replace(a, trusted=t) for a, t in zip(job.accesses, trusted, strict=True))
        out = solve(replace(job, accesses=accesses), trusted_like)
        return out.data if isinstance(out, SparseArray) else out

    return jax.jit(run)

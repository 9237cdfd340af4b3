# SPDX-License-Identifier: Apache-2.0
"""From a sum of products over operands to its result, inside or outside of a trace.

prepare   split modes as modes of their own; accesses for the operands, the output's format by
          inference, one dtype
solve     split off a pair; or make sparse operands agree in storage order; then the pattern, if
          it is new, and the values by the primitive
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from jsparse import construct
from jsparse.array import Pattern, SparseArray
from jsparse.assembly import values_fuse
from jsparse.concrete import on_device, traced
from jsparse.contract import contract, guessed
from jsparse.convert import access_of, assemble_pattern, to
from jsparse.errors import EinsumError, FormatError
from jsparse.format import Format, as_format, dtype_name, parse_format
from jsparse.ir.index import PATTERN, Access, Assignment, Term, operand_name
from jsparse.job import Job, Problem, Wish
from jsparse.record import replace
from jsparse.schedule import split, storage
from jsparse.schedule.infer import Output, infer
from jsparse.splitting import Layout, agreed, has_blocks, unblocked


def operand(x: Any, n: int, what: str) -> Any:
    """An operand as a `SparseArray` or something `jnp` understands."""
    if isinstance(x, (SparseArray, jax.Array, np.ndarray)):
        return x
    if sp.issparse(x) or type(x).__name__ in ("BCOO", "BCSR"):
        return construct.asarray(x)
    if isinstance(x, (int, float, complex, bool, np.generic)) or hasattr(x, "__jax_array__"):
        return jnp.asarray(x)
    if isinstance(x, (list, tuple)):
        raise EinsumError(f"{what}: operand {n} is a {type(x).__name__}; pass an array")
    try:
        if x is None:
            raise TypeError
        return jnp.asarray(x)
    except TypeError:
        raise EinsumError(
            f"{what}: operand {n} is a {type(x).__name__}, expected a SparseArray, a dense array "
            f"or a SciPy matrix"
        ) from None


def _dtype(operands: list[Any]) -> Any:
    """The result dtype, as JAX promotes."""
    return jnp.result_type(*[x.data if isinstance(x, SparseArray) else x for x in operands])


def prepare(
    problem: Problem, extent: dict[str, int], ops: list[Any], wish: Wish, cast: bool = True
) -> Job:
    """Accesses for the operands, and the output's format; operands promoted to one dtype if asked
    to.
    """
    problem, ops = _squeeze(problem, extent, ops)
    if not any(has_blocks(x) for x in (*ops, wish.like)):
        job = _posed(problem, extent, ops, wish, wish)
        return promote(job) if cast else job
    whole, sizes = agreed((*problem.inputs, problem.output), [*ops, wish.like])
    *ops, like = whole
    layout = Layout(tuple(sizes.items()), tuple(extent.items()), problem.inputs, problem.output)
    job = _split(problem, ops, replace(wish, like=like), wish, layout)
    given = [sorted(problem.inputs[n]) for n in job.sparse]
    alike = all(names == sorted(problem.output) for names in given)
    sparse = (
        wish.out_format is not None and not as_format(wish.out_format, len(problem.output)).is_dense
    )
    closed = any(has_blocks(x) and not x.format.appended for x in ops)
    unfit = (job.output.computed and (closed or not alike)) or (
        sparse and job.output.format.is_dense
    )
    if unfit and wish.like is None:
        ops = [unblocked(x) for x in ops]  # which blocks the result has is not known
        job = _split(problem, ops, wish, wish, replace(layout, sizes=()))
    return promote(job) if cast else job


def _split(problem: Problem, ops: list[Any], wish: Wish, asked: Wish, layout: Layout) -> Job:
    """The job over the split modes of operands whose blocks agree."""
    inputs = tuple(
        layout.split(names, isinstance(x, SparseArray))
        for names, x in zip(problem.inputs, ops, strict=True)
    )
    ops = [x.split() if isinstance(x, SparseArray) else x for x in ops]
    like = wish.like.split() if isinstance(wish.like, SparseArray) else wish.like
    wish = replace(wish, nse=layout.room(wish.nse), like=like)
    if layout.sizes and wish.out_format is not None:  # others than dense are converted to
        dense = as_format(wish.out_format, len(problem.output)).is_dense
        wish = replace(wish, out_format="dense" if dense else None)

    def posed(sparse: bool) -> Job:
        output = layout.split(problem.output, sparse)
        parts = replace(problem, inputs=inputs, output=output)
        return replace(_posed(parts, layout.extents(), ops, wish, asked), layout=layout)

    job = posed(True)
    if job.output.computed and len(problem.output) < 2 and wish.out_format is None:
        wish = replace(wish, out_format="dense")  # as for a result of so few modes
        job = posed(False)
    return posed(False) if job.output.format.is_dense else job


def _posed(
    problem: Problem, extent: dict[str, int], ops: list[Any], wish: Wish, asked: Wish
) -> Job:
    """The job of a problem whose operands have no split modes."""
    dtype = jnp.dtype(_dtype(ops))
    trusted = tuple(isinstance(x, SparseArray) and x.frozen for x in ops)
    accesses = tuple(
        access_of(x, operand_name(n), names, dtype_name(dtype))
        if isinstance(x, SparseArray)
        else Access(operand_name(n), names, parse_format("dense", len(names)), dtype_name(dtype))
        for n, (x, names) in enumerate(zip(ops, problem.inputs, strict=True))
    )
    return Job(
        problem,
        extent,
        tuple(ops),
        trusted,
        dtype,
        accesses,
        _output(problem, extent, accesses, wish),
        wish,
        asked,
    )


def _output(
    problem: Problem, extent: dict[str, int], accesses: tuple[Access, ...], wish: Wish
) -> Output:
    shape = tuple(extent[v] for v in problem.output)
    if wish.like is not None:
        if not isinstance(wish.like, SparseArray):
            raise FormatError(
                f"{problem.text}: like= is a {type(wish.like).__name__}, expected a SparseArray"
            )
        if wish.like.shape != shape:
            raise FormatError(
                f"{problem.text}: like= has shape {wish.like.shape}, the result {shape}"
            )
        return Output(wish.like.format)
    inferred = infer(problem.output, accesses, problem.terms)
    if wish.out_format is None:
        return inferred
    wanted = as_format(wish.out_format, len(shape)).whole  # put into blocks afterwards
    if wanted.is_dense:
        return Output(wanted)
    if inferred.shares is not None:
        return inferred  # converted afterwards
    if not wanted.appended:  # assembled in another, then converted
        plain = parse_format("csr" if len(shape) == 2 else "csf", len(shape))
        return inferred if inferred.computed else Output(plain)
    wide = any(a.format.index == "int64" for a in accesses if not a.format.is_dense)
    return Output(wanted.tighten().with_index("int64" if wide else wanted.index))


def promote(job: Job) -> Job:
    ops = tuple(_cast(x, job.dtype) for x in job.ops)
    if job.layout is not None:
        ops = tuple(job.layout.operand(n, x) for n, x in enumerate(ops))
    return replace(job, ops=ops)


def _cast(x: Any, dtype: Any) -> Any:
    if isinstance(x, SparseArray):
        return x if x.dtype == dtype else x.astype(dtype)
    return x if isinstance(x, jax.Array) and x.dtype == dtype else on_device(x, dtype)


def _squeeze(problem: Problem, extent: dict[str, int], ops: list[Any]) -> tuple[Problem, list[Any]]:
    """Drop modes of extent 1 that broadcast behind an ellipsis: the operand then simply lacks the
    variable.
    """
    inputs, out = [], []
    for names, x in zip(problem.inputs, ops, strict=True):
        drop = [
            m for m, (v, size) in enumerate(zip(names, x.shape, strict=True)) if size != extent[v]
        ]
        if drop:
            if isinstance(x, SparseArray):
                raise EinsumError(
                    f"{problem.text}: a sparse operand with extent 1 does not broadcast; reshape it"
                )
            x = jnp.squeeze(x, tuple(drop))
            names = tuple(v for m, v in enumerate(names) if m not in drop)
        inputs.append(names)
        out.append(x)
    return (
        problem if tuple(inputs) == problem.inputs else replace(problem, inputs=tuple(inputs))
    ), out


def solve(job: Job, trusted_like: bool | None = None) -> Any:
    """The result of a job: split off a pair, or make operands agree; then pattern and values."""
    wish = job.wish
    if len(job.ops) > 2 and wish.schedule is None and len(job.problem.terms) == 1:
        nse = _stored(job.ops)
        sizes = tuple(zip(job.extent, guessed(job.extent.values()), strict=True))
        pair = split.first_pair(
            job.accesses, job.problem.output, job.output.shares is not None, sizes, nse
        )
        if pair is not None:
            return solve(_pairwise(job, pair), trusted_like)
    job = agree(job)
    like = wish.like
    out = Access("Y", job.problem.output, job.output.format, dtype_name(job.dtype))
    if like is not None:
        trust = like.frozen if trusted_like is None else trusted_like
        out = replace(out, trusted=trust, known=like.pattern)
        a = Assignment(out, job.accesses, job.problem.terms)
        data = contract(a, job.extent, [*job.flat(), *like.arrays], wish.schedule)
        return job.finish(job.wrap(data, like))
    if job.output.computed:
        return job.finish(_assembled(job, out, wish))
    a = Assignment(out, job.accesses, job.problem.terms, job.output.shares)
    return job.finish(job.wrap(contract(a, job.extent, job.flat(), wish.schedule), None))


def _stored(ops: Sequence[Any]) -> tuple[int, ...]:
    """Positions of the last level of each operand that stores coordinates; 0 of dense ones."""
    return tuple(int(x.data.shape[0]) if isinstance(x, SparseArray) else 0 for x in ops)


def _pairwise(job: Job, pair: tuple[int, int]) -> Job:
    """The job with two operands replaced by their contraction over what nobody else needs."""
    rest = [n for n in range(len(job.ops)) if n not in pair]
    needed = {v for n in rest for v in job.problem.inputs[n]} | set(job.problem.output)
    inputs = tuple(job.problem.inputs[n] for n in pair)
    kept = tuple(dict.fromkeys(v for names in inputs for v in names if v in needed))
    both = Problem(job.problem.text, inputs, kept, (Term((0, 1)),))
    first = replace(
        prepare(both, job.extent, [job.ops[n] for n in pair], Wish()),
        trusted=tuple(job.trusted[n] for n in pair),
    )
    x = solve(first)
    names = (*(job.problem.inputs[n] for n in rest), kept)
    problem = Problem(
        job.problem.text, names, job.problem.output, (Term(tuple(range(len(names)))),)
    )
    out = prepare(problem, job.extent, [*(job.ops[n] for n in rest), x], job.wish)
    trusted = (*(job.trusted[n] for n in rest), isinstance(x, SparseArray) and x.frozen)
    accesses = tuple(replace(a, trusted=t) for a, t in zip(out.accesses, trusted, strict=True))
    again = replace(out, trusted=trusted, accesses=accesses)
    return replace(again, asked=job.asked, layout=job.layout)


def agree(job: Job, only_frozen: bool = False) -> Job:
    """Convert sparse operands that must be co-iterated but are unordered, or stored against the
    others.

    An operand that is the only sparse one just drives, whatever its order.  With `only_frozen`
    the others are left for
    later: the conversion of a frozen operand is remembered, so it is done outside of `jit`.
    """
    own = job.wish.like is not None or job.output.computed
    if job.wish.schedule is not None:
        return job
    if len(job.sparse) < 2 and not own:
        return _gathering(job, only_frozen)
    ops, accesses = list(job.ops), list(job.accesses)

    def convert_operand(n: int, target: Format) -> None:
        if only_frozen and not (ops[n].frozen and _joins(job, n)):
            return
        ops[n] = to(ops[n], target)
        accesses[n] = replace(accesses[n], format=ops[n].format, known=ops[n].pattern)

    for n in job.sparse:
        if not accesses[n].format.canonical:
            convert_operand(n, accesses[n].format.tighten())
    out = Access("Y", job.problem.output, job.output.format, dtype_name(job.dtype))
    a = Assignment(out, tuple(accesses), job.problem.terms)
    nse = _stored(ops)
    for n, order in storage.storage(a, guessed(job.extent[v] for v in a.vars), nse).items():
        convert_operand(n, _reordered(accesses[n].format, order))
    return replace(job, ops=tuple(ops), accesses=tuple(accesses))


def _joins(job: Job, n: int) -> bool:
    """Whether operand n can be joined, if its modes are split, once its levels are reordered."""
    return job.layout is None or job.ops[n].format.appended


def _gathering(job: Job, joined: bool) -> Job:
    """A frozen operand that would scatter, stored so that it gathers, if that is cheaper; with
    `joined` only what can then be joined again.
    """
    known = tuple(n for n in job.sparse if job.ops[n].frozen and job.ops[n].format.canonical)
    known = tuple(n for n in known if not joined or _joins(job, n))
    if not known or not job.output.format.is_dense:
        return job
    a = Assignment(
        Access("Y", job.problem.output, job.output.format, dtype_name(job.dtype)),
        job.accesses,
        job.problem.terms,
    )
    sizes = guessed(job.extent[v] for v in a.vars)
    nse = _stored(job.ops)
    ops, accesses = list(job.ops), list(job.accesses)
    for n, target in storage.rearrangements(a.plain(), sizes, nse, known).items():
        ops[n] = to(ops[n], target)
        accesses[n] = replace(accesses[n], format=ops[n].format, known=ops[n].pattern)
    return replace(job, ops=tuple(ops), accesses=tuple(accesses))


def _reordered(f: Format, order: tuple[int, ...]) -> Format:
    """The format with its levels storing the modes in another order."""
    head = f.ndim - f.dense_tail
    if head == 2 or f.levels[head - 1].branchless:
        return Format(f.appendable.levels, order, f.index)
    return Format((*parse_format("csf", head).levels, *f.levels[head:]), order, f.index)


def _assembled(job: Job, out: Access, wish: Wish) -> SparseArray:
    """A sparse result whose pattern is computed; remembered with the operands' patterns if all
    are frozen.
    """
    keep = job.sparse
    patterns = [job.ops[n].pattern for n in keep]
    terms = tuple(
        Term(tuple(keep.index(m) for m in t.factors if m in keep), t.sign)
        for t in job.problem.terms
    )
    names = tuple(replace(job.accesses[n], dtype=PATTERN) for n in keep)
    pattern_of = Assignment(replace(out, dtype=PATTERN), names, terms)
    extents = {v: job.extent[v] for v in pattern_of.vars}

    def arrange() -> list[Any]:
        flat = [leaf for n in keep for leaf in job.ops[n].arrays]
        return assemble_pattern(pattern_of, extents, flat, wish.nse, job.problem.text)

    a = Assignment(out, job.accesses, job.problem.terms)
    if wish.nse is None and patterns and all(p is not None for p in patterns):
        first = patterns[0]
        assert first is not None
        key = ("assemble", str(pattern_of), tuple(extents.items()), tuple(patterns[1:]))

        def make() -> Pattern:
            return Pattern(tuple(np.asarray(x) for x in arrange()), job.shape, out.format)

        pattern = first.derived(key, make)
        a = replace(a, output=replace(out, trusted=True, known=pattern, exact=True))
        data = contract(a, job.extent, [*job.flat(), *pattern.device()], wish.schedule)
        return SparseArray(data, (), job.shape, out.format, pattern)
    flat = job.flat()
    if wish.schedule is None and not traced(*flat) and values_fuse(a, job.extent, flat):
        *arrays, data = assemble_pattern(a, job.extent, flat, wish.nse, job.problem.text)
        return SparseArray(data, tuple(arrays), job.shape, out.format)
    arrays = arrange()
    operands = tuple(x if x.format.is_dense else replace(x, trusted=True) for x in a.operands)
    a = replace(
        a, output=replace(out, trusted=True, exact=True), operands=operands
    )  # checked by `arrange`
    data = contract(a, job.extent, [*flat, *arrays], wish.schedule)
    return SparseArray(data, tuple(arrays), job.shape, out.format)

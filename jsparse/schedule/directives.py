# SPDX-License-Identifier: Apache-2.0
"""Schedules: a tuple of directives.

    reorder(i,k,j) vectorize(k,8,8) unroll(j,4) parallelize(i)

A directive says *before → after* in its docstring, checks that it is legal, and rewrites a
`Nest`.  Applying a schedule to an assignment gives the nest that lowering turns into loops,
without further decisions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields

from jsparse.errors import ScheduleError
from jsparse.ir.index import Assignment
from jsparse.record import record, replace
from jsparse.schedule.legality import (
    are_rows,
    not_collected,
    not_held,
    not_vectorizable,
    walked_level,
)


@record
class Nest:
    """One loop for each index variable, outermost first, and what is special about some of them."""

    assignment: Assignment
    order: tuple[str, ...]
    workspace: str | None = None  # output variable gathered in a dense row before it is stored
    vector: tuple[str, int, int] | None = None  # variable, lanes, registers
    unroll: tuple[str, int] | None = None  # reduction variable, nonzeros in flight
    collect: tuple[str, int, int] | None = None  # the same in lanes: variable, lanes, registers
    parallel: str | None = None
    parts: int = 0  # of the parallel loop, where it reduces: each with a result of its own
    located: tuple[tuple[str, str], ...] = ()  # (operand, variable): fibers looked up in a row
    galloped: tuple[tuple[str, str], ...] = ()  # (operand, variable): fibers advanced by search
    prefetch: tuple[tuple[str, int], ...] = ()  # (operand, entries ahead)
    widened: bool = False  # whether float32 sums in memory are float64
    held: str | None = None  # output variable each of whose values has an accumulator

    @property
    def first_reduction(self) -> int:
        """Depth of the outermost reduction loop; the number of loops if there is none."""
        out = self.assignment.output.vars
        return next((d for d, v in enumerate(self.order) if v not in out), len(self.order))

    @property
    def complete(self) -> int:
        """Depth at which all output variables are bound, but for the held one."""
        out = self.assignment.output.vars
        bound = (d + 1 for d, v in enumerate(self.order) if v in out and v != self.held)
        return max(bound, default=0)


class Directive(ABC):
    """One transformation of a nest."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def apply(self, nest: Nest) -> Nest:
        """The rewritten nest; raises `ScheduleError` if that is not legal."""

    def __str__(self) -> str:
        args: list[str] = []
        for f in fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            args += [str(v) for v in value] if isinstance(value, tuple) else [str(value)]
        return f"{self.name}({','.join(args)})"

    def need(self, ok: bool, why: str) -> None:
        if not ok:
            raise ScheduleError(f"schedule {str(self)!r}: {why}")


@record
class Reorder(Directive):
    """Set the loop order.

       forall i, k, j: Y[i,j] += A[i,k] * B[k,j]        reorder(i,j,k)
    -> forall i, j, k: Y[i,j] += A[i,k] * B[k,j]
    """

    order: tuple[str, ...]
    name = "reorder"

    def apply(self, nest: Nest) -> Nest:
        want = sorted(nest.assignment.vars)
        self.need(
            sorted(self.order) == want,
            f"got {','.join(self.order)}, expected a permutation of {','.join(want)}",
        )
        return replace(nest, order=self.order)


@record
class Precompute(Directive):
    """Gather the output along `var` in a dense row, and store the row at the output's pattern
    when it is complete.

       forall i, j, k: Y[i,k] += A[i,j] * B[j,k]        precompute(k)
    -> forall i: (forall k in Y[i]: Y[i,k] = w[k]) where (forall j, k: w[k] += A[i,j] * B[j,k])
    """

    var: str
    name = "precompute"

    def apply(self, nest: Nest) -> Nest:
        r = nest.first_reduction
        trailing = tuple(v for v in nest.order[r:] if v in nest.assignment.output.vars)
        self.need(nest.assignment.sampled, "the output is dense, there is nothing to gather")
        self.need(
            trailing == (self.var,),
            f"the output variables inside the reduction are ({','.join(trailing)}), expected "
            f"{self.var} alone",
        )
        access = nest.assignment.pattern
        self.need(
            access is not None
            and access.level_vars.count(self.var) == 1
            and access.level_vars[-1] == self.var
            and not access.format.levels[-1].full,
            f"{self.var} must index the last, compressed level of an output with a pattern of its "
            f"own",
        )
        return replace(nest, workspace=self.var)


@record
class Locate(Directive):
    """Spread the fiber of `operand` along `var` over a dense row of positions when it is reached,
    and look coordinates up there instead of walking it again in every loop between.

        forall i, j, k: Y[i,j] += C[i,k] * B[j,k]        locate(C,k)
     -> forall i: at = positions of C[i]; forall j: forall k in B[j] with at[k]: Y[i,j] += ...
    """

    operand: str
    var: str
    name = "locate"

    def apply(self, nest: Nest) -> Nest:
        found = [a for a in nest.assignment.operands if a.name == self.operand]
        self.need(bool(found), f"no operand {self.operand!r}")
        access = found[0]
        self.need(len(nest.assignment.terms) == 1, "factors of a sum are merged, not looked up")
        self.need(
            access.level_vars.count(self.var) == 1, f"{self.operand} must have {self.var} once"
        )
        level = access.level_vars.index(self.var)
        before = access.level_vars[:level]
        at = nest.order.index
        self.need(
            not access.format.levels[level].full
            and access.format.levels[level].unique
            and not access.tied,
            f"{self.var} must index a compressed level with unique coordinates",
        )
        self.need(
            all(at(u) < at(self.var) for u in before), f"{self.operand} is stored against the loops"
        )
        return replace(nest, located=(*nest.located, (self.operand, self.var)))


@record
class Gallop(Directive):
    """Where fibers along `var` are intersected, advance in that of `operand`, a long one, by
    doubled steps and a binary search from where it is, instead of entry by entry.

       forall i: merge A[i] and B[i]: Y[i,j] = A[i,j] * B[i,j]        gallop(B,j)
    -> forall i: p = B[i]; forall j in A[i]: p = first of B[i] from p on with coordinate >= j; ...
    """

    operand: str
    var: str
    name = "gallop"

    def apply(self, nest: Nest) -> Nest:
        a = nest.assignment
        self.need(len(a.terms) == 1, "terms of a sum are merged, nothing is skipped")
        walked = {x.name: walked_level(x, self.var, nest.order) for x in a.stored}
        self.need(self.operand in walked, f"no sparse operand {self.operand!r}")
        level = walked[self.operand]
        self.need(level is not None, f"the loop over {self.var} does not walk {self.operand}")
        self.need(
            level is not None and level.ordered and level.unique and not level.relative,
            f"coordinates along {self.var} must ascend, each once",
        )
        galloped = (*nest.galloped, (self.operand, self.var))
        left = [n for n, x in walked.items() if x is not None and (n, self.var) not in galloped]
        self.need(bool(left), f"another tensor must be walked along {self.var}")
        return replace(nest, galloped=galloped)


@record
class Vectorize(Directive):
    """Run the dense loop over `var` in steps of `lanes` x `registers`, held in vector registers
    by the loops inside.

       forall i, k, j: Y[i,k] += A[i,j] * B[j,k]        vectorize(k,8,2)
    -> forall i, k in steps of 16: acc0, acc1 = 0; forall j: acc0 += A[i,j] * B[j,k:k+8], …;
    Y[i,k:k+16] = acc
    """

    var: str
    lanes: int
    registers: int
    name = "vectorize"

    def apply(self, nest: Nest) -> Nest:
        self.need(self.var in nest.order, "no such index variable")
        self.need(self.lanes in (2, 4, 8, 16, 32, 64), "lanes must be a power of two from 2 to 64")
        self.need(1 <= self.registers <= 16, "registers must lie in 1 to 16")
        why = not_vectorizable(nest.assignment, nest.workspace, self.var)
        self.need(why is None, why or "")
        reduction = self.var not in nest.assignment.output.vars
        self.need(
            not reduction or nest.order[-1] == self.var, "a reduction is vectorized innermost only"
        )
        at = nest.order.index
        for v in nest.assignment.moving(self.var):
            self.need(at(self.var) <= at(v), f"{v} moves along with it, so its loop must be inside")
        return replace(nest, vector=(self.var, self.lanes, self.registers))


@record
class Unroll(Directive):
    """Keep `count` iterations of the reduction over `var` in flight, each with its own partial sum.

       acc = 0; forall j: acc += A[i,j] * x[j]        unroll(j,2)
    -> acc0 = acc1 = 0; forall j, j' in pairs: acc0 += …, acc1 += …; acc = acc0 + acc1
    """

    var: str
    count: int
    name = "unroll"

    def apply(self, nest: Nest) -> Nest:
        self.need(self.var in nest.assignment.reductions, "only a reduction has partial sums")
        self.need(1 <= self.count <= 16, "count must lie in 1 to 16")
        return replace(nest, unroll=(self.var, self.count))


@record
class Collect(Directive):
    """Run `lanes` x `registers` nonzeros of the innermost reduction over `var` at once: what is
    stored in a row is loaded as vectors, other factors are collected lane by lane.

       acc = 0; forall j in A[i]: acc += A[i,j] * x[j]        collect(j,4,1)
    -> acc = 0 0 0 0; forall j in A[i] in steps of 4: acc += A[i,j:j'] * (x[j], ..., x[j'])
    """

    var: str
    lanes: int
    registers: int
    name = "collect"

    def apply(self, nest: Nest) -> Nest:
        self.need(self.lanes in (2, 4, 8, 16), "lanes must be a power of two from 2 to 16")
        self.need(1 <= self.registers <= 8, "registers must lie in 1 to 8")
        why = not_collected(nest.assignment, self.var)
        self.need(why is None, why or "")
        alone = nest.order[nest.first_reduction :] == (self.var,) == nest.order[nest.complete :]
        self.need(alone, f"{self.var} must be the innermost loop and the only reduction")
        free = nest.vector is None and nest.unroll is None and nest.held is None
        self.need(free, "the sum is in vectors, partial sums or held already")
        return replace(nest, collect=(self.var, self.lanes, self.registers))


@record
class Hold(Directive):
    """Keep an accumulator for each value of the output variable `var` in the reductions around it,
    and write its loop out.

       forall i, j, a, b: Y[i,a] += A[i,j,a,b] * x[j,b]        hold(a)
    -> forall i: acc0 = acc1 = 0; forall j, b: acc0 += A[i,j,0,b] * x[j,b], acc1 += …; Y[i,:] = acc
    """

    var: str
    name = "hold"

    def apply(self, nest: Nest) -> Nest:
        why = not_held(nest.assignment, self.var)
        self.need(why is None, why or "")
        inside = nest.order[nest.first_reduction :]
        self.need(
            [v for v in inside if v in nest.assignment.output.vars] == [self.var],
            f"{self.var} must be the only output variable inside of the reductions",
        )
        vector = nest.vector is not None and nest.vector[0] == self.var
        self.need(not vector, f"{self.var} is the vector loop")
        return replace(nest, held=self.var)


@record
class Parallelize(Directive):
    """Split the outermost loop into chunks of about equal numbers of nonzeros, taken by the
    threads of XLA's pool.

       forall i: S        parallelize(i)
    -> parallel chunk: forall i in chunk: S
    """

    var: str
    name = "parallelize"

    def apply(self, nest: Nest) -> Nest:
        self.need(
            nest.order[:1] == (self.var,),
            f"only the outermost loop, {nest.order[:1]}, can be parallel",
        )
        self.need(
            self.var in nest.assignment.output.vars,
            "iterations of a reduction write the same output; make an output variable the "
            "outermost loop",
        )
        for access in (*nest.assignment.operands, nest.assignment.output):
            level = access.format.levels[0] if access.vars else None
            if level is not None and access.level_vars[0] == self.var:
                self.need(
                    level.ordered or level.unique,
                    f"{access.name} may hold {self.var} in several places; convert it first",
                )
        return replace(nest, parallel=self.var)


@record
class Rfactor(Directive):
    """Cut the outermost loop, a reduction, into `parts` with a result each, taken by the threads
    of XLA's pool, and add these up.

       forall i, j: Y[j] += A[i,j] * x[i]        rfactor(i,4)
    -> parallel part: (forall i in part, j: Y'[part,j] += A[i,j] * x[i]); Y = sum of the parts of Y'
    """

    var: str
    parts: int
    name = "rfactor"

    def apply(self, nest: Nest) -> Nest:
        a = nest.assignment
        self.need(
            nest.order[:1] == (self.var,) and self.var in a.reductions,
            f"only a reduction that is the outermost loop, here {nest.order[:1]}, has parts",
        )
        self.need(2 <= self.parts <= 64, "parts must lie in 2 to 64")
        self.need(not a.sampled, "the output is sampled at a pattern")
        self.need(not nest.vector or nest.vector[0] != self.var, f"{self.var} is a vector loop")
        return replace(nest, parallel=self.var, parts=self.parts)


@record
class Prefetch(Directive):
    """Ask for the row of a dense matrix that a nonzero `distance` further on will need (Y stands
    for an output that is added to), or for stored entries `distance` further on.

       forall j in A[i]: Y[i,k:k+16] += A[i,j] * B[j,k:k+16]        prefetch(B,8)
    -> forall j in A[i]: prefetch B[j of 8 nonzeros ahead,k:k+16]; Y[i,k:k+16] += ...

       forall j in A[i]: acc += A[i,j] * x[j]                       prefetch(A,256)
    -> prefetch 256 entries of A ahead; forall j in A[i]: acc += A[i,j] * x[j]
    """

    operand: str
    distance: int
    name = "prefetch"

    def apply(self, nest: Nest) -> Nest:
        a = nest.assignment
        found = [x for x in (*a.operands, a.output) if x.name == self.operand]
        self.need(bool(found), f"no operand {self.operand!r}")
        names = found[0].level_vars
        if not found[0].format.is_dense:
            self.need(
                nest.vector is None and names[-1:] == nest.order[-1:] and not found[0].tied,
                "entries can be prefetched only for the innermost loop, and only a scalar one",
            )
            self.need(1 <= self.distance <= 4096, "distance must lie in 1 to 4096")
            return replace(nest, prefetch=(*nest.prefetch, (self.operand, self.distance)))
        self.need(
            nest.vector is not None and are_rows(a, names, nest.vector[0]),
            "only rows of a dense matrix along the vector loop can be prefetched",
        )
        self.need(1 <= self.distance <= 64, "distance must lie in 1 to 64")
        return replace(nest, prefetch=(*nest.prefetch, (self.operand, self.distance)))


@record
class Widen(Directive):
    """Add float32 sums of the scalar output `operand` in memory as float64, and narrow them at the
    end: a float32 stops growing at 2^24 ones.

       forall i, j: Y[j] += A[i,j]        widen(Y)
    -> W = 0; forall i, j: W[j] += A[i,j]; forall j: Y[j] = W[j]
    """

    operand: str
    name = "widen"

    def apply(self, nest: Nest) -> Nest:
        out = nest.assignment.output
        self.need(self.operand == out.name, f"only the output, {out.name}, is added to")
        self.need(out.dtype == "float32" and nest.vector is None, "only scalar float32 sums")
        return replace(nest, widened=True)


Schedule = tuple[Directive, ...]


def apply(schedule: Schedule, assignment: Assignment) -> Nest:
    """The nest of an assignment under a schedule; raises `ScheduleError` at the first illegal
    directive.
    """
    nest = Nest(assignment, assignment.vars)
    for directive in schedule:
        nest = directive.apply(nest)
    return nest

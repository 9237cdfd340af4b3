# SPDX-License-Identifier: Apache-2.0
"""From a specification to kernel text: the passes in order, each with what it establishes.

A `Spec` is everything that determines a kernel.  It has a text form, the *recipe*, that travels
with compiled programs, so that another process can build the same kernel again.
"""

from __future__ import annotations

import json
from functools import lru_cache

from jsparse import config
from jsparse.codegen import build, cpp
from jsparse.errors import JsparseError
from jsparse.ir import verify
from jsparse.ir.index import Access, Assignment, parse_assignment
from jsparse.ir.loop import Kernel
from jsparse.lower import assemble, draft, fit
from jsparse.lower import kernel as values
from jsparse.record import record
from jsparse.schedule import directives, notation
from jsparse.schedule.directives import Schedule
from jsparse.schedule.notation import parse_schedule


@record
class Spec:
    """A kernel to be: what it computes, and how.

    `work`: "einsum" (values), "merge" or "sort" (patterns, see `lower.assemble`), a step of
    `lower.draft`, or "fit" (`lower.fit`); `count`: only count entries.  `batch`: for each batch
    axis, outermost first, which arguments have it in front (all results do).
    """

    assignment: Assignment
    schedule: Schedule = ()
    work: str = "einsum"
    count: bool = False
    batch: tuple[tuple[bool, ...], ...] = ()

    def recipe(self) -> str:
        """The text from which `from_recipe` makes an equal spec; `computes` and `accesses` are
        for the words of a fault (`FaultError` in xla_ffi/kernel.cc).
        """
        a = self.assignment
        return json.dumps(
            {
                "assignment": str(a),
                "schedule": notation.show(self.schedule),
                "work": self.work,
                "count": self.count,
                "batch": ["".join("01"[m] for m in mask) for mask in self.batch],
                "computes": a.brief(),
                "accesses": [_for_faults(x) for x in (a.output, *a.operands)],
            }
        )


def _for_faults(x: Access) -> str:
    """An access and the index variables of its levels: `A[i,j]:csc j i`."""
    return " ".join((f"{x.name}[{','.join(x.vars)}]:{x.format}", *x.level_vars))


def from_recipe(text: str) -> Spec:
    """The inverse of `Spec.recipe`."""
    d = json.loads(text)
    batch = tuple(tuple(c == "1" for c in mask) for mask in d["batch"])
    return Spec(
        parse_assignment(d["assignment"]),
        parse_schedule(d["schedule"]),
        d["work"],
        d["count"],
        batch,
    )


@lru_cache(maxsize=4096)
def lower(spec: Spec) -> Kernel:
    """Spec to loop IR: apply the schedule (legality), lower (loops), verify (variables, bounds of
    use).
    """
    if spec.work == "fit":
        kernel = fit.lower(spec.assignment)
    elif spec.work == "einsum":
        kernel = values.lower(directives.apply(spec.schedule, spec.assignment))
    elif spec.work in draft.STEPS:
        kernel = draft.lower(directives.apply(spec.schedule, spec.assignment), spec.work)
    else:
        nest = directives.apply(spec.schedule, spec.assignment)
        kernel = assemble.lower(nest, spec.work, spec.count)
    if config.get().verify:
        verify.check(kernel)
    return kernel


@lru_cache(maxsize=4096)
def text(spec: Spec) -> str:
    """Spec to C++ text, with a two-line header that says what it is."""
    kernel = lower(spec)
    what = spec.assignment.brief()
    formats = [f"{a.name}: {a.format}" for a in (*spec.assignment.operands, spec.assignment.output)]
    how = notation.show(spec.schedule)
    if spec.work != "einsum":
        how = f"pattern by {spec.work}{', count only' if spec.count else ''}; {how}"
    title = (
        f"{what}      {'  '.join(formats)}      {spec.assignment.output.dtype}",
        f"schedule: {how}",
    )
    whole = Kernel(kernel.args, kernel.results, kernel.body, title)
    return cpp.emit(whole, spec.batch)


def resolve(key: str, recipe: str) -> str:
    """Path of the shared object of kernel `key`: from the cache, from a compile under way, or
    compiled now.

    Called from XLA's threads.  A program exported by another version may bring another key for
    the same recipe; the kernel is then built from the recipe.
    """
    ready = build.object_path(key)
    if ready.exists():
        return str(ready)
    try:
        source = text(from_recipe(recipe))
    except JsparseError as error:
        raise RuntimeError(f"kernel {key} cannot be rebuilt from its recipe: {error}") from error
    return str(build.path(source, build.key(source)))

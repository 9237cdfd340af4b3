# SPDX-License-Identifier: Apache-2.0
"""Predicted cost of a loop order: how often each loop runs, and what an iteration costs.

The unit is about a nanosecond.  The counts come from real extents and fan-outs, so an order that
walks a sparse operand against its storage, or a full extent where another order walks stored
entries, costs what it would cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from jsparse.ir.index import Access, Assignment
from jsparse.schedule.stats import Stats

STEP = 1.0  # one iteration of a loop
GATHER = 1.0  # a leaf that reads or adds at scattered places
FLOP = 0.5  # a scalar multiply-add
SEARCH = 4.0  # for each halving of a binary search
GALLOP = 4.0  # entries of a fiber for each of a shorter one from which it is searched, not walked
ELEMENT = 1.5  # moving one element of a dense operand into another layout


class _Progress:
    """An access during the walk: levels bound so far."""

    __slots__ = ("fan", "full", "level", "name", "names", "next", "reached")

    def __init__(self, access: Access, stats: Stats, order: tuple[str, ...]) -> None:
        self.name = access.name
        self.names = (*access.level_vars, None)
        self.full = access.format.full_levels
        self.fan = stats.fan
        if access.tied:  # whichever comes first is walked whole, then the other by its entries
            first, second = sorted(access.tied, key=order.index)
            self.names = (first, second, *self.names[2:])
            self.full = (True, False, *self.full[2:])
            self.fan = (self.fan[1], self.fan[0], *self.fan[2:])
        self.level = 0
        self.next: str | None = self.names[0]
        self.reached = 1.0  # how often the present fiber was reached

    def descend(self) -> None:
        self.level += 1
        self.next = self.names[self.level]


@dataclass(slots=True)
class Walker:
    """Walks an order; `count` is how often the present body runs, `cost` what has been spent."""

    extents: dict[str, int]
    accesses: list[_Progress]
    terms: tuple[tuple[int, ...], ...]
    pattern: _Progress | None
    output: tuple[str, ...]
    located: tuple[tuple[str, str], ...] = ()
    bound: set[str] = field(default_factory=set)
    reducing: bool = False  # whether a loop outside reduces
    count: float = 1.0
    cost: float = 0.0

    def enter(self, v: str, step: int = 1, each: float = STEP) -> None:
        """Account for the loop over `v`, taken in steps of `step`; an iteration costs `each` where
        it visits every value.
        """
        its: list[_Progress] = []
        looked_up: list[_Progress] = []
        for p in self.accesses:
            if p.next == v and not p.full[p.level]:
                (looked_up if (p.name, v) in self.located else its).append(p)
        required = its if len(self.terms) == 1 else []
        own = self.pattern
        own_next = own is not None and own.next == v and not own.full[own.level]
        if own is not None and own_next and not (self.reducing and its):
            required = [*required, own]
        extent = max(self.extents[v], 1)
        if required:
            trips = 0.0
            most = GALLOP * max(1.0, min([p.fan[p.level] for p in required]))
            for n, p in enumerate(required):
                fan = p.fan[p.level]
                self.cost += self.count * min(fan, most) * STEP
                trips = trips * min(1.0, fan / extent) if n else fan
        else:
            fans = sum([p.fan[p.level] for p in its])
            if its and all(any(self.accesses[n] in its for n in t) for t in self.terms):
                self.cost += self.count * fans * STEP * 3
                trips = min(fans, extent)
            else:
                trips = math.ceil(extent / step)
                self.cost += self.count * (trips * each + fans * STEP)
        for p in its:
            p.descend()
        if required is not its and required and own is not None:
            own.descend()
        self.count *= trips
        for p in looked_up:
            fan = p.fan[p.level]
            self.cost += STEP * (p.reached * fan + self.count)
            self.count *= min(1.0, fan / extent)
            p.descend()
        self.bound.add(v)
        self.reducing = self.reducing or v not in self.output
        for p in self.accesses:
            if p.next in self.bound:
                self.catch_up(p)
        if own is not None and own.next in self.bound:
            self.catch_up(own)
        for p in self.accesses:
            if p.level and p.names[p.level - 1] == v:
                p.reached = self.count

    def catch_up(self, p: _Progress) -> None:
        """Go down the levels whose variables are bound: a search where coordinates are stored."""
        while p.next is not None and p.next in self.bound:
            if not p.full[p.level]:
                fan = p.fan[p.level]
                self.cost += self.count * SEARCH * (1 + math.log2(fan + 1))
                if len(self.terms) == 1 or p is self.pattern:
                    self.count *= min(1.0, fan / max(self.extents[p.next], 1))
            p.descend()


def order_cost(
    a: Assignment,
    order: tuple[str, ...],
    extents: dict[str, int],
    stats: tuple[Stats, ...],
    pattern: Stats | None,
    workspace: str | None,
    vector: tuple[str, int, int] | None,
    located: tuple[tuple[str, str], ...] = (),
    limit: float = math.inf,
    held: str | None = None,
) -> float:
    """Predicted nanoseconds of the nest of `a` in `order`; infinite once they exceed `limit`.

    What lacks the `held` variable is loaded once for all its values, and its loop is written out.
    """
    own = a.pattern
    progress = _Progress(own, pattern, order) if own is not None and pattern is not None else None
    accesses = [_Progress(x, s, order) for x, s in zip(a.operands, stats, strict=True)]
    walker = Walker(
        extents, accesses, tuple(t.factors for t in a.terms), progress, a.output.vars, located
    )
    out = a.output.vars
    complete = max((d + 1 for d, v in enumerate(order) if v in out and v != held), default=0)
    stores = 1.0  # how often accumulators are stored
    first = next((d for d, v in enumerate(order) if v not in out), len(order))
    for d, v in enumerate(order):
        if d == first and workspace is not None and progress is not None:
            walker.cost += 3 * walker.count * progress.fan[-1]
            walker.pattern = None
        if d == complete:
            stores = walker.count * (a.fixed[held] if held else 1)
        step = vector[1] * vector[2] if vector and vector[0] == v else 1
        walker.enter(v, step, 0.0 if v == held else STEP)
        if walker.cost > limit:
            return math.inf
    loads = [1.0 if held is None or held in x.vars else 1 / a.fixed[held] for x in a.operands]
    work = sum(loads) * FLOP
    if vector:
        name, lanes, registers = vector
        used = min(max(extents[name], 1), lanes * registers)
        work = work * math.ceil(used / lanes)
    moving = frozenset(a.moving(vector[0]) if vector else ())
    gathers = 0.0
    for x, load in zip(a.operands, loads, strict=True):
        if x.vars and moving.isdisjoint(x.vars) and (held is None or load < 1):
            gathers += load
    walker.cost += walker.count * (work + GATHER * gathers)
    if first < complete:
        walker.cost += walker.count * GATHER
    elif complete < len(order) and vector and vector[0] not in out:
        walker.cost += 3 * stores
    return walker.cost

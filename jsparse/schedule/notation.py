# SPDX-License-Identifier: Apache-2.0
"""The text of a schedule, which parses back."""

from __future__ import annotations

import re
from dataclasses import fields

from jsparse.errors import ScheduleError
from jsparse.schedule.directives import (
    Collect,
    Directive,
    Gallop,
    Hold,
    Locate,
    Parallelize,
    Precompute,
    Prefetch,
    Reorder,
    Rfactor,
    Schedule,
    Unroll,
    Vectorize,
    Widen,
)

_KINDS = (
    *(Reorder, Precompute, Locate, Gallop, Vectorize, Unroll, Collect, Hold),
    *(Prefetch, Widen, Parallelize, Rfactor),
)
DIRECTIVES = {c.name: c for c in _KINDS}


def show(schedule: Schedule) -> str:
    return " ".join(str(d) for d in schedule)


_DIRECTIVE = re.compile(r"\s*(\w+)\(([^()]*)\)")


def parse_schedule(text: str) -> Schedule:
    """The schedule that `show` printed, or that a user wrote.

    >>> show(parse_schedule("reorder(i,k,j) vectorize(k,8,8)"))
    'reorder(i,k,j) vectorize(k,8,8)'
    """
    out: list[Directive] = []
    at = 0
    text = text.strip()
    while at < len(text):
        match = _DIRECTIVE.match(text, at)
        if match is None or match[1] not in DIRECTIVES:
            raise ScheduleError(
                f"schedule: cannot read {text[at:]!r}; directives: {', '.join(DIRECTIVES)}, "
                f"as in 'reorder(i,k,j) vectorize(k,8,8) parallelize(i)'"
            )
        kind = DIRECTIVES[match[1]]
        words = [w.strip() for w in match[2].split(",") if w.strip()]
        names = [f.name for f in fields(kind)]
        try:
            if kind is Reorder:
                out.append(Reorder(tuple(words)))
            elif kind in (Locate, Gallop) and len(words) == 2:
                out.append(kind(*words))
            elif len(words) != len(names):
                raise ValueError
            else:
                out.append(kind(words[0], *(int(w) for w in words[1:])))  # type: ignore[arg-type]
        except ValueError:
            raise ScheduleError(
                f"schedule {match[0].strip()!r}: expected {match[1]}({', '.join(names)})"
            ) from None
        at = match.end()
    return tuple(out)

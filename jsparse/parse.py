# SPDX-License-Identifier: Apache-2.0
"""Einsum strings to index variables.

    "ij,jk->ik"     two operands, explicit output
    "ij,jk"         implicit output: the letters that occur once, in alphabetical order
    "...ij,jk"      `...` stands for the remaining modes, aligned at the right and broadcast
    "ii->i" "ii"    a repeated letter takes the diagonal

As `numpy.einsum`, but every letter that the output has must occur in an operand, and in the
output only once.
"""

from __future__ import annotations

from jsparse.errors import EinsumError
from jsparse.record import record


@record
class Einsum:
    """Index variables of each operand and of the output, one for each mode."""

    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]


def _fail(text: str, why: str) -> EinsumError:
    return EinsumError(f"einsum {text!r}: {why}")


def _split(text: str, part: str, ndim: int | None, where: str) -> tuple[list[str], list[str], int]:
    """Letters before and after the ellipsis, and how many modes the ellipsis stands for (-1:
    there is none).
    """
    head, dots, tail = part.partition("...")
    for c in head + tail:
        if not c.isalpha() or not c.isascii():
            raise _fail(text, f"unexpected {c!r} in {where}; use letters, ',', '->' and '...'")
    n = len(head) + len(tail)
    if not dots:
        if ndim is not None and n != ndim:
            raise _fail(text, f"{where} has {ndim} mode(s) but its subscripts {part!r} name {n}")
        return list(head), list(tail), -1
    if ndim is not None and n > ndim:
        raise _fail(
            text, f"{where} has {ndim} mode(s) but its subscripts {part!r} name {n} and '...'"
        )
    return list(head), list(tail), 0 if ndim is None else ndim - n


def parse_einsum(text: str, ndims: tuple[int, ...]) -> Einsum:
    """The index variables of an einsum over operands with `ndims` modes.

    Modes behind an ellipsis get the variables e0, e1, … counted from the right.

    >>> parse_einsum("ij,jk", (2, 2))
    Einsum(inputs=(('i', 'j'), ('j', 'k')), output=('i', 'k'))
    """
    if not isinstance(text, str):
        raise EinsumError(
            f"einsum: got subscripts of type {type(text).__name__}, expected a string such as "
            f"'ij,jk->ik'"
        )
    compact = "".join(text.split())
    left, arrow, right = compact.partition("->")
    if "->" in right:
        raise _fail(text, "more than one '->'")
    parts = left.split(",")
    if len(parts) != len(ndims):
        raise _fail(text, f"{len(parts)} subscripts for {len(ndims)} operand(s)")
    inputs: list[tuple[str, ...]] = []
    widest = 0
    for n, (part, ndim) in enumerate(zip(parts, ndims, strict=True)):
        head, tail, rest = _split(text, part, ndim, f"operand {n}")
        widest = max(widest, rest)
        dots = [f"e{k}" for k in reversed(range(max(rest, 0)))]
        inputs.append((*head, *dots, *tail))
    ellipsis = [f"e{k}" for k in reversed(range(widest))]
    seen = [v for names in inputs for v in names if len(v) == 1]
    if arrow:
        head, tail, rest = _split(text, right, None, "the output")
        output = (*head, *(ellipsis if rest >= 0 else ()), *tail)
        if rest < 0 and ellipsis:
            raise _fail(
                text, "operands have '...' but the output has not; write it in the output too"
            )
    else:
        output = (*ellipsis, *sorted(v for v in set(seen) if seen.count(v) == 1))
    for v in output:
        if len(v) == 1 and v not in seen:
            raise _fail(text, f"index {v!r} of the output is in no operand")
        if output.count(v) > 1:
            raise _fail(
                text, f"index {v!r} is twice in the output; a diagonal output is not supported"
            )
    return Einsum(tuple(inputs), output)


def extents(
    text: str, inputs: tuple[tuple[str, ...], ...], shapes: tuple[tuple[int, ...], ...]
) -> dict[str, int]:
    """The extent of every variable; raises `EinsumError` naming operand and mode where two
    disagree.

    An extent of 1 behind an ellipsis broadcasts.
    """
    out: dict[str, int] = {}
    source: dict[str, tuple[int, int]] = {}
    for n, (names, shape) in enumerate(zip(inputs, shapes, strict=True)):
        for mode, (v, size) in enumerate(zip(names, shape, strict=True)):
            broadcast = len(v) > 1
            if v not in out or (broadcast and out[v] == 1):
                out[v], source[v] = size, (n, mode)
            elif out[v] != size and not (broadcast and size == 1):
                n0, m0 = source[v]
                name = v if len(v) == 1 else "..."
                raise _fail(
                    text,
                    f"index {name!r} has extent {out[v]} in operand {n0} (mode {m0}) "
                    f"but {size} in operand {n} (mode {mode})",
                )
    return out

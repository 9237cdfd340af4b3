# SPDX-License-Identifier: Apache-2.0
"""Index notation: what a kernel computes, without any order.

An `Assignment` is a sum of products of accesses, summed over the index variables that the output
lacks.  It prints as text that parses back, and that text is what a serialized program carries to
rebuild its kernels:

    Y[i,k]:dense:float32 = A[i,j]:csr:float32 * B[j,k]:dense:float32
    Y[i,j]:like(A):float32 = A[i,j]:csr:float32 * B[i,k]:dense:float32 * C[j,k]:dense:float32
    Y[i,j]:csr:float32 = A[i,j]:csr:float32 - B[i,j]:csr!:float32

Each operand is `name[vars]:format:dtype`.  A format with `!` is trusted: its index arrays were
validated before, so the kernel need not; an output with `!!` has a pattern that was computed for
this very assignment.  The dtype `pattern` marks an operand without values
(every stored entry counts as one).  An output with a sparse format is *sampled*: its pattern is
given and only its values are computed; `like(A)` takes the pattern of A.
"""

from __future__ import annotations

import re
from dataclasses import field
from functools import cache

from jsparse.errors import InternalError
from jsparse.format import Format, parse_format
from jsparse.record import record, replace

PATTERN = "pattern"


@record
class Op:
    """A reduction or product operator: neutral element, and the C operator that loop IR calls by
    the same name.
    """

    text: str
    identity: int | bool


# (sum, product) per kind of value.  A product's annihilator is the sum's identity, so absent
# entries may be skipped.
PLUS_TIMES = (Op("+", 0), Op("*", 1))
OR_AND = (Op("|", False), Op("&", True))


def semiring(dtype: str) -> tuple[Op, Op]:
    """Sum and product of a dtype: plus-times, and or-and for booleans."""
    return OR_AND if dtype == "bool" else PLUS_TIMES


@record
class Access:
    """A tensor read or written at index variables, one for each mode."""

    name: str
    vars: tuple[str, ...]
    format: Format
    dtype: str
    trusted: bool = False
    known: object = None
    """The frozen pattern behind a trusted access, for decisions at trace time; not in the text."""
    exact: bool = False
    """Of a trusted output: its pattern was computed for this assignment, and so holds just the
    coordinates where a term has an entry.
    """
    level_vars: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The variable of each level, outermost first."""
    sparse_vars: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Variables that index a level with stored coordinates."""
    tied: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The variables of a relative level and of the level below, else none: bind either, then the
    other is iterated.
    """

    def __post_init__(self) -> None:
        names = tuple([self.vars[m] for m in self.format.order])
        sparse = tuple([names[n] for n in self.format.sparse_levels])
        object.__setattr__(self, "level_vars", names)
        object.__setattr__(self, "sparse_vars", sparse)
        object.__setattr__(self, "tied", names[:2] if self.format.relative else ())

    @property
    def walk_vars(self) -> tuple[str, ...]:
        """The variables in the order of loops that meet the entries as they are stored."""
        return (*reversed(self.tied), *self.level_vars[len(self.tied) :])

    def __str__(self) -> str:
        trust = "!!" if self.exact else "!" if self.trusted else ""
        return f"{self.name}[{','.join(self.vars)}]:{self.format}{trust}:{self.dtype}"


@record
class Term:
    """A signed product of operands, by number."""

    factors: tuple[int, ...]
    sign: int = 1


@record
class Assignment:
    """output[…] = sum over the other variables of the terms.  `shares`: the operand whose pattern
    the output takes.
    """

    output: Access
    operands: tuple[Access, ...]
    terms: tuple[Term, ...]
    shares: int | None = None
    vars: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """All index variables, output first, in order of appearance: the order of the extents."""
    pattern: Access | None = field(init=False, repr=False, compare=False)
    """The access whose index arrays give the output's pattern, if the output brings its own.

    None where the pattern is that of an operand, or is what is to be computed (an output dtype of
    `pattern`).
    """
    ties: tuple[tuple[str, ...], ...] = field(init=False, repr=False, compare=False)
    """The variables that relative levels tie, of each operand and pattern that has one."""
    fixed: dict[str, int] = field(init=False, repr=False, compare=False)
    """Variables whose extent a format fixes, as that of a block's inner part."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        return self._hash  # a key of every cache on the way to a kernel: computed once

    def __post_init__(self) -> None:
        seen = dict.fromkeys(self.output.vars)
        for access in self.operands:
            seen.update(dict.fromkeys(access.vars))
        object.__setattr__(self, "vars", tuple(seen))
        own = self.sampled and self.shares is None and self.output.dtype != PATTERN
        pattern = replace(self.output, name="P", dtype=PATTERN) if own else None
        object.__setattr__(self, "pattern", pattern)
        accesses = (*self.operands, pattern) if pattern is not None else self.operands
        object.__setattr__(self, "ties", tuple([x.tied for x in accesses if x.tied]))
        fixed = {}
        for access in (*self.operands, self.output):
            for n, size in access.format.fixed_levels:
                fixed[access.level_vars[n]] = size
        object.__setattr__(self, "fixed", fixed)
        key = hash((self.output, self.operands, self.terms, self.shares))
        object.__setattr__(self, "_hash", key)
        used = sorted(f for t in self.terms for f in t.factors)
        if used != list(range(len(self.operands))):
            raise InternalError(f"each operand must occur in exactly one term: {self.terms}")
        for term in self.terms if len(self.terms) > 1 else ():
            names = {v for f in term.factors for v in self.operands[f].vars}
            if not set(self.reductions) <= names:
                raise InternalError(f"a term of {self} lacks a variable that is summed over")

    def plain(self) -> Assignment:
        """The assignment without the patterns it knows: what determines a kernel."""
        if self.output.known is None and all(x.known is None for x in self.operands):
            return self
        operands = tuple(replace(x, known=None) for x in self.operands)
        return replace(self, output=replace(self.output, known=None), operands=operands)

    def moving(self, v: str) -> tuple[str, ...]:
        """The variables that move by one as `v` does: itself, and what relative levels tie to
        it.
        """
        if not self.ties:
            return (v,)
        found = {u for tied in self.ties if v in tied for u in tied}
        return (v, *sorted(found - {v}))

    @property
    def stored(self) -> tuple[Access, ...]:
        """What a nest walks: the operands, and the output's pattern if it brings its own."""
        return self.operands if self.pattern is None else (*self.operands, self.pattern)

    @property
    def sampled(self) -> bool:
        """Whether the output is values at a given pattern."""
        return not self.output.format.is_dense

    @property
    def reductions(self) -> tuple[str, ...]:
        return tuple(v for v in self.vars if v not in self.output.vars)

    def __str__(self) -> str:
        out = str(self.output)
        if self.shares is not None:
            out = (
                f"{self.output.name}[{','.join(self.output.vars)}]"
                f":like({self.operands[self.shares].name}):{self.output.dtype}"
            )
        text = ""
        for n, term in enumerate(self.terms):
            sign = "-" if term.sign < 0 else "+"
            text += f" {sign} " if n else ("- " if term.sign < 0 else "")
            text += " * ".join(str(self.operands[f]) for f in term.factors)
        return f"{out} = {text}"

    def brief(self) -> str:
        """The assignment without formats and dtypes, as a person writes it: Y[i,k] = A[i,j] *
        B[j,k].
        """

        def one(a: Access) -> str:
            return f"{a.name}[{','.join(a.vars)}]"

        text = ""
        for n, term in enumerate(self.terms):
            sign = "-" if term.sign < 0 else "+"
            text += f" {sign} " if n else ("- " if term.sign < 0 else "")
            text += " * ".join(one(self.operands[f]) for f in term.factors)
        return f"{one(self.output)} = {text}"


def operand_name(n: int) -> str:
    """A, B, … X for the operands of an einsum (P, Y and names beyond are skipped or numbered)."""
    letters = "ABCDEFGHIJKLMNOQRSTUVWX"
    return letters[n] if n < len(letters) else f"A{n}_"


_ACCESS = re.compile(r"(\w+)\[([\w,]*)\]:([^!]*?)(!{0,2}):(\w+)$")


def _parse_access(text: str) -> tuple[str, tuple[str, ...], str, str, str]:
    match = _ACCESS.match(text)
    if match is None:
        raise InternalError(f"not an access: {text!r}")
    names = tuple(v for v in match[2].split(",") if v)
    return match[1], names, match[3], match[4], match[5]


@cache
def parse_assignment(text: str) -> Assignment:
    """The inverse of `str(assignment)`."""
    left, _, right = text.partition(" = ")
    operands: list[Access] = []
    terms: list[Term] = []
    sign = 1
    if right.startswith("- "):
        sign, right = -1, right[2:]
    for part in re.split(r" ([+-]) ", right):
        if part in "+-":
            sign = -1 if part == "-" else 1
            continue
        first = len(operands)
        for factor in part.split(" * "):
            name, names, fmt, trusted, dtype = _parse_access(factor)
            operands.append(
                Access(name, names, parse_format(fmt, len(names)), dtype, bool(trusted))
            )
        terms.append(Term(tuple(range(first, len(operands))), sign))
    name, names, fmt, trusted, dtype = _parse_access(left)
    shares = None
    if fmt.startswith("like("):
        shares = [a.name for a in operands].index(fmt[5:-1])
        source = operands[shares]
        axes = tuple(source.vars.index(v) for v in names)
        format_ = source.format.transpose(axes)
    else:
        format_ = parse_format(fmt, len(names))
    return Assignment(
        Access(name, names, format_, dtype, bool(trusted), exact=trusted == "!!"),
        tuple(operands),
        tuple(terms),
        shares,
    )

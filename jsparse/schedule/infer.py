# SPDX-License-Identifier: Apache-2.0
"""Output format and pattern of a sum of products.

A product has entries only where all its sparse factors have; a sum where any term has.  So, for
each term:

    one sparse factor with exactly the output's variables, the others dense   -> its pattern,
    shared every output variable indexes a sparse operand                            -> sparse,
    pattern computed ... but a single one, summed over all its compressed levels               ->
    dense: its rows, say some output variable indexes dense operands only
    -> dense

A sum is sparse if all its terms are.  Results of fewer than two modes are dense unless they share
a pattern: a vector of row sums is nearly always full.
"""

from __future__ import annotations

from functools import lru_cache

from jsparse.format import Format, parse_format
from jsparse.ir.index import Access, Term
from jsparse.record import record, replace


@record
class Output:
    """An output's format; `shares` is the operand whose pattern it takes, `computed` that it must
    be assembled.
    """

    format: Format
    shares: int | None = None

    @property
    def computed(self) -> bool:
        return self.shares is None and not self.format.is_dense


def dense(ndim: int) -> Format:
    return parse_format("dense", ndim)


def infer(output: tuple[str, ...], operands: tuple[Access, ...], terms: tuple[Term, ...]) -> Output:
    """The output's format for accesses and terms; see the module."""
    if any(x.known is not None for x in operands):  # which must not live on in a cache
        operands = tuple(replace(x, known=None) for x in operands)
    return _infer(output, operands, terms)


@lru_cache(maxsize=4096)
def _infer(
    output: tuple[str, ...], operands: tuple[Access, ...], terms: tuple[Term, ...]
) -> Output:
    ndim = len(output)
    sparse = [n for n, a in enumerate(operands) if not a.format.is_dense]
    if not sparse:
        return Output(dense(ndim))
    if len(terms) == 1:
        own = shared_by(output, operands, terms[0])
        if own is not None:
            axes = tuple(operands[own].vars.index(v) for v in output)
            return Output(operands[own].format.transpose(axes), own)
    if ndim < 2:
        return Output(dense(ndim))
    for term in terms:
        factors = [operands[n] for n in term.factors if n in sparse]
        covered = {v for a in factors for v in a.vars}
        kept = {v for a in factors for v in a.sparse_vars} & set(output)
        if not set(output) <= covered or (len(factors) == 1 and not kept):
            return Output(dense(ndim))
    return Output(computed_format(output, operands, terms))


def shared_by(output: tuple[str, ...], operands: tuple[Access, ...], term: Term) -> int | None:
    """The factor whose pattern a product's output has: the only sparse one, with exactly the
    output's variables.
    """
    sparse = [n for n in term.factors if not operands[n].format.is_dense]
    if len(sparse) != 1:
        return None
    a = operands[sparse[0]]
    distinct = len(set(a.vars)) == len(a.vars)
    return sparse[0] if distinct and set(a.vars) == set(output) else None


def computed_format(
    output: tuple[str, ...], operands: tuple[Access, ...], terms: tuple[Term, ...]
) -> Format:
    """The format of an assembled output: the first operand's with the output's variables, else by
    rank.

    Two modes: csr, or the order of the first operand if all operands that have both variables
    agree on it; more
    modes: a compressed level for each.
    """
    index = "int32"
    for a in operands:
        if not a.format.is_dense and a.format.index == "int64":
            index = "int64"
    for a in operands:
        own = a.format.appendable
        if (
            own.appended
            and not own.is_dense
            and set(a.vars) == set(output)
            and len(set(a.vars)) == len(a.vars)
        ):
            axes = tuple(a.vars.index(v) for v in output)
            return own.transpose(axes).tighten().with_index(index)
    ndim = len(output)
    if ndim == 2:
        rows = {v for a in operands for v in a.vars if v in a.sparse_vars and not a.format.is_dense}
        plain = [a for a in operands if not a.format.is_dense and output[0] in a.vars]
        doubly = output[0] in rows and all(
            a.level_vars[0] == output[0]
            and not a.format.levels[0].full
            and a.format.levels[0].unique
            for a in plain
        )
        return parse_format("dcsr" if doubly else "csr", 2).with_index(index)
    return parse_format("csf", ndim).with_index(index)

# SPDX-License-Identifier: Apache-2.0
"""Generated kernels against dense NumPy: the table of cases, dtypes, accuracy, capacity, threads, damaged structures."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import Case, assert_same, dense_of, expected, operands, pack, seed, unpack

import jsparse as js
from jsparse.errors import CapacityError

pytestmark = pytest.mark.usefixtures("x64")

# A status of XLA reaches Python as a JaxRuntimeError from the first call of a program and from an
# asynchronous one, and as a ValueError from JAX's fast path for later calls.
ERRORS = (jax.errors.JaxRuntimeError, ValueError)


def freeze(x: Any) -> Any:
    return x.freeze() if isinstance(x, js.SparseArray) else x


def under_jit(case: Case, arrays: Any, **how: Any) -> Any:
    return jax.jit(lambda *xs: js.einsum(case.einsum, *xs, **how))(*arrays)


# ---------------------------------------------------------------- the table
@pytest.mark.parametrize("case", cases.parameters())
def test_eager(case: Case) -> None:
    """Eager calls give what NumPy gives, sparse or dense, and leave their operands as they were."""
    ops = operands(case)
    before = [np.array(x) for x in jax.tree.leaves(ops.arrays)]
    assert_same(js.einsum(case.einsum, *ops.arrays), expected(case, ops.dense))
    for x, y in zip(before, jax.tree.leaves(ops.arrays), strict=True):
        np.testing.assert_array_equal(x, np.asarray(y))


def jit_parameters() -> list[Any]:
    """Every third case: what `jit` adds to an eager call is the capacity of sparse results."""
    return [p for n, p in enumerate(cases.parameters()) if n % 3 == 0]


@pytest.mark.parametrize("case", jit_parameters())
def test_jit_of_dynamic_operands(case: Case) -> None:
    """The same under `jit`; a result whose pattern is computed needs `nse=` there, or `like=`."""
    ops = operands(case)
    want = expected(case, ops.dense)
    try:
        got = under_jit(case, ops.arrays)
    except CapacityError:
        eager = js.einsum(case.einsum, *ops.arrays)
        assert isinstance(eager, js.SparseArray)
        got = under_jit(case, ops.arrays, nse=eager.nse + 3)
        assert isinstance(got, js.SparseArray)
        assert (got.nse, got.format) == (eager.nse + 3, eager.format)
        assert_same(under_jit(case, ops.arrays, like=eager), want)
    assert_same(got, want)


@pytest.mark.parametrize("case", [p for n, p in enumerate(cases.parameters()) if n % 3 == 1])
def test_jit_of_frozen_operands(case: Case) -> None:
    """Frozen operands need no capacity; the result has exactly the entries of the eager one."""
    ops = operands(case)
    frozen = [freeze(x) for x in ops.arrays]
    got = under_jit(case, frozen)
    assert_same(got, expected(case, ops.dense))
    if isinstance(got, js.SparseArray):
        assert got.frozen
        eager = js.einsum(case.einsum, *frozen)
        assert (eager.nse, eager.format) == (got.nse, got.format)


@pytest.mark.parametrize("case", [p for n, p in enumerate(cases.parameters()) if n % 3 == 2])
def test_eager_of_frozen_operands(case: Case) -> None:
    ops = operands(case)
    got = js.einsum(case.einsum, *[freeze(x) for x in ops.arrays])
    assert_same(got, expected(case, ops.dense))

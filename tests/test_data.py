# SPDX-License-Identifier: Apache-2.0
"""Real matrices: loaded, multiplied and added, against SciPy.  Skipped where the data is absent.

Files of our own making cover the same ground in `test_io` and `test_kernels`.
"""

from __future__ import annotations

import os
from pathlib import Path

import jax
import numpy as np
import pytest
import scipy.sparse as sp

import jsparse as js
from jsparse import io

DATA = Path(
    os.environ.get("JSPARSE_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")
)
FILES = [p for kind in ("mtx", "npz") for p in sorted((DATA / kind).glob("*"))]
HUGE = 10**8  # extents beyond: no dense operand


def thinned() -> list[object]:
    marks = [[] if n % 12 == 0 else [pytest.mark.slow] for n in range(len(FILES))]
    named = [pytest.param(p, id=p.name, marks=m) for p, m in zip(FILES, marks, strict=True)]
    return named or [
        pytest.param(None, marks=pytest.mark.skip(reason="no data beside the repository"))
    ]


def close(got: object, want: np.ndarray) -> None:
    """Equal to 1e-9 of the largest finite entry; inf and nan where they are expected."""
    finite = np.abs(want[np.isfinite(want)])
    scale = finite.max(initial=0) or 1.0
    np.testing.assert_allclose(np.asarray(got) / scale, want / scale, rtol=1e-9, atol=1e-9)


@pytest.mark.data
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("path", thinned())
def test_products_and_sums_agree_with_scipy(path: Path) -> None:
    if path.name == "cora_labels.npz":
        pytest.skip("holds dense labels, no sparse array")
    c, a = io.read(path), js.load(path)
    if max(a.shape) > HUGE:
        assert (a + a).nnz == a.nnz and (a * a).nnz == a.nnz
        return
    m = sp.coo_array((c.data, tuple(c.coords)), shape=c.shape).tocsr()
    b = np.random.default_rng(0).standard_normal((a.shape[1], 5))
    with np.errstate(all="ignore"):
        close(jax.jit(lambda a, b: a @ b)(a, b), m @ b)
        close(a @ b[:, 0], m @ b[:, 0])
        if a.shape[0] != a.shape[1]:
            return
        total, want = (a + a.T).to_scipy().tocsr(), (m + m.T).tocsr()
    want.sort_indices()
    total.eliminate_zeros()
    want.eliminate_zeros()
    np.testing.assert_array_equal(total.indptr, want.indptr)
    np.testing.assert_array_equal(total.indices, want.indices)
    close(total.data, want.data)

# SPDX-License-Identifier: Apache-2.0
"""A few generated kernels, whole, as documentation; `pytest --update-golden` rewrites them.

They are planned for a fixed target, so that the text is the same on every machine, and compiled.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from jsparse import pipeline
from jsparse.codegen import build
from jsparse.ir.index import parse_assignment
from jsparse.schedule import auto
from jsparse.schedule.directives import Reorder
from jsparse.schedule.notation import parse_schedule
from jsparse.target import Target

GOLDEN = Path(__file__).parent / "golden"
AVX2 = Target("x86-64/256", vector_bytes=32, registers=16, threads=2)

VALUES = {
    "spmv": ("Y[i]:dense:float32 = A[i,j]:csr:float32 * B[j]:dense:float32", (100, 90), (800, 0)),
    "spmv_dia": (
        "Y[i]:dense:float32 = A[i,j]:dia:float32 * B[j]:dense:float32",
        (1000, 1000),
        (5, 0),
    ),
    "spmm": (
        "Y[i,k]:dense:float32 = A[i,j]:csr:float32 * B[j,k]:dense:float32",
        (100, 64, 90),
        (800, 0),
    ),
    "spmm_blocks": (
        "Y[i,i_in,k]:dense:float32 = A[i,j,i_in,j_in]:dense,compressed,dense(4),dense(4):float32"
        " * B[j,j_in,k]:dense:float32",
        (25, 4, 64, 22, 4),
        (50, 0),
    ),
    "sddmm": (
        "Y[i,j]:like(A):float32 = A[i,j]:csr:float32 * B[i,k]:dense:float32 * C[j,k]:dense:float32",
        (100, 90, 32),
        (800, 0, 0),
    ),
    "spgemm": (
        "Y[i,k]:csr:float64 = A[i,j]:csr:float64 * B[j,k]:csr:float64",
        (100, 90, 80),
        (800, 700, 5000),
    ),
    "add": (
        "Y[i,j]:csr:float32 = A[i,j]:csr:float32 + B[i,j]:csr:float32",
        (100, 90),
        (800, 700, 1400),
    ),
    "coo_trusted": (
        "Y[i]:dense:float64 = A[i,j]:coo!:float64 * B[j]:dense:float64",
        (100, 90),
        (800, 0),
    ),
}
PATTERNS = {
    "spgemm_pattern": ("Y[i,k]:csr:pattern = A[i,j]:csr:pattern * B[j,k]:csr:pattern", "merge"),
    "csr_to_csc": ("Y[i,j]:csc:pattern = A[i,j]:csr:pattern", "sort"),
}


def texts() -> dict[str, str]:
    out = {}
    for name, (assignment, sizes, nse) in VALUES.items():
        plan = auto.plan(parse_assignment(assignment), sizes, nse, AVX2)
        out[name] = pipeline.text(pipeline.Spec(plan.assignment, plan.schedule))
    for name, (assignment, work) in PATTERNS.items():
        a = parse_assignment(assignment)
        order = ("i", "j", "k") if work == "merge" else a.vars
        out[name] = pipeline.text(pipeline.Spec(a, (Reorder(order),), work))
    return out


@pytest.mark.parametrize("name", [*VALUES, *PATTERNS])
def test_golden(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    text, path = texts()[name], GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), "run pytest --update-golden if the change is meant"
    found = build.compiler()
    if found is None:
        pytest.skip("no C++ compiler")
    source = tmp_path / "kernel.cc"
    source.write_text(text)
    flags = ["-std=gnu++17", "-O1", "-fsyntax-only", "-Wall", "-Wextra", "-Wno-unused", "-Werror"]
    flags += ["-Wno-unused-parameter", "-Wno-unknown-warning-option"]
    done = subprocess.run(
        [*found[0], *flags, f"-I{build.headers()}", str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_text_is_stable() -> None:
    """Equal specs give equal text, hence equal keys."""
    before = texts()
    pipeline.text.cache_clear()
    pipeline.lower.cache_clear()
    assert texts() == before


@pytest.mark.parametrize("name", list(VALUES))
def test_recipes_come_back(name: str) -> None:
    assignment, sizes, nse = VALUES[name]
    plan = auto.plan(parse_assignment(assignment), sizes, nse, AVX2)
    spec = pipeline.Spec(plan.assignment, plan.schedule, batch=((True, False, False),))
    assert pipeline.from_recipe(spec.recipe()) == spec


@pytest.mark.parametrize("form", ["", "unroll(j,2)", "unroll(j,4)"])
@pytest.mark.parametrize("fmt", ["csr", "coo", "dcsr", "dense,uniform(4)"])
def test_what_is_asked_for_early_is_so_in_every_form_of_loop(fmt: str, form: str) -> None:
    """A row for each nonzero of the loop's main part, or a cache line of entries for each pass."""
    rows = f"Y[i,k]:dense:float32 = A[i,j]:{fmt}:float32 * B[j,k]:dense:float32"
    entries = f"Y[i]:dense:float32 = A[i,j]:{fmt}:float32 * B[j]:dense:float32"
    for text, words in (
        (rows, f"reorder(i,k,j) vectorize(k,8,2) prefetch(B,16) {form}"),
        (entries, f"reorder(i,j) prefetch(A,256) {form}"),
    ):
        written = pipeline.text(pipeline.Spec(parse_assignment(text), parse_schedule(words)))
        assert "js_prefetch" in written, words

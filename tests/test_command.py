# SPDX-License-Identifier: Apache-2.0
"""The command line: what it prints, its exit codes, and that it fails in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from absl.testing import flagsaver

import jsparse as js
from jsparse import __main__ as program
from jsparse import command, latency
from jsparse.errors import EinsumError, FormatError
from jsparse.parse import parse_einsum


@pytest.fixture
def graph(tmp_path: Path) -> str:
    """A small matrix in a file."""
    rng = np.random.default_rng(0)
    path = tmp_path / "graph.mtx"
    js.save(path, sp.random_array((30, 20), density=0.2, rng=rng, dtype=np.float32))
    return str(path)


def jsparse(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "jsparse", *words]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)


def printed(*args: Any, **wish: Any) -> str:
    return "\n".join(command.run(*args, seconds=0.0, **wish))


# -------------------------------------------------------------------- explain
def test_explain() -> None:
    text = command.explain("ij,jk->ik", ["csr,dense"], {"i": 50, "k": 8})
    for words in (
        "csr float32[50,1000]",
        "dense float32[50,8]",
        "reorder(",
        "candidates",
        "jsparse_kernel",
    ):
        assert words in text, words


@pytest.mark.parametrize(
    "einsum, formats",
    [
        ("ij->i", ["csc"]),
        ("ij->ij", ["dense,compressed"]),
        ("ij,ij->ij", ["csr", "compressed,compressed@1,0"]),
        ("ijk,kl->ijl", ["csf,dense"]),
        ("ijk,k->ij", ["dense,compressed,dense", "dense"]),
        ("ij,jk->ik", ["coo,csr"]),
    ],
)
def test_explain_formats(einsum: str, formats: list[str]) -> None:
    """Formats are one text each, or one text with commas; every rank and level will do."""
    assert "kernel 1" in command.explain(einsum, formats, {})


@pytest.mark.parametrize(
    "einsum, formats, sizes, dtype, error, words",
    [
        ("ij,jk->ik", ["csr"], {}, "float32", EinsumError, r"2 subscripts for 1 format"),
        ("ij,jk->ik", ["csr,frob"], {}, "float32", FormatError, "frob"),
        ("ij,jk->iq", ["csr,dense"], {}, "float32", EinsumError, "'q'"),
        ("ij,jk->ik", ["csr,dense"], {"q": 3}, "float32", EinsumError, "'q'"),
        ("ij,j-i", ["csr,dense"], {}, "float32", EinsumError, "'-'"),
        ("ij->i", ["csr"], {}, "floaty", FormatError, "floaty"),
    ],
)
def test_explain_errors(
    einsum: str, formats: list[str], sizes: dict[str, int], dtype: str, error: type, words: str
) -> None:
    with pytest.raises(error, match=words):
        command.explain(einsum, formats, sizes, dtype)


# ------------------------------------------------------------------- operands
def test_dense_extents_follow_letters(graph: str) -> None:
    a, b = command.operands("ij,jk->ik", [graph, "dense:7"])
    assert a.shape == (30, 20) and b.shape == (20, 7)
    b, a = command.operands("ki,ij->kj", ["dense:7", graph])
    assert b.shape == (7, 30) and a.shape == (30, 20)
    a, b, c = command.operands("ij,ik,jk->ij", [graph, "dense:4", "dense"])
    assert b.shape == (30, 4) and c.shape == (20, 4)
    assert command.operands("ij,jk->ik", [graph, "dense:20x7"])[1].shape == (20, 7)
    assert command.operands("...ij,...jk", [graph, "dense:3x20x7"])[1].shape == (3, 20, 7)


def test_operand_texts(graph: str) -> None:
    a, b = command.operands("ij,jk->ik", [f"{graph}:csc", "random:dcsr:20x50:0.1"], "bfloat16")
    assert str(a.format) == "csc" and str(b.format) == "dcsr"
    assert b.nnz == 100 and a.dtype == b.dtype == jnp.bfloat16
    (x,) = command.operands("ij", ["dense:2x3"], "int32")
    assert x.dtype == jnp.int32


@pytest.mark.parametrize(
    "specs, words",
    [
        (["random:csr:4xfour", "dense:3"], "4xfour"),
        (["random:csr", "dense:3"], "random:FORMAT:SHAPE"),
        (["random:csr:4x4:half", "dense:3"], "half"),
        (["random:csr:4x4", "dense:3x4x5"], r"expected 1 for \['k'\] \(known: j=4\)"),
        (["random:csr:4x4"], "2 subscripts for 1 operand"),
    ],
)
def test_operand_errors(specs: list[str], words: str) -> None:
    with pytest.raises((EinsumError, FormatError), match=words):
        command.operands("ij,jk->ik", specs)


# ------------------------------------------------------------------------ run
@pytest.mark.parametrize(
    "einsum, specs, by",
    [
        ("ij,jk->ik", ["dense:8"], "SciPy"),
        ("ij,j->i", ["dense"], "SciPy"),
        ("ji,jk->ki", ["dense:3"], "SciPy"),
        ("ij->j", [], "SciPy"),
        ("ij,ij->ij", ["random:csc:30x20:0.3"], "SciPy"),
        ("ij,jk->ik", ["random:csr:20x9:0.3"], "SciPy"),
        ("ij,ik,jk->ij", ["dense:4", "dense"], "dense NumPy"),
    ],
)
def test_run(graph: str, einsum: str, specs: list[str], by: str) -> None:
    text = printed(einsum, [graph, *specs])
    assert f"check: ok; {by}" in text
    for words in ("parse", "infer and plan", "text of", "first eager call", "second jitted call"):
        assert words in text, words
    for name in ("jsparse, jit", "jsparse, eager", "SciPy", "BCOO, jit", "BCSR, jit"):
        assert re.search(rf"^  {name} +(\d|-)", text, re.M), name


def test_run_compiles_afresh(graph: str) -> None:
    text = printed("ij,jk->ik", [graph, "dense:8"], fresh=True)
    assert "compile Y[i,k]" in text and "find on disk" not in text


@pytest.mark.parametrize("dtype", ["int8", "int32", "float16", "bfloat16", "complex64"])
def test_run_dtypes(graph: str, dtype: str) -> None:
    assert "check: ok" in printed("ij,jk->ik", [graph, "dense:5"], dtype)


def test_check_finds_errors(graph: str) -> None:
    """Every way of comparing tells a right result from a wrong one."""
    a, x, b = command.operands("ij,jk,ij->ik", [graph, "dense:4", graph])
    for einsum, ops in (
        ("ij,jk->ik", (a, x)),
        ("ij->", (a,)),
        ("ij,ij->ij", (a, b)),
        ("ij,ij,jk->ik", (a, b, x)),
    ):
        e = parse_einsum(einsum, tuple(o.ndim for o in ops))
        good = js.einsum(einsum, *ops)
        bad = (
            good.with_data(good.data.at[0].add(0.5))
            if isinstance(good, js.SparseArray)
            else good + 0.5
        )
        assert command.check(einsum, e, ops, good)[0], einsum
        assert not command.check(einsum, e, ops, bad)[0], einsum


# --------------------------------------------------------------- the program
def test_program(graph: str, tmp_path: Path) -> None:
    done = jsparse("run", "ij,jk->ik", graph, "dense:8", "--seconds=0", "--dtype=float64")
    assert done.returncode == 0 and "check: ok" in done.stdout, done.stderr
    done = jsparse("explain", "ij,jk->ik", "csr,dense", "--sizes=i=9,k=8")
    assert done.returncode == 0 and "csr float32[9,1000]" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "words, expected",
    [
        (["run", "ij,jk->ik", "missing.mtx", "dense:8"], "missing.mtx"),
        (["run", "ij,jk->ik", "BAD", "dense:8"], "bad.mtx:3"),
        (["run", "ij,jk->i!", "random:csr:4x4", "dense:8"], "'!'"),
        (["explain", "ij,jk->ik", "csr,dense", "--sizes=many"], "--sizes"),
        (["explain", "ij->i", "csr", "--frobnicate"], "frobnicate"),
        (["explain", "ij->i", "csr", "--schedule=reorder(q)"], "reorder"),
        ([], "usage"),
        (["frobnicate"], "usage"),
    ],
)
def test_errors_are_one_line(
    words: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.mtx"
    bad.write_text("%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 1.0\n")
    with flagsaver.flagsaver(), pytest.raises(SystemExit) as stop:
        rest = program.parse(["jsparse", *[str(bad) if w == "BAD" else w for w in words]])
        sys.exit(program.main(rest))
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert said.count("\n") == 1 and said.startswith("jsparse: "), said
    assert expected in said


def test_error_leaves_no_traceback() -> None:
    done = jsparse("run", "ij,jk->ik", "missing.mtx", "dense:8")
    assert done.returncode == 2 and "missing.mtx" in done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout


def test_help() -> None:
    done = jsparse("--help")
    for words in ("explain", "run", "times", "--sizes", "random:csr", "Exit codes"):
        assert words in done.stdout, words


# ---------------------------------------------------------------------- times
def test_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure is measured, for one einsum here; none is asserted. The last is a difference,
    and may be below zero.
    """
    monkeypatch.setattr(latency, "REPEATS", 1)
    text = "\n".join(latency.times([("ij,jk->ik", "csr dense")], seconds=0.1))
    for what in (
        *("schedule and text", "all decisions", "text of one", "C++ compiler", "second process"),
        *("cached eager call", "first GCN step"),
    ):
        assert re.search(rf"{re.escape(what)}.* -?\d+\.\d\d .* (ok|OVER)", text), what


def test_table_of_times() -> None:
    """Up to four operands, every one with a letter's worth of formats."""
    assert {len(formats.split()) for _, formats in latency.TABLE} == {1, 2, 3, 4}
    for einsum, formats in latency.TABLE:
        assert len(formats.split()) == einsum.partition("->")[0].count(",") + 1

# SPDX-License-Identifier: Apache-2.0
"""The examples run, with and without a graph file, and end with their check."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import jsparse as js

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


def output(path: Path, *flags: str) -> list[str]:
    line = [sys.executable, str(path), *flags]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


ON_FILES = [path for path in EXAMPLES if "--graph" in path.read_text()]


@pytest.mark.parametrize("path", ON_FILES, ids=lambda p: p.name)
def test_on_a_file(path: Path, tmp_path: Path) -> None:
    graph = tmp_path / "graph.mtx.gz"
    js.save(graph, sp.random_array((60, 60), density=0.1, rng=np.random.default_rng(0)))
    lines = output(path, f"--graph={graph}")
    assert "(60, 60)" in lines[0] and lines[-1].startswith("check: ok")


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_as_it_is(path: Path) -> None:
    assert output(path)[-1].startswith("check: ok")

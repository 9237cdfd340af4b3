# SPDX-License-Identifier: Apache-2.0
"""Fixtures that all test modules share."""

from collections.abc import Iterator

import jax
import pytest

from jsparse import config

config.update(verify=True)
# Kernels are compiled as ever; what XLA compiles around them is small and runs once.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(scope="module")
def x64() -> Iterator[None]:
    """64-bit types, in every thread; a module asks with `pytest.mark.usefixtures("x64")`."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")

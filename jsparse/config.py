# SPDX-License-Identifier: Apache-2.0
"""Settings: one frozen record, read from the environment once and changed with `update` or
  `override`.

A field `cache_dir` is read from `JSPARSE_CACHE_DIR`, and so on for every field.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any


def _default_cache() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return str(Path(base) / "jsparse")


@dataclass(frozen=True, slots=True)
class Config:
    """All settings."""

    cache_dir: str = ""  # where compiled kernels are kept; private to its user
    cxx: str = ""  # the C++ compiler; empty: the first of c++, g++, clang++, then the ziglang wheel
    cxxflags: str = ""  # appended to the compiler's command line
    # "auto": a generated kernel where there is a compiler; "kernel"; "reference": pure JAX
    backend: str = "auto"
    verify: bool = False  # check the loop IR of every kernel; the tests do
    keep_source: bool = True  # leave the C++ text beside each object, for reading and profiling


def _from_environment() -> Config:
    values: dict[str, Any] = {}
    for f in fields(Config):
        text = os.environ.get("JSPARSE_" + f.name.upper())
        if text is not None:
            values[f.name] = (
                text.lower() in ("1", "true", "yes") if f.type in ("bool", bool) else text
            )
    config = Config(**values)
    return config if config.cache_dir else replace(config, cache_dir=_default_cache())


_config = _from_environment()


def get() -> Config:
    return _config


def update(**values: Any) -> None:
    """Change settings for the process; raises TypeError for a name that is not one."""
    global _config
    _config = replace(_config, **values)


@contextlib.contextmanager
def override(**values: Any) -> Iterator[None]:
    """Settings changed within a `with` block (for the whole process: not per thread)."""
    before = _config
    update(**values)
    try:
        yield
    finally:
        update(**{f.name: getattr(before, f.name) for f in fields(before)})

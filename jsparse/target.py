# SPDX-License-Identifier: Apache-2.0
"""What schedules and emitters may know of a machine: vector width, threads, caches."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# The dtypes whose values are computed in vectors, and bytes of an element there.
VECTOR_DTYPES = {
    "float32": 4, "float64": 8, "int32": 4, "int64": 8, "uint32": 4, "uint64": 8,
    "float16": 4, "bfloat16": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """A CPU.  `vector_bytes`: width of its vector registers; `registers`: how many; caches in
    bytes.
    """

    name: str
    vector_bytes: int
    registers: int
    threads: int
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 16 << 20


@cache
def cpu_features() -> str:
    """The processor's model and feature flags as one line: part of what names a compiled object."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    keep = [
        line.partition(":")[2].strip()
        for key in ("model name", "flags", "Features", "CPU part")
        for line in text.splitlines()
        if line.startswith(key)
    ]
    return "; ".join(dict.fromkeys(keep))


@cache
def host() -> Target:
    """The machine this process runs on."""
    flags = set(cpu_features().split())
    if platform.machine() in ("x86_64", "AMD64"):
        wide = "avx512f" in flags and "avx512vl" in flags
        width = 64 if wide else 32 if "avx2" in flags else 16
        name, registers = f"x86-64/{width * 8}", 32 if wide else 16
    else:
        width, registers, name = 16, 32, platform.machine()
    threads = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return Target(name, width, registers, threads)

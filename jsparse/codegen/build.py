# SPDX-License-Identifier: Apache-2.0
"""Kernel text to a shared object, in a cache addressed by content.

The kernel key is a hash of the text and the ABI; the object's name adds the compiler, its flags
and the processor.  An object is written to a temporary name and moved into place, so processes
may share the folder and a killed compile leaves nothing behind.  The folder is created 0700 and
its owner checked before anything in it is loaded.  `submit` compiles in the background; `path`
waits.

What kernels call but do not contain (`csrc/cpu/support.cc`) is compiled once for each compiler,
flags and processor, and linked into every kernel: an object needs no other file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from jsparse import config
from jsparse.errors import CompileError
from jsparse.target import cpu_features

FLAGS = (
    "-std=gnu++17", "-march=native", "-fPIC", "-fwrapv", "-fno-exceptions", "-fno-rtti",
    "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fvisibility=default", "-w",
)  # fmt: skip

# Vectors, unrolling and tiles are in the text, so more than this finds nothing (in 20 kernels -O2
# took 1.01 of the time, -O3 as much) and takes a fifth longer to compile.
GCC_OPTIMIZE = ("-O1", "-fstrict-aliasing", "-fschedule-insns2")
OPTIMIZE = ("-O2",)  # of other compilers, and of what is compiled once

# Kernels call memset and little else, which the process has: not to look through the C++ library
# takes a sixth off the time to compile.  Clang may lack libgcc.
GCC_LINK = ("-nostdlib", "-lgcc")


@cache
def headers() -> Path:
    """The folder of the headers that generated code includes."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "csrc", package.parent / "csrc"):
        if (folder / "abi.h").exists():
            return folder
    raise CompileError("jsparse is installed without its csrc headers: reinstall the package")


@cache
def _headers_digest() -> str:
    h = hashlib.sha256()
    for f in sorted((*headers().rglob("*.h"), *headers().rglob("*.cc"))):
        h.update(f.read_bytes())
    return h.hexdigest()[:16]


def key(text: str) -> str:
    """The kernel key: what the text computes, on any machine."""
    return hashlib.sha256((_headers_digest() + text).encode()).hexdigest()[:24]


def _compiler_command(setting: str, path: str) -> tuple[str, ...] | None:
    if setting:
        words = tuple(shlex.split(setting))
        return words if words and shutil.which(words[0]) else None
    for name in ("c++", "g++", "clang++"):
        found = shutil.which(name, path=path)
        if found:
            return (found,)
    if find_spec("ziglang") is not None:
        # Kernels use nothing of the C++ library, which zig would build first, for minutes.
        return (sys.executable, "-m", "ziglang", "c++", "-nostdlib++")
    return None


_compilers: dict[tuple[str, str], tuple[tuple[str, ...], str] | None] = {}


def compiler() -> tuple[tuple[str, ...], str] | None:
    """(command, identity) of the C++ compiler, or None if there is none."""
    setting = config.get().cxx or os.environ.get("JSPARSE_CXX", "")
    where = (setting, os.environ.get("PATH", ""))
    if where not in _compilers:
        command = _compiler_command(*where)
        _compilers[where] = (command, _identity(command)) if command else None
    return _compilers[where]


def _identity(command: tuple[str, ...]) -> str:
    """What distinguishes one compiler from another, without running it where the file itself can
    tell.
    """
    binary = Path(os.path.realpath(shutil.which(command[0]) or command[0]))
    try:
        stat = binary.stat()
        return f"{' '.join(command)} {binary} {stat.st_size} {stat.st_mtime_ns}"
    except OSError:
        return " ".join(command)


def _is_gcc(program: str) -> bool:
    return "g++" in Path(os.path.realpath(shutil.which(program) or program)).name


NO_COMPILER = (
    "no C++ compiler: looked for $JSPARSE_CXX, c++, g++, clang++ and the ziglang wheel; install "
    "one, for instance with pip install 'jsparse[zig]'"
)


@cache
def _toolchain(identity: str, extra: str) -> str:
    flags = (*FLAGS, *GCC_OPTIMIZE, *OPTIMIZE, *GCC_LINK)
    text = "\n".join((identity, extra, *flags, cpu_features()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


_checked: set[str] = set()


def cache_dir() -> Path:
    """The cache folder, created if needed; refuses one that others can write to."""
    folder = Path(config.get().cache_dir)
    if str(folder) in _checked and folder.is_dir():
        return folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(os, "getuid"):
        stat = folder.stat()
        if stat.st_uid != os.getuid() or stat.st_mode & 0o022:
            raise CompileError(
                f"kernel cache {folder}: it must belong to you and be writable by nobody else, got "
                f"owner {stat.st_uid} and mode {stat.st_mode & 0o777:o}; set JSPARSE_CACHE_DIR to "
                f"a private folder"
            )
    _checked.add(str(folder))
    return folder


def _object(name: str, suffix: str) -> Path:
    found = compiler()
    identity = found[1] if found else "none"
    return cache_dir() / f"{name}-{_toolchain(identity, config.get().cxxflags)}{suffix}"


def object_path(kernel_key: str) -> Path:
    """Where the object of a kernel is, or will be."""
    return _object(kernel_key, ".so")


def compile_now(text: str, kernel_key: str) -> Path:
    """Compile unless the object is there already; returns its path.

    Raises `CompileError` if there is no compiler, or with the first error and the kept source if
    it fails.
    """
    target = object_path(kernel_key)
    if not target.exists():
        _compile(f"kernel {kernel_key}", text, target, "-shared", str(_support()))
    return target


_support_lock = threading.Lock()


def _support() -> Path:
    """The object of `csrc/cpu/support.cc`, compiled unless it is there already."""
    target = _object(f"support-{_headers_digest()}", ".o")
    with _support_lock:
        if not target.exists():
            text = (headers() / "cpu" / "support.cc").read_text()
            _compile("support", text, target, "-c")
    return target


def _compile(what: str, text: str, target: Path, *how: str) -> None:
    """One run of the compiler: -c, or -shared and the objects to link."""
    found = compiler()
    if found is None:
        raise CompileError(NO_COMPILER)
    folder = cache_dir()
    source = target.with_suffix(".cc")
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".build-", suffix=target.suffix)
    os.close(handle)
    handle, draft = tempfile.mkstemp(dir=folder, prefix=".build-", suffix=".cc")
    with os.fdopen(handle, "w") as f:
        f.write(text)
    gcc = "-shared" in how and _is_gcc(found[0][0])
    optimize = GCC_OPTIMIZE if gcc else OPTIMIZE
    command = [
        *found[0], *FLAGS, *optimize, *shlex.split(config.get().cxxflags),
        f"-I{headers()}", draft, *how, "-o", temporary, *(GCC_LINK if gcc else ()),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            os.replace(draft, source)
            first = next(
                (line for line in done.stderr.splitlines() if re.search(r"\berror\b", line)),
                done.stderr[:300],
            )
            raise CompileError(
                f"{found[0][0]} failed on {what} (exit {done.returncode}); "
                f"source kept at {source}. "
                f"First error: {first}"
            )
        if config.get().keep_source:
            os.replace(draft, source)
        os.chmod(temporary, 0o700)
        os.replace(temporary, target)
    finally:
        for leftover in (temporary, draft):
            if os.path.exists(leftover):
                os.unlink(leftover)


_lock = threading.Lock()
_pending: dict[Path, Future[Path]] = {}
_pool: ThreadPoolExecutor | None = None


def submit(text: str) -> str:
    """Start compiling in the background if needed; returns the kernel key."""
    global _pool
    kernel_key = key(text)
    target = object_path(kernel_key)
    with _lock:
        if target not in _pending and not target.exists():
            if _pool is None:
                _pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="jsparse-cxx")
            _pending[target] = _pool.submit(compile_now, text, kernel_key)
    return kernel_key


def path(text: str, kernel_key: str) -> Path:
    """The object of a kernel: waits for a compile under way, or compiles."""
    target = object_path(kernel_key)
    with _lock:
        future = _pending.get(target)
    if future is not None:
        try:
            return future.result()
        finally:
            with _lock:
                _pending.pop(target, None)
    return compile_now(text, kernel_key)

# SPDX-License-Identifier: Apache-2.0
"""jsparse on the command line.

  python -m jsparse explain "ij,jk->ik" csr,dense     what jsparse would do, and the kernel's text
  python -m jsparse run "ij,jk->ik" A.mtx dense:64    run on a file: costs, a check, a comparison
  python -m jsparse times                             how long jsparse itself takes, and its limits

Operands of explain are formats, of run:
  A.mtx   A.npz   A.tns.gz   A.mtx:csc                a file, and the format to hold it in
  random:csr:1000x1000:0.01                           generated: format, shape, density
  dense   dense:64   dense:1000x64                    generated: no extent, the unknown ones, or all
times takes an einsum and formats, too, to measure these alone.

Exit codes: 0; 1 if the result of run failed its check; 2 if something is wrong with the command,
with one line on stderr that says what.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import jax
from absl import app, flags

from jsparse import command, latency
from jsparse.errors import EinsumError, InternalError, JsparseError

_SIZES = flags.DEFINE_list("sizes", [], "explain: extents by letter, such as i=1000,k=64")
_DENSITY = flags.DEFINE_float("density", 0.01, "explain: fraction of entries that are stored", 0, 1)
_DTYPE = flags.DEFINE_string("dtype", "", "of all operands; by default a file's own, or float32")
_OUT_FORMAT = flags.DEFINE_string("out_format", None, "format of the result, instead of inference")
_SCHEDULE = flags.DEFINE_string("schedule", None, "loop schedule, such as 'reorder(i,k,j)'")
_SECONDS = flags.DEFINE_float("seconds", 2.0, "run: how long to time", 0)
_FRESH = flags.DEFINE_bool("fresh", False, "run: compile although the kernel may be on disk")

_USAGE = "usage: python -m jsparse explain|run|times [EINSUM OPERANDS...], or --help"


class UsageError(Exception):
    """A command line that says nothing we can do."""


def lines(words: list[str]) -> Iterable[str]:
    """The output of a command, line by line."""
    wish: dict[str, Any] = {}
    if _OUT_FORMAT.value is not None:
        wish["out_format"] = _OUT_FORMAT.value
    if _SCHEDULE.value is not None:
        wish["schedule"] = _SCHEDULE.value
    match words:
        case ["explain", einsum, *formats] if formats:
            dtype = _DTYPE.value or "float32"
            sizes = dict(map(_size, _SIZES.value))
            return [command.explain(einsum, formats, sizes, dtype, _DENSITY.value, **wish)]
        case ["run", einsum, *specs] if specs:
            return command.run(einsum, specs, _DTYPE.value, _SECONDS.value, _FRESH.value, **wish)
        case ["times"]:
            return latency.times()
        case ["times", einsum, *formats] if formats:
            return latency.times([(einsum, " ".join(formats).replace(",", " "))])
        case _:
            raise UsageError(_USAGE)


def _size(text: str) -> tuple[str, int]:
    name, _, extent = text.partition("=")
    if len(name) != 1 or not extent.isdigit():
        raise EinsumError(f"--sizes: got {text!r}, expected a letter and an extent such as i=1000")
    return name, int(extent)


def main(argv: list[str]) -> int:
    """Print a command's output; returns the exit code."""
    try:
        for line in lines(argv[1:]):
            print(line, flush=True)
    except command.WrongResultError as error:
        return _fail(error, 1)
    except InternalError:
        raise
    except (UsageError, JsparseError, OSError, MemoryError, OverflowError) as error:
        return _fail(error, 2)
    except jax.errors.JaxRuntimeError as error:
        return _fail(error, 2)
    return 0


def _fail(error: Exception, code: int) -> int:
    print(f"jsparse: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
    return code


def parse(argv: list[str]) -> list[str]:
    """Read the flags; returns the other words."""
    try:
        return list(flags.FLAGS(argv))
    except flags.Error as error:
        sys.exit(_fail(error, 2))


if __name__ == "__main__":
    app.run(main, flags_parser=parse)

# SPDX-License-Identifier: Apache-2.0
"""What jsparse raises.

Every error a user can cause derives from `JsparseError` and from the builtin that a NumPy user
would expect, and its text has the form *what is wrong: got X, expected Y; do Z*.  `InternalError`
marks our own bugs.
"""


class JsparseError(Exception):
    """Base of all errors that jsparse raises on purpose."""


class EinsumError(JsparseError, ValueError):
    """An einsum string that does not parse or does not fit its operands."""


class FormatError(JsparseError, ValueError):
    """An unknown format, or one that does not fit the array."""


class StructureError(JsparseError, ValueError):
    """Index arrays that do not describe a sparse array of the given shape."""


class ScheduleError(JsparseError, ValueError):
    """A schedule that does not parse or is not legal for the einsum."""


class CapacityError(JsparseError, ValueError):
    """A sparse output of unknown size under `jit`, or one that does not fit its capacity."""


class FileError(JsparseError, ValueError):
    """A file that is not what its name says; the text names file and line."""


class UnsupportedError(JsparseError, NotImplementedError):
    """Something meaningful that jsparse does not do; the text says what to do instead."""


class CompileError(JsparseError, RuntimeError):
    """No C++ compiler, or it refused a generated kernel."""


class InternalError(JsparseError, AssertionError):
    """A bug in jsparse: please report it with the text of this error."""

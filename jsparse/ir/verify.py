# SPDX-License-Identifier: Apache-2.0
"""What loop IR must satisfy before it becomes text: the specification of `loop`, as a check.

Variables are declared before use and assigned only if mutable; buffers are those of the kernel or
allocated before; lanes agree; only results and scratch are stored to; `Parallel` does not nest.
"""

from __future__ import annotations

from jsparse.errors import InternalError
from jsparse.ir import loop
from jsparse.ir.loop import Kernel, Stmt, type_of
from jsparse.ir.rewrite import children


def check(kernel: Kernel) -> None:
    """Raise `InternalError` at the first violation."""
    known = {b.name for b in (*kernel.args, *kernel.results)}
    _Checker({b.name for b in kernel.args}).stmt(kernel.body, {}, known, False)


class _Checker:
    def __init__(self, read_only: set[str]) -> None:
        self.read_only = read_only

    def fail(self, why: str, node: object) -> None:
        raise InternalError(f"loop IR: {why} in {node!r:.200}; please report this")

    def expr(self, e: object, names: dict[str, bool], buffers: set[str]) -> None:
        if type(e) is loop.Var:
            if e.name not in names:
                self.fail(f"variable {e.name!r} is not declared", e)
        elif type(e) is loop.Buffer:
            if e.name not in buffers and e.where != "set":
                self.fail(f"buffer {e.name!r} is not bound", e)
        else:
            for child in children(e):
                self.expr(child, names, buffers)

    def stmt(self, s: Stmt, names: dict[str, bool], buffers: set[str], chunk: bool) -> None:
        """`names` maps visible variables to mutability; both tables grow with declarations."""
        match s:
            case loop.Block(stmts):
                for x in stmts:
                    self.stmt(x, names, buffers, chunk)
            case loop.Decl(var, value, mutable):
                self.expr(value, names, buffers)
                if type_of(value)[1] != var.lanes:
                    self.fail(f"{var.name} has {var.lanes} lanes, its value {type_of(value)[1]}", s)
                names[var.name] = mutable
            case loop.Assign(var, value):
                self.expr(value, names, buffers)
                if not names.get(var.name, False):
                    self.fail(f"{var.name!r} is assigned but not a mutable variable", s)
            case loop.Store(buffer, index, value, _, lanes):
                for e in (index, value):
                    self.expr(e, names, buffers)
                self.expr(buffer, names, buffers)
                if buffer.name in self.read_only:
                    self.fail(f"store to the argument {buffer.name!r}", s)
                if type_of(value)[1] not in (1, lanes):
                    self.fail(f"store of {type_of(value)[1]} lanes as {lanes}", s)
            case loop.For(var, lo, hi, body, step):
                self.expr(lo, names, buffers)
                self.expr(hi, names, buffers)
                if step < 1:
                    self.fail(f"step {step}", s)
                self.stmt(body, {**names, var.name: False}, set(buffers), chunk)
            case loop.While(cond, body):
                self.expr(cond, names, buffers)
                self.stmt(body, dict(names), set(buffers), chunk)
            case loop.If(cond, then, other):
                self.expr(cond, names, buffers)
                self.stmt(then, dict(names), set(buffers), chunk)
                if other is not None:
                    self.stmt(other, dict(names), set(buffers), chunk)
            case loop.Scratch(buffer, size, _):
                self.expr(size, names, buffers)
                buffers.add(buffer.name)
            case loop.Parallel(var, chunks, body):
                if chunk:
                    self.fail("parallel loop inside a parallel loop", s)
                self.expr(chunks, names, buffers)
                frozen = dict.fromkeys(names, False) | {var.name: False}
                self.stmt(body, frozen, set(buffers), True)
            case loop.Do(_, args):
                for arg in args:
                    self.expr(arg, names, buffers)
            case loop.Raise(_, _, _, position, got, limit):
                for e in (position, got, limit):
                    self.expr(e, names, buffers)
            case loop.Check(_, _, _, array, lo, hi, limit):
                self.expr(array, names, buffers)
                for e in (lo, hi, limit):
                    self.expr(e, names, buffers)
            case loop.Break() | loop.Comment():
                pass
            case _:
                self.fail("unknown statement", s)

# SPDX-License-Identifier: Apache-2.0
"""Loop IR to text of the C family: expressions and statements.  A backend supplies entries and
the parallel loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jsparse.errors import InternalError
from jsparse.ir import loop
from jsparse.ir.loop import INT, Expr, Stmt, type_of

# dtype -> (C type, short name for vector types).
DTYPES = {
    "float32": ("float", "f32"),
    "float64": ("double", "f64"),
    "float16": ("js_f16", "f16"),
    "bfloat16": ("js_bf16", "bf16"),
    "complex64": ("js_c64", "c64"),
    "complex128": ("js_c128", "c128"),
    "int8": ("int8_t", "i8"),
    "int16": ("int16_t", "i16"),
    "int32": ("int32_t", "i32"),
    "int64": ("int64_t", "i64"),
    "uint8": ("uint8_t", "u8"),
    "uint16": ("uint16_t", "u16"),
    "uint32": ("uint32_t", "u32"),
    "uint64": ("uint64_t", "u64"),
    "bool": ("bool", "b8"),
}
SIZES = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "complex64": 8, "complex128": 16,
    "int8": 1, "int16": 2, "int32": 4, "int64": 8, "bool": 1,
    "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
}  # fmt: skip

_PRECEDENCE = {
    "*": 10, "/": 10, "%": 10, "+": 9, "-": 9, "<": 7, "<=": 7, ">": 7, ">=": 7, "==": 6, "!=": 6,
    "&": 5, "|": 4, "and": 3, "or": 2,
}  # fmt: skip
_COMPARE = ("<", "<=", ">", ">=", "==", "!=")
_SPELLING = {"and": "&&", "or": "||"}
_ATOM, _UNARY, _TERNARY = 20, 15, 1


def c_type(dtype: str, lanes: int = 1) -> str:
    plain, short = DTYPES[dtype]
    return plain if lanes == 1 else f"{short}x{lanes}"


def literal(value: int | float | bool, dtype: str) -> str:
    """A constant as a C literal of its dtype."""
    match dtype:
        case "int64":
            return str(value) if abs(value) < 2**31 else f"INT64_C({value})"
        case "bool":
            return "true" if value else "false"
        case "float32":
            return f"{float(value)}f"
        case "float64":
            return f"{float(value)}"
        case "float16" | "bfloat16":
            raise InternalError(f"a {dtype} constant; sums are float32")
        case "complex64" | "complex128":
            return f"{c_type(dtype)}({float(value)})"
        case _:
            return str(int(value))


def widened(e: Expr) -> Expr:
    """A load of an index array where C itself widens it to 64 bits: initialised from, or compared
    with, an int64.
    """
    return e.a if type(e) is loop.Cast and e.dtype == INT and type(e.a) is loop.Load else e


@dataclass(slots=True)
class Names:
    """What the text of a function names: buffers and variables, and those it makes itself."""

    buffers: dict[str, loop.Buffer] = field(default_factory=dict)
    variables: dict[str, loop.Var] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)

    def free_buffers(self) -> list[loop.Buffer]:
        return [b for name, b in self.buffers.items() if name not in self.made]

    def free_variables(self) -> list[loop.Var]:
        return [v for name, v in self.variables.items() if name not in self.made]


class CStyle:
    """The emitter.  `text` accumulates lines; `indent` is the present depth."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.indent = 1
        self.includes: set[str] = set()
        self.vectors: set[tuple[str, int]] = set()
        self.sums: set[tuple[str, int, str]] = set()
        self.names = Names()

    def line(self, text: str) -> None:
        self.lines.append("  " * self.indent + text if text else "")

    def buffer(self, b: loop.Buffer) -> str:
        self.names.buffers[b.name] = b
        return b.name

    # ----------------------------------------------------------- expressions
    def expr(self, e: Expr, above: int = 0) -> str:
        """The text of `e`, in parentheses if it binds less than `above`."""
        if type(e) is loop.Var:  # every second expression
            self.names.variables[e.name] = e
            return e.name
        text, precedence = _EXPRESSIONS[type(e)](self, e)
        return f"({text})" if precedence < above else text

    def vector_type(self, dtype: str, lanes: int) -> str:
        self.vectors.add((dtype, lanes))
        return c_type(dtype, lanes)

    def _const(self, e: loop.Const) -> tuple[str, int]:
        text = literal(e.value, e.dtype)
        return text, _UNARY if text[0] == "-" else _ATOM

    def _dim(self, e: loop.Dim) -> tuple[str, int]:
        return self.dim(e.buffer, e.axis), _ATOM

    def _extent(self, e: loop.Extent) -> tuple[str, int]:
        return f"extents[{e.number}]", _ATOM

    def _threads(self, e: loop.Threads) -> tuple[str, int]:
        return "ctx->num_threads", _ATOM

    def _load(self, e: loop.Load) -> tuple[str, int]:
        name = self.buffer(e.buffer)
        if e.lanes == 1:
            return f"{name}[{self.expr(e.index)}]", _ATOM
        kind = self.vector_type(e.buffer.dtype, e.lanes)
        return f"*(const {kind}u*)({name} + {self.expr(e.index, 9)})", _UNARY

    def _bin(self, e: loop.Bin) -> tuple[str, int]:
        op, a, b = e.op, e.a, e.b
        if op == "min" or op == "max":
            return f"js_{op}({self.expr(a)}, {self.expr(b)})", _ATOM
        p = _PRECEDENCE[op]
        if op in _COMPARE:
            a, b = widened(a), widened(b)
        return f"{self.expr(a, p)} {_SPELLING.get(op, op)} {self.expr(b, p + 1)}", p

    def _neg(self, e: loop.Neg) -> tuple[str, int]:
        return f"-{self.expr(e.a, _UNARY)}", _UNARY

    def _cast(self, e: loop.Cast) -> tuple[str, int]:
        return self.cast(e.dtype, e.a), _UNARY

    def _select(self, e: loop.Select) -> tuple[str, int]:
        return f"{self.expr(e.cond, 2)} ? {self.expr(e.a, 2)} : {self.expr(e.b, 1)}", _TERNARY

    def _keep(self, e: loop.Keep) -> tuple[str, int]:
        return f"js_keep({self.expr(e.cond)}, {self.expr(e.a)})", _ATOM

    def _splat(self, e: loop.Splat) -> tuple[str, int]:
        kind = self.vector_type(type_of(e.a)[0], e.lanes)
        if isinstance(e.a, loop.Const) and e.a.value == 0:
            return f"{kind}{{}}", 9
        return f"{self.expr(e.a, _UNARY)} - {kind}{{}}", 9

    def _pack(self, e: loop.Pack) -> tuple[str, int]:
        kind = self.vector_type(*type_of(e))
        return f"{kind}{{{', '.join(self.expr(x) for x in e.parts)}}}", _ATOM

    def _hsum(self, e: loop.HSum) -> tuple[str, int]:
        dtype, lanes = type_of(e.a)
        self.sums.add((dtype, lanes, e.op))
        return f"hsum_{self.vector_type(dtype, lanes)}({self.expr(e.a)})", _ATOM

    def _call(self, e: loop.Call) -> tuple[str, int]:
        return self.call(e.name, e.args), _ATOM

    def call(self, name: str, args: tuple[Expr | loop.Buffer, ...]) -> str:
        return f"js_{name}({', '.join(self.arguments(args))})"

    def arguments(self, args: tuple[Expr | loop.Buffer, ...]) -> list[str]:
        return [self.buffer(a) if isinstance(a, loop.Buffer) else self.expr(a) for a in args]

    def cast(self, dtype: str, a: Expr) -> str:
        source, lanes = type_of(a)
        if source == dtype:
            return self.expr(a, _UNARY)
        if lanes > 1:
            kind = self.vector_type(dtype, lanes)
            for way, short in (("widen", source), ("narrow", dtype)):
                if short in ("float16", "bfloat16"):
                    return f"js_{way}_{DTYPES[short][1]}<{kind}>({self.expr(a)})"
            return f"__builtin_convertvector({self.expr(a)}, {kind})"
        if "bfloat16" in (dtype, source):
            return f"js_{DTYPES[source][1]}_to_{DTYPES[dtype][1]}({self.expr(a)})"
        return f"({c_type(dtype)}){self.expr(a, _UNARY)}"

    def dim(self, buffer: loop.Buffer, axis: int) -> str:
        source = f"{buffer.where}s[{buffer.number}]"
        return f"js_size(&{source})" if axis < 0 else f"{source}.dims[{axis}]"

    # ------------------------------------------------------------ statements
    def stmt(self, s: Stmt) -> None:
        _STATEMENTS[type(s)](self, s)

    def _block(self, s: loop.Block) -> None:
        for x in s.stmts:
            _STATEMENTS[type(x)](self, x)

    def _decl(self, s: loop.Decl) -> None:
        var = s.var
        value = self.expr(widened(s.value))
        self.names.made.add(var.name)
        const = "" if s.mutable else "const "
        kind = c_type(var.dtype) if var.lanes == 1 else self.vector_type(var.dtype, var.lanes)
        self.line(f"{const}{kind} {var.name} = {value};")

    def _assign(self, s: loop.Assign) -> None:
        self.line(f"{s.var.name}{self.update(s.var, s.value)};")

    def _for(self, s: loop.For) -> None:
        name, hi = s.var.name, s.hi
        self.names.made.add(name)
        head = f"int64_t {name} = {self.expr(widened(s.lo))}"
        last = self.expr(widened(hi))
        move = f"++{name}" if s.step == 1 else f"{name} += {s.step}"
        if isinstance(hi, (loop.Var, loop.Const, loop.Dim)):
            head = f"for ({head}; {name} < {last}; {move})"
        else:
            head = f"for ({head}, {name}_stop = {last}; {name} < {name}_stop; {move})"
        self.scope(head, s.body)

    def _while(self, s: loop.While) -> None:
        cond, body = self.expr(s.cond), s.body
        if isinstance(body, loop.Assign):
            self.line(f"while ({cond}) {body.var.name}{self.update(body.var, body.value)};")
        else:
            self.scope(f"while ({cond})", body)

    def _if(self, s: loop.If) -> None:
        if s.cond == loop.TRUE and s.other is None:
            self.scope("", s.then)
            return
        cond = self.expr(s.cond)
        if isinstance(s.then, loop.Break) and s.other is None:
            self.line(f"if ({cond}) break;")
            return
        self.scope(f"if ({cond})", s.then)
        if s.other is not None:
            self.lines[-1] += " else {"
            self.body(s.other)

    def _break(self, s: loop.Break) -> None:
        self.line("break;")

    def _comment(self, s: loop.Comment) -> None:
        self.line(f"// {s.text}")

    def _do(self, s: loop.Do) -> None:
        self.line(f"{self.call(s.name, s.args)};")

    def update(self, var: loop.Var, value: Expr) -> str:
        """` = value`, or ` += x` where value is var + x."""
        match value:
            case loop.Bin("+" | "|" as op, a, b) if a == var:
                if op == "+" and b == loop.ONE:
                    return "++"
                return f" {op}= {self.expr(b)}"
        return f" = {self.expr(value)}"

    def _store(self, s: loop.Store) -> None:
        name = self.buffer(s.buffer)
        if s.lanes == 1:
            left = f"{name}[{self.expr(s.index)}]"
        else:
            kind = self.vector_type(s.buffer.dtype, s.lanes)
            left = f"*({kind}u*)({name} + {self.expr(s.index, 9)})"
        self.line(f"{left} {s.op}= {self.expr(s.value)};")

    def scope(self, head: str, body: Stmt) -> None:
        self.line(f"{head} {{" if head else "{")
        self.body(body)

    def body(self, body: Stmt) -> None:
        self.indent += 1
        self.stmt(body)
        self.indent -= 1
        self.line("}")

    # ------------------------------------------------------ left to a backend
    def scratch(self, s: loop.Scratch) -> None:
        raise NotImplementedError

    def parallel(self, s: loop.Parallel) -> None:
        raise NotImplementedError

    def fault(self, s: loop.Raise) -> None:
        raise NotImplementedError

    def check(self, s: loop.Check) -> None:
        raise NotImplementedError


_EXPRESSIONS: dict[type, Callable[[CStyle, Any], tuple[str, int]]] = {
    loop.Const: CStyle._const,
    loop.Dim: CStyle._dim,
    loop.Extent: CStyle._extent,
    loop.Threads: CStyle._threads,
    loop.Load: CStyle._load,
    loop.Bin: CStyle._bin,
    loop.Neg: CStyle._neg,
    loop.Cast: CStyle._cast,
    loop.Select: CStyle._select,
    loop.Keep: CStyle._keep,
    loop.Splat: CStyle._splat,
    loop.Pack: CStyle._pack,
    loop.HSum: CStyle._hsum,
    loop.Call: CStyle._call,
}
_STATEMENTS: dict[type, Callable[[CStyle, Any], None]] = {
    loop.Block: CStyle._block,
    loop.Decl: CStyle._decl,
    loop.Assign: CStyle._assign,
    loop.Store: CStyle._store,
    loop.For: CStyle._for,
    loop.While: CStyle._while,
    loop.If: CStyle._if,
    loop.Break: CStyle._break,
    loop.Comment: CStyle._comment,
    loop.Do: CStyle._do,
    loop.Scratch: lambda self, s: self.scratch(s),
    loop.Parallel: lambda self, s: self.parallel(s),
    loop.Raise: lambda self, s: self.fault(s),
    loop.Check: lambda self, s: self.check(s),
}

# SPDX-License-Identifier: Apache-2.0
"""Loop IR to text of the C family: expressions and statements.  A backend supplies entries and
the parallel loop.
"""

from __future__ import annotations

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
VECTOR_DTYPES = ("float32", "float64", "int32", "int64", "uint32", "uint64")

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
        case "int64":
            return str(value) if abs(value) < 2**31 else f"INT64_C({value})"
        case _:
            return str(int(value))


def widened(e: Expr) -> Expr:
    """A load of an index array where C itself widens it to 64 bits: initialised from, or compared
    with, an int64.
    """
    return e.a if isinstance(e, loop.Cast) and e.dtype == INT and isinstance(e.a, loop.Load) else e


class CStyle:
    """The emitter.  `text` accumulates lines; `indent` is the present depth."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.indent = 1
        self.includes: set[str] = set()
        self.vectors: set[tuple[str, int]] = set()
        self.sums: set[tuple[str, int, str]] = set()

    def line(self, text: str) -> None:
        self.lines.append("  " * self.indent + text if text else "")

    # ----------------------------------------------------------- expressions
    def expr(self, e: Expr, above: int = 0) -> str:
        text, precedence = self._expr(e)
        return f"({text})" if precedence < above else text

    def vector_type(self, dtype: str, lanes: int) -> str:
        self.vectors.add((dtype, lanes))
        return c_type(dtype, lanes)

    def _expr(self, e: Expr) -> tuple[str, int]:
        match e:
            case loop.Const(value, dtype):
                return literal(value, dtype), _ATOM if not str(value).startswith("-") else _UNARY
            case loop.Var(name, _, _):
                return name, _ATOM
            case loop.Dim(buffer, axis):
                return self.dim(buffer, axis), _ATOM
            case loop.Extent(number):
                return f"extents[{number}]", _ATOM
            case loop.Threads():
                return "ctx->num_threads", _ATOM
            case loop.Load(buffer, index, 1):
                return f"{buffer.name}[{self.expr(index)}]", _ATOM
            case loop.Load(buffer, index, lanes):
                kind = self.vector_type(buffer.dtype, lanes)
                return f"*(const {kind}u*)({buffer.name} + {self.expr(index, 9)})", _UNARY
            case loop.Bin("min" | "max" as op, a, b):
                return f"js_{op}({self.expr(a)}, {self.expr(b)})", _ATOM
            case loop.Bin(op, a, b):
                p = _PRECEDENCE[op]
                if op in _COMPARE:
                    a, b = widened(a), widened(b)
                return f"{self.expr(a, p)} {_SPELLING.get(op, op)} {self.expr(b, p + 1)}", p
            case loop.Neg(a):
                return f"-{self.expr(a, _UNARY)}", _UNARY
            case loop.Cast(dtype, a):
                return self.cast(dtype, a), _UNARY
            case loop.Select(c, a, b):
                return f"{self.expr(c, 2)} ? {self.expr(a, 2)} : {self.expr(b, 1)}", _TERNARY
            case loop.Splat(a, lanes):
                kind = self.vector_type(type_of(a)[0], lanes)
                zero = isinstance(a, loop.Const) and a.value == 0
                return (f"{kind}{{}}" if zero else f"{self.expr(a, _UNARY)} - {kind}{{}}"), 9
            case loop.HSum(a, op):
                dtype, lanes = type_of(a)
                self.sums.add((dtype, lanes, op))
                self.vector_type(dtype, lanes)
                return f"hsum_{c_type(dtype, lanes)}({self.expr(a)})", _ATOM
            case loop.Call(name, args):
                return self.call(name, args), _ATOM
        raise InternalError(f"cannot emit expression {e!r}")

    def call(self, name: str, args: tuple[Expr | loop.Buffer, ...]) -> str:
        texts = [a.name if isinstance(a, loop.Buffer) else self.expr(a) for a in args]
        return f"js_{name}({', '.join(texts)})"

    def cast(self, dtype: str, a: Expr) -> str:
        source, lanes = type_of(a)
        if source == dtype:
            return self.expr(a, _UNARY)
        if lanes > 1:
            kind = self.vector_type(dtype, lanes)
            return f"__builtin_convertvector({self.expr(a)}, {kind})"
        if "bfloat16" in (dtype, source):
            return f"js_{DTYPES[source][1]}_to_{DTYPES[dtype][1]}({self.expr(a)})"
        return f"({c_type(dtype)}){self.expr(a, _UNARY)}"

    def dim(self, buffer: loop.Buffer, axis: int) -> str:
        source = f"{buffer.where}s[{buffer.number}]"
        return f"js_size(&{source})" if axis < 0 else f"{source}.dims[{axis}]"

    # ------------------------------------------------------------ statements
    def stmt(self, s: Stmt) -> None:
        match s:
            case loop.Block(stmts):
                for x in stmts:
                    self.stmt(x)
            case loop.Decl(var, value, mutable):
                const = "" if mutable else "const "
                kind = (
                    c_type(var.dtype) if var.lanes == 1 else self.vector_type(var.dtype, var.lanes)
                )
                self.line(f"{const}{kind} {var.name} = {self.expr(widened(value))};")
            case loop.Assign(var, value):
                self.line(f"{var.name}{self.update(var, value)};")
            case loop.Store(buffer, index, value, op, lanes):
                self.store(buffer, index, value, op, lanes)
            case loop.For(var, lo, hi, body, step):
                last = self.expr(widened(hi))
                move = f"++{var.name}" if step == 1 else f"{var.name} += {step}"
                head = f"int64_t {var.name} = {self.expr(widened(lo))}"
                if isinstance(hi, (loop.Var, loop.Const, loop.Dim)):
                    head = f"for ({head}; {var.name} < {last}; {move})"
                else:
                    stop = f"{var.name}_stop"
                    head = f"for ({head}, {stop} = {last}; {var.name} < {stop}; {move})"
                self.scope(head, body)
            case loop.While(cond, loop.Assign() as body):
                self.line(
                    f"while ({self.expr(cond)}) {body.var.name}{self.update(body.var, body.value)};"
                )
            case loop.While(cond, body):
                self.scope(f"while ({self.expr(cond)})", body)
            case loop.If(loop.Const(True, _), body, None):
                self.scope("", body)
            case loop.If(cond, loop.Break(), None):
                self.line(f"if ({self.expr(cond)}) break;")
            case loop.If(cond, then, other):
                self.scope(f"if ({self.expr(cond)})", then)
                if other is not None:
                    self.lines[-1] += " else {"
                    self.body(other)
            case loop.Break():
                self.line("break;")
            case loop.Comment(text):
                self.line(f"// {text}")
            case loop.Scratch(buffer, size, zero):
                self.scratch(buffer, size, zero)
            case loop.Do(name, args):
                self.line(f"{self.call(name, args)};")
            case loop.Parallel():
                self.parallel(s)
            case loop.Raise():
                self.fault(s)
            case _:
                raise InternalError(f"cannot emit statement {s!r}")

    def update(self, var: loop.Var, value: Expr) -> str:
        """` = value`, or ` += x` where value is var + x."""
        match value:
            case loop.Bin("+" | "|" as op, a, b) if a == var:
                if op == "+" and b == loop.ONE:
                    return "++"
                return f" {op}= {self.expr(b)}"
        return f" = {self.expr(value)}"

    def store(self, buffer: loop.Buffer, index: Expr, value: Expr, op: str, lanes: int) -> None:
        left = f"{buffer.name}[{self.expr(index)}]"
        if lanes > 1:
            kind = self.vector_type(buffer.dtype, lanes)
            left = f"*({kind}u*)({buffer.name} + {self.expr(index, 9)})"
        self.line(f"{left} {op}= {self.expr(value)};")

    def scope(self, head: str, body: Stmt) -> None:
        self.line(f"{head} {{" if head else "{")
        self.body(body)

    def body(self, body: Stmt) -> None:
        self.indent += 1
        self.stmt(body)
        self.indent -= 1
        self.line("}")

    # ------------------------------------------------------ left to a backend
    def scratch(self, buffer: loop.Buffer, size: Expr, zero: bool) -> None:
        raise NotImplementedError

    def parallel(self, s: loop.Parallel) -> None:
        raise NotImplementedError

    def fault(self, s: loop.Raise) -> None:
        raise NotImplementedError

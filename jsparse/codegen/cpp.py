# SPDX-License-Identifier: Apache-2.0
"""Loop IR to the C++ text of one kernel: a translation unit with the entry `jsparse_kernel` of
csrc/abi.h.

A `Parallel` statement becomes a static function of its own that unpacks the buffers it uses;
variables declared outside travel in a frame.  Text is stable: equal kernels have equal text,
whose hash is the kernel key.
"""

from __future__ import annotations

from jsparse.codegen.cstyle import SIZES, CStyle, Names, c_type, widened
from jsparse.errors import InternalError
from jsparse.ir import loop

HELPERS = {  # helper -> header of csrc/cpu that defines it
    "lower_bound": "search.h",
    "gallop": "search.h",
    "balance": "search.h",
    "even": "search.h",
    "share": "search.h",
    "group_start": "search.h",
    "prefetch": "memory.h",
    "fill_zero": "memory.h",
    "copy": "memory.h",
    "copy_scan": "memory.h",
    "copy_max": "memory.h",
    "sort_by": "sort.h",
    "identity": "sort.h",
    "set_new": "set.h",
    "set_clear": "set.h",
    "set_insert": "set.h",
    "set_size": "set.h",
    "set_sort": "set.h",
    "set_get": "set.h",
}


class Cpp(CStyle):
    """The C++ emitter."""

    def __init__(self, kernel: loop.Kernel, batch: tuple[tuple[bool, ...], ...]) -> None:
        super().__init__()
        self.kernel = kernel
        self.batch = batch
        self.functions: list[str] = []
        self.in_chunk = False
        self.uses_sets = False

    def call(self, name: str, args: tuple[loop.Expr | loop.Buffer, ...]) -> str:
        if name not in HELPERS:
            raise InternalError(f"no helper {name!r}")
        self.includes.add(HELPERS[name])
        if name == "set_new":
            assert isinstance(args[0], loop.Buffer)
            self.line(f"js_set {args[0].name};")
            self.uses_sets = True
        texts = self.arguments(args)
        if name.startswith("set_") or name.startswith("sort_"):
            texts.insert(0, "ctx")
        return f"js_{name}({', '.join(texts)})"

    def unpacked(self, used: list[loop.Buffer]) -> list[str]:
        """Lines that declare the pointers of buffers used in a function."""
        results = {b.name for b in self.kernel.results}
        lines = []
        for b in used:
            kind = c_type(b.dtype)
            if b.where == "scratch":
                lines.append(f"  {kind}* const {b.name} = frame->{b.name};")
            elif b.where in ("arg", "result"):
                const = "" if b.name in results else "const "
                data = f"({const}{kind}*){b.where}s[{b.number}].data"
                lines.append(f"  {const}{kind}* const __restrict {b.name} = {data};")
        return lines

    def scratch(self, s: loop.Scratch) -> None:
        buffer = s.buffer
        self.names.made.add(buffer.name)
        kind, n = c_type(buffer.dtype), f"{buffer.name}_size"
        self.includes.add("memory.h")
        self.line(f"const int64_t {n} = ({self.expr(s.size)}) * {SIZES[buffer.dtype]};")
        self.line(f"{kind}* const {buffer.name} = ({kind}*)ctx->scratch(ctx, {n});")
        leave = "return" if self.in_chunk else "return JS_OUT_OF_MEMORY"
        self.line(
            f"if (!{buffer.name}) {{ js_raise(ctx, JS_OUT_OF_MEMORY, -1, 0, 0, {n}, 0); {leave}; }}"
        )
        if s.zero:
            self.line(f"js_fill_zero({buffer.name}, 0, {n} / {SIZES[buffer.dtype]});")

    def fault(self, s: loop.Raise) -> None:
        args = ", ".join(self.expr(e) for e in (s.position, s.got, s.limit))
        call = f"js_raise(ctx, {s.kind}, {s.operand}, {s.level}, {args})"
        if self.in_chunk:
            self.line(f"{call};")
            self.line("return;")
        else:
            self.line(f"return {call};")

    def check(self, s: loop.Check) -> None:
        self.includes.add("search.h")
        what = "crd" if s.kind == loop.CRD_OUT_OF_RANGE else "pos"
        lo, hi, limit = (self.expr(widened(e)) for e in (s.lo, s.hi, s.limit))
        array = f"{s.operand}, {s.level}, {self.buffer(s.array)}"
        leave = "return" if self.in_chunk else "return ctx->fault.kind"
        self.line(f"if (js_bad_{what}(ctx, {array}, {lo}, {hi}, {limit})) {leave};")

    def parallel(self, s: loop.Parallel) -> None:
        """Lift the body into `static void chunk_n(void*, int64_t)` and hand it to the context."""
        if self.in_chunk:
            raise InternalError("a parallel loop inside a parallel loop")
        number = len(self.functions)
        name = f"chunk{number}" if number else "chunk_body"
        struct = f"{name}_frame"
        outer = self.lines, self.indent, self.names
        self.lines, self.indent, self.names, self.in_chunk = [], 1, Names(), True
        self.names.made.add(s.var.name)
        self.stmt(s.body)
        stated, inside = self.lines, self.names
        (self.lines, self.indent, self.names), self.in_chunk = outer, False
        used, captured = inside.free_buffers(), inside.free_variables()
        shared = [b for b in used if b.where == "scratch"]
        fields = [f"  {c_type(v.dtype, v.lanes)} {v.name};" for v in captured]
        fields += [f"  {c_type(b.dtype)}* {b.name};" for b in shared]
        body = [
            f"  const {struct}* const frame = (const {struct}*)frame_;",
            "  js_context* const ctx = frame->ctx;",
            "  const js_buffer* const args = frame->args;",
            "  const js_buffer* const results = frame->results;",
            *self.unpacked(used),
            *[f"  const {c_type(v.dtype, v.lanes)} {v.name} = frame->{v.name};" for v in captured],
            *stated,
        ]
        head = [
            "  js_context* ctx;",
            "  const js_buffer* args;",
            "  const js_buffer* results;",
            *fields,
        ]
        self.functions.append(
            "\n".join(
                [f"struct {struct} {{", *head, "};", "",
                 f"static void {name}(void* frame_, int64_t {s.var.name}) {{", *body, "}", ""]
            )
        )  # fmt: skip
        values = ["ctx", "args", "results", *[v.name for v in captured], *[b.name for b in shared]]
        self.line(f"{struct} frame{number or ''} = {{{', '.join(values)}}};")
        self.line(f"ctx->parallel(ctx, {self.expr(s.chunks)}, {name}, &frame{number or ''});")
        self.line("if (ctx->faulted) return ctx->fault.kind;")

    def module(self) -> str:
        k = self.kernel
        self.stmt(k.body)
        fallible = self.uses_sets or "sort.h" in self.includes
        self.line("return ctx->faulted ? ctx->fault.kind : JS_OK;" if fallible else "return JS_OK;")
        head = [f"// {t}" for t in k.title]
        used = sorted(self.includes)
        head += [
            '#include "abi.h"',
            '#include "cpu/value.h"',
            *[f'#include "cpu/{h}"' for h in used],
            "",
        ]
        head += self.vector_types()
        text = [
            *head,
            *self.functions,
            *self.signature(
                "static int32_t one" if self.batch else 'extern "C" int32_t jsparse_kernel'
            ),
            *self.unpacked([b for b in self.names.free_buffers() if b.where != "scratch"]),
            *self.lines,
            "}",
            *(self.batched() if self.batch else ()),
        ]
        return "\n".join(text) + "\n"

    def signature(self, name: str) -> list[str]:
        pad = " " * (len(name) + 1)
        return [
            f"{name}(js_context* ctx, const js_buffer* args, const js_buffer* results,",
            f"{pad}const int64_t* extents) {{",
        ]

    def batched(self) -> list[str]:
        """The entry of a batched kernel: `one` for each element, on base pointers shifted past
        the batch axes.
        """
        n_args, n_results, axes = len(self.kernel.args), len(self.kernel.results), len(self.batch)
        lines = ["", *self.signature('extern "C" int32_t jsparse_kernel')]
        lines.append(f"  js_buffer arg[{max(n_args, 1)}], result[{max(n_results, 1)}];")
        for axis, mask in enumerate(self.batch):
            n = mask.index(True)
            before = sum(m[n] for m in self.batch[:axis])
            lines.append(f"  const int64_t n{axis} = args[{n}].dims[{before}];")
        for axis in range(axes):
            pad = "  " * (axis + 1)
            lines.append(f"{pad}for (int64_t b{axis} = 0; b{axis} < n{axis}; ++b{axis}) {{")
        pad = "  " * (axes + 1)
        for k, b in enumerate(self.kernel.args):
            own = [axis for axis, mask in enumerate(self.batch) if mask[k]]
            lines.append(
                f"{pad}arg[{k}] = js_element(&args[{k}], {len(own)}, "
                f"{self.flat(own)}, {SIZES[b.dtype]});"
            )
        for k, b in enumerate(self.kernel.results):
            every = list(range(axes))
            lines.append(
                f"{pad}result[{k}] = js_element(&results[{k}], {axes}, "
                f"{self.flat(every)}, {SIZES[b.dtype]});"
            )
        lines += [
            f"{pad}const int32_t fault = one(ctx, arg, result, extents);",
            f"{pad}if (fault) return fault;",
        ]
        lines += ["  " * (axis + 1) + "}" for axis in reversed(range(axes))]
        return [*lines, "  return JS_OK;", "}"]

    @staticmethod
    def flat(axes: list[int]) -> str:
        """Number of the present element among the batch axes `axes`, row-major."""
        text = "0"
        for axis in axes:
            text = f"b{axis}" if text == "0" else f"({text}) * n{axis} + b{axis}"
        return text

    def vector_types(self) -> list[str]:
        for dtype, lanes, _ in sorted(self.sums):
            while lanes > 2:
                lanes //= 2
                self.vectors.add((dtype, lanes))
        out = []
        for dtype, lanes in sorted(self.vectors):
            kind, size = c_type(dtype, lanes), SIZES[dtype] * lanes
            element = "uint16_t" if dtype == "bfloat16" else c_type(dtype)
            out += [
                f"typedef {element} {kind} __attribute__((vector_size({size})));",
                f"typedef {element} {kind}u __attribute__((vector_size({size}), "
                f"aligned({SIZES[dtype]}), may_alias));",
            ]
        for dtype, lanes, op in sorted(self.sums):
            out.append(hsum(dtype, lanes, op))
        return [*out, ""] if out else []


def hsum(dtype: str, lanes: int, op: str) -> str:
    """The lanes of a vector reduced by halves."""
    kind = c_type(dtype, lanes)
    lines = [f"static inline {c_type(dtype)} hsum_{kind}({kind} v{lanes}) {{"]
    n = lanes
    while n > 2:
        half = n // 2
        low = ", ".join(str(i) for i in range(half))
        high = ", ".join(str(i) for i in range(half, n))
        part = c_type(dtype, half)
        lines.append(
            f"  const {part} v{half} = __builtin_shufflevector(v{n}, v{n}, {low}) {op} "
            f"__builtin_shufflevector(v{n}, v{n}, {high});"
        )
        n = half
    lines += [f"  return v2[0] {op} v2[1];", "}"]
    return "\n".join(lines)


def emit(kernel: loop.Kernel, batch: tuple[tuple[bool, ...], ...] = ()) -> str:
    """The text of a kernel; `batch` says for each batch axis which arguments have it (see
    `pipeline.Spec`).
    """
    return Cpp(kernel, batch).module()

"""The bridge alone: hand-written kernels against csrc/abi.h, called through XLA."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jsparse import _xla_ffi, ffi

REPO = Path(__file__).resolve().parents[1]
CXX = os.environ.get("JSPARSE_CXX") or shutil.which("g++") or shutil.which("c++")

pytestmark = pytest.mark.skipif(CXX is None, reason="no C++ compiler")

# A status of XLA reaches Python as a JaxRuntimeError from the first call of a program and from an
# asynchronous one, and as a ValueError from JAX's fast path for later calls.
XLA_ERROR = (jax.errors.JaxRuntimeError, ValueError)

SIGNATURE = (
    'extern "C" int32_t jsparse_kernel(js_context* c, const js_buffer* args, '
    "const js_buffer* results, const int64_t* extents)"
)


class Bench:
    """Compiles kernel bodies and calls them as custom calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: dict[str, str] = {}
        self.asked: list[tuple[str, str]] = []

    def resolver(self, key: str, recipe: str) -> str:
        self.asked.append((key, recipe))
        return self.paths[key]

    def compile(self, body: str, before: str = "") -> str:
        """Returns the key of a kernel with this body."""
        text = f'#include "abi.h"\n{before}\n{SIGNATURE} {{\n{body}\n}}\n'
        key = hashlib.sha256(text.encode()).hexdigest()
        if key not in self.paths:
            source, target = self.folder / f"{key}.cc", self.folder / f"{key}.so"
            source.write_text(text)
            flags = ["-O2", "-std=c++17", "-shared", "-fPIC", f"-I{REPO / 'csrc'}"]
            subprocess.run([str(CXX), *flags, str(source), "-o", str(target)], check=True)
            self.paths[key] = str(target)
        return key

    def function(self, key: str, results: Any, extents: tuple[int, ...] = ()) -> Callable[..., Any]:
        call = jax.ffi.ffi_call(ffi.CPU_TARGET, results)
        attributes = {"key": key, "recipe": "{}", "extents": np.array(extents, np.int64)}
        return jax.jit(lambda *args: call(*args, **attributes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def bench(folder: Path) -> Iterator[Bench]:
    bench = Bench(folder)
    previous = ffi.register(bench.resolver)
    yield bench
    _xla_ffi.set_resolver(previous)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


def i64(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.int64)


# out[0] = the sum of a[0] over all arguments; extents[0] is their number
ADD_FIRSTS = """
  float sum = 0;
  for (int64_t i = 0; i < extents[0]; ++i) sum += *(const float*)args[i].data;
  *(float*)results[0].data = sum;
  return JS_OK;
"""

# y = x + 1, element by element
ADD_ONE = """
  const float* x = (const float*)args[0].data;
  float* y = (float*)results[0].data;
  for (int64_t i = 0; i < args[0].dims[0]; ++i) y[i] = x[i] + 1;
  return JS_OK;
"""

# y[0] = the sum of x over extents[0] chunks, added in order of the chunks
SUM_BEFORE = """
struct Frame { const int64_t* x; int64_t n, chunks; int64_t* part; };
static void body(void* frame, int64_t chunk) {
  Frame* f = (Frame*)frame;
  int64_t lo = f->n * chunk / f->chunks, hi = f->n * (chunk + 1) / f->chunks;
  int64_t sum = 0;
  for (int64_t i = lo; i < hi; ++i) sum += f->x[i];
  f->part[chunk] += sum;
}
"""
SUM = """
  int64_t chunks = extents[0];
  int64_t* part = (int64_t*)c->scratch(c, chunks * 8);
  if (!part) return js_raise(c, JS_OUT_OF_MEMORY, -1, 0, 0, chunks * 8, 0);
  for (int64_t i = 0; i < chunks; ++i) part[i] = 0;
  Frame frame{(const int64_t*)args[0].data, args[0].dims[0], chunks, part};
  c->parallel(c, chunks, body, &frame);
  int64_t sum = 0;
  for (int64_t i = 0; i < chunks; ++i) sum += part[i];
  *(int64_t*)results[0].data = sum;
  return JS_OK;
"""


@pytest.mark.parametrize("arity", [0, 1, 2, 15, 16, 17, 40])
def test_any_number_of_arguments(bench: Bench, arity: int) -> None:
    run = bench.function(bench.compile(ADD_FIRSTS), f32(), extents=(arity,))
    args = [jnp.full((i % 3 + 1,), i + 1, jnp.float32) for i in range(arity)]
    assert float(run(*args)) == arity * (arity + 1) / 2


@pytest.mark.parametrize("count", [1, 16, 17, 30])
def test_any_number_of_results(bench: Bench, count: int) -> None:
    body = """
      for (int64_t i = 0; i < extents[0]; ++i)
        for (int64_t k = 0; k < results[i].dims[0]; ++k) ((float*)results[i].data)[k] = i;
      return JS_OK;
    """
    run = bench.function(bench.compile(body), [f32(i + 1) for i in range(count)], (count,))
    for i, result in enumerate(run()):
        np.testing.assert_array_equal(result, np.full(i + 1, i, np.float32))


def test_shapes_arrive(bench: Bench) -> None:
    body = """
      int64_t* out = (int64_t*)results[0].data;
      *out++ = args[0].rank;
      *out++ = args[1].rank;
      for (int64_t i = 0; i < args[1].rank; ++i) *out++ = args[1].dims[i];
      *out = results[0].dims[0];
      return JS_OK;
    """
    with jax.enable_x64(True):
        run = bench.function(bench.compile(body), i64(6))
        out = run(jnp.float32(1), jnp.zeros((2, 0, 5)))
    np.testing.assert_array_equal(out, [0, 3, 2, 0, 5, 6])


def test_a_zero_size_result_among_others(bench: Bench) -> None:
    body = "*(float*)results[1].data = results[0].dims[0]; return JS_OK;"
    empty, scalar = bench.function(bench.compile(body), [f32(0, 3), f32()])()
    assert empty.shape == (0, 3)
    assert scalar.shape == () and float(scalar) == 0.0


def test_only_zero_size_results(bench: Bench) -> None:
    out = bench.function(bench.compile("return JS_OK;"), f32(0))(jnp.zeros((0, 4)))
    assert out.shape == (0,)


@pytest.mark.parametrize("extents", [(7,), (1, -2, 2**40)])
def test_extents_arrive(bench: Bench, extents: tuple[int, ...]) -> None:
    body = """
      for (int64_t i = 0; i < results[0].dims[0]; ++i) ((int64_t*)results[0].data)[i] = extents[i];
      return JS_OK;
    """
    with jax.enable_x64(True):
        out = bench.function(bench.compile(body), i64(len(extents)), extents)()
    assert tuple(int(e) for e in out) == extents


def test_no_extents(bench: Bench) -> None:
    out = bench.function(bench.compile(ADD_ONE), f32(3))(jnp.arange(3.0))
    np.testing.assert_array_equal(out, [1, 2, 3])


def test_eager_call(bench: Bench) -> None:
    key = bench.compile(ADD_ONE)
    call = jax.ffi.ffi_call(ffi.CPU_TARGET, f32(2))
    out = call(jnp.arange(2.0), key=key, recipe="{}", extents=np.array([], np.int64))
    np.testing.assert_array_equal(out, [1, 2])


@pytest.mark.parametrize("extents", [(), (3, 4)])
def test_lower_cpu_serves_a_primitive(bench: Bench, extents: tuple[int, ...]) -> None:
    add_one_p = Primitive("bridge_add_one")
    add_one_p.def_abstract_eval(lambda x, **_: jax.core.ShapedArray(x.shape, x.dtype))
    mlir.register_lowering(add_one_p, ffi.lower_cpu, platform="cpu")
    key = bench.compile(ADD_ONE)

    @jax.jit
    def run(x: jax.Array) -> jax.Array:
        return add_one_p.bind(x, key=key, recipe='{"a": 1}', extents=extents) * 2

    np.testing.assert_array_equal(run(jnp.arange(4.0)), [2, 4, 6, 8])
    assert "jsparse_cpu" in run.lower(jnp.arange(4.0)).as_text()


FAULTS = {
    "crd": (
        "JS_CRD_OUT_OF_RANGE, 0, 1, 42, 17, 8",
        "OUT_OF_RANGE",
        "operand 0, level 1: crd[42] is 17, expected 0 <= crd < 8; the index arrays of this "
        "operand are damaged or belong to another shape",
    ),
    "pos": (
        "JS_POS_NOT_MONOTONE, 1, 2, 3, 9, 8",
        "INVALID_ARGUMENT",
        "operand 1, level 2: pos[3] is 9, expected a value between pos[2] and 8 "
        "(non-decreasing, at most the stored entries)",
    ),
    "pos at 0": (
        "JS_POS_NOT_MONOTONE, 0, 1, 0, -1, 8",
        "INVALID_ARGUMENT",
        "pos[0] is -1, expected a value between 0 and 8",
    ),
    "memory": (
        "JS_OUT_OF_MEMORY, -1, 0, 0, 123456, 0",
        "RESOURCE_EXHAUSTED",
        "a workspace of 123456 bytes was refused",
    ),
    "capacity": (
        "JS_CAPACITY, -1, 1, 0, 1234, 1000",
        "OUT_OF_RANGE",
        "sparse output, level 1: needs 1234 entries but its capacity is 1000; pass nse=1234 "
        "or more",
    ),
    "output crd": (
        "JS_CRD_OUT_OF_RANGE, -1, 0, 0, 5, 4",
        "OUT_OF_RANGE",
        "sparse output, level 0: crd[0] is 5, expected 0 <= crd < 4",
    ),
    "unknown": ("77, 0, 0, 0, 0, 0", "INTERNAL", "fault kind 77"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_an_error_with_words(bench: Bench, name: str) -> None:
    fault, code, words = FAULTS[name]
    key = bench.compile(f"return js_raise(c, {fault});")
    with pytest.raises(XLA_ERROR) as caught:
        bench.function(key, f32())().block_until_ready()
    assert f"{code}: " in str(caught.value)
    assert f"jsparse kernel {key[:12]}" in str(caught.value)
    assert words in str(caught.value)


def test_a_fault_names_what_the_recipe_names(bench: Bench) -> None:
    key = bench.compile("return js_raise(c, JS_CRD_OUT_OF_RANGE, 1, 1, 42, 17, 8);")
    recipe = json.dumps(
        {
            "computes": "Y[i] = A[i,j]",
            "accesses": ["Y[i]:dense i", "A[i,j]:csr i j", "B[j,k]:csc k j"],
        }
    )
    call = jax.ffi.ffi_call(ffi.CPU_TARGET, f32())
    with pytest.raises(XLA_ERROR) as caught:
        call(key=key, recipe=recipe, extents=np.array([], np.int64)).block_until_ready()
    words = "Y[i] = A[i,j]: operand 1, B[j,k]:csc, level 1 (index j): crd[42] is 17"
    assert words in str(caught.value)


@pytest.mark.parametrize("recipe", ["{}", "", "no JSON", '{"accesses": ["A', '{"accesses": []}'])
def test_a_fault_needs_no_names(bench: Bench, recipe: str) -> None:
    key = bench.compile("return js_raise(c, JS_CRD_OUT_OF_RANGE, 5, 3, 42, 17, 8);")
    call = jax.ffi.ffi_call(ffi.CPU_TARGET, f32())
    with pytest.raises(XLA_ERROR, match="operand 5, level 3: crd"):
        call(key=key, recipe=recipe, extents=np.array([], np.int64)).block_until_ready()


def test_only_the_first_fault_counts_and_none_is_lost(bench: Bench) -> None:
    before = """
    static void body(void* frame, int64_t chunk) {
      js_raise((js_context*)frame, JS_CRD_OUT_OF_RANGE, 0, 0, 100 + chunk, 5, 3);
    }
    """
    run = bench.function(bench.compile("c->parallel(c, 50, body, c); return JS_OK;", before), f32())
    for _ in range(20):
        with pytest.raises(XLA_ERROR, match=r"crd\[1\d\d\] is 5, expected 0 <="):
            run().block_until_ready()


def test_a_status_without_a_fault_is_an_error(bench: Bench) -> None:
    run = bench.function(bench.compile("return 5;"), f32())
    with pytest.raises(XLA_ERROR, match="status 5 and gave no reason"):
        run().block_until_ready()


def test_a_failed_call_does_not_spoil_the_next(bench: Bench) -> None:
    body = """
      float x = *(const float*)args[0].data;
      if (x < 0) return js_raise(c, JS_CAPACITY, -1, 1, 0, 9, 4);
      *(float*)results[0].data = x;
      return JS_OK;
    """
    run = bench.function(bench.compile(body), f32())
    for x in (1.0, -1.0, 2.0, -1.0, 3.0):
        if x < 0:
            with pytest.raises(XLA_ERROR, match="nse=9"):
                run(jnp.float32(x)).block_until_ready()
        else:
            assert float(run(jnp.float32(x))) == x


# ------------------------------------------------------------------------------ the resolver


def fresh_key(request: pytest.FixtureRequest) -> str:
    return hashlib.sha256(request.node.nodeid.encode()).hexdigest()


def test_the_resolver_gets_key_and_recipe_once(bench: Bench) -> None:
    key = bench.compile("/* asked once */ *(float*)results[0].data = 3; return JS_OK;")
    call = jax.ffi.ffi_call(ffi.CPU_TARGET, f32())
    recipe = '{"einsum": "ij,jk->ik", "text": "naïve ∑"}'

    def run() -> Any:
        return call(key=key, recipe=recipe, extents=np.array([], np.int64))

    assert float(jax.jit(lambda: run())()) == 3
    assert float(jax.jit(lambda: run() + 1)()) == 4
    assert bench.asked == [(key, recipe)]


def test_what_the_resolver_raises_is_the_error(
    bench: Bench, request: pytest.FixtureRequest
) -> None:
    def refuse(key: str, recipe: str) -> str:
        raise LookupError(f"no C++ compiler for {key[:4]}; set $JSPARSE_CXX")

    key = fresh_key(request)
    ffi.register(refuse)
    with pytest.raises(XLA_ERROR) as caught:
        bench.function(key, f32())()
    assert f"LookupError: no C++ compiler for {key[:4]}; set $JSPARSE_CXX" in str(caught.value)

    # The failure is not remembered.
    bench.paths[key] = bench.paths[bench.compile("*(float*)results[0].data = 8; return JS_OK;")]
    ffi.register(bench.resolver)
    assert float(bench.function(key, f32())()) == 8


def unprintable(key: str, recipe: str) -> str:
    class Bad(Exception):
        def __str__(self) -> str:
            raise ValueError

    raise Bad


@pytest.mark.parametrize(
    ("resolver", "words"),
    [
        (None, "import jsparse"),
        (lambda key, recipe: 3, "did not return a path"),
        (lambda key, recipe: "/nowhere/kernel.so", "cannot load its shared object"),
        (lambda key: "", "TypeError"),
        (unprintable, "cannot be printed"),
    ],
    ids=["none", "number", "missing file", "signature", "unprintable"],
)
def test_a_useless_resolver_is_an_error(
    bench: Bench, request: pytest.FixtureRequest, resolver: Any, words: str
) -> None:
    _xla_ffi.set_resolver(resolver)
    with pytest.raises(XLA_ERROR, match=words):
        bench.function(fresh_key(request), f32())()


def test_a_library_without_the_symbol_is_an_error(
    bench: Bench, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source, target = tmp_path / "empty.cc", tmp_path / "empty.so"
    source.write_text("int unrelated;\n")
    subprocess.run([str(CXX), "-shared", "-fPIC", str(source), "-o", str(target)], check=True)
    key = fresh_key(request)
    bench.paths[key] = str(target)
    with pytest.raises(XLA_ERROR, match="jsparse_kernel"):
        bench.function(key, f32())()


def test_set_resolver_refuses_what_cannot_be_called() -> None:
    with pytest.raises(TypeError, match="expected a callable"):
        _xla_ffi.set_resolver(3)  # type: ignore[arg-type]


def test_threads_may_instantiate_the_same_kernel_at_once(bench: Bench) -> None:
    key = bench.compile("/* at once */ *(float*)results[0].data = 6; return JS_OK;")
    barrier = threading.Barrier(6)

    def work(i: int) -> float:
        barrier.wait()
        # A different program in each thread, so that XLA really compiles six.
        return float(jax.jit(lambda x: bench.function(key, f32())() + x + i)(jnp.float32(0)))

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(work, range(6))) == [6, 7, 8, 9, 10, 11]


def test_repeated_registration_is_harmless(bench: Bench) -> None:
    with ThreadPoolExecutor(4) as pool:
        previous = list(pool.map(lambda _: ffi.register(bench.resolver), range(20)))
    assert all(p == bench.resolver for p in previous)
    out = bench.function(bench.compile(ADD_ONE), f32(1))(jnp.zeros(1))
    assert float(out[0]) == 1


def test_abi_version_is_that_of_the_header() -> None:
    header = (REPO / "csrc" / "abi.h").read_text()
    assert f"#define JSPARSE_ABI {_xla_ffi.abi_version} " in header


# --------------------------------------------------------------------------- parallel, scratch


@pytest.mark.parametrize("chunks", [0, 1, 2, 3, 16, 1000])
def test_every_chunk_runs_once(bench: Bench, chunks: int) -> None:
    body = """
      int32_t* out = (int32_t*)results[0].data;
      for (int64_t i = 0; i < results[0].dims[0]; ++i) out[i] = 0;
      c->parallel(c, extents[0], body, out);
      return JS_OK;
    """
    before = """
    static void body(void* out, int64_t chunk) {
      __atomic_fetch_add((int32_t*)out + chunk, 1 + (int32_t)chunk, __ATOMIC_RELAXED);
    }
    """
    shape = jax.ShapeDtypeStruct((chunks + 1,), np.int32)
    run = bench.function(bench.compile(body, before), shape, (chunks,))
    for _ in range(50):
        expected = [*range(1, chunks + 1), 0]
        np.testing.assert_array_equal(run(), expected)


def test_num_threads_is_at_least_one(bench: Bench) -> None:
    run = bench.function(
        bench.compile("*(float*)results[0].data = c->num_threads; return 0;"), f32()
    )
    assert float(run()) >= 1


def test_a_parallel_loop_may_hold_another(bench: Bench) -> None:
    before = """
    static void inner(void* out, int64_t) {
      __atomic_fetch_add((int32_t*)out, 1, __ATOMIC_RELAXED);
    }
    struct Frame { js_context* c; int32_t* out; };
    static void outer(void* frame, int64_t) {
      Frame* f = (Frame*)frame;
      f->c->parallel(f->c, 5, inner, f->out);
    }
    """
    body = """
      int32_t* out = (int32_t*)results[0].data;
      *out = 0;
      Frame frame{c, out};
      c->parallel(c, 7, outer, &frame);
      return JS_OK;
    """
    run = bench.function(bench.compile(body, before), jax.ShapeDtypeStruct((), np.int32))
    assert all(int(run()) == 35 for _ in range(50))


def many_sums(bench: Bench, threads: int, rounds: int) -> None:
    """Many Python threads, each running a program with a dozen independent parallel calls."""
    with jax.enable_x64(True):
        x = jnp.arange(20_000, dtype=jnp.int64)
        one = bench.function(bench.compile(SUM, SUM_BEFORE), i64(), (16,))

        @jax.jit
        def program(x: jax.Array) -> list[jax.Array]:
            return [one(x * i) for i in range(12)]

        expected = [i * 20_000 * 19_999 // 2 for i in range(12)]
        program(x)

        def work(_: int) -> None:
            with jax.enable_x64(True):
                for _ in range(rounds):
                    assert [int(s) for s in program(x)] == expected

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))


def test_many_threads_get_exact_sums(bench: Bench) -> None:
    many_sums(bench, threads=8, rounds=30)


@pytest.mark.parametrize("workers", [1, 4])
def test_pools_of_other_sizes(workers: int) -> None:
    script = f"""
        import sys, tempfile
        from pathlib import Path
        sys.path.insert(0, {str(REPO / "tests")!r})
        import test_bridge as t
        with tempfile.TemporaryDirectory() as folder:
            bench = t.Bench(Path(folder))
            t.ffi.register(bench.resolver)
            count = bench.function(
                bench.compile("*(float*)results[0].data = c->num_threads; return 0;"), t.f32())
            print("threads", int(count()))
            t.many_sums(bench, threads=6, rounds=15)
            print("done")
    """
    env = os.environ | {"NPROC": str(workers), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["threads", str(workers), "done"]


SCRATCH_BEFORE = """
struct Frame { js_context* c; int64_t bytes; int32_t bad; };
static void body(void* frame, int64_t chunk) {
  Frame* f = (Frame*)frame;
  unsigned char* p[4];
  for (int k = 0; k < 4; ++k) {
    int64_t bytes = f->bytes / (k + 1);
    p[k] = (unsigned char*)f->c->scratch(f->c, bytes);
    if (!p[k] || (uintptr_t)p[k] % 64) { __atomic_store_n(&f->bad, 1, __ATOMIC_RELAXED); return; }
    __builtin_memset(p[k], (int)(chunk * 4 + k), bytes);
  }
  for (int k = 0; k < 4; ++k)
    for (int64_t i = 0; i < f->bytes / (k + 1); ++i)
      if (p[k][i] != (unsigned char)(chunk * 4 + k)) __atomic_store_n(&f->bad, 2, __ATOMIC_RELAXED);
}
"""
SCRATCH = """
  Frame frame{c, extents[0], 0};
  c->parallel(c, 8, body, &frame);
  *(float*)results[0].data = frame.bad;
  return JS_OK;
"""


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 5000, 400_000, 2_000_000])
def test_scratch_is_aligned_and_private(bench: Bench, size: int) -> None:
    run = bench.function(bench.compile(SCRATCH, SCRATCH_BEFORE), f32(), (size,))
    with ThreadPoolExecutor(4) as pool:
        # Again and again, so that both fresh and kept memory is seen.
        assert set(pool.map(lambda _: float(run()), range(24))) == {0.0}


def test_scratch_is_kept_between_calls(bench: Bench) -> None:
    body = """
      *(int64_t*)results[0].data = (int64_t)c->scratch(c, 100000);
      return JS_OK;
    """
    with jax.enable_x64(True):
        run = bench.function(bench.compile(body), i64())
        places = {int(run()) for _ in range(20)}
    assert len(places) <= 3  # the first call's own block, then this thread's arena


@pytest.mark.parametrize("size", [-1, 2**50, 2**63 - 1])
def test_scratch_refuses_the_impossible(bench: Bench, size: int) -> None:
    body = "*(float*)results[0].data = c->scratch(c, extents[0]) == 0; return JS_OK;"
    assert float(bench.function(bench.compile(body), f32(), (size,))()) == 1


def resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_calls_do_not_leak(bench: Bench) -> None:
    with jax.enable_x64(True):
        x = jnp.arange(1000, dtype=jnp.int64)
        run = bench.function(bench.compile(SUM, SUM_BEFORE), i64(), (4000,))
        fail = bench.function(
            bench.compile("return js_raise(c, JS_CAPACITY, -1, 0, 0, 2, 1);"), f32()
        )

        def calls(n: int) -> None:
            for i in range(n):
                run(x).block_until_ready()
                if i % 20 == 0:
                    with pytest.raises(XLA_ERROR):
                        fail().block_until_ready()

        calls(1000)
        before = resident_bytes()
        calls(10_000)
    # 10,000 calls with 32 kB of scratch each: a leak of any of it would be 300 MB.
    assert resident_bytes() - before < 20e6

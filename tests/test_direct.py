# SPDX-License-Identifier: Apache-2.0
"""Concrete operands: their kernel runs without a program of XLA's, with the same results.

A program takes over when the same sizes come more than `direct.OFTEN` times; every test looks at
results from before and after.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import dense_of

import jsparse as js
from jsparse import direct

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "A @ B": lambda a, b: a @ b,
    "A + B": lambda a, b: a + b,
    "A * B": lambda a, b: a * b,
    "to csc": lambda a, b: a.to("csc"),
    "to coo": lambda a, b: a.to("coo"),
    "todense": lambda a, b: a.todense(),
    "fromdense": lambda a, b: js.fromdense(b.todense(), "dcsr"),
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Sizes that no other test has seen."""
    direct._calls.clear()
    yield
    direct._calls.clear()


def square(dtype: Any = np.float32, format: str = "csr", n: int = 9) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    pair = [np.where(rng.random((n, n)) < 0.4, rng.integers(1, 5, (n, n)), 0) for _ in range(2)]
    return tuple(js.fromdense(x.astype(dtype), format) for x in pair)  # type: ignore[return-value]


def bits(x: Any) -> list[tuple[Any, bytes]]:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(x)]
    return [(leaf.dtype, leaf.tobytes()) for leaf in leaves]


def programs(call: Callable[[], Any]) -> int:
    """How many programs XLA compiles for a call."""
    found = []

    def listen(name: str, seconds: float, **about: Any) -> None:
        if name.endswith("backend_compile_duration"):
            found.append(about.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        jax.block_until_ready(call())
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return len(found)


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "dcsr"])
@pytest.mark.parametrize("name", CALLS)
def test_a_program_gives_the_same_bits(name: str, format: str) -> None:
    a, b = square(format=format)
    results = [bits(CALLS[name](a, b)) for _ in range(direct.OFTEN + 2)]
    assert all(r == results[0] for r in results)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "int8", "uint32", "bool"])
def test_dtypes(dtype: str) -> None:
    a, b = square(jnp.dtype(dtype))
    results = [bits(a @ b) for _ in range(direct.OFTEN + 2)]
    assert all(r == results[0] for r in results)
    assert (a @ b).dtype == jnp.dtype(dtype)


@pytest.mark.parametrize("name", ["A @ B", "A + B", "A * B", "to csc", "to coo"])
def test_nothing_is_compiled_for_new_sizes(name: str) -> None:
    a, b = square(n=23)
    assert programs(lambda: CALLS[name](a, b)) == 0


def test_sizes_that_come_often_are_compiled_once() -> None:
    a, _ = square(n=24)
    first = [programs(lambda: a.to("csc")) for _ in range(direct.OFTEN)]
    assert sum(first) == 0
    later = [programs(lambda: a.to("csc")) for _ in range(direct.OFTEN)]
    assert later[0] > 0 and sum(later[1:]) == 0


def test_large_arrays_are_compiled_sooner() -> None:
    rng = np.random.default_rng(0)
    a = js.csr(
        np.ones(200_000, np.float32), rng.integers(0, 9, 200_000), [0, 100_000, 200_000], (2, 9)
    )
    counts = [programs(lambda: a.to("csc", nse=200_000)) for _ in range(direct.SELDOM + 2)]
    assert sum(counts[: direct.SELDOM]) == 0 and counts[direct.SELDOM] > 0 and counts[-1] == 0


def test_counts_are_64_bit_without_64_bit_types() -> None:
    a, b = square()
    assert not jax.config.jax_enable_x64
    y = a @ b
    assert y.arrays[0].dtype == np.int32 and y.data.dtype == np.float32
    np.testing.assert_array_equal(dense_of(y), dense_of(a) @ dense_of(b))


def test_damage_is_reported_in_the_words_of_a_program() -> None:
    a, b = square()
    crd = np.asarray(a.arrays[1]).copy()
    crd[3] = 77
    bad = js.SparseArray(a.data, (a.arrays[0], jnp.asarray(crd)), a.shape, a.format)
    words = set()
    for _ in range(direct.OFTEN + 2):
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=r"crd\[3\] is 77") as e:
            bad @ b
        words.add(str(e.value).strip())
    assert len(words) == 1, words


def test_results_stay_where_operands_are_committed() -> None:
    a, b = square()
    device = jax.devices()[0]
    a, b = jax.device_put((a, b), device)
    assert all(x.committed for x in jax.tree.leaves(a @ b))
    assert all(x.devices() == {device} for x in jax.tree.leaves(a @ b))


def test_results_are_not_the_memory_of_operands() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    a = js.fromdense(x)
    before = dense_of(a)
    x[:] = -1
    data, indices, indptr = np.ones(3, np.float32), np.array([0, 1, 2]), np.array([0, 1, 2, 3])
    c = js.csr(data, indices, indptr, (3, 3))
    data[:], indices[:] = 7, 0
    np.testing.assert_array_equal(dense_of(a), before)
    np.testing.assert_array_equal(dense_of(c), np.eye(3))


def test_nans_are_looked_for() -> None:
    a, b = square()
    bad = a.with_data(jnp.full_like(a.data, jnp.nan))
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        bad @ b


def test_patterns_are_not_kept_alive() -> None:
    a = square(n=12)[0].freeze()
    for _ in range(direct.OFTEN + 2):
        a.todense(), a.to("csc"), a @ np.ones((12, 3), np.float32)
    pattern = weakref.ref(a.pattern)
    del a
    gc.collect()
    assert pattern() is None


def test_many_threads() -> None:
    a, b = square(n=40)
    want = bits(a @ b)
    got: list[Any] = []

    def work() -> None:
        for _ in range(5):
            got.append(bits(a @ b))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got) == 30 and all(g == want for g in got)

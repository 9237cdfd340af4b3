# SPDX-License-Identifier: Apache-2.0
"""Every transformation of JAX on einsums: one table, against the dense program under the same one.

The dense program scatters the values of each sparse operand at its coordinates, so that derivatives
in values, stored zeros and duplicates included, can be compared as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jsparse as js
from jsparse import config
from jsparse.convert import coo_parts
from jsparse.errors import CapacityError


def thinned(rows: list[Any], keep: int) -> list[Any]:
    """Every `keep`-th row; the others as slow tests."""
    return [
        pytest.param(r, id=str(r), marks=[pytest.mark.slow] if n % keep else [])
        for n, r in enumerate(rows)
    ]


EXTENT = {"i": 4, "j": 5, "k": 3, "l": 2, "b": 2}


@dataclass(frozen=True)
class Row:
    subscripts: str
    formats: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.subscripts}:{'/'.join(self.formats)}"


def rows(text: str) -> list[Row]:
    out = []
    for line in text.split("\n"):
        if line.strip():
            subscripts, *formats = line.split()
            out.append(Row(subscripts, tuple(formats)))
    return out


TABLE = rows("""
    ij,jk->ik csr dense
    ij,jk->ik csc dense
    ij,jk->ik coo dense
    ij,jk->ik dcsr dense
    ij,jk->ik dense csr
    ij,jk->ik dup dense
    ij,jk->ik unsorted dense
    ij,jk->ik zeros dense
    ij,jk->ik csr csr
    ij,jk->ik csr csc
    ij,kj->ik coo csr
    ji,jk->ik csr dense
    ij,j->i csr dense
    ij,i->j csr dense
    i,ij,j-> dense csr dense
    ij,ij->ij csr csr
    ij,ij->ij csr dense
    ij,ij-> coo dense
    ij->i csr
    ij->j csc
    ij-> coo
    ij->ji csr
    ii->i csr
    ii-> coo
    ij,j->ij csr dense
    ij,ik,jk->ij csr dense dense
    ij,ik,jk->ij dup dense dense
    ij,jk,kl->il csr dense dense
    ijk,kl,jl->il csf dense dense
    ijk,kl->ijl coo dense
    ijk,ijk-> csf dense
    bij,bjk->bik coo dense
""")


def operand(names: str, fmt: str, rng: np.random.Generator, whole: bool) -> Any:
    shape = tuple(EXTENT["i" if len(set(names)) < len(names) else v] for v in names)
    x = rng.standard_normal(shape)
    x = np.round(4 * x) if whole else x
    if fmt == "dense":
        return jnp.asarray(x)
    x = np.where(rng.random(shape) < 0.5, x, 0)
    x.flat[0] = 1.5
    if fmt in ("dup", "unsorted", "zeros"):
        coords = np.array(np.nonzero(x))
        values = x[tuple(coords)]
        if fmt == "dup":
            coords, values = np.repeat(coords, 2, axis=1), np.repeat(values, 2)
        elif fmt == "unsorted":
            order = rng.permutation(values.size)
            coords, values = coords[:, order], values[order]
        else:
            values = np.where(rng.random(values.size) < 0.3, 0.0, values)
        return js.coo(values, coords, shape)
    return js.fromdense(x, fmt)


def case(
    row: Row, freeze: bool = False, whole: bool = False
) -> tuple[Callable[..., Any], Callable[..., Any], list[Any]]:
    """(sparse program, dense program, values): both programs map values to the dense result.

    `whole`: small multiples of 1/2 for values, so that sums and products of them are exact.
    """
    rng = np.random.default_rng(7)
    ops = [
        operand(n, f, rng, whole)
        for n, f in zip(row.subscripts.split("->")[0].split(","), row.formats, strict=True)
    ]
    if freeze:
        ops = [x.freeze() if isinstance(x, js.SparseArray) else x for x in ops]
    values = [x.data if isinstance(x, js.SparseArray) else x for x in ops]
    size = 1
    for v in row.subscripts.split("->")[1]:
        size *= EXTENT[v]

    def sparse(*values: Any) -> Any:
        now = [
            x.with_data(v) if isinstance(x, js.SparseArray) else v
            for x, v in zip(ops, values, strict=True)
        ]
        try:
            y = js.einsum(row.subscripts, *now)
        except CapacityError:
            y = js.einsum(row.subscripts, *now, nse=size)
        return y.todense() if isinstance(y, js.SparseArray) else y

    def dense(*values: Any) -> Any:
        now = [
            scatter(x, v) if isinstance(x, js.SparseArray) else v
            for x, v in zip(ops, values, strict=True)
        ]
        return jnp.einsum(row.subscripts, *now)

    return sparse, dense, values


def scatter(a: js.SparseArray, values: Any) -> Any:
    _, coords, count = coo_parts(a)
    at = tuple(np.asarray(c)[:count] for c in coords)
    return jnp.zeros(a.shape, values.dtype).at[at].add(values[:count])


def close(got: Any, want: Any) -> None:
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, rtol=1e-10, atol=1e-10)


def weighted(f: Callable[..., Any]) -> Callable[..., Any]:
    """A scalar that is not linear in the result."""

    def loss(*values: Any) -> Any:
        y = f(*values)
        w = jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)
        return jnp.sum(w * y + 0.5 * y**2 * w**2)

    return loss


@pytest.fixture(autouse=True)
def x64() -> Any:
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("row", thinned(TABLE, 2))
def test_first_order(row: Row) -> None:
    sparse, dense, values = case(row)
    everywhere = tuple(range(len(values)))
    want = jax.jit(jax.grad(weighted(dense), everywhere))(*values)
    close(jax.jit(jax.grad(weighted(sparse), everywhere))(*values), want)
    tangents = [jnp.sin(1 + v) for v in values]
    close(
        jax.jit(lambda *v: jax.jvp(sparse, v, tuple(tangents))[1])(*values),
        jax.jvp(dense, tuple(values), tuple(tangents))[1],
    )


@pytest.mark.parametrize("row", thinned(TABLE[::3], 2))
def test_first_order_of_frozen_arrays(row: Row) -> None:
    sparse, dense, values = case(row, freeze=True)
    everywhere = tuple(range(len(values)))
    want = jax.grad(weighted(dense), everywhere)(*values)
    close(jax.jit(jax.grad(weighted(sparse), everywhere))(*values), want)
    close(jax.grad(weighted(sparse), everywhere)(*values), want)


@pytest.mark.parametrize("row", thinned(TABLE, 5))
def test_second_order(row: Row) -> None:
    """Hessian times a vector, forward over reverse and reverse over reverse."""
    sparse, dense, values = case(row)
    everywhere = tuple(range(len(values)))
    vectors = tuple(jnp.sin(1 + v) for v in values)

    def forward(f: Any) -> Any:
        return jax.jit(lambda *v: jax.jvp(jax.grad(weighted(f), everywhere), v, vectors)[1])

    def reverse(f: Any) -> Any:
        def along(*v: Any) -> Any:
            g = jax.grad(weighted(f), everywhere)(*v)
            return sum(jnp.vdot(x, y) for x, y in zip(g, vectors, strict=True))

        return jax.jit(jax.grad(along, everywhere))

    want = forward(dense)(*values)
    close(forward(sparse)(*values), want)
    close(reverse(sparse)(*values), want)


@pytest.mark.parametrize("row", [TABLE[0], TABLE[15], TABLE[25]], ids=str)
def test_third_order(row: Row) -> None:
    sparse, dense, values = case(row)

    def third(f: Any) -> Any:
        g = jax.grad(lambda v: jnp.sum(jnp.sin(f(v, *values[1:]))))
        return jax.jit(jax.jacfwd(jax.jacrev(g)))

    close(third(sparse)(values[0]), third(dense)(values[0]))


def quadratic(f: Callable[..., Any]) -> Callable[..., Any]:
    """A scalar that is quadratic in the result with whole coefficients, hence in each operand."""

    def loss(*values: Any) -> Any:
        y = f(*values)
        n = jnp.arange(y.size, dtype=y.dtype).reshape(y.shape)
        return jnp.sum((n % 5 - 2) * y + (n % 3) * y**2)

    return loss


def differences(f: Callable[..., Any], values: Any, steps: list[tuple[int, Any]]) -> Any:
    """The derivative along a step in one operand after another by central differences: exact for
    what is quadratic in each of them.
    """
    if not steps:
        return f(*values)
    (n, step), *rest = steps
    up, down = (
        differences(f, [v + s * step if m == n else v for m, v in enumerate(values)], rest)
        for s in (1, -1)
    )
    return (up - down) / 2


def along(values: Any, n: int, step: Any) -> tuple[Any, ...]:
    return tuple(step if m == n else jnp.zeros_like(v) for m, v in enumerate(values))


@pytest.mark.parametrize("row", thinned(TABLE, 5))
def test_finite_differences(row: Row) -> None:
    check_differences(row, freeze=False)


@pytest.mark.parametrize("row", thinned(TABLE[::4], 5))
def test_finite_differences_of_frozen_arrays(row: Row) -> None:
    check_differences(row, freeze=True)


def check_differences(row: Row, freeze: bool) -> None:
    """First and second order in every (pair of) operand: reverse, forward over reverse, batched."""
    sparse, _, values = case(row, freeze, whole=True)
    everywhere = tuple(range(len(values)))
    steps = [jnp.round(3 * jnp.sin(1 + jnp.arange(v.size))).reshape(v.shape) for v in values]
    loss = jax.jit(quadratic(sparse))
    grad = jax.grad(quadratic(sparse), everywhere)
    once = jax.jit(grad)(*values)
    batch = jax.jit(jax.vmap(grad))(*(jnp.stack([v, v + 1]) for v in values))
    twice = jax.jit(lambda v, t: jax.jvp(grad, v, t)[1])
    for n in everywhere:
        first = [(n, steps[n])]
        close(jnp.vdot(once[n], steps[n]), differences(loss, values, first))
        shifted = differences(loss, [v + 1 for v in values], first)
        close(jnp.vdot(batch[n][1], steps[n]), shifted)
        hessian = twice(tuple(values), along(values, n, steps[n]))
        for m in everywhere:
            want = differences(loss, values, [*first, (m, steps[m])])
            close(jnp.vdot(hessian[m], steps[m]), want)


@pytest.mark.parametrize("row", [TABLE[0], TABLE[15], TABLE[25]], ids=str)
def test_finite_differences_of_third_order(row: Row) -> None:
    sparse, _, values = case(row, whole=True)
    everywhere = tuple(range(len(values)))
    steps = [jnp.round(3 * jnp.sin(1 + jnp.arange(v.size))).reshape(v.shape) for v in values]
    loss = jax.jit(quadratic(sparse))
    grad = jax.grad(quadratic(sparse), everywhere)

    def second(v: Any, t: Any) -> Any:
        return jax.jvp(grad, v, t)[1]

    third = jax.jit(lambda v, t, u: jax.jvp(lambda v: second(v, t), (v,), (u,))[1])
    for n in everywhere:
        for m in everywhere:
            v = tuple(values)
            got = third(v, along(v, n, steps[n]), along(v, m, steps[m]))
            for k in everywhere:
                want = differences(loss, values, [(j, steps[j]) for j in (n, m, k)])
                close(jnp.vdot(got[k], steps[k]), want)


@pytest.mark.parametrize("row", thinned(TABLE, 4))
def test_vmap(row: Row) -> None:
    """Over each operand's values alone, and over all of them, with a gradient inside."""
    sparse, dense, values = case(row)
    batch = [jnp.stack([v, 2 * v, -v], -1) for v in values]
    axes = [tuple(-1 if m == n else None for m in range(len(values))) for n in range(len(values))]
    for chosen in dict.fromkeys([*axes, (-1,) * len(values)]):
        args = [b if c is not None else v for b, v, c in zip(batch, values, chosen, strict=True)]
        out = min(1, jax.eval_shape(dense, *values).ndim)
        close(jax.jit(jax.vmap(sparse, chosen, out))(*args), jax.vmap(dense, chosen, out)(*args))
    everywhere = tuple(range(len(values)))
    last = (-1,) * len(values)
    close(
        jax.jit(jax.vmap(jax.grad(weighted(sparse), everywhere), last))(*batch),
        jax.vmap(jax.grad(weighted(dense), everywhere), last)(*batch),
    )


def stack(arrays: list[js.SparseArray]) -> js.SparseArray:
    return jax.tree.map(lambda *x: jnp.stack(x), *arrays)


@pytest.mark.parametrize("fmt", ["csr", "csc", "coo", "dcsr"])
def test_vmap_over_patterns(fmt: str) -> None:
    rng = np.random.default_rng(3)
    xs = [np.where(rng.random((4, 5)) < 0.4, rng.standard_normal((4, 5)), 0) for _ in range(3)]
    a = stack([js.fromdense(x, fmt, nse=16) for x in xs])
    b = jnp.asarray(rng.standard_normal((3, 5, 2)))
    dense = np.stack(xs)
    np.testing.assert_allclose(jax.vmap(lambda a, b: a @ b)(a, b), dense @ b, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(jax.vmap(lambda a: a @ b[0]))(a), dense @ b[0], rtol=1e-12)
    nested = jax.vmap(lambda a: jax.vmap(lambda b: a @ b)(b))(a)
    np.testing.assert_allclose(nested, np.einsum("aij,bjk->abik", dense, b), rtol=1e-12)
    total = jax.jit(jax.vmap(lambda a: js.add(a, a, nse=20).todense()))(a)
    np.testing.assert_allclose(total, 2 * dense, rtol=1e-12)
    moved = jax.vmap(lambda a: a.to("csr" if fmt != "csr" else "csc").todense())(a)
    np.testing.assert_allclose(moved, dense, rtol=1e-12)

    def loss(data: Any, a: js.SparseArray) -> Any:
        return jnp.sum(jax.vmap(lambda d, a, b: a.with_data(d) @ b)(data, a, b) ** 2)

    got = jax.vmap(lambda a, d: a.with_data(d).todense())(a, jax.grad(loss)(a.data, a))
    want = np.where(dense != 0, np.einsum("bik,bjk->bij", 2 * dense @ b, b), 0)
    np.testing.assert_allclose(got, want, rtol=1e-10)


def test_vmap_is_one_kernel() -> None:
    """A batch of vectors becomes the product with a matrix: no loop around the call."""
    a = js.random(jax.random.key(0), (20, 30), 0.2)
    text = str(jax.make_jaxpr(jax.vmap(lambda x: a @ x))(jnp.ones((8, 30))))
    assert text.count("jsparse_einsum") == 1 and "scan" not in text and "while" not in text


def test_complex_derivatives_follow_jax() -> None:
    rng = np.random.default_rng(0)
    x = np.where(rng.random((4, 5)) < 0.5, rng.standard_normal((4, 5)) + 1j, 0)
    a, b = js.fromdense(x), jnp.asarray(rng.standard_normal((5, 2)) + 2j)

    def loss(f: Any) -> Any:
        return lambda d, b: jnp.sum(jnp.abs(f(d, b)) ** 2)

    got = jax.grad(loss(lambda d, b: a.with_data(d) @ b), (0, 1))(a.data, b)
    want = jax.grad(loss(lambda d, b: scatter(a, d) @ b), (0, 1))(a.data, b)
    close(got, want)


def test_control_flow_carries_sparse_arrays() -> None:
    a = js.fromdense(np.eye(4) + np.eye(4, k=1))
    x = jnp.arange(4.0)
    dense = a.todense()

    def body(carry: Any, _: Any) -> Any:
        a, x = carry
        return (a * 0.5, a @ x), jnp.sum(x)

    (last, y), _ = jax.lax.scan(body, (a, x), None, length=3)
    close(last.todense(), dense / 8)
    want = (dense / 4) @ ((dense / 2) @ (dense @ x))
    close(y, want)
    close(jax.lax.fori_loop(0, 3, lambda _, x: a @ x, x), dense @ (dense @ (dense @ x)))
    close(
        jax.lax.while_loop(lambda c: c[1] < 2, lambda c: (c[0] * 2, c[1] + 1), (a, 0))[0].data,
        a.data * 4,
    )
    close(jax.lax.cond(True, lambda a: a, lambda a: -a, a).data, a.data)
    close(
        jax.checkpoint(lambda d: jnp.sum((a.with_data(d) @ x) ** 2))(a.data),
        jnp.sum((dense @ x) ** 2),
    )
    f, lin = jax.linearize(lambda d: a.with_data(d) @ x, a.data)
    close(lin(a.data), f)


def test_gradients_of_dynamic_arrays() -> None:
    a, x = js.fromdense(np.triu(np.ones((4, 4)))), jnp.arange(1.0, 5.0)

    def f(a: js.SparseArray, x: Any) -> Any:
        return jnp.sum(a @ x)

    g = js.grad(f)(a, x)
    assert isinstance(g, js.SparseArray) and g.format == a.format
    close(g.todense(), jnp.triu(jnp.broadcast_to(x, (4, 4))))
    value, (ga, gx) = jax.jit(js.value_and_grad(f, (0, 1)))(a, x)
    close(value, f(a, x))
    close(ga.data, g.data)
    close(gx, a.todense().sum(0))
    _, aux = js.grad(lambda a: (f(a, x), 3), has_aux=True)(a)
    assert aux == 3
    close(js.jacrev(lambda a: a @ x)(a), js.jacfwd(lambda a: a @ x)(a))
    assert js.jacfwd(lambda a: {"y": a * 2.0})(a)["y"].shape == (a.nse, a.nse)
    frozen = jax.grad(f)(a.freeze(), x)
    assert len(jax.tree.leaves(frozen)) == 1
    close(frozen.data, g.data)


def test_training_loop_traces_once() -> None:
    traces = 0

    @jax.jit
    def step(a: js.SparseArray, x: Any) -> Any:
        nonlocal traces
        traces += 1
        return js.grad(lambda a: jnp.sum((a @ x) ** 2))(a).data

    for seed in range(5):  # different graphs of one capacity
        rng = np.random.default_rng(seed)
        a = js.fromdense(rng.standard_normal((6, 6)) * (rng.random((6, 6)) < 0.4), nse=30)
        step(a, jnp.ones(6))
    assert traces == 1


@pytest.mark.parametrize("row", thinned(TABLE, 12))
def test_the_reference_takes_every_transformation(row: Row) -> None:
    sparse, dense, values = case(row)
    everywhere = tuple(range(len(values)))
    batch = [jnp.stack([v, -v]) for v in values]
    gradients, many = jax.grad(weighted(dense), everywhere)(*values), jax.vmap(dense)(*batch)
    with config.override(backend="reference"):
        jax.clear_caches()
        close(jax.jit(jax.grad(weighted(sparse), everywhere))(*values), gradients)
        close(jax.jit(jax.vmap(sparse))(*batch), many)
    jax.clear_caches()


def test_strict_settings_of_jax() -> None:
    """Nothing of ours moves data, promotes or broadcasts behind the user's back."""
    rng = np.random.default_rng(0)
    a = js.fromdense(jnp.asarray(rng.standard_normal((4, 5)) * (rng.random((4, 5)) < 0.5)))
    b = jnp.asarray(rng.standard_normal((5, 3)))
    step = jax.jit(lambda a, b: (a @ b, js.grad(lambda a: jnp.sum((a @ b) ** 2))(a), a.T))
    want = step(a, b)[0]
    with (
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
        jax.debug_nans(True),
        jax.transfer_guard("disallow"),
    ):
        y, g, t = step(a, b)
        fresh = jax.jit(lambda a, b: a @ b * 2.0)(a, b)
    np.testing.assert_array_equal(y, want)
    np.testing.assert_allclose(fresh, 2 * want)
    assert g.shape == a.shape and t.shape == (5, 4)


def test_frozen_arrays_move_no_data_behind_the_user() -> None:
    """A pattern is placed on the device explicitly, whoever uses it first."""
    rng = np.random.default_rng(0)
    b, x = jnp.ones((5, 2)), jnp.ones((2, 5))
    arrays = [
        js.fromdense(rng.standard_normal((4, 5)) * (rng.random((4, 5)) < 0.5)).freeze()
        for _ in range(4)
    ]
    with jax.transfer_guard("disallow"):
        y, vjp = jax.vjp(lambda d, b: arrays[0].with_data(d) @ b, arrays[0].data, b)
        vjp(y)
        jax.jit(lambda a, b: js.grad(lambda a: jnp.sum(a @ b))(a))(arrays[1], b)
        jax.jit(lambda b: arrays[2] @ b)(b)
        jax.vmap(lambda x: arrays[3] @ x)(x)


@pytest.mark.parametrize("fmt", thinned(["csr", "coo", "csc"], 3))
def test_derivatives_through_a_computed_pattern(fmt: str) -> None:
    """What stores the entries of a dense argument has no derivative; their values do."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.standard_normal((4, 5)) * (rng.random((4, 5)) < 0.5))
    b, mask = jnp.asarray(rng.standard_normal((5, 3))), x != 0

    def sparse(x: Any) -> Any:
        a = js.fromdense(x, fmt, nse=20)
        return jnp.sum(jnp.sin(a @ b)) + jnp.sum(a.data**2)

    def dense(x: Any) -> Any:
        x = jnp.where(mask, x, 0)
        return jnp.sum(jnp.sin(x @ b)) + jnp.sum(x**2)

    want = jax.grad(dense)(x)
    close(jax.grad(sparse)(x), want)
    close(jax.jit(jax.jacfwd(sparse))(x), want)
    close(jax.jit(jax.vmap(jax.grad(sparse)))(jnp.stack([x, x]))[1], want)
    close(jax.jit(jax.hessian(sparse))(x), jax.hessian(dense)(x))


def test_checkify_donation_and_the_staged_api() -> None:
    from jax.experimental import checkify

    a, b = js.fromdense(jnp.eye(4)), jnp.ones((4, 2))
    error, y = checkify.checkify(jax.jit(lambda a, b: a @ b))(a, b)
    error.throw()
    np.testing.assert_array_equal(y, b)
    scale = jax.jit(lambda a: a * 2.0, donate_argnums=0)
    np.testing.assert_array_equal(scale(js.fromdense(2 * jnp.eye(4))).todense(), 4 * jnp.eye(4))
    with jax.named_scope("product"):
        compiled = jax.jit(lambda a, b: a @ b).lower(a, b).compile()
    np.testing.assert_array_equal(compiled(a, b), b)
    assert jax.eval_shape(lambda a: a.T, a).shape == (4, 4)
    summed = jax.tree.map(lambda x, y: x + y, a, a.with_data(a.data))
    assert isinstance(summed, js.SparseArray)

"""The 25 inputs on which neural-tangents is silently wrong: right or refused here, one test for each.

The page "Coming from neural-tangents" has the same rows.
"""

import pathlib
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import neural_tangents_oracle as oracle
import numpy as np
import pytest
from neural_tangents_oracle import normal

from ntkdiag import errors
from ntkdiag import neural_tangents as nt
from ntkdiag.neural_tangents import predict

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "neural-tangents.md"
WAYS = list(nt.NtkImplementation)


def mlp(params, x, **_):
    return jnp.tanh(x @ params["a"]) @ params["b"]


def params():
    return {"a": normal(3, 4), "b": normal(4, 3)}


def reference(
    f, parameters, x1, x2=None, trace_axes=(-1,), diagonal_axes=(), kwargs1=None, kwargs2=None
):
    rows = oracle.jacobians(f, parameters, x1, kwargs1 or {})
    columns = rows if x2 is None else oracle.jacobians(f, parameters, x2, kwargs2 or {})
    return oracle.reduce(oracle.full_kernels(rows, columns)[0, 0], trace_axes, diagonal_axes)


def refused(call, kind=errors.InvalidInputError):
    with pytest.raises(kind):
        call()


def batch_norm(parameters, x):
    h = jnp.tanh(x @ parameters["a"])
    return ((h - h.mean(0)) / jnp.sqrt(h.var(0) + 0.1)) @ parameters["b"]


def dropout(parameters, x, rng):
    return mlp(parameters, x * jax.random.bernoulli(rng, 0.6, x.shape))


def test_row_01_axis_traced_twice(x64):
    way = nt.NtkImplementation.JACOBIAN_CONTRACTION
    for make, nngp in ((nt.empirical_ntk_fn, False), (nt.empirical_nngp_fn, True)):
        options = {} if nngp else {"implementation": way}
        twice, once = (
            make(mlp, axes, **options)(normal(2, 3), None, params()) for axes in ((1, -1), (1,))
        )
        np.testing.assert_array_equal(twice, once)


def test_row_02_axis_traced_and_diagonal(x64):
    way = nt.NtkImplementation.STRUCTURED_DERIVATIVES
    refused(
        lambda: nt.empirical_ntk_fn(mlp, diagonal_axes=(1,), implementation=way)(
            normal(2, 3), None, params()
        )
    )


def test_row_03_examples_tied_for_different_numbers(x64):
    way = nt.NtkImplementation.NTK_VECTOR_PRODUCTS
    for axes in (((0,), ()), ((), (0,))):
        ntk_fn = nt.empirical_ntk_fn(mlp, *axes, implementation=way)
        refused(lambda ntk_fn=ntk_fn: ntk_fn(normal(2, 3), normal(3, 3), params()))


def test_row_04_default_trace_of_one_number_per_example(x64):
    way = nt.NtkImplementation.AUTO
    f = lambda p, x: mlp(p, x)[:, 0]
    refused(lambda: nt.empirical_ntk_fn(f, implementation=way)(normal(2, 3), None, params()))
    found = nt.empirical_ntk_fn(f, (), implementation=way)(normal(2, 3), None, params())
    oracle.assert_equal(found, reference(f, params(), normal(2, 3), trace_axes=()))


def test_row_05_default_trace_of_outputs_of_different_rank(x64):
    f = lambda p, x: (mlp(p, x), mlp(p, x)[:, 0])
    refused(lambda: nt.empirical_ntk_fn(f)(normal(2, 3), None, params()))
    shapes = [kernel.shape for kernel in nt.empirical_ntk_fn(f, ())(normal(2, 3), None, params())]
    assert shapes == [(2, 2, 3, 3), (2, 2)]


def test_row_06_batch_norm_by_examples(x64):
    way = nt.NtkImplementation.JACOBIAN_CONTRACTION
    x = normal(3, 3)
    refused(
        lambda: nt.empirical_ntk_fn(batch_norm, vmap_axes=0, implementation=way)(x, None, params()),
        errors.ExamplesInteractError,
    )
    found = nt.empirical_ntk_fn(batch_norm, implementation=way)(x, None, params())
    oracle.assert_equal(found, reference(batch_norm, params(), x))


@pytest.mark.slow
def test_row_06_batch_norm_under_jit(x64):
    x = normal(3, 3)
    compiled = jax.jit(nt.empirical_ntk_fn(batch_norm, vmap_axes=0))
    refused(lambda: compiled(x, None, params()), errors.ExamplesInteractError)
    found = jax.jit(nt.empirical_ntk_fn(batch_norm))(x, None, params())
    oracle.assert_equal(found, reference(batch_norm, params(), x))


@pytest.mark.slow
def test_row_07_one_mask_for_every_example(x64):
    x, key = normal(4, 3), jax.random.key(1)
    refused(
        lambda: nt.empirical_ntk_fn(dropout, vmap_axes=0)(x, None, params(), rng=key),
        errors.ExamplesInteractError,
    )
    found = nt.empirical_ntk_fn(dropout)(x, None, params(), rng=key)
    oracle.assert_equal(found, reference(dropout, params(), x, kwargs1={"rng": key}))


@pytest.mark.slow
def test_row_08_inputs_equal_up_to_rounding(x64):
    x, key = normal(4, 3), jax.random.key(2)
    ntk_fn = nt.empirical_ntk_fn(dropout)
    exact, near = (ntk_fn(x, x2, params(), rng=key) for x2 in (x, x + 1e-11))
    np.testing.assert_allclose(near, exact, atol=1e-9)
    np.testing.assert_allclose(exact, ntk_fn(x, None, params(), rng=key), atol=1e-12)
    oracle.assert_equal(
        ntk_fn(x, x + 0.1, params(), rng=key),
        reference(
            dropout,
            params(),
            x,
            x + 0.1,
            kwargs1={"rng": key},
            kwargs2={"rng": jax.random.fold_in(key, 1)},
        ),
    )


def test_row_09_keyword_argument_that_is_a_pair(x64):
    way = nt.NtkImplementation.STRUCTURED_DERIVATIVES
    f = lambda p, x, scale: mlp(p, x) * scale[0] + scale[1] ** 2 * mlp(p, x) ** 2
    x1, x2, scale = normal(2, 3), normal(3, 3), (2.0, 3.0)
    found = nt.empirical_ntk_fn(f, implementation=way)(x1, x2, params(), scale=nt.Shared(scale))
    shared = {"scale": scale}
    oracle.assert_equal(found, reference(f, params(), x1, x2, kwargs1=shared, kwargs2=shared))


@pytest.mark.slow
def test_row_09_pair_that_could_be_either(x64):
    f = lambda p, x, scale: mlp(p, x) * jnp.sum(jnp.asarray(scale))
    x1, x2 = normal(2, 3), normal(3, 3)
    ntk_fn = nt.empirical_ntk_fn(f)
    for given, first, second in (
        ((2.0, 3.0), 2.0, 3.0),
        (nt.Shared((2.0, 3.0)), 5.0, 5.0),
    ):
        wanted = reference(f, params(), x1, x2, kwargs1={"scale": first}, kwargs2={"scale": second})
        oracle.assert_equal(ntk_fn(x1, x2, params(), scale=given), wanted)


@pytest.mark.slow
def test_row_10_variables_of_flax_as_parameters():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(nn.BatchNorm(use_running_average=True)(nn.Dense(3)(x)))

    x = jnp.ones((2, 3))
    variables = Net().init(jax.random.key(0), x)
    refused(lambda: nt.empirical_ntk_fn(Net().apply)(x, None, variables))
    rest = {name: value for name, value in variables.items() if name != "params"}
    f = lambda p, x: Net().apply({"params": p, **rest}, x)
    assert nt.empirical_ntk_fn(f)(x, None, variables["params"]).shape == (2, 2)


def test_row_11_complex_numbers(x64):
    way = nt.NtkImplementation.NTK_VECTOR_PRODUCTS
    w, x = normal(3, 2) + 1j, normal(2, 3)
    ntk = lambda f, w: nt.empirical_ntk_fn(f, implementation=way)(x, None, w)
    refused(lambda: ntk(lambda p, x: jnp.abs(x @ p), w))
    refused(lambda: ntk(lambda p, x: x @ p * 1j, w.real))


def test_row_12_integer_outputs(x64):
    way = nt.NtkImplementation.AUTO
    for f in (lambda p, x: mlp(p, x).astype(int), lambda p, x: (mlp(p, x), mlp(p, x).argmax(1))):
        refused(
            lambda f=f: nt.empirical_ntk_fn(f, (), implementation=way)(normal(2, 3), None, params())
        )


def test_row_13_batch_aggregated_to_length_one(x64):
    way = nt.NtkImplementation.JACOBIAN_CONTRACTION
    f, x = lambda p, x: mlp(p, x).sum((0, 1))[None], normal(3, 3)
    refused(lambda: nt.empirical_ntk_fn(f, (), vmap_axes=0, implementation=way)(x, None, params()))
    found = nt.empirical_ntk_fn(f, (), implementation=way)(x, None, params())
    oracle.assert_equal(found, reference(f, params(), x, trace_axes=()))


def test_row_14_keyword_argument_consumed_example_by_example(x64):
    way = nt.NtkImplementation.STRUCTURED_DERIVATIVES
    f = lambda p, x, mask: mlp(p, x * mask[: x.shape[0], None])
    x, mask = normal(3, 3), normal(3)
    wanted = reference(f, params(), x, kwargs1={"mask": mask})
    ntk = lambda axes: nt.empirical_ntk_fn(f, vmap_axes=axes, implementation=way)(
        x, None, params(), mask=mask
    )
    refused(lambda: ntk(0), errors.ExamplesInteractError)
    oracle.assert_equal(ntk(None), wanted)
    oracle.assert_equal(ntk((0, 0, {"mask": 0})), wanted)


def test_row_15_parameter_reshaped_column_first(x64):
    way = nt.NtkImplementation.NTK_VECTOR_PRODUCTS
    f = lambda p, x: x @ p.reshape((9, 1), order="F") + x[:, :3] @ p
    x, w = normal(2, 9), normal(3, 3)
    oracle.assert_equal(
        nt.empirical_ntk_fn(f, implementation=way)(x, None, w), reference(f, w, x), bound=1e-12
    )


@pytest.mark.parametrize("inside", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_row_16_half_precision(inside):
    dtype = jnp.bfloat16

    def f(p, x):
        y = mlp(jax.tree.map(lambda leaf: leaf.astype(dtype), p), x.astype(dtype))
        return y.astype(jnp.float32)

    cast = lambda tree: jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32 if inside else dtype), tree
    )
    x, w = cast(normal(4, 3)), cast(params())
    kernels = [
        nt.empirical_ntk_fn(f if inside else mlp, implementation=way)(x, None, w) for way in WAYS
    ]
    assert {kernel.dtype for kernel in kernels} == {jnp.dtype(jnp.float32)}
    spread = max(
        float(jnp.abs(kernel - kernels[0]).max() / jnp.abs(kernels[0]).max()) for kernel in kernels
    )
    assert spread < 1e-6
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), (w, x))
        wanted = reference(mlp, *wide)
    error = np.abs(np.asarray(kernels[0]) - wanted).max() / np.abs(wanted).max()
    assert error < (0.05 if inside else 1e-6)


def test_row_17_expanded_at_parameters_of_another_shape(x64):
    f_lin = nt.linearize(lambda p, x: x @ p["w"] + p["b"], {"w": normal(3, 2), "b": normal(2)})
    refused(
        lambda: f_lin({"w": normal(3, 2), "b": jnp.zeros(())}, normal(4, 3)), errors.StructureError
    )


def test_row_18_batch_with_examples_tied(x64):
    x = normal(4, 3)
    for axes, shape in ((((), (0,)), (4, 3, 3)), (((0,), ()), (3, 3)), (((1,), (0,)), (4,))):
        ntk_fn = nt.empirical_ntk_fn(mlp, *axes)
        found = nt.batch(ntk_fn, batch_size=2)(x, None, params())
        assert found.shape == shape
        oracle.assert_equal(found, reference(mlp, params(), x, None, *axes))


@pytest.mark.slow
def test_row_19_batch_of_batch_norm(x64):
    x = normal(6, 3)
    found = nt.batch(nt.empirical_ntk_fn(batch_norm), batch_size=2)(x, None, params())
    oracle.assert_equal(found, reference(batch_norm, params(), x))


@pytest.mark.slow
def test_row_20_batch_with_random_keys(x64):
    x1, x2, key = normal(6, 3), normal(4, 3, seed=1), jax.random.key(3)
    for f in (dropout, lambda p, x, rng: mlp(p, x * jax.random.bernoulli(rng, 0.6, x.shape[1:]))):
        ntk_fn = nt.empirical_ntk_fn(f)
        batched = nt.batch(ntk_fn, batch_size=2)
        oracle.assert_equal(
            batched(x1, x2, params(), rng=key), np.asarray(ntk_fn(x1, x2, params(), rng=key))
        )


def singular():
    """A kernel of rank 2 for 3 points, a test kernel, and targets that fit."""
    j, k = np.array([[1.0, 0.0], [1.0, 0.0], [0.5, 1.0]]), np.array([[0.3, 0.4], [0.0, 2.0]])
    return j @ j.T, k @ j.T, j @ np.array([[2.0], [1.0]])


def test_row_21_zero_eigenvalue_at_finite_time(x64):
    kernel, cross, y = singular()
    t = 2.0
    train, test = predict.gradient_descent_mse(kernel, y)(t, 0.0, 0.0, cross)
    values, vectors = np.linalg.eigh(kernel)
    weights = np.array(
        [t / 3 if value < 1e-12 else -np.expm1(-value * t / 3) / value for value in values]
    )
    wanted = vectors @ (weights[:, None] * (vectors.T @ y))
    np.testing.assert_allclose(train, kernel @ wanted, atol=1e-12)
    np.testing.assert_allclose(test, cross @ wanted, atol=1e-12)


def test_row_22_singular_kernel_at_infinite_time(x64):
    kernel, cross, y = singular()
    train, test = predict.gradient_descent_mse(kernel, y)(None, 0.0, 0.0, cross)
    np.testing.assert_allclose(train, y, atol=1e-12)
    np.testing.assert_allclose(test, [[1.0], [2.0]], atol=1e-12)
    contradicting = y + np.array([[1.0], [-1.0], [0.0]])
    np.testing.assert_allclose(
        predict.gradient_descent_mse(kernel, contradicting)(None), y, atol=1e-12
    )


def test_row_22_indefinite_kernel(x64):
    refused(lambda: predict.gradient_descent_mse(np.diag([1.0, -0.1]), np.ones((2, 1)))(None))
    compiled = jax.jit(lambda kernel: predict.gradient_descent_mse(kernel, np.ones((2, 1)))(None))
    assert np.isnan(compiled(jnp.diag(jnp.array([1.0, -0.1])))).all()


def test_row_23_trace_axes_that_the_kernel_does_not_have():
    refused(lambda: predict.gradient_descent_mse(np.eye(3), np.ones((3, 1)), trace_axes=()))


def test_row_24_learning_rate_without_the_number_of_outputs(x64):
    x = normal(4, 3)
    traced = nt.empirical_ntk_fn(lambda p, x: x @ p)(x, None, normal(3, 5))
    full = nt.empirical_ntk_fn(lambda p, x: x @ p, ())(x, None, normal(3, 5))
    refused(lambda: predict.max_learning_rate(traced))
    np.testing.assert_allclose(
        predict.max_learning_rate(traced, 20), predict.max_learning_rate(full), rtol=1e-10
    )
    np.testing.assert_allclose(
        predict.max_learning_rate(full), 40 / np.linalg.eigvalsh(x @ x.T)[-1], rtol=1e-10
    )


@pytest.mark.slow
def test_row_25_times_out_of_order(x64):
    loss = lambda f, y: ((f - y) ** 2).sum()
    predict_fn = predict.gradient_descent(loss, np.eye(2), np.ones((2, 1)))
    refused(lambda: predict_fn(np.array([2.0, 1.0])))
    assert np.isnan(jax.jit(predict_fn)(jnp.array([2.0, 1.0]))).all()


def rows_of_the_page():
    """Number -> what stands in the last cell, for every row of the page's table."""
    cells = (
        re.split(r"(?<!\\)\|", line)[1:-1]
        for line in PAGE.read_text().splitlines()
        if re.match(r"\| \d", line)
    )
    return [(int(row[0]), row[-1].strip().strip("`")) for row in cells]


def test_every_row_of_the_page_names_its_test():
    rows = rows_of_the_page()
    assert [number for number, _ in rows] == list(range(1, 26))
    tests = [name for name in globals() if name.startswith("test_row_")]
    for number, name in rows:
        assert f"test_row_{number:02}_{name}" in tests
    assert {int(test[9:11]) for test in tests} == set(range(1, 26))

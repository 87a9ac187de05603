"""compare(): what running statistics did, told apart from what the parameters did."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from ntkdiag import compare

N, C = 6, 2
X = np.random.default_rng(9).normal(size=(N, 3))
Y = np.arange(N) % C


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4, param_dtype=x.dtype)(x)
        x = nn.BatchNorm(use_running_average=True, param_dtype=x.dtype, dtype=x.dtype)(x)
        return nn.Dense(C, param_dtype=x.dtype)(jnp.tanh(x))


def variables(seed, dtype=np.float64):
    """Parameters and running statistics, both drawn from the seed."""
    rng = np.random.default_rng(seed)
    draw = lambda leaf: rng.normal(size=leaf.shape).astype(dtype)
    shapes = jax.eval_shape(Net().init, jax.random.key(0), jnp.zeros((N, 3), jnp.float32))
    drawn = jax.tree.map(draw, shapes)
    statistics = drawn["batch_stats"]["BatchNorm_0"]
    statistics["var"] = np.exp(statistics["var"])
    return drawn


def function_at(statistics):
    return lambda params, x: Net().apply({"params": params, "batch_stats": statistics}, x)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def matrix(jacobian):
    rows = jacobian.reshape(N * C, -1)
    return rows @ rows.T


def centred_distance(a, b):
    h = np.kron(np.eye(N) - 1 / N, np.eye(C))
    a = h @ a @ h
    b = h @ b @ h
    return 1 - np.sum(a * b) / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.fixture(scope="module")
def measured():
    """The comparison of two sides, and outputs and dense Jacobians at the three corners."""
    a, b = variables(0), variables(1)
    corners = {}
    with jax.enable_x64(True):
        comparison = compare(a, b, model=Net(), train=(X, Y))
        for name, params, statistics in (("aa", a, a), ("ab", a, b), ("bb", b, b)):
            f = function_at(statistics["batch_stats"])
            outputs = np.asarray(f(params["params"], X))
            jacobian = np.asarray(reference.jacobian(f, params["params"], X))
            corners[name] = (outputs, jacobian.reshape(N, C, -1))
    return comparison, corners, flat(b["params"]) - flat(a["params"])


@pytest.mark.slow
def test_e1_is_that_of_the_parameters_at_the_statistics_of_b(measured):
    comparison, corners, step = measured
    start, jacobian = corners["ab"]
    end, _ = corners["bb"]
    predicted = start + jacobian @ step
    e1 = np.linalg.norm(predicted - end) / np.linalg.norm(end - start)
    np.testing.assert_allclose(comparison["e1"], e1, rtol=1e-8)
    np.testing.assert_allclose(comparison["outputs_linearized"], predicted, rtol=1e-8)
    np.testing.assert_allclose(comparison["outputs_start"], start, rtol=1e-10)


@pytest.mark.slow
def test_shares_of_the_change_of_the_outputs(measured):
    comparison, corners, _ = measured
    (first, _), (start, _), (end, _) = (corners[name] for name in ("aa", "ab", "bb"))
    whole = np.linalg.norm(end - first)
    by_statistics = np.linalg.norm(start - first) / whole
    np.testing.assert_allclose(comparison["share_of_fixed_arrays"], by_statistics, rtol=1e-10)
    by_parameters = np.linalg.norm(end - start) / whole
    np.testing.assert_allclose(comparison["share_of_parameters"], by_parameters, rtol=1e-10)
    assert comparison.fixed_arrays == (
        "batch_stats/BatchNorm_0/mean",
        "batch_stats/BatchNorm_0/var",
    )


@pytest.mark.slow
def test_the_drift_of_the_kernel_in_two_parts(measured):
    comparison, corners, _ = measured
    first, start, end = (matrix(corners[name][1]) for name in ("aa", "ab", "bb"))
    parts = (("drift", start, end), ("fixed_arrays", first, start))
    for name, before, after in parts:
        relative = np.linalg.norm(after - before) / np.linalg.norm(before)
        drift = comparison["fixed_arrays_drift" if name == "fixed_arrays" else name]
        np.testing.assert_allclose(drift, relative, rtol=1e-8)
        distance = centred_distance(before, after)
        np.testing.assert_allclose(comparison[f"{name}_distance_centred"], distance, rtol=1e-8)
    np.testing.assert_allclose(comparison.a["trace"], np.trace(first), rtol=1e-10)


@pytest.mark.slow
def test_an_alignment_that_statistics_alone_change_is_not_the_work_of_parameters():
    # Features that follow the labels, which the statistics of B scale away.
    a = variables(0)
    b = {**a, "batch_stats": jax.tree.map(lambda leaf: 9 * leaf + 5, a["batch_stats"])}
    for first, second in ((a, b), (b, a)):
        with jax.enable_x64(True):
            options = {"train": (X, Y), "held_out": (-X[::-1], Y), "loss": "cross_entropy"}
            comparison = compare(first, second, model=Net(), **options)
        assert abs(comparison.a["held_out_alignment"] - comparison.b["held_out_alignment"]) > 0.01
        assert comparison.verdict.headline == "UNCHANGED, alignment unchanged"
        text = str(comparison)
        assert "alignment fell" not in text


@pytest.mark.slow
def test_identical_parameters_and_other_statistics_turn_no_kernel():
    a, b = variables(0, np.float32), variables(1, np.float32)
    b["params"] = a["params"]
    comparison = compare(a, b, model=Net(), train=(X.astype(np.float32), Y))
    assert comparison.verdict.name == "UNCHANGED"
    sentences = " ".join(finding.sentence for finding in comparison.findings)
    assert "alone caused 100 % of the change of the outputs" in sentences
    assert np.isnan(comparison["e1"])
    assert comparison["drift"] == 0
    assert comparison["fixed_arrays_drift"] > 0.1
    assert comparison["share_of_parameters"] == 0
    np.testing.assert_allclose(np.nan_to_num(comparison["leaf_distance_centred"]), 0.0, atol=1e-6)

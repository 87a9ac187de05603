"""compare(): what running statistics did, told apart from what the parameters did."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from flax import nnx

from ntkdiag import compare
from ntkdiag.comparison import fixed_arrays_change

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
def test_kernels_of_leaves_turn_by_the_parameters(measured):
    comparison, corners, _ = measured
    leaves = jax.tree.leaves(variables(0)["params"])
    end_of_leaf = np.cumsum([leaf.size for leaf in leaves])
    h = np.eye(N) - 1 / N
    kernels = []
    for name in ("ab", "bb"):
        part = corners[name][1][..., end_of_leaf[2] : end_of_leaf[3]]  # the kernel of Dense_0
        kernels.append(h @ np.einsum("nop,mop->nm", part, part) @ h)
    cosine = np.sum(kernels[0] * kernels[1]) / np.prod([np.linalg.norm(k) for k in kernels])
    row = {leaf.path: leaf for leaf in comparison.movement}["Dense_0/kernel"]
    np.testing.assert_allclose(row.distance_centred, 1 - cosine, rtol=1e-8)
    first = corners["aa"][1]
    part = first[..., end_of_leaf[2] : end_of_leaf[3]]
    np.testing.assert_allclose(row.share_a, np.sum(part**2) / np.sum(first**2), rtol=1e-8)


@pytest.mark.slow
def test_both_parts_are_shown(measured):
    comparison, *_ = measured
    text = comparison.text(everything=True)
    for name in ("change by the fixed arrays", "change by the parameters"):
        assert name in text
    share = 100 * comparison["share_of_fixed_arrays"]
    assert f"alone caused {share:.3g} % of the change of the outputs" in said(comparison)
    content = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))["between"]
    assert content["share_of_parameters"] == comparison["share_of_parameters"]
    assert content["fixed_arrays_drift"] == comparison["fixed_arrays_drift"]


def said(comparison):
    """All sentences of the findings."""
    return " ".join(finding.sentence for finding in comparison.findings)


def centred_alignment(kernel):
    """cKTA of a full kernel with the labels as unit vectors, centred over examples."""
    h = np.kron(np.eye(N) - 1 / N, np.eye(C))
    labels = np.eye(C)[Y].ravel()
    centred = h @ kernel @ h
    label_kernel = np.outer(h @ labels, h @ labels)
    return np.sum(centred * label_kernel) / np.linalg.norm(centred) / np.linalg.norm(label_kernel)


@pytest.mark.slow
def test_the_task_is_that_of_the_parameters_at_the_statistics_of_b(measured):
    comparison, corners, _ = measured
    expected = centred_alignment(matrix(corners["ab"][1]))
    start = comparison.ends.start
    np.testing.assert_allclose(start["alignment"], expected, rtol=1e-8)
    chance = start["alignment_chance"]
    before, after = (expected - chance) / (1 - chance), comparison.b["alignment_above"]
    assert f"{before:.2g} to {after:.2g} above chance" in said(comparison)


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
    assert "alone caused 100 % of the change of the outputs" in said(comparison)
    assert np.isnan(comparison["e1"])
    assert comparison["drift"] == 0
    assert comparison["fixed_arrays_drift"] > 0.1
    assert comparison["share_of_parameters"] == 0
    assert all(leaf.distance_centred in (None, pytest.approx(0)) for leaf in comparison.movement)


@pytest.mark.slow
def test_nothing_more_is_computed_where_the_fixed_arrays_are_the_same(monkeypatch):
    def refused(*args, **kwargs):
        raise AssertionError("a third kernel")

    monkeypatch.setattr(fixed_arrays_change, "ntk", refused)
    a, b = variables(0, np.float32), variables(1, np.float32)
    b["batch_stats"] = a["batch_stats"]
    comparison = compare(a, b, model=Net(), train=(X.astype(np.float32), None))
    assert comparison.fixed_arrays == ()
    assert "fixed arrays alone" not in str(comparison).lower()
    with pytest.raises(AssertionError, match="a third kernel"):
        compare(a, variables(1, np.float32), model=Net(), train=(X.astype(np.float32), None))


@pytest.mark.slow
def test_counts_of_random_streams_are_no_change():
    class Dropped(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(3, C, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.drop(jnp.tanh(self.linear(x)))

    a, b = Dropped(nnx.Rngs(0)), Dropped(nnx.Rngs(1))
    b(jnp.zeros((N, 3)))  # draws: the count of b is another
    assert compare(a, b, train=(X.astype(np.float32), None)).fixed_arrays == ()

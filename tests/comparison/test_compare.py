"""compare(): every number against dense float64 algebra, every library, every refusal."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from orbax.checkpoint import v1

from ntkdiag import Descent, compare
from ntkdiag.errors import InvalidInputError, StructureError
from ntkdiag.models import functionalize

N, C = 6, 2
Y = np.arange(N) % C


def mlp(params, x):
    return jnp.tanh(x @ params["in"]["w"] + params["in"]["b"]) @ params["out"]["w"]


def mlp_params(seed, dtype=np.float64, scale=1.0):
    rng = np.random.default_rng(seed)
    shapes = {"in": {"w": (3, 4), "b": (4,)}, "out": {"w": (4, C)}}
    return jax.tree.map(
        lambda s: (scale * rng.normal(size=s)).astype(dtype),
        shapes,
        is_leaf=lambda s: type(s) is tuple,
    )


def probe(dtype=np.float64):
    return np.random.default_rng(9).normal(size=(N, 3)).astype(dtype)


@pytest.fixture(scope="module")
def dense():
    """A comparison in float64 and, beside it, the two dense Jacobians `[n o P]`."""
    a, b, x = mlp_params(0), mlp_params(1), probe()
    with jax.enable_x64(True):
        comparison = compare(
            a, b, model=mlp, train=(x, Y), loss="cross_entropy", descent=Descent(0.1, momentum=0.9)
        )
    return comparison, reference.jacobian(mlp, a, x), reference.jacobian(mlp, b, x)


def matrix(jacobian):
    flat = jacobian.reshape(N * C, -1)
    return flat @ flat.T


def centred(kernel):
    h = np.kron(np.eye(N) - 1 / N, np.eye(C))
    return h @ kernel @ h


def outputs(params):
    return np.asarray(np.tanh(probe() @ params["in"]["w"] + params["in"]["b"]) @ params["out"]["w"])


@pytest.mark.slow
def test_kernels_and_spectra(dense):
    comparison, *jacobians = dense
    for side, jacobian in zip((comparison.a, comparison.b), jacobians, strict=True):
        kernel = matrix(jacobian)
        eigenvalues = np.linalg.eigvalsh(kernel)[::-1]
        share = eigenvalues / eigenvalues.sum()
        np.testing.assert_allclose(side.kernel.matrix, kernel, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(side.spectrum.eigenvalues, eigenvalues, rtol=1e-8)
        np.testing.assert_allclose(side["trace"], np.trace(kernel), rtol=1e-10)
        np.testing.assert_allclose(
            side.spectrum.participation_ratio, 1 / np.sum(share**2), rtol=1e-8
        )
        np.testing.assert_allclose(
            side.spectrum.entropy_rank, np.exp(-np.sum(share * np.log(share))), rtol=1e-8
        )


@pytest.mark.smoke
def test_drift(dense):
    comparison, *jacobians = dense
    a, b = map(matrix, jacobians)
    norm = np.linalg.norm
    scale = np.sum(a * b) / norm(a) ** 2
    cosine = np.sum(a * b) / norm(a) / norm(b)
    ca, cb = centred(a), centred(b)
    expected = {
        "drift": norm(b - a) / norm(a),
        "drift_scale": scale,
        "drift_rotation": np.arccos(cosine),
        "drift_distance": 1 - cosine,
        "drift_distance_centred": 1 - np.sum(ca * cb) / norm(ca) / norm(cb),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(comparison[name], value, rtol=1e-10)


@pytest.mark.smoke
def test_alignment_and_label_power(dense):
    comparison, *jacobians = dense
    labels = np.eye(C)[Y]
    labels = (labels - labels.mean(0)).ravel()
    for side, jacobian in zip((comparison.a, comparison.b), jacobians, strict=True):
        kernel = centred(matrix(jacobian))
        expected = labels @ kernel @ labels / np.linalg.norm(kernel) / np.sum(labels**2)
        np.testing.assert_allclose(side["alignment"], expected, rtol=1e-10)
        vectors = np.linalg.eigh(kernel)[1][:, ::-1]
        power = np.cumsum((vectors.T @ labels) ** 2) / np.sum(labels**2)
        np.testing.assert_allclose(side["label_power"][:8], power[:8], rtol=1e-6)
        np.testing.assert_allclose(side["label_power"][-1], 1, rtol=1e-10)


def test_loss_accuracy_and_stability(dense):
    comparison, jacobian, _ = dense
    logits = outputs(mlp_params(0))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    hessian = np.zeros((N * C, N * C))
    for i in range(N):
        hessian[i * C : i * C + C, i * C : i * C + C] = np.diag(p[i]) - np.outer(p[i], p[i])
    flat = jacobian.reshape(N * C, -1)
    gauss_newton = flat.T @ hessian @ flat / N
    critical = 2 * 1.9 / np.linalg.eigvalsh(gauss_newton)[-1]
    np.testing.assert_allclose(
        comparison.a["loss"], -np.mean(np.log(p[np.arange(N), Y])), rtol=1e-10
    )
    assert comparison.a["accuracy"] == np.mean(logits.argmax(1) == Y)
    np.testing.assert_allclose(comparison.a["critical_learning_rate"], critical, rtol=1e-8)
    np.testing.assert_allclose(comparison.a["margin"], 0.1 / critical, rtol=1e-8)


def test_movement_and_share_of_the_trace(dense):
    comparison, jacobian, _ = dense
    a, b = mlp_params(0), mlp_params(1)
    rows = {row.path: row for row in comparison.movement}
    assert list(rows) == ["in/b", "in/w", "out/w", "all"]
    np.testing.assert_allclose(rows["in/w"].moved, np.linalg.norm(b["in"]["w"] - a["in"]["w"]))
    np.testing.assert_allclose(
        rows["in/w"].relative, rows["in/w"].moved / np.linalg.norm(a["in"]["w"])
    )
    squares = np.sum(jacobian**2, axis=(0, 1))  # [P], leaves in order b, w, w
    shares = [squares[:4].sum(), squares[4:16].sum(), squares[16:].sum()] / squares.sum()
    np.testing.assert_allclose(
        [rows[path].share_a for path in ("in/b", "in/w", "out/w")], shares, rtol=1e-10
    )
    h = np.eye(N) - 1 / N
    parts = [h @ np.einsum("nop,mop->nm", j[..., 4:16], j[..., 4:16]) @ h for j in dense[1:]]
    parts = [part / np.linalg.norm(part) for part in parts]
    np.testing.assert_allclose(
        rows["in/w"].distance_centred, 1 - np.sum(parts[0] * parts[1]), rtol=1e-8
    )
    theta = [np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]) for tree in (a, b)]
    np.testing.assert_allclose(
        rows["all"].relative, np.linalg.norm(theta[1] - theta[0]) / np.linalg.norm(theta[0])
    )
    assert rows["all"].size == 24


def test_the_kernel_of_the_last_bias_is_constant_and_has_no_centred_distance():
    a, b = (
        {"w": np.full((3, 2), 0.1 + k, np.float32), "b": np.full(2, 0.1 * k, np.float32)}
        for k in (0, 1)
    )
    comparison = compare(
        a, b, model=lambda p, x: jnp.tanh(x @ p["w"]) + p["b"], train=(probe(np.float32), None)
    )
    distances = {row.path: row.distance_centred for row in comparison.movement}
    assert distances["b"] is distances["all"] is None
    assert distances["w"] > 0.01


def test_linear_prediction(dense):
    comparison, jacobian, _ = dense
    a, b = mlp_params(0), mlp_params(1)
    step = np.concatenate(
        [(q - p).ravel() for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    )
    start, actual = outputs(a), outputs(b)
    predicted = start + jacobian @ step
    error = predicted - actual
    expected = {
        "outputs_linearized": predicted,
        "linearization_rms": np.sqrt(np.mean(error**2)),
        "linearization_max": np.abs(error).max(),
        "e1": np.linalg.norm(error) / np.linalg.norm(actual - start),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(comparison[name], value, rtol=1e-8)
    assert comparison["agreement"] == np.mean(predicted.argmax(1) == actual.argmax(1))


def test_mse_is_summed_over_outputs_and_its_stability_needs_no_labels(x64):
    a, x = mlp_params(0), probe()
    comparison = compare(a, mlp_params(1), model=mlp, train=(x, None), loss="mse", descent=0.1)
    largest = np.linalg.eigvalsh(matrix(reference.jacobian(mlp, a, x)))[-1]
    np.testing.assert_allclose(comparison.a["margin"], 0.1 * largest / (2 * N), rtol=1e-8)
    for name in ("alignment", "loss", "accuracy", "label_power"):
        assert np.isnan(comparison.a[name])
    assert any("No labels were given" in note for note in comparison.notes)


def shifted(tree, by):
    return jax.tree.map(lambda leaf: leaf + by, tree)


def test_functionals_need_no_model_and_steps_of_a_root_name_the_sides(tmp_path):
    x, a = probe(np.float32), mlp_params(0, np.float32)
    with v1.training.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, {"params": a, "step": 0})
        checkpointer.save(7, {"params": shifted(a, 0.1), "step": 7})
    functional = functionalize(mlp, a)
    comparison = compare(
        f"{tmp_path}@0", tmp_path.with_name(f"{tmp_path.name}@7"), model=functional, train=(x, None)
    )
    assert (comparison.a.label, comparison.b.label) == ("step 0", "step 7")
    beside = compare(functional, tmp_path, train=(x, None))
    assert (beside.a.label, beside.b.label, beside.b.step) == ("A", "step 7", 7)
    np.testing.assert_allclose(beside["drift"], comparison["drift"], rtol=1e-5)


def refused(error, *parts, a=None, b=None, **options):
    train = (options.pop("x", probe(np.float32)), options.pop("y", None))
    options = {"model": mlp, "train": train, **options}
    with pytest.raises(error) as caught:
        compare(a or mlp_params(0, np.float32), b or mlp_params(1, np.float32), **options)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_every_difference_is_listed_by_path(tmp_path):
    a, b = mlp_params(0, np.float32), mlp_params(1, np.float32)
    b["in"]["b"] = b["in"]["b"].astype(np.float16)
    b["out"]["w"] = b["out"]["w"][:, :1]
    b["extra"] = {"w": np.zeros(2, np.float32)}
    del b["in"]["w"]
    parts = (
        "compare(a, b): expected parameters with the same paths, shapes and dtypes",
        "in/b: expected float32[4], got float16[4]",
        "in/w: missing, expected float32[3, 4]",
        "extra/w: unexpected float32[2]",
    )
    refused(StructureError, *parts, a=a, b=b)
    v1.save(tmp_path / "b", b)
    refused(
        StructureError,
        *parts,
        a=a,
        b=tmp_path / "b",
        model=functionalize(mlp, a),
    )


def test_a_callable_gets_the_tree_it_was_given(tmp_path):
    x, module = probe(np.float32), nn.Dense(C)
    variables = module.init(jax.random.key(0), x)
    moved = shifted(variables, 0.1)
    comparison = compare(variables, moved, model=lambda p, x: module.apply(p, x), train=(x, None))
    assert [row.path for row in comparison.movement] == ["params/bias", "params/kernel", "all"]
    v1.save(tmp_path / "b", moved)
    comparison = compare(
        variables, tmp_path / "b", model=module.apply, train=(x, None)
    )  # this one stands for the module
    assert [row.path for row in comparison.movement] == ["bias", "kernel", "all"]


def test_a_network_whose_outputs_do_not_depend_on_its_parameters(tmp_path):
    comparison = compare(
        *({"w": np.full((3, 2), k, np.float32)} for k in (1, 2)),
        model=dead,
        train=(probe(np.float32), Y),
    )
    content = comparison.to_dict()
    assert content["a"]["eigenvalues"] == []
    assert content["a"]["alignment"] is content["between"]["drift"] is None
    comparison.save(tmp_path / "dead.html")
    assert "0 of 12" in comparison.text(everything=True)
    assert "nan" not in comparison.text(everything=True)
    assert [(finding.id, finding.severity) for finding in comparison.findings] == [
        ("dead", "error")
    ]


def dead(params, x):
    return 0 * (x @ params["w"])


def test_nan_parameters_are_named():
    b = mlp_params(1, np.float32)
    b["in"]["w"][0, 0] = np.nan
    b["out"]["w"][0, 0] = np.inf
    refused(
        InvalidInputError,
        "compare(a, b)",
        "NaN or infinity in in/w, out/w",
        "before training diverged",
        b=b,
    )


ARGUMENTS = [
    ({"model": None}, "got model=None"),
    ({"x": np.zeros((1, 3))}, "expected two or more examples"),
    ({"x": np.full((2, 3), np.nan)}, "expected examples x without NaN"),
    ({"x": np.zeros((2, 5), np.float32)}, "expected f(params, x) to run; got A: TypeError"),
    ({"reduction": "diagonal"}, 'The default is "auto"'),
    ({"descent": lambda step: 0.1}, "one learning rate in `descent`; got a schedule"),
    ({"y": np.zeros(3)}, "the 6 examples of x on the leading axis"),
    ({"y": np.zeros(N, int)}, "expected labels that differ between examples"),
    ({"y": np.array(["a", "b"] * 3)}, "got dtype <U1"),
    ({"y": np.eye(C)[Y] * 2, "loss": "cross_entropy"}, "probabilities in every row"),
]


def test_arguments_are_checked_before_anything_is_computed():
    for options, part in ARGUMENTS:
        refused(InvalidInputError, part, **options)

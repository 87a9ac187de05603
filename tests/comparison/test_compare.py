"""compare(): every number against dense float64 algebra, every library, every refusal."""

import pathlib
import sys

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from orbax.checkpoint import v1

import ntkdiag
from ntkdiag import Descent, compare
from ntkdiag.errors import InvalidInputError, StructureError
from ntkdiag.models import functionalize

N, C = 6, 2
Y = np.arange(N) % C


def mlp(params, x):
    return jnp.tanh(x @ params["in"]["w"] + params["in"]["b"]) @ params["out"]["w"]


def mlp_params(seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.normal(size=shape).astype(dtype)
    b, w = draw(4), draw(3, 4)
    return {"in": {"w": w, "b": b}, "out": {"w": draw(4, C)}}


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
    leaves = comparison.dataset.sel(leaf="in/w")
    assert list(comparison.dataset["leaf"].values) == ["in/b", "in/w", "out/w"]
    moved = np.linalg.norm(b["in"]["w"] - a["in"]["w"])
    np.testing.assert_allclose(leaves["leaf_moved"], moved)
    np.testing.assert_allclose(leaves["leaf_relative"], moved / np.linalg.norm(a["in"]["w"]))
    squares = np.sum(jacobian**2, axis=(0, 1))  # [P], leaves in order b, w, w
    shares = [squares[:4].sum(), squares[4:16].sum(), squares[16:].sum()] / squares.sum()
    np.testing.assert_allclose(comparison.a["leaf_shares"], shares, rtol=1e-10)
    h = np.eye(N) - 1 / N
    parts = [h @ np.einsum("nop,mop->nm", j[..., 4:16], j[..., 4:16]) @ h for j in dense[1:]]
    parts = [part / np.linalg.norm(part) for part in parts]
    expected = 1 - np.sum(parts[0] * parts[1])
    np.testing.assert_allclose(leaves["leaf_distance_centred"], expected, rtol=1e-8)
    theta = [np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]) for tree in (a, b)]
    relative = np.linalg.norm(theta[1] - theta[0]) / np.linalg.norm(theta[0])
    np.testing.assert_allclose(comparison["moved_relative"], relative)
    assert comparison.facts["parameters"] == 24


def test_the_kernel_of_the_last_bias_is_constant_and_has_no_centred_distance():
    a, b = (
        {"w": np.full((3, 2), 0.1 + k, np.float32), "b": np.full(2, 0.1 * k, np.float32)}
        for k in (0, 1)
    )
    comparison = compare(
        a, b, model=lambda p, x: jnp.tanh(x @ p["w"]) + p["b"], train=(probe(np.float32), None)
    )
    distance_of_b, distance_of_w = comparison["leaf_distance_centred"]
    assert np.isnan(distance_of_b)
    assert distance_of_w > 0.01


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
        assert name not in comparison.a
    assert any("No labels were given" in note for note in comparison.notes)


def test_files_and_functions_of_a_comparison(tmp_path):
    """How much code one comparison passes through: what a reader has to know."""
    package = str(pathlib.Path(ntkdiag.__file__).parent)
    sides = mlp_params(0, np.float32), mlp_params(1, np.float32)
    for name, side in zip("ab", sides, strict=True):
        v1.save(tmp_path / name, {"params": side})
    options = {"model": mlp, "train": (probe(np.float32), Y), "loss": "mse", "descent": 0.1}
    compare(tmp_path / "a", tmp_path / "b", **options)  # imports, and what is found out once
    ntkdiag.clear_caches()
    passed = set()

    def note(frame, event, _):
        code = frame.f_code
        is_ours = code.co_filename.startswith(package) and not code.co_name.startswith("<")
        if event == "call" and is_ours:
            passed.add((code.co_filename, code.co_qualname))

    sys.setprofile(note)
    try:
        compare(tmp_path / "a", tmp_path / "b", **options)
    finally:
        sys.setprofile(None)
    assert len({file for file, _ in passed}) <= 90
    assert len(passed) <= 660


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
    assert comparison.labels == ("step 0", "step 7")
    beside = compare(functional, tmp_path, train=(x, None))
    assert beside.labels == ("A", "step 7")
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
    assert list(comparison.sides[0].leaf_kernels) == ["params/bias", "params/kernel"]
    v1.save(tmp_path / "b", moved)
    comparison = compare(
        variables, tmp_path / "b", model=module.apply, train=(x, None)
    )  # this one stands for the module
    assert list(comparison.sides[0].leaf_kernels) == ["bias", "kernel"]


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


@pytest.mark.slow
def test_filtered_equinox_modules_are_parameters():
    nets = [eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(seed)) for seed in (0, 1)]
    (a, rest), (b, _) = (eqx.partition(net, eqx.is_array) for net in nets)
    want = compare(*nets, train=(probe(np.float32), None))
    call = lambda params, x: jax.vmap(eqx.combine(params, rest))(x)
    for found in (
        compare(a, b, model=nets[0], train=(probe(np.float32), None)),
        compare(nets[0], b, train=(probe(np.float32), None)),
        compare(a, b, model=call, train=(probe(np.float32), None)),
    ):
        assert found["e1"] == pytest.approx(want["e1"], rel=1e-5)
        np.testing.assert_allclose(found.b["trace"], want.b["trace"], rtol=1e-5)


@pytest.mark.parametrize(("step", "verdict"), [(1e-8, "UNCHANGED"), (1e-4, "LAZY")])
def test_changes_within_rounding(step, verdict):
    a = mlp_params(0, np.float32)
    b = jax.tree.map(lambda p: p + np.float32(step), a)
    found = compare(a, b, model=mlp, train=(probe(np.float32), None))
    assert found.verdict.name == verdict
    assert np.isnan(found["e1"]) == (verdict == "UNCHANGED")


def test_two_models_are_refused():
    nets = [eqx.nn.MLP(3, C, width, 1, key=jax.random.key(0)) for width in (4, 5)]
    by_kernels = r"ntkdiag\.analysis\.drift\(ntkdiag\.ntk\(f, p, x\), ntkdiag\.ntk\(g, q, x\)\)"
    with pytest.raises(StructureError, match=by_kernels):
        compare(*nets, train=(probe(np.float32), None))


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
    ({"descent": lambda step: 0.1}, "the learning rate of plain gradient descent; got a function"),
    ({"y": np.zeros(3)}, "the 6 examples of x on the leading axis"),
    ({"y": np.zeros(N, int)}, "expected labels that differ between examples"),
    ({"y": np.array(["a", "b"] * 3)}, "got dtype <U1"),
    ({"y": np.eye(C)[Y] * 2, "loss": "cross_entropy"}, "probabilities in every row"),
]


def test_arguments_are_checked_before_anything_is_computed():
    for options, part in ARGUMENTS:
        refused(InvalidInputError, part, **options)

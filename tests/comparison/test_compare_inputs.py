"""compare(): what it takes for models, parts of models, labels and settings, and changes too small to see."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ntkdiag import analysis, compare, ntk, open_run, track
from ntkdiag.checking import selfcheck
from ntkdiag.errors import CheckpointError, InvalidInputError, StructureError
from ntkdiag.models import functionalize

C = 2
X = np.random.default_rng(9).normal(size=(6, 3)).astype(np.float32)
Y = np.arange(len(X)) % C


def mlp(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


def mlp_params(seed):
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=s).astype(np.float32)
        for name, s in (("w", (3, 4)), ("b", (4,)), ("v", (4, C)))
    }


@pytest.mark.slow
def test_options_of_a_functional_hold_for_models():
    nets = [eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(seed)) for seed in (0, 1)]
    first = functionalize(nets[0], output=lambda y: y[:, :1])
    found = compare(*nets, model=first, train=(X, None))
    assert found.facts["n_outputs"] == 1
    nets = [nnx.Linear(3, 2, rngs=nnx.Rngs(seed)) for seed in (0, 1)]
    assert compare(nets[0], nnx.state(nets[1]), train=(X, None)).facts["n_outputs"] == 2


def test_filtered_equinox_modules_are_parameters():
    nets = [eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(seed)) for seed in (0, 1)]
    (a, rest), (b, _) = (eqx.partition(net, eqx.is_array) for net in nets)
    want = compare(*nets, train=(X, None))
    call = lambda params, x: jax.vmap(eqx.combine(params, rest))(x)
    for found in (
        compare(a, b, model=nets[0], train=(X, None)),
        compare(nets[0], b, train=(X, None)),
        compare(a, b, model=call, train=(X, None)),
    ):
        assert found.prediction.e1 == pytest.approx(want.prediction.e1, rel=1e-5)
        assert found.b.trace == pytest.approx(want.b.trace, rel=1e-5)


def test_a_part_of_a_linen_model_takes_whole_checkpoints():
    net = nn.Sequential([nn.Dense(4), nn.tanh, nn.Dense(2)])
    a, b = (net.init(jax.random.key(seed), X) for seed in (0, 1))
    found = compare(a, b, model=functionalize(net, a, trainable="layers_2/**"), train=(X, None))
    assert {row.path for row in found.movement} == {"all", "layers_2/bias", "layers_2/kernel"}


@pytest.mark.parametrize(("step", "verdict"), [(1e-8, "UNCHANGED"), (1e-4, "LAZY")])
def test_changes_within_rounding(step, verdict):
    a = mlp_params(0)
    b = jax.tree.map(lambda p: p + np.float32(step), a)
    found = compare(a, b, model=mlp, train=(X, None))
    assert found.verdict.name == verdict
    assert (found.prediction.e1 is None) == (verdict == "UNCHANGED")


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"train": (X, np.eye(C)[Y] * 2), "loss": "cross_entropy"}, "probabilities in every row"),
        (
            {"train": (X, np.array(["a", "b"] * 3))},
            "expected `y` as an array of numbers; got dtype <U1",
        ),
        ({"descent": "0.1"}, "expected `descent` as a Descent"),
    ],
)
def test_labels_and_numbers_that_are_none(options, match):
    with pytest.raises(InvalidInputError, match=match):
        compare(mlp_params(0), mlp_params(1), model=mlp, **{"train": (X, None), **options})


def test_numbers_in_bfloat16_are_numbers():
    targets = np.eye(len(X), C)
    found = [
        compare(mlp_params(0), mlp_params(1), model=mlp, train=(X, y), loss="mse", descent=rate)
        for y, rate in ((jnp.asarray(targets, jnp.bfloat16), jnp.bfloat16(0.125)), (targets, 0.125))
    ]
    assert found[0].b.alignment.value == found[1].b.alignment.value
    assert found[0].b.margin == found[1].b.margin


@pytest.mark.parametrize("name", ["optimizer", "ema_params"])
def test_what_is_no_collection_is_left_alone(name):
    net = nn.Dense(2)
    a, b = (net.init(jax.random.key(seed), X) for seed in (0, 1))
    broken = {**b, name: {"mu": np.full(3, np.nan)}}
    found = compare(a, broken, model=net, train=(X, None))
    assert found.facts["fixed_state_b"] == "none"
    with pytest.raises(InvalidInputError, match="examples x without NaN"):
        compare(a, b, model=net, train=(jnp.asarray(X, jnp.bfloat16).at[0].set(jnp.nan), None))


def test_statistics_missing_on_one_side():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(nn.BatchNorm(use_running_average=True)(x))

    a, b = (Net().init(jax.random.key(seed), X) for seed in (0, 1))
    with pytest.raises(
        InvalidInputError,
        match=r"B: ScopeCollectionNotFound.*Pass variables=, as init returns them",
    ):
        compare(a, {"params": b["params"]}, model=Net(), train=(X, None))


@pytest.mark.slow
def test_many_outputs_are_reduced_unless_asked_for():
    rng = np.random.default_rng(0)
    params = [{"w": rng.normal(size=(3, 400)).astype(np.float32)} for _ in range(2)]
    f = lambda p, x: jnp.tanh(x @ p["w"])
    found = compare(*params, model=f, train=(X, None), loss="mse", descent=0.1)
    assert found.a.kernel.convention.reduction == "random-projections"
    assert 0 < found.a.margin < np.inf  # by products with the full kernel
    assert any('reduction="full" takes 2,400 rows' in note for note in found.notes)
    assert compare(*params, model=f, train=(X[:5], None)).a.kernel.convention.reduction == "full"


@pytest.mark.slow
def test_names_of_half_a_character_are_shown_as_a_question_mark(tmp_path):
    def model(params, x):
        return x @ params["a\ud800"]["w"]

    sides = [{"a\ud800": {"w": (1.0 + scale) * X[:3, :C]}} for scale in (0, 1)]
    comparison = compare(*sides, model=model, train=(X, Y))
    assert "a?/w" in comparison.text(everything=True)
    assert "a?/w" in comparison.save(tmp_path / "report.html").read_text()
    assert "a?/w" in str(selfcheck(model, sides[0], X))


def test_two_models_are_refused_and_their_kernels_compare():
    nets = [eqx.nn.MLP(3, C, width, 1, key=jax.random.key(0)) for width in (4, 5)]
    by_kernels = r"ntkdiag\.analysis\.drift\(ntkdiag\.ntk\(f, p, x\), ntkdiag\.ntk\(g, q, x\)\)"
    with pytest.raises(StructureError, match=by_kernels):
        compare(*nets, train=(X, None))
    with pytest.raises(InvalidInputError, match=by_kernels):
        compare(mlp_params(0), mlp_params(1), model=(mlp, mlp), train=(X, None))
    (f, p), (g, q) = map(functionalize, nets)
    assert 0 < analysis.drift(ntk(f, p, X), ntk(g, q, X)).distance < 1


def test_a_run_directory_is_no_side_and_has_the_distances(tmp_path):
    run = tmp_path / "run"
    track({step: mlp_params(step) for step in (0, 1)}, model=mlp, train=(X, None), out=run)
    for side in (run, f"{run}@0"):
        with pytest.raises(CheckpointError, match=r"ntkdiag\.open_run\(.*\.tracked\.matrix\("):
            compare(side, mlp_params(1), model=mlp, train=(X, None))
    assert open_run(run).tracked.matrix("distance_centred").shape == (2, 2)

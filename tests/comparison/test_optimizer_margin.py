"""The margin of the optimizer that trained, from the state that lies beside the parameters."""

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as orbax
import pytest
from flax.training.train_state import TrainState

import ntkdiag
from ntkdiag import errors

N, D, C = 24, 5, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
TRAIN = (X, Y)
STEPS = (0, 3, 10)


def f(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


def start():
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "w": jax.random.normal(keys[0], (D, 6)) / np.sqrt(D),
        "b": jnp.zeros(6),
        "v": jax.random.normal(keys[1], (6, C)) / np.sqrt(6),
    }


def loss_of_outputs(outputs):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, Y).mean()


def gradient_at(params):
    return jax.grad(lambda params: loss_of_outputs(f(params, X)))(params)


def trained(optimizer, steps=STEPS):
    """Step -> (parameters, state of the optimizer)."""
    params = start()
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    run = {}
    for step in range(max(steps) + 1):
        if step in steps:
            run[step] = params, state
        updates, state = update(gradient_at(params), state, params)
        params = optax.apply_updates(params, updates)
    return run


OPTIONS = {"model": f, "train": TRAIN, "loss": "cross_entropy"}


def compare(a, b, optimizer):
    return ntkdiag.compare(a, b, optimizer=optimizer, **OPTIONS)


def track(run, optimizer, **options):
    return ntkdiag.track(run, optimizer=optimizer, **OPTIONS, **options)


ADAM = optax.adamw(0.01, weight_decay=0.1)


def save(root, run):
    """A CheckpointManager of a run, step -> tree."""
    with orbax.CheckpointManager(root) as manager:
        for step, tree in run.items():
            manager.save(step, args=orbax.args.StandardSave(tree))
    return root


def save_train_states(root, run):
    save(
        root,
        {step: TrainState(step, f, params, ADAM, state) for step, (params, state) in run.items()},
    )


def save_items(root, run):
    """Parameters and state as two items of each step."""
    with orbax.CheckpointManager(root) as manager:
        for step, (params, state) in run.items():
            parts = {"model": params, "optimizer": state}
            saves = {name: orbax.args.StandardSave(tree) for name, tree in parts.items()}
            manager.save(step, args=orbax.args.Composite(**saves))


def save_files(root, run):
    """Parameters and state in two files of each step."""
    root.mkdir()
    for step, (params, state) in run.items():
        (root / f"model-{step}").write_bytes(flax.serialization.to_bytes(params))
        (root / f"optimizer-{step}").write_bytes(flax.serialization.to_bytes(state))


@pytest.mark.slow
@pytest.mark.parametrize("save_run", [save_train_states, save_items, save_files])
def test_a_margin_is_one_number_wherever_the_state_lies(tmp_path, save_run):
    run, root = trained(ADAM, steps=(0, 3)), tmp_path / "run"
    save_run(root, run)
    expected = compare(run[0], run[3], ADAM)
    got = compare(f"{root}@0", f"{root}@3", ADAM)
    np.testing.assert_allclose(got["drift"], expected["drift"], rtol=1e-4)
    for side, of_memory in zip(got.sides, expected.sides, strict=True):
        assert side.params_sha256 == of_memory.params_sha256
        assert side.margin_status == of_memory.margin_status
        np.testing.assert_allclose(side.numbers["margin"], of_memory.numbers["margin"], rtol=1e-4)
    tracked = track(root, ADAM)
    margins = [side.numbers["margin"] for side in expected.sides]
    np.testing.assert_allclose(tracked.series("margin"), margins, rtol=1e-4)


@pytest.mark.slow
def test_a_state_saved_under_watch():
    watched = ntkdiag.watch(ADAM, f, train=TRAIN, loss="cross_entropy", every=1000)
    params, state = trained(watched, steps=(4,))[4]
    comparison = compare((params, state), (params, ntkdiag.unwatch(state)), ADAM)
    np.testing.assert_allclose(comparison.a["margin"], comparison.b["margin"])
    with pytest.raises(errors.InvalidInputError, match=r"got one under ntkdiag\.watch"):
        compare((params, state), start(), watched)


@pytest.mark.slow
def test_an_optimizer_that_is_not_recognized_has_no_margin():
    optimizer, reason = optax.lion(0.01), "The update does not shrink with the gradient"
    state = optimizer.init(start())
    moved = jax.tree.map(lambda leaf: 2 * leaf, start())
    comparison = compare((start(), state), moved, optimizer)
    assert np.isnan(comparison.a["margin"])
    assert comparison.sides[0].margin_status.startswith(reason)
    assert f"{comparison.labels[0]}: {comparison.sides[0].margin_status}" in comparison.notes
    text = comparison.text(everything=True)
    assert "nan" not in text.replace("NaN", "").replace("dominan", "")
    # All other numbers are there.
    assert comparison.to_dict()["a"]["margin"] is None
    assert np.isfinite(comparison.a["trace"])


def test_no_side_with_a_state_is_refused_with_what_it_holds(tmp_path):
    trees = {3: {"params": start(), "ema": start()}, 5: {"params": start(), "step": 5}}
    root = save(tmp_path / "run", trees)
    sides = f"{root}@3", f"{root}@5"
    for call in (lambda: compare(*sides, ADAM), lambda: track({3: sides[0], 5: sides[1]}, ADAM)):
        with pytest.raises(errors.InvalidInputError) as raised:
            call()
        text = str(raised.value)
        assert "got step 3: ema, params; step 5: params, step." in text
        assert "descent=ntkdiag.Descent(...)" in text


def test_the_state_of_another_optimizer_is_refused():
    params, other = start(), optax.sgd(0.1, momentum=0.9)
    with pytest.raises(errors.StructureError) as raised:
        compare((params, ADAM.init(params)), params, other)
    assert "expected the optimizer whose state A holds" in str(raised.value)
    assert "0/mu/b: unexpected float32[6]" in str(raised.value)


REFUSED = [
    ({"descent": 0.1}, "expected one of the two; got both"),
    ({"train": (X, None)}, "got train=(x, None)"),
    ({"optimizer": 0.1}, "expected an optimizer of Optax; got builtins.float"),
]


@pytest.mark.usefixtures("wrong_types")
def test_what_does_not_go_together_is_refused_before_anything_is_read():
    for options, message in REFUSED:
        options = {**OPTIONS, "optimizer": ADAM, **options}
        for call, sources in (
            (ntkdiag.compare, ("nowhere", "else")),
            (ntkdiag.track, ("nowhere",)),
        ):
            with pytest.raises(errors.InvalidInputError) as raised:
                call(*sources, **options)
            assert message in str(raised.value)


@pytest.mark.slow
def test_a_folder_goes_on_with_its_optimizer_alone(tmp_path):
    run = trained(ADAM)
    first = track({step: run[step] for step in STEPS[:2]}, ADAM, out=tmp_path / "ntk")
    again = track(run, optax.adamw(0.01, weight_decay=0.1), out=tmp_path / "ntk")
    np.testing.assert_array_equal(again.series("margin")[:2], first.series("margin"))
    assert again.record["optimizer"] == "ScaleByAdamState"
    with pytest.raises(errors.InvalidInputError, match="another update at the same state"):
        track(run, optax.adamw(0.02, weight_decay=0.1), out=tmp_path / "ntk")
    with pytest.raises(errors.InvalidInputError, match="optimizer="):
        track(run, None, descent=0.1, out=tmp_path / "ntk")

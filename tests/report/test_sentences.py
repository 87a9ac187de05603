"""Sentences and advice: every cause that is named is one that the numbers show."""

import jax
import numpy as np
import pytest
from internals import advice, readings

from ntkdiag import compare

N, C = 12, 3
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = np.arange(N) % C


def model(params, x):
    return jax.nn.relu(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def start(**changed):
    rng = np.random.default_rng(1)
    params = {
        "w1": rng.normal(size=(4, 8)) / 2,
        "b1": np.zeros(8),
        "w2": rng.normal(size=(8, C)) / 3,
        "b2": np.zeros(C),
    }
    return {name: value.astype(np.float32) for name, value in {**params, **changed}.items()}


def told(a, b, **options):
    """The sentences and the advice of a comparison, as two texts."""
    settings = {"loss": "cross_entropy", "descent": 0.1, **options}
    found = compare(a, b, model=model, train=(X, Y), **settings)
    return "\n".join(readings(found)), "\n".join(advice(found))


@pytest.mark.slow
def test_a_dead_network_names_its_dead_layers_and_has_no_slack():
    said, next_steps = told(start(), start(b1=np.full(8, -50.0)))
    assert said.startswith(
        "B is dead: every parameter moves the outputs of all examples alike. Only the kernel of b2 "
        "is not zero. Its outputs are the same for every example."
    )
    assert "Parameters that no gradient reaches on the probe at B: b1, w1, w2." in said
    for untrue in ("slack", "certain", "compressed", "plasticity", "frozen"):
        assert untrue not in said
    assert "where the network died, and train on from before" in next_steps


def test_parameters_that_gradients_lost_are_not_said_to_be_reached():
    said, _ = told(start(), start(b1=np.full(8, -50.0)))
    assert "did not move" in said
    assert "did not move, though gradients reach them: b2." in said


def test_outputs_cut_off_from_the_parameters_are_not_initialised_anew():
    def cut_off(params, x):
        return jax.lax.stop_gradient(model(params, x))

    with pytest.warns(UserWarning, match="no parameter reaches the outputs"):
        found = compare(start(), start(b1=np.ones(8)), model=cut_off, train=(X, Y))
    (line,) = advice(found)
    assert line.startswith(
        "Look for what cuts the parameters off the outputs, at A already: a stop"
    )


def test_a_network_that_died_at_too_large_a_learning_rate_is_told_which_one_is_not():
    said, next_steps = told(start(), start(b1=np.full(8, -50.0)), descent=30.0)
    assert "At A the learning rate is " in said
    assert "gradient descent diverges" in said
    assert next_steps.startswith("Train again from A with a learning rate below ")


def test_what_is_dead_at_a_is_not_blamed_on_training():
    off = start(b1=np.full(8, -50.0))
    said, next_steps = told(off, {**off, "b2": np.ones(C, np.float32)})
    assert said.startswith("A is dead: ")
    assert next_steps == "Initialise anew: the network is dead at A already."


def test_a_collapsed_network():
    said, next_steps = told(start(), start(w2=np.zeros((8, C))))
    assert said.startswith(
        "B has collapsed: its outputs are the same for every example. Its parameters could tell "
        "them apart."
    )
    assert "where the network collapsed." in next_steps
    said, _ = told(start(), {**start(), "w2": start()["w2"] / 1000})
    assert (
        "outputs spread over examples by 0.1 % of what they did at A, and its loss is no lower than "
        "that of constant outputs" in said
    )


@pytest.mark.slow
def test_a_large_margin_at_the_start_deserves_a_sentence_and_a_warm_up():
    """At B predictions are certain: its margin alone would say that all is well."""
    fitted = start(w1=start()["w1"] * 3, w2=start()["w2"] * 3)
    rate = 3.6 * _critical_learning_rate(start())
    said, next_steps = told(start(), start(b2=np.array([8.0, 0.0, 0.0])), descent=rate)
    assert (
        "At A the learning rate is 3.6 times the critical one: on the quadratic model of the loss "
        "there, gradient descent diverges." in said
    )
    assert "Warm up the learning rate: at A, a learning rate below " in next_steps
    said, next_steps = told(start(), fitted, descent=rate)
    assert "Lower the learning rate, or warm up to it: at B, a learning rate below " in next_steps
    first_two = said.splitlines()[:2]
    assert [line.partition(" times")[0][:24] for line in first_two] == [
        "At A the learning rate i",
        "At B the learning rate i",
    ]
    # One that lowered it far enough is told neither.
    assert "learning rate is" not in told(start(), fitted, descent=1e-4 * rate)[0].split("At B")[0]


def test_a_margin_that_may_be_the_probes_alone_is_no_reason_to_lower_the_rate():
    """As the page of a run says it: twelve examples have a margin that all may not have."""
    probe = compare(start(), start(b2=np.ones(C)), model=model, train=(X, Y), loss="cross_entropy")
    rate = 1.2 * probe.b.critical_learning_rate
    _, next_steps = told(start(), start(b2=np.ones(C)), descent=rate)
    assert (
        "Watch the loss before you lower the learning rate: the margin of the probe" in next_steps
    )
    _, next_steps = told(start(), start(b2=np.ones(C)), descent=20 * rate)
    assert next_steps.startswith("Lower the learning rate, or warm up to it: at B")


def _critical_learning_rate(params):
    found = compare(params, start(b2=np.ones(C)), model=model, train=(X, Y), loss="cross_entropy")
    return found.a.critical_learning_rate


@pytest.mark.slow
def test_predictions_become_certain_only_where_they_do():
    """Outputs at a fixed kernel: a bias makes every prediction certain, and the curvature small."""
    sharp = start(b2=np.array([8.0, 0.0, 0.0]))
    said, _ = told(start(), sharp)
    assert "It fell as predictions became certain: the largest probability is " in said
    # The kernel shrinks, and predictions stay what they are: squared error has none.
    smaller = {**start(), "w2": start()["w2"] / 5, "w1": start()["w1"] / 5}
    said, _ = told(start(), smaller)
    assert "certain" not in said
    said, _ = told(start(), smaller, loss="mse")
    assert "It fell with the largest eigenvalue of the kernel, " in said


def test_there_is_slack_only_where_nothing_else_is_wrong():
    """The learning rate is small either way; one of the two has the loss of constant outputs."""
    said, _ = told(start(), start(w1=start()["w1"] * 1.5), descent=1e-3)
    assert "no lower than that of the best constant outputs" in said
    assert "there is slack" not in said
    rng = np.random.default_rng(5)
    targets = model(start(w1=start()["w1"] * 1.5), X) + 1e-3 * rng.normal(size=(N, C))
    found = compare(
        start(),
        start(w1=start()["w1"] * 1.5),
        model=model,
        train=(X, targets),
        loss="mse",
        descent=1e-3,
    )
    assert "times the critical one: there is slack" in " ".join(readings(found))


def test_parameters_that_did_not_move():
    a = start()
    b = {**a, "w2": a["w2"] * 1.3}
    said, next_steps = told(a, b)
    assert "Parameters that did not move, though gradients reach them: b1, b2, w1." in said
    assert "If b1, b2, w1 should be trained, look at the optimizer's masks" in next_steps


@pytest.mark.parametrize(("by", "regime"), [(1e-3, "lazy"), (3.0, "nonlinear"), (0.0, "unchanged")])
def test_what_to_do_next_follows_the_regime(by, regime):
    rng = np.random.default_rng(2)
    a = start()
    b = {name: leaf + by * rng.normal(size=leaf.shape).astype("f") for name, leaf in a.items()}
    found = compare(a, b, model=model, train=(X, None))
    assert found.verdict.regime == regime
    wanted = {
        "lazy": "Train the linearized model, too",
        "nonlinear": "Compare B with a later checkpoint",
        "unchanged": "Compare checkpoints that lie further apart",
    }[regime]
    assert any(line.startswith(wanted) for line in advice(found))


def test_alignment_at_chance_and_a_loss_of_constant_outputs_ask_for_the_labels():
    rng = np.random.default_rng(7)
    a = start()
    b = {name: leaf + rng.normal(size=leaf.shape).astype("f") for name, leaf in a.items()}
    found = compare(a, b, model=model, train=(X, rng.permutation(Y)), loss="cross_entropy")
    assert found.b.is_at_constant_loss
    assert (found.b.alignment.deviations < 2) == any(
        line.startswith("Check that examples and labels belong together") for line in advice(found)
    )


@pytest.mark.slow
def test_alignment_that_fell():
    rng = np.random.default_rng(0)
    labels = rng.normal(size=8)
    x = np.eye(8, dtype=np.float32)
    towards, away = (
        {
            "w": np.stack([size * labels, np.roll(labels, 3)], 1).astype(np.float32),
            "v": np.ones(2, np.float32),
        }
        for size in (5.0, 0.01)
    )
    f = lambda p, x: x @ p["w"] @ p["v"]
    found = compare(towards, away, model=f, train=(x, labels))
    assert found.verdict.task == "fell"
    assert any("Alignment with the labels fell from" in line for line in readings(found))
    assert any(line.startswith("Compare A with checkpoints between") for line in advice(found))


def layered(seed):
    rng = np.random.default_rng(seed)
    tree = {
        "first": {"w": rng.normal(size=(4, 8)) / 2, "b": rng.normal(size=8)},
        "last": {"w": rng.normal(size=(8, C)) / 3, "b": np.zeros(C)},
    }
    return jax.tree.map(lambda leaf: leaf.astype(np.float32), tree)


def of_layers(params, x):
    hidden = jax.nn.relu(x @ params["first"]["w"] + params["first"]["b"])
    return hidden @ params["last"]["w"] + params["last"]["b"]


def trace_of(params, layer):
    """tr J_l J_l^T of a layer by a dense Jacobian."""
    jacobian = jax.jacrev(lambda part: of_layers({**params, layer: part}, X))(params[layer])
    return sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(jacobian))


@pytest.mark.slow
def test_layers_that_learn_differently_are_named():
    start = layered(0)
    # Larger weights in the last layer give the first one more of the kernel.
    end = {"first": start["first"], "last": {**start["last"], "w": 3 * start["last"]["w"]}}
    end["first"] = {**end["first"], "b": end["first"]["b"] * np.float32(1.01)}
    found = compare(start, end, model=of_layers, train=(X, Y))
    said = "\n".join(readings(found))
    shares = []
    for params in (start, end):
        first, last = trace_of(params, "first"), trace_of(params, "last")
        shares.append(f"{100 * first / (first + last):.1f} %")
    assert (
        f"the share of first in the trace of the kernel grew most, from {shares[0]} to {shares[1]}"
        in said
    )
    assert "that of last fell most" in said
    assert "For its size last moved farthest (‖Δθ‖/‖θ_A‖ 2) and first least (0.00" in said
    farthest = max(
        (leaf for leaf in found.movement if leaf.distance_centred is not None),
        key=lambda leaf: leaf.distance_centred,
    )
    assert f"The kernel of {farthest.path} turned farthest" in said


def test_layers_that_learn_alike_have_no_shift_of_shares():
    start = layered(0)
    found = compare(
        start,
        jax.tree.map(lambda leaf: leaf * np.float32(1.001), start),
        model=of_layers,
        train=(X, Y),
    )
    said = "\n".join(readings(found))
    assert "grew most" not in said
    assert "moved farthest" in said


@pytest.mark.slow
def test_two_models_say_where_each_kernel_lies():
    def stretched(params, x):
        return of_layers(params, 30 * x)

    a, b = layered(0), layered(1)
    found = compare(a, b, model=(of_layers, stretched), train=(X, Y))
    shares = [trace_of(a, layer) for layer in ("first", "last")]
    largest = ("first", "last")[int(np.argmax(shares))]
    assert (
        f"The layer with the most of the kernel is {largest} ({100 * max(shares) / sum(shares):.1f} %)"
        in "\n".join(readings(found))
    )

"""What training on new examples does to old ones: against the linearized model and the network, trained for real."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import as_loss, load_digits

import ntkdiag
from ntkdiag.errors import InvalidInputError
from ntkdiag.losses import Weighted

N, D, C = 12, 4, 3
RNG = np.random.default_rng(0)
X, X_NEW = RNG.normal(size=(N, D)), RNG.normal(size=(N - 2, D))
Y, Y_NEW = RNG.integers(0, C, N), RNG.integers(0, C, N - 2)
OLD, NEW = (X, Y), (X_NEW, Y_NEW)
PARAMS = {"a": RNG.normal(size=(D, 8)), "b": RNG.normal(size=(8, C)) / 8**0.5}


def f(params, x):
    return jnp.tanh(x @ params["a"]) @ params["b"]


def found(**changes):
    arguments = {"old": OLD, "new": NEW, "loss": "mse", "learning_rate": 0.05}
    if changes.get("optimizer") is not None:
        arguments["learning_rate"] = None
    return ntkdiag.interference(f, PARAMS, **(arguments | changes))


def trained(model, optimizer, loss, steps, state=None, params=PARAMS, new=NEW):
    """Parameters of a model after some steps on the new examples."""
    params = jax.tree.map(jnp.asarray, params)
    state = optimizer.init(params) if state is None else state
    labels = as_loss(loss).read(new[1], model(params, new[0]).shape)
    gradient = jax.grad(lambda p: as_loss(loss)(model(p, new[0]), labels))

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(gradient(params), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return params


def losses(model, params, pair, loss):
    outputs = model(params, pair[0])
    return np.asarray(
        as_loss(loss).per_example(outputs, as_loss(loss).read(pair[1], outputs.shape))
    )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("steps", [1, pytest.param(7, marks=pytest.mark.long)])
@pytest.mark.parametrize("loss", ["cross_entropy", pytest.param("mse", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adam(1e-2),
        pytest.param(optax.sgd(0.02, momentum=0.9), marks=pytest.mark.long),
        pytest.param(optax.adamw(optax.linear_schedule(0, 0.01, 5)), marks=pytest.mark.long),
    ],
    ids=["adam", "momentum", "adamw with a schedule"],
)
def test_the_linearized_model_trained_by_the_same_optimizer(optimizer, loss, steps):
    linear = ntkdiag.linearize(f, PARAMS)
    after = trained(linear, optimizer, loss, steps)
    got = found(loss=loss, optimizer=optimizer, steps=steps)
    want = losses(linear, after, OLD, loss) - losses(f, PARAMS, OLD, loss)
    np.testing.assert_allclose(got.by_example, want, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(got.change, want.mean(), rtol=1e-6, atol=1e-12)
    of_network = losses(f, after, OLD, loss) - losses(f, PARAMS, OLD, loss)
    np.testing.assert_allclose(got.of_network, of_network.mean(), rtol=1e-6, atol=1e-12)
    of_new = losses(linear, after, NEW, loss) - losses(f, PARAMS, NEW, loss)
    np.testing.assert_allclose(got.of_new, of_new.mean(), rtol=1e-6, atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_a_learning_rate_is_plain_descent():
    linear = ntkdiag.linearize(f, PARAMS)
    by_rate = ntkdiag.interference(
        linear, PARAMS, old=OLD, new=NEW, loss="mse", learning_rate=0.25, steps=3
    )
    stepped = ntkdiag.interference(
        linear, PARAMS, old=OLD, new=NEW, loss="mse", optimizer=optax.sgd(0.25), steps=3
    )
    np.testing.assert_allclose(by_rate.by_example, stepped.by_example, rtol=1e-8)
    assert by_rate.e1 < 1e-10


@pytest.mark.usefixtures("x64")
def test_an_infinitesimal_step_is_the_gradient_kernel():
    got = found(learning_rate=None, loss="cross_entropy")
    G = ntkdiag.gradient_kernel(f, PARAMS, *OLD, x2=NEW[0], y2=NEW[1], loss="cross_entropy")
    np.testing.assert_allclose(got.by_example, -np.asarray(G).mean(axis=1), rtol=1e-10)
    small = found(learning_rate=1e-5, loss="cross_entropy")
    np.testing.assert_allclose(small.by_example / 1e-5, got.by_example, rtol=1e-3)
    assert got.per_rate
    assert "per unit of the learning rate" in str(got)


@pytest.mark.usefixtures("x64")
def test_weights_and_kwargs():
    """An old example with twice the weight counts twice; f gets its keyword arguments."""
    weights, new_weights = RNG.uniform(0.5, 2.0, N), RNG.uniform(0.5, 2.0, N - 2)
    got = ntkdiag.interference(
        lambda p, x, factor: f(p, x) * factor, PARAMS,
        old=(X, Weighted(Y, weights)), new=(X_NEW, Weighted(Y_NEW, new_weights)),
        loss="cross_entropy", learning_rate=0.05, factor=1.0,
    )  # fmt: skip
    linear = ntkdiag.linearize(f, PARAMS)
    of_one = as_loss("cross_entropy").per_example
    weighted = lambda p: jnp.average(of_one(linear(p, X_NEW), Y_NEW), weights=new_weights)
    moved = jax.tree.map(lambda p, g: p - 0.05 * g, PARAMS, jax.grad(weighted)(PARAMS))
    change = np.asarray(of_one(linear(moved, X), Y) - of_one(f(PARAMS, X), Y))
    np.testing.assert_allclose(got.change, np.average(change, weights=weights), rtol=1e-6)
    np.testing.assert_allclose(
        got.by_example, change * weights / weights.mean(), rtol=1e-6, atol=1e-12
    )


def test_the_state_of_the_optimizer_counts():
    """With a momentum that points elsewhere the step goes elsewhere."""
    optimizer = optax.sgd(0.02, momentum=0.9)
    state = optimizer.init(PARAMS)
    _, state = optimizer.update(jax.tree.map(jnp.ones_like, PARAMS), state)
    params = jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), PARAMS)
    got = ntkdiag.interference(
        f, params, old=OLD, new=NEW, loss="mse", optimizer=optimizer, opt_state=state
    )
    after = trained(f, optimizer, "mse", 1, state=state, params=params)
    want = losses(f, after, OLD, "mse") - losses(f, params, OLD, "mse")
    np.testing.assert_allclose(got.of_network, want.mean(), rtol=1e-4)
    assert abs(got.change - found(optimizer=optimizer).change) > 1e-3


def test_microbatches_are_the_same():
    np.testing.assert_allclose(found(batch_size=5).by_example, found().by_example, rtol=1e-5)


def test_interval_over_old_examples():
    """It holds the mean change over many examples like the old ones, 95 times of 100."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4000, D))
    y = np.where(x[:, 0] > 0, 1, 0)
    everything = found(old=(x, y), learning_rate=1e-3)
    rows = rng.permutation(4000).reshape(-1, 40)  # 100 draws
    reaches = [found(old=(x[r], y[r]), learning_rate=1e-3) for r in rows[:3]]
    for r, got in zip(rows, reaches, strict=False):
        values = everything.by_example[r]
        np.testing.assert_allclose(got.change, values.mean(), rtol=1e-4)
        np.testing.assert_allclose(
            got.upper - got.change, 2.0227 * values.std(ddof=1) / 40**0.5, rtol=1e-2
        )
    draws = everything.by_example[rows]
    half = 2.0227 * draws.std(axis=1, ddof=1) / 40**0.5
    covered = np.abs(draws.mean(axis=1) - everything.change) < half
    assert 0.9 <= covered.mean() <= 1.0


def test_interval_holds_what_the_network_does():
    got = found(learning_rate=0.2)
    assert got.lower < got.of_network < got.upper
    assert got.e1 > 1e-3


def test_names_and_print():
    """The example that contradicts the new ones is hit hardest."""
    x, y = np.ones((3, 1)), np.array([[1.0], [-1.0], [1.0]])
    got = ntkdiag.interference(
        lambda w, x: x @ w, jnp.zeros((1, 1)), old=(x, y), new=(x[:1], y[:1]), loss="mse",
        learning_rate=0.1,
    )  # fmt: skip
    np.testing.assert_array_equal(got.most_harmed(), [1])
    assert str(got).startswith("Interference(-0.0283 in [")
    assert "of the mean loss on 3 old examples after 1 step" in str(got)
    assert got.to_dict()["steps"] == 1
    single = ntkdiag.interference(
        lambda w, x: x @ w, jnp.zeros((1, 1)), old=(x[:1], y[:1]), new=(x, y), loss="mse",
        learning_rate=0.1,
    )  # fmt: skip
    assert np.isnan(single.lower)
    assert np.isfinite(single.change)


def test_harm_is_a_finding():
    """Where the whole interval is above 0; not where old examples gain, or nobody knows."""
    linear, w = lambda w, x: x @ w, jnp.zeros((1, 1))
    x, spread = np.ones((20, 1)), RNG.normal(size=(20, 1))
    harmed, unknown, helped = (
        ntkdiag.interference(
            linear, w, old=(x, y), new=(x, x), loss="mse", learning_rate=0.1
        ).findings
        for y in (-x + 0.1 * spread, spread - spread.mean(), x)
    )
    assert (unknown, helped) == ([], [])
    [finding] = harmed
    assert (finding.id, finding.severity) == ("new-harms-old", "warning")
    assert finding.interval[0] > finding.threshold == 0.0
    assert "raises the mean loss on the old ones by 0.1" in finding.sentence


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 30.0}, r"e1 of at most 0.5.*got e1 [\d.]+ on `old`: this step leads off"),
        ({"optimizer": optax.sgd(3.0), "steps": 9}, "these 9 steps lead off the tangent plane"),
        ({"optimizer": optax.sgd(np.inf)}, "finite updates of the linearized model; got NaN or Inf"),
        ({"steps": 0}, "a number of steps, 1 or more; got 0"),
        ({"steps": 1.5}, "a number of steps, 1 or more; got 1.5"),
        ({"optimizer": optax.sgd(0.1), "learning_rate": 0.1}, "an optimizer or a learning rate; got both"),
        ({"learning_rate": -1.0}, "a positive `learning_rate`"),
        ({"learning_rate": None, "steps": 3}, "the optimizer that takes these steps.*got neither"),
        ({"opt_state": ()}, "the optimizer whose state it is; got a state alone"),
        ({"optimizer": 0.1}, "an optimizer of Optax; got a float"),
        ({"old": X}, r"a pair \(x, y\) of examples and their labels; got a ndarray"),
        ({"new": (X, Y, Y)}, "got 3 of them"),
        ({"loss": None}, "the loss that is trained"),
        ({"new": (X_NEW, Y)}, r"integer class numbers \(10,\)"),
        (
            {"optimizer": optax.sgd(0.1, momentum=0.9), "opt_state": ()},
            r"an optimizer whose update\(gradient, state, params\) runs.*got \w+Error",
        ),
    ],
)  # fmt: skip
def test_messages(changes, message):
    with pytest.raises(InvalidInputError, match=message):
        found(**changes)


def test_a_network_that_overflows_is_refused():
    overflowing = lambda w, x: jnp.log(1.0 + x @ w)  # NaN where the step leads to
    x = np.ones((4, 1))
    with pytest.raises(InvalidInputError, match="e1 inf on `old`"):
        ntkdiag.interference(
            overflowing,
            jnp.zeros((1, 1)),
            old=(x, -5.0 * x),
            new=(x, -5.0 * x),
            loss="mse",
            learning_rate=1.0,
        )


def test_inside_jit():
    with pytest.raises(InvalidInputError, match="parameters and examples with values; got tracers"):
        jax.jit(
            lambda p: (
                ntkdiag.interference(
                    f, p, old=OLD, new=NEW, loss="mse", learning_rate=0.1
                ).by_example
            )
        )(PARAMS)


def network(params, x):
    return jax.nn.relu(jax.nn.relu(x @ params["a"]) @ params["b"]) @ params["c"]


def fresh(seed, d, c, width):
    keys = jax.random.split(jax.random.key(seed), 3)
    shapes = {"a": (d, width), "b": (width, width), "c": (width, c)}
    return {
        name: jax.random.normal(key, shape) * (2 / shape[0]) ** 0.5
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def digits_pair(seed, width):
    """A network that learned the digits 0 to 4, and the digits 5 to 9."""
    digits = load_digits(seed)
    x, y = digits.x_train.reshape(-1, 64).astype(np.float32), digits.y_train
    old, new = (x[y < 5][:200], y[y < 5][:200]), (x[y >= 5][:200], y[y >= 5][:200])
    params = trained(
        network, optax.adam(1e-3), "cross_entropy", 100, params=fresh(seed, 64, 10, width), new=old
    )
    return network, params, old, new, optax.adam(1e-4)


def languages_pair(seed):
    """Next letters of two languages, which share letters but not their order."""
    rng, letters = np.random.default_rng(seed), 12

    def text(order):
        context = rng.integers(0, letters, (300, 3))
        after = order[context[:, -1]]
        wrong = rng.random(300) < 0.1
        y = np.where(wrong, rng.integers(0, letters, 300), after)
        return np.eye(letters, dtype=np.float32)[context].reshape(300, -1), y

    old, new = text(rng.permutation(letters)), text(rng.permutation(letters))
    start = fresh(seed, 3 * letters, letters, 32)
    params = trained(network, optax.adam(3e-3), "cross_entropy", 100, params=start, new=old)
    return network, params, old, new, optax.sgd(0.02, momentum=0.9)


def low_rank_pair(seed):
    """As the digits, where a low-rank change of a matrix is all that is trained."""
    _, base, old, new, _ = digits_pair(seed, 64)
    rng = np.random.default_rng(seed)
    params = {
        "left": jnp.asarray(rng.normal(size=(64, 4)) / 8, jnp.float32),
        "right": jnp.asarray(rng.normal(size=(4, 64)) / 100, jnp.float32),
    }

    def adapted(params, x):
        return network(base | {"b": base["b"] + params["left"] @ params["right"]}, x)

    return adapted, params, old, new, optax.adam(1e-3)


PAIRS = {
    **{f"digits {seed}, width {w}": functools.partial(digits_pair, seed, w) for seed, w in
       [(0, 32), (1, 64), (2, 128), (3, 64)]},
    **{f"languages {seed}": functools.partial(languages_pair, seed) for seed in range(3)},
    **{f"low rank {seed}": functools.partial(low_rank_pair, seed) for seed in range(3)},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_pairs_of_tasks(pair):
    """The sign of what one real step does, and its size within 5 %; of ten steps the sign."""
    model, params, old, new, optimizer = pair()
    for steps in (1, 10):
        got = ntkdiag.interference(
            model, params, old=old, new=new, loss="cross_entropy", optimizer=optimizer, steps=steps
        )
        after = trained(model, optimizer, "cross_entropy", steps, params=params, new=new)
        before, now = (losses(model, p, old, "cross_entropy") for p in (params, after))
        really = (now.astype(np.float64) - before).mean()
        print(f"{steps} steps: {got}, really {really:+.4g}")
        assert np.sign(got.change) == np.sign(really)
        if steps == 1:
            assert abs(got.change - really) < 0.05 * abs(really)

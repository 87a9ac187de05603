"""`watch` round optimizers and inside of them, in every kind of loop: the same parameters to the last bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from monitor_problem import f, loss, naive, problem

from ntkdiag import errors
from ntkdiag.monitor import InMemory, watch

get = optax.tree_utils.tree_get
STEPS = 7
SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 3, STEPS)

OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "adam": lambda: optax.adam(1e-2),
    "adamw-schedule-clip": lambda: optax.chain(
        optax.clip_by_global_norm(0.5), optax.adamw(SCHEDULE)
    ),
}


def problem_in_float32():
    params, x, y = problem()
    return jax.tree.map(jnp.float32, params), jnp.float32(x), y


def watched(optimizer, instruments="layer_norms", **options):
    _, x, y = problem_in_float32()
    options = {"loss": "mse", "every": 3, **options}
    return watch(optimizer, f, train=(x, y), instruments=instruments, **options)


def step_of(tx):
    """A step of training for `jax.jit` and `jax.lax.scan`."""
    _, x, y = problem_in_float32()

    def step(carry, _=None):
        params, state = carry
        value, gradient = jax.value_and_grad(loss)(params, x, y)
        if isinstance(tx, optax.GradientTransformationExtraArgs):
            updates, state = tx.update(gradient, state, params, value=value)
        else:
            updates, state = tx.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), params

    return step


def compiled(tx, params, **options):
    step = jax.jit(step_of(tx), **options)
    trajectory = []
    carry = params, tx.init(params)
    for _ in range(STEPS):
        carry, _ = step(carry)
        trajectory.append(jax.tree.map(np.asarray, carry[0]))
    return trajectory, carry[1]


def donated(tx, params):
    return compiled(tx, jax.tree.map(jnp.array, params), donate_argnums=0)


def scanned(tx, params):
    @jax.jit
    def run(params):
        (_, state), trajectory = jax.lax.scan(step_of(tx), (params, tx.init(params)), length=STEPS)
        return trajectory, state

    return run(params)


LOOPS = {"jit": compiled, "donated": donated, "scan": scanned}


def assert_same_bits(tree, other):
    jax.tree.map(np.testing.assert_array_equal, tree, other)


def assert_almost_same_bits(tree, other):
    almost = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    jax.tree.map(almost, tree, other)


@pytest.mark.long
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS.keys())
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_the_same_bits(optimizer, loop):
    params, _, _ = problem_in_float32()
    plain, plain_state = loop(optimizer(), params)
    trajectory, state = loop(watched(optimizer()), params)
    assert_same_bits(plain, trajectory)
    assert_same_bits(plain_state, state.ntk_inner)
    assert np.all(np.asarray(state.ntk_count) == STEPS)
    assert np.all(np.asarray(state.ntk_step) == 6)
    assert np.isfinite(get(state, "ntk_layer_update")).all()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_the_same_bits_with_all_tiers(optimizer):
    params, _, _ = problem_in_float32()
    plain, _ = compiled(optimizer(), params)
    tx = watched(optimizer(), ("economy", "spectral", "kernel"), top_k=3, writers=InMemory())
    trajectory, state = compiled(tx, params)
    assert_same_bits(plain, trajectory)
    for name in ("margin", "trace", "drift", "step_error"):
        assert np.isfinite(get(state, f"ntk_{name}")).all()


def test_not_under_jit_the_updates_are_those_of_the_optimizer():
    params, x, y = problem_in_float32()
    plain, tx = optax.adam(1e-2), watched(optax.adam(1e-2))
    plain_state, state = plain.init(params), tx.init(params)
    for _ in range(4):
        gradient = jax.grad(loss)(params, x, y)
        expected, plain_state = plain.update(gradient, plain_state, params)
        updates, state = tx.update(gradient, state, params)
        assert_same_bits(expected, updates)
        params = optax.apply_updates(params, updates)
    assert int(state.ntk_step) == 3


# Optimizers round others, and with `watch` inside.
WRAPPED = {
    "chain": lambda inner: optax.chain(optax.clip(0.05), inner),
    "multi-steps": lambda inner: optax.MultiSteps(inner, 2).gradient_transformation(),
    "apply-if-finite": lambda inner: optax.apply_if_finite(inner, 3),
    "schedule-free": lambda inner: optax.contrib.schedule_free(inner, 1e-2, b1=0.9),
    "reduce-on-plateau": lambda inner: optax.chain(inner, optax.contrib.reduce_on_plateau()),
}


@pytest.mark.long
@pytest.mark.parametrize("is_outside", [True, False], ids=["outside", "inside"])
@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED.keys())
def test_wrappers_of_optax(wrap, is_outside):
    params, _, _ = problem_in_float32()
    plain, _ = compiled(wrap(optax.adam(1e-2)), params)
    inner = optax.adam(1e-2)
    tx = watched(wrap(inner)) if is_outside else wrap(watched(inner))
    trajectory, state = compiled(tx, params)
    is_multi_steps = wrap is WRAPPED["multi-steps"]
    if is_multi_steps and not is_outside:
        # XLA rounds the gradient it accumulates another way when somebody else reads it, too.
        assert_almost_same_bits(plain, trajectory)
    else:
        assert_same_bits(plain, trajectory)
    assert int(get(state, "ntk_count")) == (3 if is_multi_steps else STEPS)
    assert int(get(state, "ntk_step")) == (0 if is_multi_steps else 6)
    assert np.isfinite(get(state, "ntk_layer_update")).all()
    assert int(get(state, "ntk_measurements")) > 0


def test_multi_steps_may_be_wrapped_as_they_are():
    params, _, _ = problem_in_float32()
    multi_steps = optax.MultiSteps(optax.adam(1e-2), 2)
    memory = InMemory()
    trajectory, _ = compiled(watched(multi_steps, every=1, writers=memory), params)
    plain, _ = compiled(multi_steps.gradient_transformation(), params)
    assert_same_bits(plain, trajectory)
    jax.effects_barrier()
    # Seven gradients make three updates, and each of these is measured once, with the whole update.
    assert memory.steps == [0, 1, 2]
    assert (np.array(memory.series("layer_update")) > 0).all()


def test_injected_hyperparameters_are_read_and_set_through_watch():
    params, _, _ = problem_in_float32()
    tx = watched(optax.inject_hyperparams(optax.adam)(learning_rate=1e-2))
    plain = optax.inject_hyperparams(optax.adam)(learning_rate=1e-2)
    expected, _ = compiled(plain, params)
    trajectory, state = compiled(tx, params)
    assert_same_bits(expected, trajectory)
    np.testing.assert_allclose(get(state, "learning_rate"), 1e-2)
    assert int(get(state, "ntk_count")) == STEPS
    slower = optax.tree_utils.tree_set(state, learning_rate=1e-3)
    np.testing.assert_allclose(get(slower, "learning_rate"), 1e-3)


def test_which_leaves_are_like_parameters_is_known_to_optax():
    params, _, _ = problem_in_float32()
    tx, plain = watched(optax.adam(1e-2)), optax.adam(1e-2)

    def marked(leaf):
        return "like a parameter"

    state = optax.tree_map_params(tx, marked, tx.init(params))
    assert state.ntk_inner == optax.tree_map_params(plain, marked, plain.init(params))
    assert int(state.ntk_count) == 0


def groups():
    return optax.multi_transform(
        {"fast": optax.adam(1e-2), "slow": optax.sgd(0.1)}, {"a": "fast", "b": "slow"}
    )


@pytest.mark.parametrize(
    "optimizer",
    [groups, lambda: optax.masked(optax.sgd(0.1), {"a": True, "b": False})],
    ids=["multi_transform", "masked"],
)
def test_groups_of_parameters(optimizer):
    params, _, _ = problem_in_float32()
    plain, _ = compiled(optimizer(), params)
    trajectory, state = compiled(watched(optimizer()), params)
    assert_same_bits(plain, trajectory)
    assert int(state.ntk_step) == 6


@pytest.mark.parametrize("kind", ["multi_transform", "masked"])
def test_inside_of_a_group_it_is_refused_before_training(kind):
    params, _, _ = problem_in_float32()
    inner = watched(optax.sgd(0.1))
    tx = optax.masked(inner, {"a": True, "b": False})
    if kind == "multi_transform":
        labels = {"a": "fast", "b": "slow"}
        tx = optax.multi_transform({"fast": inner, "slow": optax.sgd(0.1)}, labels)
    with pytest.raises(errors.StructureError) as caught:
        tx.init(params)
    assert str(caught.value) == (
        "watch(optimizer, f).init(params): expected all parameters of the measured function; got a masked part of them "
        "(optax.masked or optax.multi_transform hides the others). Wrap the whole optimizer: "
        "ntkdiag.watch(optax.multi_transform(...), f, ...)."
    )


def test_extra_arguments_reach_the_optimizer_and_numbers_do_not_compile_anew():
    params, x, y = problem_in_float32()
    got = []

    def update(updates, state, params=None, *, factor, **extra_args):
        got.append(factor)
        return jax.tree.map(lambda leaf: -factor * leaf, updates), state

    scaled = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    tx = watched(scaled, every=1)
    state = tx.init(params)
    gradient = jax.grad(loss)(params, x, y)
    for factor in (0.5, 0.25, 0.125):
        updates, state = tx.update(gradient, state, params, factor=factor, unused="a word")
        assert_same_bits(updates, jax.tree.map(lambda leaf, k=factor: -k * leaf, gradient))
        expected = [np.linalg.norm(leaf) for leaf in jax.tree.leaves(updates)]
        np.testing.assert_allclose(get(state, "ntk_layer_update"), expected, rtol=1e-5)
    assert got == [0.5, 0.25, 0.125]


@pytest.mark.slow
def test_margin_of_an_optimizer_that_gets_extra_arguments():
    params, x, y = problem_in_float32()

    def update(updates, state, params=None, *, factor, **extra_args):
        return jax.tree.map(lambda leaf: -factor * leaf, updates), state

    scaled = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    tx = watched(scaled, "spectral", every=1, top_k=3)
    state = tx.init(params)
    gradient = jax.grad(loss)(params, x, y)
    for factor in (0.5, 0.25):
        _, state = tx.update(gradient, state, params, factor=factor)
        expected = naive(params, params, x=np.asarray(x), learning_rate=factor)["margin"]
        np.testing.assert_allclose(get(state, "ntk_margin"), expected, rtol=2e-3)

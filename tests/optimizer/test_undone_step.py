"""Steps are recovered from what is there after them: of every optimizer, at every step of a run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import kept_of, undone

RATE = 0.01
SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 0.02, 5, 40)
GROUPS = {"adam": optax.adam(RATE), "sgd": optax.sgd(0.3, momentum=0.5)}

# Optimizer, and how far the update is from the one that was made, relative.
RECOVERED = {
    "momentum": (optax.sgd(RATE, momentum=0.8), 1e-6),
    "clipped": (
        optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(SCHEDULE, weight_decay=0.1)),
        1e-5,
    ),
    "nadam": (optax.nadam(RATE), 1e-6),
    "rmsprop with momentum": (optax.rmsprop(RATE, momentum=0.7), 1e-6),
    "adabelief": (optax.adabelief(RATE), 1e-3),
    "amsgrad": (optax.amsgrad(RATE), 1e-3),
    "adan": (optax.adan(RATE), 1e-6),
    "lamb": (optax.lamb(RATE, weight_decay=0.05), 1e-3),
    "lars": (optax.lars(0.1, weight_decay=0.01, momentum=0.9), 1e-5),
    "adafactor": (optax.adafactor(RATE, min_dim_size_to_factor=2, momentum=0.9), 1e-4),
    "injected": (optax.inject_hyperparams(optax.adamw)(learning_rate=SCHEDULE, b2=0.5), 1e-5),
    "groups": (optax.multi_transform(GROUPS, {"w": "adam", "b": "sgd", "s": "adam"}), 1e-6),
    "micro-steps": (optax.MultiSteps(optax.adam(RATE), 3).gradient_transformation(), 1e-6),
    "narrow momentum": (optax.adam(RATE, mu_dtype=jnp.bfloat16), 1e-2),
    # Kept as it is.
    "schedule-free": (optax.contrib.schedule_free(optax.adam(RATE), RATE), 1e-6),
}


def flat(tree):
    leaves = [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves)


def distance(tree, other):
    return np.linalg.norm(flat(tree) - flat(other)) / max(np.linalg.norm(flat(other)), 1e-30)


def start(rng, dtype=np.float32):
    shapes = {"w": (6, 5), "b": (40,), "s": ()}
    return {name: jnp.asarray(rng.normal(size=shape), dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("momentum", "clipped") else pytest.param(name, marks=pytest.mark.slow)
        for name in RECOVERED
    ],
)
def test_update_and_parameters_are_recovered(name):
    optimizer, tolerance = RECOVERED[name]

    @jax.jit
    def recover(gradient, after, params_after, state, made):
        step = undone(optimizer.update, gradient, after, params_after, kept_of(state, made), {})
        return step.update, step.params, step.state

    rng = np.random.default_rng(0)
    params = start(rng)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for _ in range(12):
        gradient = jax.tree.map(
            lambda leaf: 0.7 * leaf + jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), params
        )
        made, after = update(gradient, state, params)
        params_after = optax.apply_updates(params, made)
        found, before, _ = recover(gradient, after, params_after, state, made)
        assert distance(found, made) <= tolerance
        assert distance(before, params) <= max(1e-6, 0.1 * tolerance)
        params, state = params_after, after


def test_large_buffers_of_known_optimizers_are_not_kept():
    rng = np.random.default_rng(0)
    params = start(rng)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    kept = kept_of(optimizer.init(params), params)
    assert kept.update is None
    assert all(leaf.size <= 16 for leaf in kept.arrays.values())
    assert "[1][0].count" in kept.arrays

    kept = kept_of(optax.contrib.schedule_free(optax.sgd(RATE), RATE).init(params), params)
    assert kept.update is params
    assert any(leaf.size > 16 for leaf in kept.arrays.values())

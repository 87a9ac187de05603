"""A plain Optax training loop whose optimizer is wrapped by `watch`."""

import pathlib
from collections.abc import Callable, Iterator
from typing import TypeAlias

import jax
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag.demo.demo_settings import (
    BATCH,
    LEARNING_RATE,
    LOSS,
    MOMENTUM,
    PROBE_PER_CLASS,
    TOP_K,
    DemoSettings,
)
from ntkdiag.demo.digits import Digits
from ntkdiag.models.functional import Functional
from ntkdiag.monitor import watch
from ntkdiag.monitor.writers import Writer

# on_step(step, params, loss of the batch before)
OnStep: TypeAlias = Callable[[int, PyTree, float | None], None]


def train(
    functional: Functional,
    digits: Digits,
    settings: DemoSettings,
    out: pathlib.Path,
    view: Writer,
    on_step: OnStep,
) -> PyTree:
    """Train with SGD and momentum on the softmax cross-entropy.

    Args:
        functional: The model.
        digits: The data.
        settings: Steps, schedule, seed.
        out: Run directory that every measurement is stored in.
        view: Shows every measurement.
        on_step: Called as `on_step(step, params, loss)` before each update and once at the end; the
            loss is that of the update before, None at step 0.

    Returns:
        The trained parameters.
    """
    f, params = functional
    optimizer = watch(
        optax.sgd(LEARNING_RATE, momentum=MOMENTUM),
        functional,
        train=digits.train_probe(PROBE_PER_CLASS),
        held_out=digits.held_out_probe(PROBE_PER_CLASS),
        every=settings.every,
        instruments=("economy", "spectral", "kernel"),
        top_k=TOP_K,
        loss=LOSS,
        out=out,
        writers=view,
    )
    state = optimizer.init(params)

    @jax.jit
    def loss_and_gradients(
        params: PyTree, x: Float[Array, "n 8 8 1"], y: Int[Array, " n"]
    ) -> tuple[Float[Array, ""], PyTree]:
        # JAX differentiates in the first argument.
        def mean_loss(params: PyTree) -> Float[Array, ""]:
            return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()

        return jax.value_and_grad(mean_loss)(params)

    # The parameters of step t are shown before update t: step 0 is initialisation.
    loss = None
    for step, (x, y) in enumerate(batches(digits, settings)):
        on_step(step, params, loss)
        value, gradients = loss_and_gradients(params, x, y)
        # Outside jit, because XLA on CPU runs convolutions inside a conditional ten times slower.
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        loss = float(value)
    jax.effects_barrier()  # every measurement has reached its writers
    on_step(settings.steps, params, loss)
    return params


def batches(
    digits: Digits, settings: DemoSettings
) -> Iterator[tuple[Float[np.ndarray, "n 8 8 1"], Int[np.ndarray, " n"]]]:
    """Random batches without replacement, epoch after epoch, one per step."""
    # Other random numbers than those of the split, which is drawn from the seed itself.
    rng = np.random.default_rng(settings.seed + 1)
    order = np.empty(0, int)
    for _ in range(settings.steps):
        if len(order) < BATCH:
            order = rng.permutation(len(digits.x_train))
        chosen = order[:BATCH]
        order = order[BATCH:]
        yield digits.x_train[chosen], digits.y_train[chosen]

"""`ntkdiag demo`: a small network on digits, with a monitor, tracked checkpoints and a report.

The network has 6,090 parameters. Images [8 8 1] -> conv 16 -> pool [4 4 16] -> conv 32 -> pool
[2 2 32] -> dense [10].
"""

import dataclasses
import os
import pathlib
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from rich.console import Console

from ntkdiag import errors, plugins
from ntkdiag.comparison.track import track
from ntkdiag.descent import Descent
from ntkdiag.models import functionalize
from ntkdiag.monitor import watch
from ntkdiag.monitor.schedule import log_spaced
from ntkdiag.opened_run import open_run
from ntkdiag.report.report_file import require_report

N_TRAIN = 1437  # four fifths of the digits
WIDTHS = (16, 32)
LEARNING_RATE = 0.05
MOMENTUM = 0.9
BATCH = 128
EVERY = 10  # steps between two measurements
# What is measured: 60 images of ten classes that are trained on and 60 that are not.
PROBE_PER_CLASS = 6


@dataclasses.dataclass(frozen=True)
class Digits:
    """Images `[N 8 8 1]`, standardized, and class numbers `[N]`, split at random by the seed."""

    x_train: Float[np.ndarray, "train 8 8 1"]  # images to train on
    y_train: Int[np.ndarray, " train"]  # their classes
    x_test: Float[np.ndarray, "test 8 8 1"]  # images never trained on
    y_test: Int[np.ndarray, " test"]  # their classes


def first_of_each_class(
    x: Float[np.ndarray, "n 8 8 1"], y: Int[np.ndarray, " n"], per_class: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first images of each of the ten digits, and their classes, sorted by class."""
    chosen = np.concatenate([np.flatnonzero(y == digit)[:per_class] for digit in range(10)])
    return x[chosen], y[chosen]


def load_digits(seed: int) -> Digits:
    """Read the UCI digits that come with scikit-learn, and split them."""
    datasets = plugins.imported("sklearn.datasets", "for its digits", "ntkdiag[demo]")
    images, classes = datasets.load_digits(return_X_y=True)
    standardized = (images - images.mean()) / images.std()
    x = standardized.reshape(-1, 8, 8, 1).astype(np.float32)  # [n 64] -> [n 8 8 1]
    order = np.random.default_rng(seed).permutation(len(x))
    x = x[order]
    y = np.asarray(classes)[order].astype(np.int32)
    return Digits(x[:N_TRAIN], y[:N_TRAIN], x[N_TRAIN:], y[N_TRAIN:])


def run_demo(steps: int, out: pathlib.Path, console: Console) -> None:
    """Train the network, watched; track its checkpoints into the same folder; write a report."""
    # Refuse wrong arguments before minutes of training, not after.
    require_report()
    digits = load_digits(0)
    _make_folder(out)
    measured = {
        "train": first_of_each_class(digits.x_train, digits.y_train, PROBE_PER_CLASS),
        "held_out": first_of_each_class(digits.x_test, digits.y_test, PROBE_PER_CLASS),
        "loss": "cross_entropy",
        "out": out,
    }
    console.print("training a CNN on 8x8 digits")
    module = _train(digits, steps, measured, out / "checkpoints")
    console.print("following the kernel through the checkpoints")
    descent = Descent(LEARNING_RATE, momentum=MOMENTUM)
    console.print(track(out / "checkpoints", model=module, descent=descent, **measured))
    report = open_run(out).save(out / "report.html")
    for line in (f"report: {report}", f"checkpoints and measurements, too, are in {out}{os.sep}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _train(digits: Digits, steps: int, measured: dict[str, Any], folder: pathlib.Path) -> object:
    """Train with SGD and momentum, and save steps 0, 1, 2, 4, 8, ... and the last; the module."""
    import optax
    import orbax.checkpoint as orbax
    from flax import linen as nn

    class DigitsNet(nn.Module):
        @nn.compact
        def __call__(self, x: Float[Array, "n 8 8 1"]) -> Float[Array, "n 10"]:
            for width in WIDTHS:
                x = nn.avg_pool(nn.relu(nn.Conv(width, (3, 3))(x)), (2, 2), (2, 2))
            return nn.Dense(10)(x.reshape(x.shape[0], -1))

    module = DigitsNet()
    variables = module.init(jax.random.key(0), jax.numpy.zeros((1, 8, 8, 1)))
    functional = functionalize(module, variables)
    f, params = functional
    sgd = optax.sgd(LEARNING_RATE, momentum=MOMENTUM)
    optimizer = watch(sgd, functional, every=EVERY, writers="terminal", **measured)
    state = optimizer.init(params)

    @jax.jit
    def gradients_of(params: PyTree, x: Float[Array, "n 8 8 1"], y: Int[Array, " n"]) -> PyTree:
        # JAX differentiates in the first argument.
        def mean_loss(params: PyTree) -> Float[Array, ""]:
            return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()

        return jax.grad(mean_loss)(params)

    rng = np.random.default_rng(1)
    with orbax.CheckpointManager(folder.absolute()) as manager:
        for step in range(steps + 1):
            if log_spaced(step) or step == steps:
                manager.save(step, args=orbax.args.StandardSave(functional.restore(params)))
            if step == steps:
                break
            batch = rng.integers(0, N_TRAIN, BATCH)
            gradient = gradients_of(params, digits.x_train[batch], digits.y_train[batch])
            updates, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        jax.effects_barrier()  # every measurement has reached its writers
        manager.wait_until_finished()
    return module


def _make_folder(out: pathlib.Path) -> None:
    """Make a fresh folder; an existing one is never written to."""
    # Fails where the folder exists, also when another run made it a moment ago.
    try:
        out.mkdir(parents=True)
    except OSError as error:
        raise errors.InvalidInputError(
            call=f"ntkdiag demo --out {out}",
            expected="a folder that does not exist yet",
            got=f"{type(error).__name__}: {error.strerror}",
            do="Choose another folder, or remove this one: a run is never overwritten.",
        ) from error

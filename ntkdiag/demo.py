"""`ntkdiag demo`: a small network on digits, watched, followed through its checkpoints, reported.

The network has 6,090 parameters. Images [8 8 1] -> conv 16 -> pool [4 4 16] -> conv 32 -> pool
[2 2 32] -> dense [10].
"""

import dataclasses
import os
import pathlib
from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from rich.console import Console
from rich.progress import Progress

from ntkdiag import errors
from ntkdiag.comparison.track import track
from ntkdiag.descent import Descent
from ntkdiag.models import functionalize
from ntkdiag.monitor import Terminal, watch
from ntkdiag.monitor.schedule import log_spaced
from ntkdiag.opened_run import open_run
from ntkdiag.report.report_file import require_report

N_TRAIN = 1437  # four fifths of the digits
WIDTHS = (16, 32)
LEARNING_RATE = 0.05
MOMENTUM = 0.9
BATCH = 128
EVERY = 10  # steps between two measurements
LOSS = "cross_entropy"
# What is measured: 60 images of ten classes that are trained on and 60 that are not.
PROBE_PER_CLASS = 6


@dataclasses.dataclass(frozen=True)
class Digits:
    """Images `[N 8 8 1]`, standardized, and class numbers `[N]`, split at random by the seed."""

    x_train: Float[np.ndarray, "train 8 8 1"]  # images to train on
    y_train: Int[np.ndarray, " train"]  # their classes
    x_test: Float[np.ndarray, "test 8 8 1"]  # images never trained on
    y_test: Int[np.ndarray, " test"]  # their classes

    def train_probe(self, per_class: int) -> tuple[np.ndarray, np.ndarray]:
        """The first images of each class among those to train on, sorted by class."""
        return _first_of_each_class(self.x_train, self.y_train, per_class)

    def held_out_probe(self, per_class: int) -> tuple[np.ndarray, np.ndarray]:
        """The first images of each class among the test images, sorted by class."""
        return _first_of_each_class(self.x_test, self.y_test, per_class)

    def batches(self, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Random batches without replacement, epoch after epoch, one per step."""
        rng = np.random.default_rng(1)
        order = np.empty(0, int)
        for _ in range(steps):
            if len(order) < BATCH:
                order = rng.permutation(len(self.x_train))
            chosen, order = order[:BATCH], order[BATCH:]
            yield self.x_train[chosen], self.y_train[chosen]


def _first_of_each_class(
    x: Float[np.ndarray, "n 8 8 1"], y: Int[np.ndarray, " n"], per_class: int
) -> tuple[np.ndarray, np.ndarray]:
    """So many images of each of the ten digits, and their classes."""
    chosen = np.concatenate([np.flatnonzero(y == digit)[:per_class] for digit in range(10)])
    return x[chosen], y[chosen]


def load_digits(seed: int) -> Digits:
    """Read the UCI digits that come with scikit-learn, and split them."""
    try:
        from sklearn import datasets
    except ImportError as error:
        raise errors.MissingDependencyError(
            call="ntkdiag demo",
            expected="scikit-learn, which holds the digits",
            got="no such package",
            do='Run: pip install "ntkdiag[demo]"',
        ) from error
    images, classes = datasets.load_digits(return_X_y=True)
    standardised = (images - images.mean()) / images.std()
    x = standardised.reshape(-1, 8, 8, 1).astype(np.float32)  # [n 64] -> [n 8 8 1]
    order = np.random.default_rng(seed).permutation(len(x))
    x = x[order]
    y = np.asarray(classes)[order].astype(np.int32)
    return Digits(x[:N_TRAIN], y[:N_TRAIN], x[N_TRAIN:], y[N_TRAIN:])


def run_demo(steps: int, out: pathlib.Path | None, console: Console) -> pathlib.Path:
    """Train the network, and show everything ntkdiag has to say about it.

    The kernel is watched during training, then followed through the checkpoints; both go to one run
    directory, and a report of it is written.
    """
    # Everything that can be refused is refused before minutes of training, not after.
    require_report()
    digits = load_digits(0)
    root = _make_folder(out)
    _say(console, "training a CNN on 8x8 digits")
    module = _train(digits, steps, root, console)

    _say(console, "following the kernel through the checkpoints")
    tracked = track(
        root / "checkpoints",
        model=module,
        train=digits.train_probe(PROBE_PER_CLASS),
        held_out=digits.held_out_probe(PROBE_PER_CLASS),
        loss=LOSS,
        descent=Descent(LEARNING_RATE, momentum=MOMENTUM),
        out=root,
        # The bar of training is the one that is shown.
        progress=None if console.is_terminal else False,
    )
    console.print(tracked)
    report = open_run(root).save(root / "report.html")
    _say(console, f"report: {report}")
    _say(console, f"all of it, checkpoints and measurements too, is in {root}{os.sep}")
    return root


def _train(digits: Digits, steps: int, root: pathlib.Path, console: Console) -> object:
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
    optimizer = watch(
        optax.sgd(LEARNING_RATE, momentum=MOMENTUM),
        functional,
        train=digits.train_probe(PROBE_PER_CLASS),
        held_out=digits.held_out_probe(PROBE_PER_CLASS),
        every=EVERY,
        loss=LOSS,
        out=root,
        writers=Terminal(console=console),
    )
    state = optimizer.init(params)

    @jax.jit
    def gradients_of(params: PyTree, x: Float[Array, "n 8 8 1"], y: Int[Array, " n"]) -> PyTree:
        # JAX differentiates in the first argument.
        def mean_loss(params: PyTree) -> Float[Array, ""]:
            return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()

        return jax.grad(mean_loss)(params)

    def save(step: int) -> None:
        manager.save(step, args=orbax.args.StandardSave(functional.restore(params)))

    with (
        orbax.CheckpointManager((root / "checkpoints").absolute()) as manager,
        Progress(console=console, disable=not console.is_terminal) as progress,
    ):
        batches = digits.batches(steps)
        for step, (x, y) in enumerate(progress.track(batches, total=steps)):
            if log_spaced(step):  # step 0 is initialisation
                save(step)
            updates, state = optimizer.update(gradients_of(params, x, y), state, params)
            params = optax.apply_updates(params, updates)
        jax.effects_barrier()  # every measurement has reached its writers
        save(steps)
        manager.wait_until_finished()
    return module


def _make_folder(out: pathlib.Path | None) -> pathlib.Path:
    """Make a fresh folder; an existing one is never written to."""
    if out is None:
        out, number = pathlib.Path("runs/digits"), 1
        while out.exists():
            number += 1
            out = pathlib.Path(f"runs/digits-{number}")
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
    return out


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)

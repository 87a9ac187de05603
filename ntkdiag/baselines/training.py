"""What the network and its linearizations are trained on, and the loop that trains them.

Labels are read twice. The loss reads them as it needs them for training; and where they are class
numbers, or targets shaped like the outputs, accuracy and kernel regression read them too.

The loop runs compiled from one recorded step to the next. Which examples a step sees is looked up
in a table of indices, the same for all models, so that they differ in nothing but the model.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag import errors
from ntkdiag.arrays import as_array, as_examples
from ntkdiag.call_f import running
from ntkdiag.jaxtools.cpu import channels_last, compiler_options
from ntkdiag.losses import Loss
from ntkdiag.losses.loss_argument import LossLike, require_loss
from ntkdiag.losses.targets import are_class_numbers, read_class_numbers, read_targets

if TYPE_CHECKING:
    import optax


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """Training and test examples with labels, and the loss."""

    x: PyTree  # training examples, arrays with the example axis first
    labels: jax.Array  # their labels as passed
    y: PyTree  # the same as the loss reads them
    x_test: PyTree  # test examples
    y_test: PyTree  # their labels as the loss reads them
    # Class numbers of the test examples `[m]` (and positions); None where labels are no classes.
    classes_test: Int[Array, "m ..."] | None
    loss: Loss  # the loss
    shape: tuple[int, ...]  # of the outputs on the training examples

    @property
    def n(self) -> int:
        """Number of training examples."""
        return self.shape[0]

    @property
    def m(self) -> int:
        """Number of test examples."""
        return jax.tree.leaves(self.x_test)[0].shape[0]

    def regression_targets(self) -> Float[Array, "n c"]:
        """What a kernel is regressed on: one-hot rows of classes, or the targets."""
        return read_targets(self.labels, self.shape).reshape(self.n, -1)


def read_data(
    data: PyTree, loss: LossLike | None, f: Callable[..., PyTree], params: PyTree
) -> Data:
    """Read `(x, y, x_test, y_test)` beside the outputs of f."""
    if not isinstance(data, tuple | list) or len(data) != 4:
        got = f"{len(data)} parts" if isinstance(data, tuple | list) else type(data).__name__
        do = "Hold some examples out: without them a baseline says nothing about generalization."
        raise errors.InvalidInputError(expected="`data` as (x, y, x_test, y_test)", got=got, do=do)
    named = require_loss(loss, "a baseline")
    x, y = _read_pair(data[0], data[1], "")
    x_test, y_test = _read_pair(data[2], data[3], "_test")
    with running():
        outputs = jax.eval_shape(f, params, x)  # traced only: nothing is computed
    shape = getattr(outputs, "shape", ())
    if shape[:1] != y.shape[:1]:
        raise errors.InvalidInputError(
            expected=f"one array of outputs with the {y.shape[0]} examples on its first axis",
            got=f"{type(outputs).__name__} of shape {shape}",
            do="Select an output with output= of `functionalize`.",
        )
    # Labels are class numbers only if both sets have integers.
    shape_test = (y_test.shape[0], *shape[1:])
    classes_test = None
    if are_class_numbers(y, shape) and are_class_numbers(y_test, shape_test):
        read_class_numbers(y, shape)  # refuses numbers that are no class, whatever the loss
        classes_test = read_class_numbers(y_test, shape_test, "y_test")
    return Data(
        x=x,
        labels=y,
        y=named.read(y, shape),
        x_test=x_test,
        y_test=named.read(y_test, shape_test),
        classes_test=classes_test,
        loss=named,
        shape=shape,
    )


def _read_pair(x: PyTree, y: PyTree, suffix: str) -> tuple[PyTree, jax.Array]:
    x = as_examples(x, f"x{suffix}")
    y = jnp.asarray(as_array(y, f"y{suffix}"))
    sizes = {leaf.shape[0] for leaf in jax.tree.leaves(x)}
    if y.ndim == 0 or sizes != {y.shape[0]}:
        raise errors.InvalidInputError(
            expected=f"as many labels y{suffix} as examples x{suffix}",
            got=f"{y.shape[:1]} and {sorted(sizes)}",
            do="The example axis comes first.",
        )
    return x, y


def accuracy(
    outputs: Float[Array, "m ... c"], classes: Int[Array, "m ..."] | None
) -> Float[Array, ""] | None:
    """Share of examples whose largest output is their class; None where labels are no classes."""
    if classes is None:
        return None
    return jnp.mean(jnp.argmax(outputs, axis=-1) == classes)


def agreement(
    outputs: Float[Array, "m *o"], others: Float[Array, "m *o"]
) -> Float[Array, ""] | None:
    """Share of examples with the same largest output; None where outputs are no classes."""
    if outputs.ndim != 2 or outputs.shape[1] == 1:
        return None
    return jnp.mean(jnp.argmax(outputs, axis=1) == jnp.argmax(others, axis=1))


def root_mean_square(values: Float[Array, "..."]) -> Float[Array, ""]:
    """The root of the mean of squares over all entries."""
    return jnp.sqrt(jnp.mean(values**2))


def batches(n: int, size: int | None, steps: int, seed: int) -> Int[np.ndarray, "steps size"]:
    """Indices of the examples of every step: epochs in random order; `[1 n]` of full batches."""
    if size is None or size >= n:
        return np.arange(n)[None]
    rng = np.random.default_rng(seed)
    per_epoch = n // size  # what is left over of an epoch is left out
    epochs = []
    for _ in range(-(-steps // per_epoch)):  # rounded up
        examples = rng.permutation(n)[: per_epoch * size]
        epochs.append(examples.reshape(per_epoch, size))
    return np.concatenate(epochs)[:steps]


class Position(NamedTuple):
    """Where training stands."""

    params: PyTree  # the parameters
    state: PyTree  # the state of the optimizer


def train(
    f: Callable[..., PyTree],
    start: Position,
    optimizer: "optax.GradientTransformation",
    data: Data,
    order: Int[np.ndarray, "steps size"],
    marks: Sequence[int],
) -> Iterator[Position]:
    """Train from a start on, stopping at `marks`; row t of `order` has the examples of step t."""

    def steps_from_to(
        position: Position,
        first: Int[Array, ""],
        last: Int[Array, ""],
        rows_of_steps: Array,
        x: PyTree,
        y: PyTree,
    ) -> Position:
        def step(index: Int[Array, ""], position: Position) -> Position:
            # The examples of this step [size]; a table of one row serves all steps.
            rows = rows_of_steps[index % rows_of_steps.shape[0]]
            batch, labels = jax.tree.map(lambda leaf: leaf[rows], (x, y))

            def loss(params: PyTree) -> Array:
                return data.loss(f(params, batch), labels)

            gradient = channels_last(jax.grad(loss))(position.params)
            updates, state = optimizer.update(gradient, position.state, position.params)
            # The parameters keep their dtype, whatever the optimizer computes in.
            params = jax.tree.map(lambda p, u: (p + u).astype(p.dtype), position.params, updates)
            return Position(params, state)

        return jax.lax.fori_loop(first, last, step, position)

    # One program for all segments: their ends are arguments. So are the data, which as constants
    # would be folded and held twice.
    advance = jax.jit(steps_from_to, compiler_options=compiler_options(reduces=True))
    rows_of_steps = jnp.asarray(order)
    position = start
    done = 0
    for mark in marks:
        position = advance(position, done, mark, rows_of_steps, data.x, data.y)
        done = mark
        yield position


def log_spaced(steps: int, count: int = 12) -> list[int]:
    """About `count` integers from 0 and 1 to `steps`, evenly spaced in the logarithm."""
    spaced = np.geomspace(1, steps, count - 1).round().astype(int)
    return [0, *np.unique(spaced).tolist()]

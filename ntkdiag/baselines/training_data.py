"""What the network is trained on, and by which loss.

Labels are read twice. The loss reads them as it needs them for training; and where they are class
numbers, or targets shaped like the outputs, accuracy and kernel regression read them too.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag import errors
from ntkdiag.arrays import as_array, as_examples
from ntkdiag.call_f import running
from ntkdiag.losses import Loss
from ntkdiag.losses.loss_argument import LossLike, require_loss
from ntkdiag.losses.targets import are_class_numbers, read_class_numbers, read_targets


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """Training and test examples with labels, and the loss."""

    x: PyTree  # training examples, arrays with the example axis first
    labels: jax.Array  # theirs, as they were handed in
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
        targets = read_targets(self.labels, self.shape)
        return targets.reshape(self.n, -1)


def read_data(
    data: PyTree, loss: LossLike | None, f: Callable[..., PyTree], params: PyTree
) -> Data:
    """Read `(x, y, x_test, y_test)` beside the outputs of f."""
    if not isinstance(data, tuple | list) or len(data) != 4:
        got = f"{len(data)} parts" if isinstance(data, tuple | list) else type(data).__name__
        do = "Hold some examples out: without them a baseline says nothing about generalisation."
        raise errors.InvalidInputError(expected="`data` as (x, y, x_test, y_test)", got=got, do=do)
    # The example axis is the first one everywhere, and as long for labels as for inputs.
    loss_object = require_loss(loss, "a baseline")
    x, y, x_test, y_test = data
    x = as_examples(x)
    y = jnp.asarray(as_array(y, "y"))
    x_test = as_examples(x_test, "x_test")
    y_test = jnp.asarray(as_array(y_test, "y_test"))
    _require_as_many("", x, y)
    _require_as_many("_test", x_test, y_test)
    shape = _output_shape(f, params, x, y)
    # Whether labels are class numbers is asked of both sets: floating point on one side is none.
    shape_test = (y_test.shape[0], *shape[1:])
    classes_test = None
    if are_class_numbers(y, shape) and are_class_numbers(y_test, shape_test):
        read_class_numbers(y, shape)  # refuses numbers that are no class, whatever the loss
        classes_test = read_class_numbers(y_test, shape_test, "y_test")
    return Data(
        x=x,
        labels=y,
        y=loss_object.read(y, shape),
        x_test=x_test,
        y_test=loss_object.read(y_test, shape_test),
        classes_test=classes_test,
        loss=loss_object,
        shape=shape,
    )


def _require_as_many(suffix: str, x: PyTree, y: jax.Array) -> None:
    """Refuse labels that are more or fewer than the examples."""
    sizes = {leaf.shape[0] for leaf in jax.tree.leaves(x)}
    if y.ndim == 0 or sizes != {y.shape[0]}:
        raise errors.InvalidInputError(
            expected=f"as many labels y{suffix} as examples x{suffix}",
            got=f"{y.shape[:1]} and {sorted(sizes)}",
            do="The example axis comes first.",
        )


def _output_shape(
    f: Callable[..., PyTree], params: PyTree, x: PyTree, y: jax.Array
) -> tuple[int, ...]:
    """The shape of the one array that f returns for the training examples."""
    with running():
        outputs = jax.eval_shape(f, params, x)  # traced only: nothing is computed
    shape = getattr(outputs, "shape", None)
    if shape is None or shape[:1] != y.shape[:1]:
        raise errors.InvalidInputError(
            expected=f"one array of outputs with the {y.shape[0]} examples on its first axis",
            got=type(outputs).__name__ if shape is None else f"shape {shape}",
            do="Select an output with output= of `functionalize`.",
        )
    return shape


def accuracy(
    outputs: Float[Array, "m ... c"], classes: Int[Array, "m ..."] | None
) -> Float[Array, ""] | None:
    """Share of examples whose largest output is their class; None where labels are no classes."""
    if classes is None:
        return None
    return jnp.mean(jnp.argmax(outputs, axis=-1) == classes)


def batches(n: int, size: int | None, steps: int, seed: int) -> Int[np.ndarray, "steps size"]:
    """Indices of the examples of every step, `[steps size]`: epochs in random order.

    `[1 n]` where every step takes all of them.
    """
    if size is not None and size < 1:
        raise errors.InvalidInputError(
            expected="`batch_size` of at least 1",
            got=repr(size),
            do="None takes all examples at every step.",
        )
    if size is None or size >= n or not steps:
        return np.arange(n)[None]
    rng = np.random.default_rng(seed)
    per_epoch = n // size  # what is left over of an epoch is left out
    n_epochs = -(-steps // per_epoch)  # rounded up
    epochs = []
    for _ in range(n_epochs):
        examples = rng.permutation(n)[: per_epoch * size]
        epochs.append(examples.reshape(per_epoch, size))
    return np.concatenate(epochs)[:steps]

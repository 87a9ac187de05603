"""What the network is trained on, and by which loss."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors

LossName = Literal["mse", "cross_entropy"]
LossLike = LossName | Callable[[Any, Any], Any] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """Training and test examples with labels, and the loss.

    Attributes:
        x: Training examples, arrays with the example axis first.
        y: Their labels: class numbers `[n]`, or targets shaped like the outputs.
        x_test: Test examples.
        y_test: Their labels.
        loss: `loss(outputs, y)`, one number for a batch.
        loss_name: What to call it.
        classes: Whether labels are class numbers.
        shape: Of the outputs on the training examples.
    """

    x: Any
    y: jax.Array
    x_test: Any
    y_test: jax.Array
    loss: Callable[[Any, Any], Any]
    loss_name: str
    classes: bool
    shape: tuple[int, ...]

    @property
    def n(self) -> int:
        """Number of training examples."""
        return self.y.shape[0]

    @property
    def m(self) -> int:
        """Number of test examples."""
        return self.y_test.shape[0]


def read_data(data: Any, loss: LossLike, f: Callable[..., Any], params: Any) -> Data:
    """Read `(x, y, x_test, y_test)` beside the outputs of f.

    Integers `[n]` beside outputs `[n C]` with C > 1 are class numbers. With a loss of the user other integers are
    targets like floating point numbers, counts for instance.

    Cost: a copy to the device, and f traced once.

    Args:
        data: The four.
        loss: "mse" (1/2 squared error, summed over outputs), "cross_entropy" (softmax, class numbers), a function
            `loss(outputs, y)` that returns one number for a batch, or None: cross-entropy for integer labels.
        f: `f(params, x)`.
        params: Its parameters.

    Returns:
        The data.

    Raises:
        InvalidInputError: When there are not four parts, examples, labels and outputs differ in number, class numbers
            are outside [0, C), or the loss is unknown or needs other labels.
    """
    if not isinstance(data, tuple | list) or len(data) != 4:
        got = f"{len(data)} parts" if isinstance(data, tuple | list) else type(data).__name__
        do = "Hold some examples out: without them a baseline says nothing about generalisation."
        raise errors.InvalidInputError(expected="`data` as (x, y, x_test, y_test)", got=got, do=do)
    x, y, x_test, y_test = jax.tree.map(jnp.asarray, tuple(data))
    for name, inputs, labels in (("", x, y), ("_test", x_test, y_test)):
        sizes = {leaf.shape[0] for leaf in jax.tree.leaves(inputs)}
        if labels.ndim == 0 or sizes != {labels.shape[0]}:
            raise errors.InvalidInputError(
                expected=f"as many labels y{name} as examples x{name}",
                got=f"{labels.shape[:1]} and {sorted(sizes)}",
                do="The example axis comes first.",
            )
    shape = _output_shape(f, params, x, y)
    integers = all(jnp.issubdtype(v.dtype, jnp.integer) or v.dtype == bool for v in (y, y_test))
    classes = integers and (
        not callable(loss) or (len(shape) == 2 and shape[1] > 1 and y.ndim == 1)
    )
    loss = loss or ("cross_entropy" if classes else "mse")
    known = {"mse": squared_error, "cross_entropy": cross_entropy}
    if not callable(loss) and (loss not in known or (loss == "cross_entropy") != classes):
        raise errors.InvalidInputError(
            expected='`loss` "cross_entropy" with class numbers, "mse" with floating point targets, or a function',
            got=f"loss={loss!r} and labels {y.dtype}{list(y.shape)}",
            do="For squared error on classes pass `jax.nn.one_hot(y, C)` as labels.",
        )
    if classes:
        y, y_test = (_class_numbers(labels, shape) for labels in (y, y_test))
    elif not callable(loss):
        _check_sizes(shape, y, y_test)
    function, name = (loss, _named(loss)) if callable(loss) else (known[loss], loss)
    return Data(x, y, x_test, y_test, function, name, classes, shape)


def require_targets(data: Data) -> None:
    """Refuse labels that a kernel cannot be regressed on: neither classes nor shaped like the outputs.

    Cost: none.

    Args:
        data: The data.

    Raises:
        InvalidInputError: When they are not.
    """
    if not data.classes:
        _check_sizes(data.shape, data.y, data.y_test)


def _output_shape(f: Callable[..., Any], params: Any, x: Any, y: jax.Array) -> tuple[int, ...]:
    found = jax.eval_shape(f, params, x)
    shape = getattr(found, "shape", None)
    if shape is None or shape[:1] != y.shape[:1]:
        raise errors.InvalidInputError(
            expected=f"one array of outputs with the {y.shape[0]} examples on its first axis",
            got=type(found).__name__ if shape is None else f"shape {shape}",
            do="Select an output with output= of `functionalize`.",
        )
    return shape


def _check_sizes(shape: tuple[int, ...], y: jax.Array, y_test: jax.Array) -> None:
    if any(labels.size != len(labels) * math.prod(shape[1:]) for labels in (y, y_test)):
        raise errors.InvalidInputError(
            expected="outputs [n C] beside class numbers, or as many outputs as targets",
            got=f"outputs {shape} and labels {y.shape}, {y_test.shape} for the test",
            do="Select an output with output=, or reshape the labels.",
        )


def _class_numbers(labels: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`[n]` from `[n]` or a column `[n 1]`."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or len(shape) != 2 or shape[1] == 1:
        raise errors.InvalidInputError(
            expected="class numbers [n] beside outputs [n C] with C > 1, or floating point targets",
            got=f"outputs {shape} and labels {labels.dtype}{list(labels.shape)}",
            do="Pass one-hot rows, counts or a single label as floating point targets, for squared error.",
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= shape[1]:
        raise errors.InvalidInputError(
            expected=f"class numbers in [0, {shape[1]})",
            got=f"values from {low} to {high}",
            do=f"The model has {shape[1]} outputs: number the classes from 0, and leave out examples without a label.",
        )
    return labels.astype(jnp.int32)


def _named(loss: Callable[..., Any]) -> str:
    """What a user's loss is called: never like one of ours, whatever its name."""
    name = getattr(loss, "__name__", "<lambda>")
    return "of the user" if name == "<lambda>" else f"`{name}` of the user"


def squared_error(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """Mean over examples of 1/2 ||f - y||^2, summed over outputs.

    Cost: one pass.

    Args:
        outputs: `[n ...]`.
        y: Targets, shaped like them.

    Returns:
        A number.
    """
    y = y.reshape(outputs.shape)  # [n] beside outputs [n 1] would broadcast to [n n]
    return 0.5 * jnp.sum((outputs - y) ** 2) / outputs.shape[0]


def cross_entropy(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """Mean softmax cross-entropy against class numbers.

    Cost: one pass.

    Args:
        outputs: `[n c]` logits.
        y: `[n]` class numbers.

    Returns:
        A number.
    """
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], axis=-1))


def accuracy(outputs: jax.Array, data: Data) -> Any:
    """Share of test examples whose largest output is their class; None where labels are no classes.

    Cost: one pass.

    Args:
        outputs: `[m c]` on the test examples.
        data: The data.

    Returns:
        A number, or None.
    """
    return jnp.mean(jnp.argmax(outputs, axis=-1) == data.y_test) if data.classes else None


def batches(n: int, size: int | None, steps: int, seed: int) -> np.ndarray:
    """Indices of the examples of every step: epochs in random order, or all of them.

    Cost: steps x size integers.

    Args:
        n: Number of training examples.
        size: Of a batch; None for all.
        steps: Number of steps.
        seed: Of the order.

    Returns:
        `[steps size]`, or `[1 n]` for full batches.

    Raises:
        InvalidInputError: When a batch would be empty.
    """
    if size is not None and size < 1:
        raise errors.InvalidInputError(
            expected="`batch_size` of at least 1",
            got=repr(size),
            do="None takes all examples at every step.",
        )
    if size is None or size >= n or not steps:
        return np.arange(n)[None]
    rng, per_epoch = np.random.default_rng(seed), n // size
    epochs = [
        rng.permutation(n)[: per_epoch * size].reshape(per_epoch, size)
        for _ in range(-(-steps // per_epoch))
    ]
    return np.concatenate(epochs)[:steps]

"""Outputs by name: the last token, the label's logit, the loss, or the activations of a layer.

The first three make selectors: functions of the outputs and `x` that pick or compute what is
differentiated. Activations are another matter: they are captured inside the model, by the adapter
of its library, and `capture` finds the one that was asked for among those that were captured.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, PyTree

from ntkdiag import errors
from ntkdiag.models.selectors import select


@dataclasses.dataclass(frozen=True)
class Activations:
    """Asks for what a layer computes in place of what the model returns."""

    path: str  # path of the layer, or of a value that was sown


@errors.public
def last_token(
    mask: str | Callable[[PyTree], ArrayLike] | None = None,
) -> Callable[[PyTree, PyTree], PyTree]:
    """Select the outputs at the last position of every sequence, f(x)_{n, t_n}.

    Args:
        mask: Where in `x` the mask of the valid positions is, `[n t]`, ones before zeros; a path,
            or a function of `x`. None: all sequences are full.

    Returns:
        For `output=` of `functionalize`: outputs `[n t ...]` -> `[n ...]`.

    Example:
        >>> import jax.numpy as jnp
        >>> last_token()(jnp.arange(6.0).reshape(2, 3), None)
        Array([2., 5.], dtype=float32)
    """

    def take_last(outputs: PyTree, x: PyTree) -> PyTree:
        if mask is None:
            return jax.tree.map(lambda leaf: leaf[:, -1], outputs)
        valid = jnp.asarray(select(mask, x), jnp.int32)
        last = valid.sum(axis=1) - 1  # [n t] -> [n]
        at_last = jax.vmap(lambda row, position: row[position])  # [n t ...], [n] -> [n ...]
        return jax.tree.map(lambda leaf: at_last(leaf, last), outputs)

    return take_last


@errors.public
def label_logit(
    labels: str | Callable[[PyTree], ArrayLike] = "labels",
) -> Callable[[ArrayLike, PyTree], Array]:
    """Select the output of every example's own label, f(x)_{n, y_n}.

    Args:
        labels: Where in `x` the integer labels are, `[n]`, or `[n t]` for one per position; a
            path, or a function of `x`.

    Returns:
        For `output=` of `functionalize`: logits `[n c]` -> `[n]`, or `[n t c]` -> `[n t]`.

    Example:
        >>> import jax.numpy as jnp
        >>> label_logit()(jnp.array([[1.0, 2.0], [3.0, 4.0]]), {"labels": jnp.array([1, 0])})
        Array([2., 3.], dtype=float32)
    """

    def take_label(logits: ArrayLike, x: PyTree) -> Array:
        y = jnp.asarray(select(labels, x))
        # [n c] and [n 1] -> [n 1] -> [n]
        return jnp.take_along_axis(jnp.asarray(logits), y[..., None], axis=-1)[..., 0]

    return take_label


@errors.public
def example_loss(
    loss: Callable[[PyTree, PyTree], ArrayLike],
    labels: str | Callable[[PyTree], PyTree] = "labels",
) -> Callable[[PyTree, PyTree], ArrayLike]:
    """Differentiate the loss of every example, l(f(x)_n, y_n).

    Args:
        loss: `loss(outputs, labels)` with one value per example, as the losses of Optax have it.
        labels: Where in `x` the labels are; a path, or a function of `x`.

    Returns:
        For `output=` of `functionalize`: outputs `[n ...]` -> losses `[n]`.

    Example:
        >>> import jax.numpy as jnp
        >>> squared = lambda y, t: 0.5 * jnp.sum((y - t) ** 2, axis=-1)
        >>> example_loss(squared)(jnp.array([[1.0, 2.0]]), {"labels": jnp.array([[0.0, 0.0]])})
        Array([2.5], dtype=float32)
    """

    def take_loss(outputs: PyTree, x: PyTree) -> ArrayLike:
        losses = loss(outputs, select(labels, x))
        if jnp.ndim(losses) == 0:
            raise errors.InvalidInputError(
                call="example_loss(loss)",
                expected="a loss with one value per example",
                got="a single number for the batch",
                do="Leave the mean over the batch out of the loss.",
            )
        return losses

    return take_loss


@errors.public
def activations(path: str) -> Activations:
    """Differentiate what a layer computes, or what the model sows, instead of what it returns.

    For Flax linen and NNX. With other libraries, return the activations from the model, or call
    another `method`.

    Args:
        path: Path of a layer, such as ``"encoder/Dense_0"``, or of a value that was sown, such as
            ``"encoder/features"``.

    Returns:
        For `output=` of `functionalize`.
    """
    return Activations(path)


def capture(calls: Iterable[tuple[str, Sequence[PyTree]]], asked: Activations) -> PyTree:
    """Find the activations that were asked for among all that a call of the model captured.

    `calls` pairs a path, which ends with ``__call__`` where it is that of a layer, with the values
    of all calls there; the values of what was called several times are numbered `path/0`, `path/1`.
    """
    # A layer has one value for every time it was called.
    captured: dict[str, PyTree] = {}
    for path, values in calls:
        name = path.removesuffix("__call__").rstrip("/")
        if len(values) == 1:
            captured[name] = values[0]
        else:
            for number, value in enumerate(values):
                captured[f"{name}/{number}"] = value
    return _activation_at(asked.path, captured)


def _activation_at(path: str, captured: Mapping[str, PyTree]) -> PyTree:
    """The activations of a path, or an error with the paths there are."""
    if path in captured:
        return captured[path]
    names = sorted(name for name in captured if name)  # the whole model has an empty name
    raise errors.InvalidInputError(
        expected=f'activations("{path}") to name a layer that is called once, or a value that is '
        "sown",
        got=f"a call that captured {', '.join(names) or 'nothing'}",
        do="Write the path as shown; a layer that is called several times has its calls numbered: "
        "path/0, path/1.",
    )

"""Outputs by name: the last token, the logit of the label, the loss of every example, the activations of a layer."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import errors
from ntkdiag.adapters.selectors import select


@dataclasses.dataclass(frozen=True)
class Activations:
    """Asks for what a layer computes in place of what the model returns.

    Attributes:
        path: Path of the layer, or of a value that was sown.
    """

    path: str


def last_token(mask: str | Callable[[Any], Any] | None = None) -> Callable[[Any, Any], Any]:
    """Select the outputs at the last position of every sequence, f(x)_{n, t_n}.

    Args:
        mask: Where in `x` the mask of the valid positions is, `[n t]`, ones before zeros; a path, or a function of
            `x`. None: all sequences are full.

    Returns:
        For `output=` of `functionalize`: outputs `[n t ...]` -> `[n ...]`.

    Example:
        >>> import jax.numpy as jnp
        >>> last_token()(jnp.arange(6.0).reshape(2, 3), None)
        Array([2., 5.], dtype=float32)
    """

    def take(y: Any, x: Any) -> Any:
        if mask is None:
            return jax.tree.map(lambda leaf: leaf[:, -1], y)
        last = jnp.sum(jnp.asarray(select(mask, x), jnp.int32), axis=1) - 1
        return jax.tree.map(lambda leaf: jax.vmap(lambda row, t: row[t])(leaf, last), y)

    return take


def label_logit(labels: str | Callable[[Any], Any] = "labels") -> Callable[[Any, Any], jax.Array]:
    """Select the output of every example's own label, f(x)_{n, y_n}.

    Args:
        labels: Where in `x` the integer labels are, `[n]`, or `[n t]` for one per position; a path, or a function of
            `x`.

    Returns:
        For `output=` of `functionalize`: logits `[n c]` -> `[n]`, or `[n t c]` -> `[n t]`.

    Example:
        >>> import jax.numpy as jnp
        >>> label_logit()(jnp.array([[1.0, 2.0], [3.0, 4.0]]), {"labels": jnp.array([1, 0])})
        Array([2., 3.], dtype=float32)
    """

    def take(y: Any, x: Any) -> jax.Array:
        chosen = jnp.asarray(select(labels, x))
        return jnp.take_along_axis(y, chosen[..., None], axis=-1)[..., 0]

    return take


def example_loss(
    loss: Callable[[Any, Any], Any], labels: str | Callable[[Any], Any] = "labels"
) -> Callable[[Any, Any], jax.Array]:
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

    def take(y: Any, x: Any) -> jax.Array:
        values = loss(y, select(labels, x))
        if jnp.ndim(values):
            return values
        raise errors.InvalidInputError(
            errors.message(
                "example_loss(loss)",
                expected="a loss with one value per example",
                got="a single number for the batch",
                do="Leave the mean over the batch out of the loss.",
            )
        )

    return take


def activations(path: str) -> Activations:
    """Differentiate what a layer computes, or what the model sows, in place of what the model returns.

    For Flax linen and NNX; for the others, return the activations from the model, or call another `method`.

    Args:
        path: Path of a layer, such as ``"encoder/Dense_0"``, or of a value that was sown, such as
            ``"encoder/features"``.

    Returns:
        For `output=` of `functionalize`.
    """
    return Activations(path)


def by_layer(calls: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Name what was captured by the path of its layer, or of its sown value.

    Args:
        calls: Pairs of a path, with the method ``__call__`` at its end where it is that of a layer, and the tuple of
            the values of all calls.

    Returns:
        Path -> value; the calls of what was called several times are numbered.
    """
    named: dict[str, Any] = {}
    for path, values in calls:
        name, several = path.removesuffix("__call__").rstrip("/"), len(values) > 1
        for index, value in enumerate(values):
            named[f"{name}/{index}" if several else name] = value
    return named


def captured(found: Mapping[str, Any], wanted: Activations, *, call: str) -> Any:
    """Find the activations that were asked for among those that were captured.

    Args:
        found: Path -> value.
        wanted: What was asked for.
        call: The call to name in the message, in code form.

    Returns:
        The value.

    Raises:
        InvalidInputError: If nothing of that path was captured.
    """
    if wanted.path in found:
        return found[wanted.path]
    raise errors.InvalidInputError(
        errors.message(
            call,
            expected=f'activations("{wanted.path}") to name a layer that is called once, or a value that is sown',
            got=f"a call that captured {', '.join(sorted(filter(None, found))) or 'nothing'}",
            do="Write the path as shown; a layer that is called several times has its calls numbered: path/0, path/1.",
        )
    )

"""The loss that a Keras model was compiled with, as a loss of ntkdiag.

Keras takes means where others take sums: of a squared error without a half over the outputs too,
of the binary cross-entropy over the outputs too. And its cross-entropy takes probabilities unless
it is told otherwise, of which the curvature is another one. So what is not known for certain to be
the same loss is not taken.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
from jaxtyping import Array, Float

from ntkdiag import losses

# What Keras clips probabilities to before it takes their logarithm.
_EPSILON = 1e-7


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class MeanSquaredError(losses.MSE):
    """The mean of (f - y)^2 over examples and outputs, as Keras has it."""

    def denominator_for(self, shape: tuple[int, ...]) -> float:
        """N C / 2 for outputs [N C]: l is half the square."""
        return 0.5 * math.prod(shape)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class BinaryCrossentropy(losses.SigmoidCrossEntropy):
    """The mean of the cross-entropy of sigmoids over examples and outputs, as Keras has it."""

    def denominator_for(self, shape: tuple[int, ...]) -> float:
        """N C for outputs [N C]."""
        return float(math.prod(shape))


def log_probabilities(outputs: Float[Array, "... c"]) -> Float[Array, "... c"]:
    """Logarithms of the probabilities that a model returns, as logits: `output=` of functionalize.

    softmax(log p) = p: the cross-entropy of these logits is that of the model, and so is the
    curvature of Gauss and Newton, because what logits and log p differ by, the same number for all
    classes, does not enter either. The margin is then exactly that of the logits. The kernel is
    not: it is that of log p.

    Args:
        outputs: Probabilities, the last axis that of the classes.

    Returns:
        log p, of p within [1e-7, 1 - 1e-7] as Keras clips it.
    """
    return jnp.log(jnp.clip(outputs, _EPSILON, 1.0 - _EPSILON))


class Compiled(NamedTuple):
    """The compiled loss as ntkdiag knows it, or why not.

    Attributes:
        loss: None where it is not known.
        reason: Why not, as a sentence.
    """

    loss: losses.Loss | None
    reason: str = ""


def compiled_loss(model: keras.Model, output: object = None) -> Compiled:
    """Read the loss of `model.compile(loss=...)`; `output` selects of what the model returns."""
    if output is not None and output is not log_probabilities:
        return Compiled(None, "With output= the compiled loss is not that of what is measured.")
    if model.losses:
        return Compiled(None, "Layers add to the compiled loss (regularizers, add_loss).")
    kind, config = _identified(getattr(model, "loss", None))
    odd = _odd_settings({**config, "loss_weights": _loss_weights(model)})
    if odd:
        return Compiled(None, f"The compiled loss has {odd}.")
    takes_logits = bool(config.get("from_logits", False))
    if kind in ("categoricalcrossentropy", "sparsecategoricalcrossentropy"):
        if takes_logits == (output is None):
            return Compiled(losses.CrossEntropy())
        if takes_logits:
            return Compiled(
                None,
                "output=log_probabilities takes probabilities, and the compiled loss takes logits.",
            )
        return Compiled(
            None,
            "The model returns probabilities (from_logits=False), whose curvature is not that of "
            "logits. Pass output=ntkdiag_keras.log_probabilities, or return logits and compile "
            "with from_logits=True.",
        )
    if output is None and kind in ("meansquarederror", "mse"):
        return Compiled(MeanSquaredError())
    if output is None and kind == "binarycrossentropy":
        if takes_logits:
            return Compiled(BinaryCrossentropy())
        return Compiled(
            None,
            "The model returns probabilities (from_logits=False), whose curvature is not that of "
            "logits. Return logits and compile with from_logits=True.",
        )
    return Compiled(None, f"The compiled loss {kind or 'of this model'} is not known to ntkdiag.")


def _identified(loss: Any) -> tuple[str, dict[str, Any]]:
    """The name of a loss of Keras, in small letters alone, and its settings."""
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    if type(loss).__module__.startswith("keras.") and isinstance(loss, keras.losses.Loss):
        return type(loss).__name__.lower(), loss.get_config()
    if getattr(loss, "__module__", "").startswith("keras."):
        return loss.__name__.replace("_", "").lower(), {}
    return "", {}


def _loss_weights(model: keras.Model) -> Any:
    """The weights of the compiled loss, which Keras keeps beside it."""
    return getattr(model._compile_loss, "_user_loss_weights", None)


def _odd_settings(settings: dict[str, Any]) -> str:
    """Settings of a loss that ntkdiag does not have, as they are written."""
    usual = {
        "reduction": ("sum_over_batch_size", "mean", "mean_with_sample_weight"),
        "label_smoothing": (0, 0.0),
        "ignore_class": (None,),
        "axis": (-1,),
        "loss_weights": (None,),
    }
    odd = []
    for name, allowed in usual.items():
        if settings.get(name, allowed[0]) not in allowed:
            odd.append(f"{name}={settings[name]!r}")
    return ", ".join(odd)

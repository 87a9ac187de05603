"""What outputs decide for: the largest one of several classes, or yes and no for every output.

Classes lie along the last axis, so that tokens `[N T V]` have a decision at every position. Under a
sigmoid, with labels that are no classes, every output decides by its sign.
"""

from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from ntkdiag.losses import Loss, SigmoidCrossEntropy

# None where there is nothing to decide: a single output that is no logit of a sigmoid.
Rule: TypeAlias = Literal["largest", "sign"] | None


def decision_rule(
    shape: tuple[int, ...], targets: Float[np.ndarray, "n *o"] | None, loss: Loss | None
) -> Rule:
    """How outputs of a shape decide, beside targets of the same shape where there are labels."""
    if isinstance(loss, SigmoidCrossEntropy) and not _are_classes(targets):
        return "sign"
    return "largest" if len(shape) > 1 and shape[-1] > 1 else None


def accuracy(
    outputs: Float[np.ndarray, "n *o"], targets: Float[np.ndarray, "n *o"], rule: Rule
) -> float | None:
    """The share of right decisions; None unless the targets are decisions themselves."""
    if rule == "largest" and _are_classes(targets):
        return float(np.mean(outputs.argmax(axis=-1) == targets.argmax(axis=-1)))
    if rule == "sign" and _are_binary(targets):
        return float(np.mean((outputs > 0) == (targets == 1)))
    return None


def agreement(
    a: Float[np.ndarray, "n *o"], b: Float[np.ndarray, "n *o"], rule: Rule
) -> float | None:
    """The share of decisions that are the same by two outputs."""
    decided_a = _decided(a, rule)
    decided_b = _decided(b, rule)
    if decided_a is None or decided_b is None:
        return None
    return float(np.mean(decided_a == decided_b))


def class_numbers(targets: Float[np.ndarray, "n *o"]) -> Int[np.ndarray, " n"] | None:
    """`[n]`, where targets `[n c]` are one-hot rows; None where they are not."""
    if targets.ndim == 2 and _are_classes(targets):
        return targets.argmax(axis=1)
    return None


def _decided(
    outputs: Float[np.ndarray, "n *o"], rule: Rule
) -> Int[np.ndarray, "n *t"] | Bool[np.ndarray, "n *o"] | None:
    """What outputs decide for."""
    if rule is None:
        return None
    return outputs.argmax(axis=-1) if rule == "largest" else outputs > 0


def _are_classes(targets: Float[np.ndarray, "n *o"] | None) -> bool:
    """Whether targets are one-hot along the last axis."""
    if targets is None or targets.ndim < 2 or targets.shape[-1] < 2:
        return False
    return _are_binary(targets) and bool((targets.sum(axis=-1) == 1).all())


def _are_binary(targets: Float[np.ndarray, "n *o"]) -> bool:
    """Whether targets are all 0 or 1."""
    return bool(np.isin(targets, (0, 1)).all())

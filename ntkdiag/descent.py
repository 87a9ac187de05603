"""Gradient descent, with all settings that decide its stability.

Gradient descent at learning rate eta with a preconditioner P and decoupled weight decay w is

    theta <- theta - eta (P^-1 d + w theta),

where the direction d follows the gradient g as `kind` says:

- ``"heavy-ball"``: d <- beta d + g, as `optax.sgd(momentum=beta)`;
- ``"nesterov"``: v <- beta v + g, d = beta v + g, as `optax.sgd(momentum=beta, nesterov=True)`;
- ``"ema"``: d <- beta d + (1 - beta) g, as the first moment of Adam.

On a quadratic loss of curvature h = lambda_max(P^-1/2 H P^-1/2) it diverges when

    eta (h / tau + w / 2) > 1,

by the characteristic roots of the recursion; tau is `Descent.threshold`.
"""

import dataclasses
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ntkdiag import display, errors
from ntkdiag.arrays import Number, is_concrete, require_in_range, require_positive
from ntkdiag.pytree_dataclass import pytree

MomentumKind: TypeAlias = Literal["heavy-ball", "nesterov", "ema"]

KINDS = ("heavy-ball", "nesterov", "ema")


@pytree("learning_rate", "momentum", "weight_decay", "preconditioner")
@dataclasses.dataclass(frozen=True)
class Descent:
    """Gradient descent, as far as its stability and its closed form depend on it.

    theta <- theta - eta (P^-1 d + w theta), with the direction d of the kind of momentum.

    Attributes:
        learning_rate: eta; None if it is sought (by `critical_learning_rate`) or read from the
            state of the optimizer (by `Monitor`).
        momentum: beta, in [0, 1).
        kind: The kind of momentum, "heavy-ball", "nesterov" or "ema"; without momentum they are the
            same.
        weight_decay: w, decoupled weight decay per unit of the learning rate.
        preconditioner: P, as `ntk` takes it: a number, or a tree like the parameters of numbers or
            arrays; None for 1.

    Raises:
        InvalidInputError: When a number is out of its range, or the kind is unknown.

    Example:
        >>> Descent(0.1, momentum=0.5).threshold
        3.0
    """

    learning_rate: Number | None = None
    momentum: Number = 0.0
    kind: MomentumKind = "heavy-ball"
    weight_decay: Number = 0.0
    preconditioner: PyTree | None = None

    def __repr__(self) -> str:
        return display.described(self)

    @errors.public
    def __post_init__(self) -> None:
        if self.learning_rate is not None:
            do = "Learning rates are numbers."
            require_in_range(self.learning_rate, "learning_rate", 0.0, np.inf, do)
        require_in_range(
            self.momentum, "momentum", 0.0, 1.0, "Pass the optimizer's beta (Adam: b1)."
        )
        do = "It is decoupled, and per unit of the learning rate."
        require_in_range(self.weight_decay, "weight_decay", 0.0, np.inf, do)
        if self.kind not in KINDS:
            raise errors.InvalidInputError(
                expected=" or ".join(f'kind="{kind}"' for kind in KINDS),
                got=repr(self.kind),
                do="optax.sgd(momentum=...) is heavy-ball, with nesterov=True nesterov; "
                "Adam is ema.",
            )

    @property
    def threshold(self) -> Number:
        """tau: gradient descent on a quadratic diverges when eta times the curvature exceeds it.

        - heavy-ball: 2 (1 + beta);
        - nesterov: 2 (1 + beta) / (1 + 2 beta);
        - ema: 2 (1 + beta) / (1 - beta), 38 at beta = 0.9.

        All three are 2 without momentum.
        Source: Cohen et al. 2021 (arXiv 2103.00065), 2022 (2207.14484).
        """
        beta = self.momentum
        if self.kind == "heavy-ball":
            return 2.0 * (1.0 + beta)
        if self.kind == "nesterov":
            return 2.0 * (1.0 + beta) / (1.0 + 2.0 * beta)
        return 2.0 * (1.0 + beta) / (1.0 - beta)

    def critical_rate(self, curvature: Number) -> Number:
        """The rate at which a quadratic of this curvature h diverges: 1 / (h / tau + w / 2)."""
        return 1.0 / (curvature / self.threshold + 0.5 * self.weight_decay)

    def margin(self, curvature: Number) -> Number:
        """The learning rate over the critical one, eta (h / tau + w / 2).

        Raises:
            InvalidInputError: When there is no learning rate.
        """
        per_rate = curvature / self.threshold + 0.5 * self.weight_decay
        return self.require_learning_rate() * per_rate

    def describe(self) -> str:
        """The numbers of the update rule in words."""
        parts = []
        if self.learning_rate is not None:
            parts.append(f"learning rate {float(self.learning_rate):g}")
        kind = "" if self.kind == "heavy-ball" else f"{self.kind} "
        parts.append(f"{kind}momentum {float(self.momentum):g}")
        if self.weight_decay:
            parts.append(f"weight decay {float(self.weight_decay):g}")
        return " and ".join(parts)

    def require_learning_rate(self) -> Number:
        """The learning rate.

        Raises:
            InvalidInputError: When there is none.
        """
        if self.learning_rate is None:
            raise errors.InvalidInputError(
                expected="a learning rate in `descent`",
                got="none",
                do="Pass Descent(learning_rate, ...), or the learning rate itself.",
            )
        return self.learning_rate


DescentLike: TypeAlias = Descent | Number


def as_descent(descent: DescentLike) -> Descent:
    """Read the argument `descent`: a number is the learning rate of plain gradient descent."""
    if isinstance(descent, Descent):
        return descent
    if isinstance(descent, int | float | np.number | jax.Array):
        return Descent(descent)
    raise errors.InvalidInputError(
        expected="`descent` as a Descent, or the learning rate of plain gradient descent",
        got=f"a {type(descent).__name__}",
        do="Pass ntkdiag.Descent(learning_rate, momentum=..., weight_decay=...).",
    )


def plain_learning_rate(descent: DescentLike) -> Number:
    """The rate of plain gradient descent; NaN where traced momentum or decay are not zero."""
    rule = as_descent(descent)
    learning_rate = rule.require_learning_rate()
    require_positive(learning_rate, "learning_rate")
    beyond_plain = rule.momentum + rule.weight_decay  # both are 0 or more
    is_plain = beyond_plain == 0
    is_known = is_concrete(is_plain)
    if rule.preconditioner is not None or (is_known and not is_plain):
        raise errors.InvalidInputError(
            expected="plain gradient descent",
            got=f"{rule!r}",
            do="predict.iterate_descent takes momentum. Far below critical it is plain descent at "
            "learning_rate / (1 - momentum). Decay pulls to zero: train ntkdiag.linearized_model.",
        )
    if is_known:
        return learning_rate
    return jnp.where(is_plain, learning_rate, jnp.nan)

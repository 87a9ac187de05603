"""In which mode a model is evaluated: dropout off or on, statistics running, of the batch, or held fixed."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import errors

MODES = ("eval", "dropout", "train")
_TRAINING: tuple[str, ...] = ("train", "training", "is_training")
_EVALUATING: tuple[str, ...] = ("deterministic", "use_running_average", "inference")


@dataclasses.dataclass(frozen=True, eq=False)
class Mode:
    """What is on while the model is evaluated.

    Attributes:
        name: ``"eval"``, ``"dropout"`` or ``"train"``.
        statistics: A batch whose normalisation statistics are computed once and held fixed (train mode only).
    """

    name: str = "eval"
    statistics: Any = None

    @property
    def trains(self) -> bool:
        """Whether dropout is on."""
        return self.name != "eval"

    @property
    def joint(self) -> bool:
        """Whether the batch is handed to the model as it is, so that examples may interact."""
        return self.name == "train" and self.statistics is None

    @property
    def flags(self) -> dict[str, bool]:
        """The usual switches between training and evaluation, with their values in this mode."""
        return dict.fromkeys(_TRAINING, self.trains) | dict.fromkeys(_EVALUATING, not self.trains)

    def __str__(self) -> str:
        """What kernels write into their convention."""
        return self.name if self.statistics is None else f"{self.name}, fixed statistics"


def alone(call: Callable[[Any], Any], x: Any) -> Any:
    """Evaluate every example as a batch of one: whatever is drawn at random is then the same for all.

    Args:
        call: Batch -> outputs, both with the example axis first.
        x: The batch.

    Returns:
        The outputs of the batch.
    """
    return jax.vmap(lambda one: jax.tree.map(_only, call(jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], one))))(x)


def _only(leaf: Any) -> Any:
    if jnp.shape(leaf)[:1] == (1,):
        return leaf[0]
    raise errors.InvalidInputError(
        errors.message(
            "f(params, x)",
            expected="outputs with the example axis first",
            got=f"an output of shape {jnp.shape(leaf)} for a batch of one example",
            do="Return one row of outputs per example; in this mode every example is evaluated by itself.",
        )
    )


def require_normalisation(found: bool, *, call: str) -> None:
    """Refuse to fix the statistics of a model that computes none.

    Args:
        found: Whether the model has a layer whose statistics can be fixed.
        call: The call to name in the message, in code form.

    Raises:
        InvalidInputError: If it has none.
    """
    if not found:
        raise errors.InvalidInputError(
            errors.message(
                call,
                expected="a model with the library's own BatchNorm where `statistics=` is given",
                got="none in it",
                do='Leave `statistics=` out: mode="dropout" is train mode without statistics of a batch.',
            )
        )

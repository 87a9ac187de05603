"""The mode a model is evaluated in: dropout off or on, and where normalization takes statistics.

| mode                    | dropout                     | normalization uses              |
|-------------------------|-----------------------------|---------------------------------|
| eval                    | off                         | running statistics              |
| dropout                 | on, one mask for all        | running statistics              |
| train                   | on, a mask for each example | those of the batch at hand      |
| train, no dropout       | off                         | those of the batch at hand      |

Examples interact in the last two only. The last one is for `in_training`, and cannot be asked for
by name.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, PyTree

from ntkdiag import errors

MODES = ("eval", "dropout", "train")
# Modes, as they are written, in which the model gets the batch as a whole.
JOINT_MODES = ("train", "train, no dropout")
# Names under which models take the switch between training and evaluation.
_TRUE_IN_TRAINING: tuple[str, ...] = ("train", "training", "is_training")
_TRUE_IN_EVALUATION: tuple[str, ...] = ("deterministic", "use_running_average", "inference")


@dataclasses.dataclass(frozen=True, eq=False)
class Mode:
    """What is on while the model is evaluated."""

    name: str = "eval"  # ``"eval"``, ``"dropout"`` or ``"train"``
    # Whether the dropout layers of the library drop nothing, although the model is switched to
    # training; its normalization takes the batch at hand for the whole one then, also where it
    # would ask other devices.
    without_dropout: bool = False

    @property
    def trains(self) -> bool:
        """Whether the model is switched to training."""
        return self.name != "eval"

    @property
    def joint(self) -> bool:
        """Whether the model gets the batch as a whole, so that examples may interact."""
        return self.name == "train"

    @property
    def shares_mask(self) -> bool:
        """Whether dropout is on with one mask for all examples of a call."""
        return self.name == "dropout"

    @property
    def switches(self) -> dict[str, bool]:
        """The usual switches between training and evaluation, with their values in this mode."""
        training = dict.fromkeys(_TRUE_IN_TRAINING, self.trains)
        evaluation = dict.fromkeys(_TRUE_IN_EVALUATION, not self.trains)
        return training | evaluation

    def __str__(self) -> str:
        """What kernels write into their convention."""
        return f"{self.name}, no dropout" if self.without_dropout else self.name


def one_by_one(evaluate: Callable[[PyTree], PyTree], x: PyTree) -> PyTree:
    """Evaluate every example as a batch of one: all of them draw the same random numbers."""

    # [...] -> [1 ...] -> the model -> [1 o] -> [o]
    def of_one(example: PyTree) -> PyTree:
        batch_of_one = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], example)
        return jax.tree.map(_only_row, evaluate(batch_of_one))

    return jax.vmap(of_one)(x)


def _only_row(outputs: ArrayLike) -> Array:
    """The row of an output for a batch of one example."""
    shape = jnp.shape(outputs)
    if shape[:1] != (1,):
        raise errors.InvalidInputError(
            expected="outputs with the example axis first",
            got=f"an output of shape {shape} for a batch of one example",
            do="Return one row of outputs per example; in this mode every example is evaluated by "
            "itself.",
        )
    return jnp.asarray(outputs)[0]


@functools.cache
def unswitchable(kind: type, switch: str, n_positional: int) -> type:
    """A subclass of a kind of layer, with a switch that is on in all its calls."""
    # Made once for each kind: JAX finds what it compiled by the class of an Equinox module.

    class RunningStatistics(kind):
        def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
            # Behind its positional arguments, the switch itself may follow.
            return super().__call__(*args[:n_positional], **{**kwargs, switch: True})

    return RunningStatistics

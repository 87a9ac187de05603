"""Where training takes the linearized model: the displacement d of its parameters.

The linearized model has the outputs f + J d on the examples it is trained on, and the gradient
J^T dL/df there. So its training needs products with J alone, and an optimizer only sees gradients:
each step is the optimizer's own `update` on that gradient, and d grows by what it returns.
"""

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.gradients.refitting import FunctionSpaceLoss
from ntkdiag.matrix_free.operator import NTKOperator

# gradient, state, params -> update, state
Update: TypeAlias = Callable[..., tuple[PyTree, PyTree]]


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedExamples:
    """Examples that the linearized model is trained on."""

    operator: NTKOperator  # j of their outputs
    loss: FunctionSpaceLoss  # sum_i l_i in the outputs, up to `scale`
    scale: float  # what it is multiplied by, so that its mean is L

    @property
    def denominator(self) -> float:
        """D, by which the sum of the terms is divided in L."""
        return self.operator.n_examples / self.scale

    def gradient(self, displacement: PyTree | None) -> PyTree:
        """The gradient of L at params + d, a tree like the parameters; None is d = 0."""
        outputs = np.asarray(self.operator.outputs(), np.float64)
        if displacement is not None:
            outputs = outputs + np.asarray(self.operator.tangent(displacement), np.float64)
        pull = self.loss.gradient(outputs.reshape(1, -1)) / self.denominator
        return self.operator.cotangent(jnp.asarray(pull.reshape(-1), self.operator.dtype))


def displacement_by_steps(
    trained: TrainedExamples, update: Update, state: PyTree, steps: int
) -> PyTree:
    """d after some steps of an optimizer, each a call of its `update`."""
    params = trained.operator.params
    displacement, position = None, params
    for _ in range(steps):
        gradient = trained.gradient(displacement)
        made, state = _taken(update, gradient, state, position)
        displacement = made if displacement is None else jax.tree.map(jnp.add, displacement, made)
        position = jax.tree.map(lambda p, d: p + d.astype(p.dtype), params, displacement)
    return displacement


def _taken(update: Update, gradient: PyTree, state: PyTree, params: PyTree) -> tuple:
    """What an optimizer makes of a gradient, refused where it needs more or diverges."""
    try:
        made, state = update(gradient, state, params)
    except Exception as error:  # whatever an unknown optimizer raises
        line = (str(error).strip().splitlines() or [""])[0]
        raise errors.InvalidInputError(
            argument="optimizer=...",
            expected="an optimizer whose update(gradient, state, params) runs on these parameters",
            got=f"{type(error).__name__}: {line}",
            do="Pass the opt_state= that belongs to it; wrap what needs more arguments so that it "
            "gets them.",
        ) from error
    if all(np.isfinite(np.asarray(leaf, np.float64)).all() for leaf in jax.tree.leaves(made)):
        return made, state
    raise errors.InvalidInputError(
        argument="optimizer=...",
        expected="finite updates of the linearized model",
        got="NaN or Inf",
        do="The rate is above the critical one, or the state holds what is not finite: take a "
        "smaller rate, or fewer steps.",
    )

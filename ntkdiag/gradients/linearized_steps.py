"""Where training takes the linearized model: the displacement d of its parameters.

The linearized model has the outputs f + J d on the examples it is trained on, and the gradient
J^T dL/df there. So its training needs products with J alone, and an optimizer only sees gradients:

1. By steps: the optimizer's own `update` on that gradient, and d grows by what it returns.
2. In closed form, for plain descent on a squared loss. With K = J J^T and D the denominator of L,

       d = J^T alpha,    alpha = -(eta / D) sum_{t < T} (1 - eta K / D)^t (f - y),

   which costs the same for any number of steps T.
"""

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.engine.ntk import ntk
from ntkdiag.gradients.refitting import FunctionSpaceLoss
from ntkdiag.matrix_free.operator import NTKOperator

# gradient, state, params -> update, state
Update: TypeAlias = Callable[..., tuple[PyTree, PyTree]]

# Rows of a kernel that is decomposed rather than stepped along.
_MOST_ROWS = 2048


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
    """1. d after some steps of an optimizer, each a call of its `update`."""
    params = trained.operator.params
    displacement, position = None, params
    for _ in range(steps):
        gradient = trained.gradient(displacement)
        made, state = _taken(update, gradient, state, position)
        displacement = made if displacement is None else jax.tree.map(jnp.add, displacement, made)
        position = jax.tree.map(lambda p, d: p + d.astype(p.dtype), params, displacement)
    return displacement


def has_closed_form(trained: TrainedExamples) -> bool:
    """Whether plain descent on these examples has a closed form that is cheap to evaluate."""
    is_squared = trained.loss.loss.has_unit_curvature(trained.loss.labels)
    return is_squared and trained.operator.shape[0] <= _MOST_ROWS


def displacement_in_closed_form(
    trained: TrainedExamples, learning_rate: float, steps: int
) -> PyTree:
    """2. d after some steps of plain gradient descent on a squared loss."""
    operator = trained.operator
    full = ntk(operator.f, operator.params, operator.x, reduction="full")
    eigenvalues, modes = np.linalg.eigh(np.asarray(full.matrix, np.float64))
    # z = eta lambda / D, and sum_{t < T} (1 - z)^t = (1 - (1 - z)^T) / z, which is T at z = 0.
    z = learning_rate / trained.denominator * np.maximum(eigenvalues, 0.0)
    is_small = z < 0.5
    small = np.where(is_small & (z > 0), z, 0.25)
    large = np.where(is_small, 1.0, z)
    of_small = -np.expm1(steps * np.log1p(-small)) / small
    of_large = (1 - (1 - large) ** steps) / large
    sums = np.where(z == 0, steps, np.where(is_small, of_small, of_large))

    outputs = np.asarray(operator.outputs(), np.float64).reshape(1, -1)
    residual = trained.loss.gradient(outputs).reshape(-1)
    alpha = -learning_rate / trained.denominator * (modes @ (sums * (modes.T @ residual)))
    return operator.cotangent(jnp.asarray(alpha, operator.dtype))


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

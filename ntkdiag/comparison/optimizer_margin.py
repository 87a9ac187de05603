"""The margin of stability of the optimizer that a checkpoint was trained with, from its state.

    margin = lambda_max(E^1/2 J^T (d^2 L / df^2) J E^1/2) + b / 2

with E and b of the optimizer's next step (`ntkdiag.optimizer`), for which it gets the gradient of
the loss on the examples that are trained on:

1. the state that was saved is put into the containers of the optimizer;
2. the next step is taken on trial, and tells E, b and the learning rate;
3. the eigenvalue comes from some products v -> J E J^T v. No other kernel is formed: E differs from
   parameter to parameter, and from checkpoint to checkpoint.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag import _jax, errors
from ntkdiag.analysis.curvature_products import CurvatureProducts, around
from ntkdiag.comparison.settings import Settings
from ntkdiag.comparison.sides import Side
from ntkdiag.matrix_free.lanczos import Vector
from ntkdiag.optimizer.next_step import NextStep, NextSteps
from ntkdiag.optimizer.saved_state import Optimizer, OptimizerState, restored_state

NO_STATE = (
    "There is no optimizer state in the checkpoint: the margin is NaN. descent= states the update "
    "rule."
)


@dataclasses.dataclass(frozen=True)
class Stability:
    """How close the learning rate of one checkpoint is to divergence; NaN for what is not known.

    Attributes:
        critical_learning_rate: Where the margin would be 1.
        margin: Learning rate over the critical one.
        learning_rate: Of the next step; None where none was stated.
        status: "ok", or a sentence on what to know, or why the margin is not known.
        update_norm: Size of the optimizer's next update; None where the update rule was stated.
    """

    critical_learning_rate: float
    margin: float | None
    learning_rate: float | None
    status: str = "ok"
    update_norm: float | None = None


def state_of(side: Side, optimizer: Optimizer) -> OptimizerState | None:
    """The optimizer's state of one side; None where it has none.

    Raises:
        StructureError: The state is of another optimizer.
    """
    params = side.functional.params
    return restored_state(optimizer, params, side.optimizer_state, side.label)


def require_some_state(sides: Sequence[Side], states: Sequence[OptimizerState | None]) -> None:
    """Refuse sides none of which has an optimizer's state, where one was asked for."""
    if any(state is not None for state in states):
        return
    held = [f"{side.label}: {side.top_level or 'parameters'}" for side in sides]
    raise errors.InvalidInputError(
        argument="optimizer=...",
        expected="the state of the optimizer beside the parameters, as opt_state, optimizer, "
        "optimizer_state or optim, or a pair (parameters, state)",
        got="; ".join(dict.fromkeys(held)),
        do="Pass descent=ntkdiag.Descent(...), which states the update rule, or checkpoints with "
        "the state.",
    )


class OptimizerMargins:
    """Margins of one optimizer and one function, which is compiled once for all checkpoints."""

    def __init__(self, f: Callable[..., PyTree], settings: Settings, optimizer: Optimizer):
        self.f = f
        self.settings = settings
        self._next_steps = NextSteps(optimizer)

    def at(
        self,
        params: PyTree,
        kwargs: Mapping[str, PyTree],
        outputs: Float[np.ndarray, "n *o"],
        state: OptimizerState | None,
        roundoff: float,
    ) -> Stability:
        """The margin at one checkpoint, with its outputs on the probe.

        Cost: a gradient, and about 10 products of two forward passes and a backward one.
        """
        if state is None:
            return Stability(math.nan, math.nan, math.nan, NO_STATE, math.nan)
        step = self.next_step(params, kwargs, outputs.shape, state)
        margin = math.nan
        if not step.is_unknown:
            response = state.as_params(step.reading.response)
            curvature = self._largest(params, kwargs, outputs, response, roundoff)
            margin = float(step.reading.margin(curvature))
        return Stability(
            critical_learning_rate=step.learning_rate / margin if margin > 0 else math.nan,
            margin=margin,
            learning_rate=step.learning_rate,
            status=step.status,
            update_norm=step.update_norm,
        )

    def next_step(
        self,
        params: PyTree,
        kwargs: Mapping[str, PyTree],
        shape: tuple[int, ...],
        state: OptimizerState,
    ) -> NextStep:
        """What the optimizer does next, with the gradient of the probe; outputs have this shape."""
        gradient = self._gradient(params, self.settings.x, self._labels(shape), kwargs)
        return self._next_steps.read(state.state, state.as_held(params), state.as_held(gradient))

    def _largest(
        self,
        params: PyTree,
        kwargs: Mapping[str, PyTree],
        outputs: Float[np.ndarray, "n *o"],
        response: PyTree,
        roundoff: float,
    ) -> float:
        """The largest eigenvalue of L^T J E J^T L / D."""
        loss = self.settings.loss
        assert loss is not None  # `read_settings` saw to it

        def product(v: Vector, /) -> Vector:
            """J E J^T v."""
            cotangent = v.reshape(outputs.shape)  # [k] -> [n *o]
            change = self._product(params, response, self.settings.x, cotangent, kwargs)
            return np.asarray(change, np.float64).reshape(-1)

        products = CurvatureProducts(
            product=around(product, loss, outputs, self.settings.y),
            size=outputs.size,
            n_examples=outputs.shape[0],
            denominator=loss.denominator_for(outputs.shape),
            roundoff=roundoff,
        )
        return float(products.largest().values[0]) / float(products.denominator)

    def _labels(self, shape: tuple[int, ...]) -> PyTree:
        """The labels as the loss reads them."""
        loss = self.settings.loss
        assert loss is not None  # `read_settings` saw to it
        return loss.read(self.settings.y, shape)

    @functools.cached_property
    def _gradient(self) -> Callable[..., PyTree]:
        loss = self.settings.loss
        assert loss is not None  # `read_settings` saw to it

        def loss_of(
            params: PyTree, x: PyTree, y: PyTree, kwargs: Mapping[str, PyTree]
        ) -> Float[Array, ""]:
            outputs = self.f(params, x, **kwargs)
            return loss(outputs.astype(_jax.at_least_float32(outputs.dtype)), y)

        return _compiled(jax.grad(loss_of))

    @functools.cached_property
    def _product(self) -> Callable[..., Array]:
        def product(
            params: PyTree,
            response: PyTree,
            x: PyTree,
            cotangent: Float[Array, "n *o"],
            kwargs: Mapping[str, PyTree],
        ) -> Float[Array, "n *o"]:
            def outputs_at(params: PyTree) -> Float[Array, "n *o"]:
                return self.f(params, x, **kwargs)

            outputs, pull = jax.vjp(outputs_at, params)
            (pulled,) = pull(cotangent.astype(outputs.dtype))
            weighted = jax.tree.map(_times, pulled, response)
            _, change = jax.jvp(outputs_at, (params,), (weighted,))
            return change

        return _compiled(product)


def _compiled(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """A program with products in full precision."""

    def in_full_precision(*args: PyTree) -> PyTree:
        with jax.default_matmul_precision("highest"):
            return function(*args)

    # XLA on CPU compiles some float32 reductions wrongly by default: these options are checked.
    return jax.jit(in_full_precision, compiler_options=_jax.compiler_options(reduces=True))


def _times(leaf: Array, response: Array) -> Array:
    """E times a gradient, in the dtype of that."""
    return (leaf * response).astype(jnp.result_type(leaf))

"""What an optimizer would do at the next step of training, from its state and a gradient.

A checkpoint lies between two steps. The next one is taken on trial: `update` is called as training
would call it, and what it made is read as `watch` reads the updates of training. So the reading is
verified at every checkpoint, whatever was saved there.

1. A sum of gradients that is still empty, as before the first step, does not tell how much of it is
   kept: the trial begins with one that is not.
2. Where gradients are accumulated, the step is as many micro-steps as it takes.
3. `read_descent` reads the step, and `learning_rate_at` the rate.
"""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from ntkdiag.optimizer.descent_reading import (
    REASONS,
    DescentReading,
    Reading,
    read_descent,
    unread,
)
from ntkdiag.optimizer.fitted_update import usual_buffers
from ntkdiag.optimizer.quiet_point import accumulator_paths, floats_of, signs
from ntkdiag.optimizer.rate_of_next_step import learning_rate_at
from ntkdiag.optimizer.saved_state import Optimizer

# Micro-steps after which no update is to be expected any more.
_MOST_MICRO_STEPS = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class NextStep:
    """The next step of an optimizer.

    Attributes:
        reading: How it answers gradients there.
        learning_rate: Its learning rate; NaN where it is not known.
        status: "ok", or a sentence on what to know, or why nothing is known.
        update_norm: The size of the update.
    """

    reading: DescentReading
    learning_rate: float
    status: str
    update_norm: float

    @property
    def is_unknown(self) -> bool:
        """Whether the optimizer was not recognised."""
        return math.isnan(float(self.reading.margin(0.0)))


class NextSteps:
    """Reads the next step of one optimizer, at one checkpoint after the other."""

    def __init__(self, optimizer: Optimizer):
        self.optimizer = optimizer
        self._update = jax.jit(optimizer.update)
        self._read = jax.jit(self._reading, static_argnames="by_fit")
        self._objection = REASONS[Reading.REFUSED]

    def read(self, state: PyTree, params: PyTree, gradient: PyTree) -> NextStep:
        """The step that these three lead to, as the optimizer holds them; compiled once."""
        state = _with_momentum(state, gradient)
        try:
            state, made, n_calls = self._made(state, params, gradient)
        except Exception as error:  # whatever an unknown optimizer needs beside these
            lines = str(error).strip().splitlines() or [""]
            status = (
                "The optimizer's update cannot be called with gradient, state and parameters alone "
                f"({type(error).__name__}: {lines[0]}): the margin is NaN."
            )
            reading = unread(params, Reading.REFUSED)
            return NextStep(reading, math.nan, status, math.nan)
        step = _steps_before(state) * n_calls
        reading = self._read(gradient, state, params, made, step, by_fit=True)
        # A fit is compiled fast. What it leaves unexplained may be explained by derivatives.
        if int(reading.status) == Reading.UNEXPLAINED and usual_buffers(state, params) is not None:
            reading = self._read(gradient, state, params, made, step, by_fit=False)
        kind = Reading(int(reading.status))
        status = self._objection if kind == Reading.REFUSED else REASONS[kind]
        return NextStep(
            reading=reading,
            learning_rate=learning_rate_at(self._update, state, params),
            status="ok" if kind == Reading.RECOGNISED else status,
            update_norm=float(_norm(made)),
        )

    def _made(self, state: PyTree, params: PyTree, gradient: PyTree) -> tuple[PyTree, PyTree, int]:
        """State before the update, the update, and how many calls of `update` make a step."""
        accumulates = bool(accumulator_paths(state))
        made, after = self._update(gradient, state, params)
        for _ in range(_MOST_MICRO_STEPS if accumulates else 0):
            if _norm(made) > 0.0:
                break
            state = after
            made, after = self._update(gradient, state, params)
        return state, made, 1 + _micro_steps(state)

    def _reading(
        self,
        gradient: PyTree,
        state: PyTree,
        params: PyTree,
        made: PyTree,
        step: Int[Array, ""] | int,
        by_fit: bool,
    ) -> DescentReading:
        """The reading, inside a program."""
        return read_descent(
            self.optimizer.update,
            gradient,
            state,
            params,
            made,
            step=step,
            note=self._note,
            by_fit=by_fit,
        )

    def _note(self, objection: str) -> None:
        self._objection = objection


def _with_momentum(state: PyTree, gradient: PyTree) -> PyTree:
    """A state whose sums of gradients are not empty: the gradient, with other signs."""
    arrays, whole = floats_of(state)
    gradients, _ = floats_of(gradient)
    filled = {}
    for path, leaf in arrays.items():
        # "[1].trace['kernel']" -> "['kernel']"
        found = re.fullmatch(r".*?\.trace((?:\[.*|\..*)?)", path)
        if found is None or found.group(1) not in gradients:
            continue
        if jnp.any(leaf != 0.0):
            return state
        of_gradient = gradients[found.group(1)]
        filled[path] = (signs(of_gradient) * of_gradient).astype(leaf.dtype)
    return whole(filled)


def _steps_before(state: PyTree) -> int:
    """Steps that were made before, as the state counts them; 0 where it does not."""
    counts = [0]
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if jax.tree_util.keystr(path).endswith(".count"):
            counts.append(int(leaf))
    return max(counts)


def _micro_steps(state: PyTree) -> int:
    """Micro-steps of this step that were made before; 0 where there are none."""
    counts = [0]
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if jax.tree_util.keystr(path).endswith(".mini_step"):
            counts.append(int(leaf))
    return max(counts)


def _norm(tree: PyTree) -> Array:
    """The size of an update."""
    squares = [jnp.sum(jnp.square(leaf)) for leaf in floats_of(tree)[0].values()]
    return jnp.sqrt(sum(squares, start=jnp.zeros(())))

"""One kernel to compute: everything checked, and the ways of contracting chosen."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import _compat
from ntkdiag.kernels import plan as planning
from ntkdiag.kernels.arguments import is_traced
from ntkdiag.kernels.compiled import Compiled
from ntkdiag.kernels.gram import Gram
from ntkdiag.kernels.program import Program
from ntkdiag.kernels.reduction import Reduction
from ntkdiag.kernels.ways import Way


@dataclasses.dataclass(frozen=True, eq=False)
class Side:
    """Rows or columns: a function, its examples, and how its factors are formed.

    `kwargs` are its own keyword arguments, None where they are those of the task.
    """

    f: Callable
    program: Program
    x: Any
    n: int
    ways: tuple[Way, ...]
    kwargs: dict | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A kernel to compute.

    Attributes:
        rows: The row examples.
        columns: The column examples; None where they are the rows.
        params: Parameters.
        kwargs: Keyword arguments of f.
        reduction: Over outputs.
        gram: Products and groups.
        keys: Names of the groups; empty for one kernel.
        weights: 1/P for every factor; None without preconditioner.
        check: Whether independence of examples is verified.
        call: For messages.
    """

    rows: Side
    columns: Side | None
    params: Any
    kwargs: dict
    reduction: Reduction
    gram: Gram
    keys: list[str]
    weights: list | None
    check: bool
    call: str

    @property
    def sides(self) -> list[Side]:
        """Rows, and columns where they are others."""
        return [self.rows] if self.columns is None else [self.rows, self.columns]

    @property
    def single(self) -> bool:
        """Whether all parts are added up as they are."""
        return self.gram.n_groups == 1 and self.weights is None

    @property
    def traced(self) -> bool:
        """Whether this is inside someone's trace: what is computed becomes a part of their program."""
        given = self.params, self.kwargs, self.weights, [(side.x, side.kwargs) for side in self.sides]
        return is_traced(given) or any(side.program.closes_over_tracers for side in self.sides)

    @property
    def placed(self) -> bool:
        """Whether somebody chose the devices."""
        chosen = jax.config.jax_default_device is not None  # type: ignore[attr-defined]
        return chosen or _compat.committed((self.params, self.kwargs, *(side.x for side in self.sides)))

    @functools.cached_property
    def dtype(self) -> Any:
        """That of the kernel."""
        return self.gram.dot.dtype(jnp.result_type(*(side.program.tangents.dtype for side in self.sides)))

    def basis(self, side: Side) -> jax.Array | np.ndarray:
        """Output directions of a side."""
        tangents = side.program.tangents
        if side.program.joint:
            return np.eye(tangents.n_outputs, dtype=tangents.dtype)
        reduction = self.reduction if side is self.rows else self.reduction.columns or self.reduction
        return reduction.basis(tangents.dtype)

    def kwargs_of(self, side: Side) -> dict:
        """Keyword arguments of f for a side."""
        return self.kwargs if side.kwargs is None else side.kwargs

    def plan(self, budget: int | None, spill: bool) -> planning.Plan:
        """The plan within a budget, with a file for what does not fit or without; see `planning.make`."""
        m = self.columns.n if self.columns else 0
        side = self.rows
        given = side.program, side.ways, self.basis(side), self.reduction, self.dtype, self.gram.n_groups, side.n, m
        return planning.make(*given, budget, self.call, self.single, spill)

    def shape(self, n: int, m: int) -> tuple[int, ...]:
        """Shape of a tile."""
        return self.reduction.tile_shape(n, m)

    def compiled(self, key: tuple, function: Callable, donate: int | None = None) -> Compiled:
        """A contraction, compiled once per program, ways and shape."""
        return self.rows.program.compiled((*key, self.gram), function, donate=donate)

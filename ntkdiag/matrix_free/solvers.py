"""How a linear system is solved: strategies with their settings.

`lineax.CG` is not used: it returns NaN where the curvature along a direction is below 200 eps n,
which for 100,000 rows in float32 is 2.4; `jax.scipy.sparse.linalg.cg` reports neither iterations
nor residual.
"""

import dataclasses
from typing import Literal

from ntkdiag import errors


@dataclasses.dataclass(frozen=True)
class CG:
    """Conjugate gradients.

    In function space the unknowns are one number per example and output and the matrix is
    K + ridge I; in parameter space they are one per parameter, with J^T J + ridge I. Both give the
    same step; take the smaller.

    Cost: one product per iteration.

    Attributes:
        space: "function" or "parameters".
        tolerance: Residual, relative to the right-hand side, at which to stop.
        max_steps: Most iterations.
    """

    space: Literal["function", "parameters"] = "function"
    tolerance: float = 1e-5
    max_steps: int = 1000

    @errors.public
    def __post_init__(self) -> None:
        if self.space not in ("function", "parameters"):
            raise errors.InvalidInputError(
                expected='"function" or "parameters"',
                got=repr(self.space),
                do="Take the one with fewer unknowns.",
            )
        _require_end(self.tolerance, self.max_steps)


@dataclasses.dataclass(frozen=True)
class LSMR:
    """LSMR of lineax on [J; sqrt(ridge) I], in parameter space.

    It never squares the condition number, so it resolves small eigenvalues that CG in float32 does
    not; without ridge it finds the solution of least norm.

    Cost: one product with J and one with J^T per iteration.

    Attributes:
        tolerance: Relative tolerances of the residual and of the normal equations.
        max_steps: Most iterations.
    """

    tolerance: float = 1e-5
    max_steps: int = 1000

    @errors.public
    def __post_init__(self) -> None:
        _require_end(self.tolerance, self.max_steps)


def _require_end(tolerance: float, max_steps: int) -> None:
    """Refuse settings with which an iteration would not end."""
    if not 0 < tolerance < 1:
        raise errors.InvalidInputError(
            expected="a tolerance in (0, 1)",
            got=repr(tolerance),
            do="1e-5 is the default.",
        )
    if not isinstance(max_steps, int) or max_steps < 1:
        raise errors.InvalidInputError(
            expected="a positive integer",
            got=repr(max_steps),
            do="1000 is the default.",
        )

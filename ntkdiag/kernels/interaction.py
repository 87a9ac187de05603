"""Do the examples of a batch interact? Checked on the first call, never assumed."""

from typing import Any

import jax
import numpy as np

from ntkdiag import errors


def check_independent(out: Any, alone: Any, call: str) -> None:
    """Compare f of the whole batch with f of each example alone (already at hand from the factors).

    Args:
        out: Outputs of the batch.
        alone: Outputs of each example evaluated by itself [n C].
        call: For the message.

    Raises:
        ExamplesInteractError: They differ by more than rounding.
    """
    together = np.concatenate([np.asarray(v, np.float64).reshape(v.shape[0], -1) for v in jax.tree.leaves(out)], axis=1)
    alone = np.asarray(alone, np.float64)
    dtype = jax.tree.leaves(out)[0].dtype
    scale = np.abs(alone[np.isfinite(alone)]).max(initial=0.0)
    with np.errstate(invalid="ignore"):
        error = np.abs(together - alone)
    worst = float(
        np.nan_to_num(error, nan=np.inf if np.isnan(error).any() and np.isfinite(together).all() else 0).max()
    )
    if worst <= float(jax.numpy.finfo(dtype).eps) ** 0.5 * max(scale, 1e-30):
        return
    raise errors.ExamplesInteractError(
        errors.message(
            call,
            expected="outputs of one example that do not depend on the other examples of the batch",
            got=f"outputs that change by {worst:.2g} (scale {scale:.2g}) when an example is evaluated by itself",
            do='Use eval mode (running statistics) or mode="dropout" (one mask for all examples), or examples="joint" '
            "to differentiate the batch as a whole.",
        )
    )

"""What a peer hands to the worker that measures it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Job:
    """A kernel that is ready to be computed, and computed again.

    Attributes:
        compute: Computes the kernel (float32) and returns when it is finished.
        layout: Axes of a full kernel: "nomp" or "nmop".
        scale: Whole over measured, where only some of the blocks of a large kernel are computed.
        divided: What a trace was divided by (neural-tangents takes means).
        plan: Predicted flops and peak bytes, where the peer can say.
    """

    compute: Callable[[], Any]
    layout: str = "nomp"
    scale: float = 1.0
    divided: float = 1.0
    plan: Callable[[], dict[str, Any]] | None = None

    def canonical(self, kernel: Any, n: int) -> np.ndarray:
        """The kernel of the first n examples, [n m] or [n o m p], float64."""
        kernel = np.asarray(kernel)
        if kernel.ndim == 4 and self.layout == "nmop":
            kernel = kernel[:n, :n].transpose(0, 2, 1, 3)
        else:
            kernel = kernel[:n, :, :n] if kernel.ndim == 4 else kernel[:n, :n]
        return kernel.astype(np.float64) * self.divided

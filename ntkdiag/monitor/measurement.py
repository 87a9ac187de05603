"""What one measurement holds."""

import dataclasses
import enum
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

QUANTITIES = (
    "eigenvalues",
    "trace",
    "participation_ratio",
    "drift",
    "distance_centred",
    "alignment",
    "critical_learning_rate",
    "margin",
)


class Status(enum.IntEnum):
    """What became of a measurement."""

    UNMEASURED = 0
    MEASURED = 1
    NON_FINITE = 2  # the kernel or the outputs hold NaN or infinity
    FIXED_MOVED = 3  # arrays the measured function holds fixed have other values in training


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["step", "status", *QUANTITIES], meta_fields=[]
)
@dataclasses.dataclass(frozen=True, eq=False)
class Measurement:
    """The diagnostics of one step; NaN wherever a quantity does not exist or could not be measured.

    Every number is that of the kernel the convention record names ("reduction"): the full kernel Theta = J J^T of shape
    [(N C) (N C)], or a reduction of it to [N N].

    Attributes:
        step: The step the parameters belong to.
        status: 0 not measured, 1 measured, 2 NaN or infinity in kernel or outputs, 3 arrays that the
            measured function holds fixed have other values in training.
        eigenvalues: The largest eigenvalues, descending, `[top_k]`; NaN below the noise floor of the kernel.
        trace: Sum of all eigenvalues.
        participation_ratio: (sum lambda)^2 / sum lambda^2, the effective number of modes.
        drift: ||K_t - K_0||_F / ||K_0||_F, with K_0 the kernel of the first measurement.
        distance_centred: 1 - cosine of the centred K_t and K_0: change of direction alone.
        alignment: Centred kernel-target alignment with the labels.
        critical_learning_rate: The learning rate above which descent on the quadratic model of the loss diverges.
        margin: learning rate / critical learning rate; about 1 at the edge of stability.
    """

    step: Any
    status: Any
    eigenvalues: Any
    trace: Any
    participation_ratio: Any
    drift: Any
    distance_centred: Any
    alignment: Any
    critical_learning_rate: Any
    margin: Any

    def values(self, name: str = "ntk") -> dict[str, float | list[float]]:
        """The numbers under the names the writers see: "ntk_trace", "ntk_eigenvalues", ...

        Args:
            name: Replaces "ntk" in every name.

        Returns:
            A float, or a list of floats for the eigenvalues, under each name; `<name>_status` is the status.
        """
        numbers: dict[str, float | list[float]] = {
            f"{name}_{quantity}": np.asarray(getattr(self, quantity), np.float64).tolist()
            for quantity in QUANTITIES
        }
        return {**numbers, f"{name}_status": int(self.status)}


def unmeasured(top_k: int, dtype: Any) -> Measurement:
    """The measurement before the first one: NaN of the right shapes.

    Args:
        top_k: Number of eigenvalues.
        dtype: Dtype of the numbers.

    Returns:
        A `Measurement` with status UNMEASURED and step -1.
    """
    numbers = {name: jnp.full((), jnp.nan, dtype) for name in QUANTITIES}
    numbers["eigenvalues"] = jnp.full((top_k,), jnp.nan, dtype)
    return Measurement(
        jnp.asarray(-1, jnp.int32), jnp.asarray(Status.UNMEASURED, jnp.int32), **numbers
    )

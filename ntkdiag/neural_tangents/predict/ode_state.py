"""The state of training in function space, to look at or to go on from."""

import dataclasses
import functools
from typing import Any

import jax


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["fx_train", "fx_test", "qx_train", "qx_test"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class ODEState:
    """Outputs, and their velocities where there is momentum.

    Attributes:
        fx_train: Outputs on the training set.
        fx_test: Outputs on the test set, or None.
        qx_train: Velocities of `fx_train`; None without momentum, or for zero.
        qx_test: Velocities of `fx_test` likewise.
    """

    fx_train: Any = None
    fx_test: Any = None
    qx_train: Any = None
    qx_test: Any = None

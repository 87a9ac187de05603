"""The convention record of a watch without data: what its numbers mean."""

from collections.abc import Sequence
from typing import Any

import jax

import ntkdiag
from ntkdiag.models.paths import describe
from ntkdiag.monitor.arrays_of_step import ArrayOrder, arrays_by_path
from ntkdiag.monitor.convention_record import axes_by_layer, read_optimizer, schedule_in_words
from ntkdiag.monitor.optimizer_reader import OptimizerReader
from ntkdiag.monitor.schedule import Schedule

_NO_DATA = (
    "Measured without data: norms, and the optimizer as it is read. Pass f, train= and loss= for "
    "the margin and all else."
)


def record_without_data(
    reader: OptimizerReader,
    order: ArrayOrder,
    params: Any,
    *,
    every: Schedule,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Everything needed to read the numbers later, as plain JSON values."""
    return {
        "source": "watch",
        "call": "watch",
        **settings_without_data(params),
        "schedule": schedule_in_words(every),
        "instruments": [],
        "layers": list(order.layers.names),
        **read_optimizer(reader),
        "notes": [_NO_DATA, *notes, *reader.failures],
        **axes_by_layer(order.layers.names),
        "versions": {"ntkdiag": ntkdiag.__version__, "jax": jax.__version__},
    }


def settings_without_data(params: Any = None) -> dict[str, Any]:
    """The entries of a record that are the same over a run; parameters as far as they are known."""
    if params is None:
        return {}
    arrays = arrays_by_path(params)
    return {"parameters": {path: describe(leaf) for path, leaf in arrays.items()}}

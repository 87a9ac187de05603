"""One line about how long the kernels of a comparison or a run take, before they are computed."""

import functools
from collections.abc import Mapping

from jaxtyping import PyTree

from ntkdiag.engine import plan
from ntkdiag.measuring.probed_function import ProbedFunction
from ntkdiag.progress import announce

WORTH_SAYING = 10.0  # seconds


def announce_forecast(
    function: ProbedFunction,
    params: PyTree,
    kwargs: Mapping[str, PyTree],
    *,
    work: str,
    n_checkpoints: int,
    show: bool | None,
) -> None:
    """Say what the kernels of so many checkpoints take by the plan of one, where that is long."""
    settings = function.settings
    f = functools.partial(function.f, **kwargs)
    planned = plan(f, params, settings.x, reduction=settings.reduction, memory=settings.memory)
    seconds = n_checkpoints * planned.seconds
    if seconds >= WORTH_SAYING:
        announce(f"{work}: about {seconds / 60.0:.1f} min for the kernels alone", show)

"""What a kernel function was asked for."""

import dataclasses
from collections.abc import Callable
from typing import Literal

from ntkdiag.neural_tangents.axes import AxesLike
from ntkdiag.neural_tangents.implementation import NtkImplementation
from ntkdiag.neural_tangents.vmap_axes import VmapAxes


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """The arguments of `empirical_ntk_fn` or `empirical_nngp_fn`, and those of `batch`.

    Attributes:
        kernel: Which of the two.
        f: The function.
        trace_axes: As given.
        diagonal_axes: As given.
        vmap_axes: As a triple; None where nothing was said.
        implementation: How; not for the NNGP.
        cross_terms: Whether kernels between different outputs are wanted.
        check: Whether f is evaluated to see if examples interact.
        memory: Budget as given.
        tile: Largest block of examples; None for as many as fit.
        devices: Over how many devices the rows are spread.
        on_host: Whether results are numpy arrays.
    """

    kernel: Literal["ntk", "nngp"]
    f: Callable
    trace_axes: AxesLike
    diagonal_axes: AxesLike
    vmap_axes: VmapAxes | None = None
    implementation: NtkImplementation = NtkImplementation.AUTO
    cross_terms: bool = False
    check: bool = True
    memory: int | float | str | None = None
    tile: int | None = None
    devices: int = 1
    on_host: bool = False

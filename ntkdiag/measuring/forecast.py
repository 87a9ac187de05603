"""What a comparison or a run of checkpoints will take, said before it begins.

The outputs of the first checkpoint on the probe are computed twice: the first call compiles, the
second is timed. With F the operations of one forward pass by their count, and t its time,

    passes of the network    by the plan of each kernel, or as multiples of F, at the rate F / t
    contracting factors      by the plan, at the rate of products here
    eigenvectors             9 rows^3, at that rate
    compiling                so many times what compiling the forward pass took, as was measured

Right within a factor of three or so: it tells seconds from minutes and minutes from hours.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping

import jax
from jaxtyping import PyTree

from ntkdiag.engine.ntk import plan
from ntkdiag.engine.planning.cost import jaxpr_cost
from ntkdiag.kernel.reduction import RandomProjections, ReductionLike, reduction_of_leaves
from ntkdiag.measuring.probed_function import ProbedFunction
from ntkdiag.measuring.settings import Settings
from ntkdiag.progress import announce

# Forecasts of less are not worth a line.
WORTH_SAYING = 10.0
# Compiling all programs of a measurement over compiling a forward pass, as transformers had it.
_PROGRAMS = 15.0
_EIGENVECTORS = 9.0  # operations over rows^3
_OF_A_DERIVATIVE = 3.0  # forward passes that outputs with their derivative along a direction take
_OF_A_PRODUCT = 6.0  # and a product with J E J^T, a backward pass with it
_N_PRODUCTS = 15  # of a largest eigenvalue


@dataclasses.dataclass(frozen=True)
class ForwardPass:
    """The outputs on a probe: what they take here.

    Attributes:
        seconds: Once compiled.
        compiling: The first call over that.
        flops: By count; 0 where there are no products.
    """

    seconds: float
    compiling: float
    flops: float

    @staticmethod
    def timed(
        function: ProbedFunction, params: PyTree, kwargs: Mapping[str, PyTree]
    ) -> "ForwardPass":
        """Compute the outputs twice, by the program that is used later."""
        x = function.x
        begun = time.perf_counter()
        function.outputs(params, kwargs, x)
        compiled = time.perf_counter()
        function.outputs(params, kwargs, x)
        ended = time.perf_counter()
        jaxpr = jax.make_jaxpr(functools.partial(function.f, **kwargs))(params, x)
        flops = jaxpr_cost(jaxpr, [True] * len(jaxpr.in_avals)).flops
        seconds = ended - compiled
        return ForwardPass(seconds, max(0.0, compiled - begun - seconds), float(flops))

    def seconds_of(self, flops: float | int) -> float:
        """The time of so many operations of the network; 0 where they cannot be counted."""
        return self.seconds * flops / self.flops if self.flops > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What measuring checkpoints takes.

    Attributes:
        work: What is measured, in words.
        seconds_of_each: Seconds of one checkpoint by itself.
        n_checkpoints: How many.
        seconds_of_pairs: Of all pairs.
        seconds_of_compiling: Of all programs, once.
    """

    work: str
    seconds_of_each: float
    n_checkpoints: int
    seconds_of_pairs: float
    seconds_of_compiling: float

    @property
    def seconds(self) -> float:
        """All together."""
        of_all = self.n_checkpoints * self.seconds_of_each
        return of_all + self.seconds_of_pairs + self.seconds_of_compiling

    def __str__(self) -> str:
        """One line for logs."""
        parts = [f"{duration(self.seconds_of_each)} a checkpoint"]
        if self.seconds_of_pairs >= 1.0:
            parts.append(f"{duration(self.seconds_of_pairs)} for all pairs")
        if self.seconds_of_compiling >= 1.0:
            parts.append(f"{duration(self.seconds_of_compiling)} to compile")
        return f"{self.work}: about {duration(self.seconds)} ({', '.join(parts)})"


def duration(seconds: float) -> str:
    """A time as a forecast has it, to a digit or two."""
    if seconds < 1.0:
        return "under 1 s"
    if seconds < 100.0:
        return f"{seconds:.2g} s"
    if seconds < 100.0 * 60.0:
        return f"{seconds / 60.0:.2g} min"
    return f"{seconds / 3600.0:.2g} h"


def announce_forecast(forecast: Forecast, show: bool | None) -> None:
    """Say a forecast where the work is long, unless progress is switched off."""
    if forecast.seconds >= WORTH_SAYING:
        announce(str(forecast), show)


def forecast_of(
    function: ProbedFunction,
    params: PyTree,
    kwargs: Mapping[str, PyTree],
    *,
    work: str,
    n_checkpoints: int,
    n_ways: int,
    leaves_of_pairs: bool,
) -> Forecast:
    """What so many checkpoints take, with so many ways from one to another that are linearized.

    `kwargs` is what else the function takes; `leaves_of_pairs` says whether the kernels of single
    leaves are those of all pairs of examples, or of each example with itself.
    """
    settings, held_out = function.settings, function.held_out
    forward = ForwardPass.timed(function, params, kwargs)
    f = functools.partial(function.f, **kwargs)
    seconds_of_kernel = functools.partial(_of_kernel, f, params, forward, settings)
    n_outputs = math.prod(function.outputs_of_one)
    seconds = seconds_of_kernel(settings.x, settings.reduction)
    if leaves_of_pairs:
        of_leaves = reduction_of_leaves(settings.reduction)
        seconds += seconds_of_kernel(settings.x, of_leaves, per_leaf=True)
    else:  # the same passes once more
        planned = plan(f, params, settings.x, reduction=settings.reduction, memory=settings.memory)
        seconds += forward.seconds_of(planned.network_flops)
    if held_out is not None:
        seconds += seconds_of_kernel(held_out.x, held_out.reduction)
    # A margin of the optimizer, or of a reduced kernel, takes products with the full one.
    is_reduced = settings.reduction != "full" and n_outputs > 1
    by_products = settings.optimizers is not None or (leaves_of_pairs and is_reduced)
    if by_products and settings.loss is not None and settings.probes.train is not None:
        seconds += _N_PRODUCTS * _OF_A_PRODUCT * forward.seconds
    return Forecast(
        work=f"{work}, {_kernels_in_words(settings, n_outputs)}",
        seconds_of_each=seconds,
        n_checkpoints=n_checkpoints,
        seconds_of_pairs=n_ways * _OF_A_DERIVATIVE * forward.seconds,
        seconds_of_compiling=_PROGRAMS * forward.compiling,
    )


def _of_kernel(
    f: Callable[..., PyTree],
    params: PyTree,
    forward: ForwardPass,
    settings: Settings,
    x: PyTree,
    reduction: ReductionLike,
    *,
    per_leaf: bool = False,
) -> float:
    """The time of one kernel with its eigenvectors, which those of leaves do without."""
    planned = plan(f, params, x, reduction=reduction, per_leaf=per_leaf, memory=settings.memory)
    rate = planned.flops / planned.seconds if planned.seconds > 0 else math.inf
    contracted = planned.contraction_flops
    if not per_leaf:
        rows = planned.n * (planned.directions if reduction == "full" else 1)
        contracted += _EIGENVECTORS * rows**3
    return forward.seconds_of(planned.network_flops) + contracted / rate


def _kernels_in_words(settings: Settings, n_outputs: int) -> str:
    """The kernels that are measured."""
    reduction = settings.reduction
    outputs = "1 output" if n_outputs == 1 else f"{n_outputs:,} outputs"
    of = f"{settings.n_examples} examples with {outputs}"
    if isinstance(reduction, RandomProjections):
        return f"kernels of {of}, estimated from {reduction.k} random directions of these"
    return f"{reduction} kernels of {of}"

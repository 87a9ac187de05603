"""The function of one or more checkpoints beside the probes that it is measured on."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.jaxtools.precision import in_full_precision, roundoff_of
from ntkdiag.kernel.reduction import reduction_of_leaves
from ntkdiag.measuring.labels_of_probes import (
    HeldOutProbe,
    ProbeLabels,
    read_held_out,
    read_labels,
)
from ntkdiag.measuring.leaf_parts import LeafTraces, Traces, leaf_kernels
from ntkdiag.measuring.settings import Settings


@dataclasses.dataclass(frozen=True, eq=False)
class ProbedFunction:
    """A function with probes and settings; of a whole run it is one object, compiled once."""

    f: Callable[..., PyTree]  # `f(params, x, **kwargs)`
    settings: Settings  # probes, reduction, loss, update rule
    labels: ProbeLabels | None  # labels of the probe of the kernels; None without
    # Held-out examples beside those of `train`; None where one probe is all there is.
    held_out: HeldOutProbe | None
    outputs_of_one: tuple[int, ...]  # shape of the outputs of one example
    roundoff: float  # unit roundoff of the coarsest dtype that f computes in

    @staticmethod
    def of(
        f: Callable[..., PyTree],
        params: PyTree,
        kwargs: Mapping[str, PyTree],
        settings: Settings,
        outputs_of_one: tuple[int, ...],
    ) -> "ProbedFunction":
        """Read labels and "auto" beside the outputs of a function, at some of its parameters."""
        labels = read_labels(settings.probes.of_kernel, settings, outputs_of_one)
        held_out = read_held_out(settings, outputs_of_one)
        settings = settings.for_outputs(math.prod(outputs_of_one))
        roundoff = roundoff_of(functools.partial(f, **kwargs), params, settings.x)
        return ProbedFunction(f, settings, labels, held_out, outputs_of_one, roundoff)

    def at(self, f: Callable[..., PyTree], params: PyTree) -> "ProbedFunction":
        """The same beside the function of other parameters, such as those of the other side."""
        if f is self.f:
            return self
        roundoff = roundoff_of(f, params, self.x)
        return dataclasses.replace(self, f=f, roundoff=roundoff)

    @property
    def x(self) -> PyTree:
        """The probe of the kernels."""
        return self.settings.x

    def outputs(
        self, params: PyTree, kwargs: Mapping[str, PyTree], x: PyTree
    ) -> Float[np.ndarray, "n *o"]:
        """Outputs in float64."""
        return np.asarray(self._evaluate(params, x, **kwargs), np.float64)

    def leaf_kernels(
        self, params: PyTree, kwargs: Mapping[str, PyTree]
    ) -> dict[str, Float[np.ndarray, "n n"]]:
        """The kernel of each leaf, traced over outputs."""
        f = functools.partial(self.f, **kwargs) if kwargs else self.f
        reduction = reduction_of_leaves(self.settings.reduction)
        return leaf_kernels(f, params, self.x, self.settings.memory, reduction)

    def leaf_traces(self, params: PyTree, kwargs: Mapping[str, PyTree]) -> Traces:
        """The traces of these kernels, which cost much less."""
        return self._leaf_traces(params, self.x, **kwargs)

    @functools.cached_property
    def _leaf_traces(self) -> LeafTraces:
        reduction = reduction_of_leaves(self.settings.reduction)
        n_outputs = math.prod(self.outputs_of_one)
        return LeafTraces(self.f, n_outputs, self.settings.memory, reduction)

    @functools.cached_property
    def _evaluate(self) -> Callable[..., Array]:
        # XLA on CPU compiles some float32 reductions wrongly by default: these options are checked.
        return jax.jit(in_full_precision(self.f), compiler_options=compiler_options(reduces=True))

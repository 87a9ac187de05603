"""The function of one or more checkpoints beside the probes that it is measured on."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Container, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag.engine import ntk
from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.jaxtools.precision import in_full_precision, roundoff_of
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.reduction import (
    ReductionLike,
    automatic_of_held_out,
    passes_of,
    reduction_of_leaves,
)
from ntkdiag.losses.alignable import alignable_targets
from ntkdiag.losses.custom_loss import CustomLoss
from ntkdiag.losses.targets import require_labels_differ
from ntkdiag.measuring.settings import Settings
from ntkdiag.models.paths import leaves_by_path
from ntkdiag.probe_batch import ProbeBatch

_LAYER = re.compile(r"\[\d+\]$")  # the number of a layer at the end of a path: "kernel[3]"

# Examples that are differentiated together, and bytes that their Jacobians may take.
MOST_TOGETHER = 8
BYTES_TOGETHER = 256 * 2**20

# Name of a leaf, or of a layer in it, -> trace of its kernel.
Traces: TypeAlias = Mapping[str, Float[Array | np.ndarray, ""] | np.number]


@dataclasses.dataclass(frozen=True, eq=False)
class ProbeLabels:
    """Labels of one probe, read beside the outputs of the model."""

    y: PyTree  # as they came, for the loss
    # `[n *o]` targets in float64 shaped like the outputs, one-hot where they are class numbers;
    # None where a kernel cannot be compared with them, see `alignable_targets`.
    targets: Float[np.ndarray, "n *o"] | None

    @property
    def flat_targets(self) -> Float[np.ndarray, "n o"] | None:
        """The targets as the kernel has its rows: all outputs of an example side by side."""
        return None if self.targets is None else self.targets.reshape(self.targets.shape[0], -1)


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOutProbe:
    """Held-out examples beside those of `train`."""

    x: PyTree  # examples, N on the leading axis of every leaf
    labels: ProbeLabels  # their labels, read beside the outputs of the model
    reduction: ReductionLike  # reduction of their kernel


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
        labels = _read_labels(settings.probes.of_kernel, settings, outputs_of_one)
        held_out = _read_held_out(settings, outputs_of_one)
        settings = settings.for_outputs(math.prod(outputs_of_one))
        roundoff = roundoff_of(functools.partial(f, **kwargs), params, settings.x)
        return ProbedFunction(f, settings, labels, held_out, outputs_of_one, roundoff)

    def outputs(
        self, params: PyTree, kwargs: Mapping[str, PyTree], x: PyTree
    ) -> Float[np.ndarray, "n *o"]:
        """Outputs in float64."""
        return np.asarray(self._evaluate(params, x, **kwargs), np.float64)

    def leaf_kernels(
        self, params: PyTree, kwargs: Mapping[str, PyTree]
    ) -> dict[str, Float[np.ndarray, "n n"]]:
        """The kernel of each leaf, sum_c Theta_cc; they add up to that of the model."""
        x, memory = self.settings.x, self.settings.memory
        kernel = self._per_leaf(params, x, memory=memory, **kwargs)  # [n n]
        # A leaf that the outputs do not depend on has no entry in `kernel.leaves`: zeros stay.
        kernels = {path: np.zeros(kernel.shape) for path in leaves_by_path(params)}
        for name, part in (kernel.leaves or {}).items():
            path = _leaf_of(name, kernels)
            kernels[path] = kernels[path] + np.asarray(part.array, np.float64)
        return kernels

    def leaf_traces(self, params: PyTree, kwargs: Mapping[str, PyTree]) -> Traces:
        """The traces of these kernels, which cost much less.

        tr Theta_l is the sum over examples n of tr_c (J_l J_l^T)_nn: of the kernel only the blocks
        of examples with themselves are needed, so each example has a kernel of its own. Kernels of
        all pairs cost a multiple; they are computed where examples are one joint batch, and where
        the Jacobian of one example is too large for a single block.
        """
        x = self.settings.x
        if getattr(self.f, "joint", False) or self._examples_together(params) == 0:
            return _traces(self._per_leaf(params, x, memory=self.settings.memory, **kwargs))
        return self._of_each_example(params, x, kwargs)

    @functools.cached_property
    def _of_each_example(self) -> Callable[..., Traces]:
        def of_each(params: PyTree, x: PyTree, kwargs: Mapping[str, PyTree]) -> Traces:
            def of_one(example: PyTree) -> Traces:
                alone = jax.tree.map(lambda leaf: leaf[None], example)
                return _traces(self._per_leaf(params, alone, check=False, **kwargs))

            n = len(jax.tree.leaves(x)[0])
            together = self._examples_together(params)
            while n % together > 0:  # a remainder would be another program
                together -= 1
            of_examples = jax.lax.map(of_one, x, batch_size=together)
            return jax.tree.map(lambda of_leaf: of_leaf.sum(), of_examples)

        return jax.jit(of_each, compiler_options=compiler_options(reduces=True))

    def _examples_together(self, params: PyTree) -> int:
        """How many Jacobians [k P] there is room for; 0 if not for one."""
        n_params = sum(leaf.size for leaf in jax.tree.leaves(params))
        reduction = reduction_of_leaves(self.settings.reduction)
        n_passes = passes_of(reduction, math.prod(self.outputs_of_one))
        return min(MOST_TOGETHER, BYTES_TOGETHER // (4 * n_passes * n_params))

    def _per_leaf(self, params: PyTree, x: PyTree, **kwargs: Any) -> Kernel:
        reduction = reduction_of_leaves(self.settings.reduction)
        return ntk(self.f, params, x, reduction=reduction, per_leaf=True, **kwargs)

    @functools.cached_property
    def _evaluate(self) -> Callable[..., Array]:
        # XLA on CPU compiles some float32 reductions wrongly by default: these options are checked.
        return jax.jit(in_full_precision(self.f), compiler_options=compiler_options(reduces=True))


def _read_labels(
    probe: ProbeBatch, settings: Settings, outputs_of_one: tuple[int, ...]
) -> ProbeLabels | None:
    """Labels of a probe in float64; refused where the loss cannot read them."""
    loss = settings.loss
    if probe.y is None and not isinstance(loss, CustomLoss):
        return None
    shape = (probe.n_examples, *outputs_of_one)
    # In float64, as the diagnostics are, whatever the model computes in.
    with jax.enable_x64(True):
        if isinstance(loss, CustomLoss):
            loss.require_runs(shape, np.float64, probe.y)
        if loss is not None and probe.y is not None:
            loss.read(probe.y, shape)
        targets = alignable_targets(probe.y, shape, loss)
        if targets is None:
            return ProbeLabels(probe.y, None)
        require_labels_differ(targets)
    return ProbeLabels(probe.y, np.asarray(targets, np.float64))


def _read_held_out(settings: Settings, outputs_of_one: tuple[int, ...]) -> HeldOutProbe | None:
    """Held-out examples beside those of `train`; None where one probe is all there is."""
    probe = settings.probes.held_out
    if probe is None or settings.probes.train is None:
        return None
    labels = _read_labels(probe, settings, outputs_of_one)
    assert labels is not None  # `read_probes` refuses held-out examples without
    reduction = automatic_of_held_out(settings.reduction, math.prod(outputs_of_one))
    return HeldOutProbe(probe.x, labels, reduction)


def averaged_over_outputs(kernel: Kernel) -> Kernel:
    """The mean over outputs of a full kernel; a reduced kernel as it is."""
    if kernel.ndim != 4:
        return kernel
    # [n o m o] -> [n m], in float64: the diagonal blocks are those of the kernel.
    mean = np.einsum("nomo->nm", np.asarray(kernel.array, np.float64)) / kernel.shape[1]
    convention = dataclasses.replace(kernel.convention, reduction="mean")
    return dataclasses.replace(kernel, array=mean.astype(kernel.dtype), convention=convention)


def shares_of_leaves(traces: Traces, params: PyTree) -> list[float]:
    """tr Theta_l / tr Theta, in leaf order; 0 for a leaf that the outputs do not depend on."""
    of_leaves = dict.fromkeys(leaves_by_path(params), 0.0)
    for name, trace in traces.items():
        of_leaves[_leaf_of(name, of_leaves)] += float(trace)
    total = math.fsum(of_leaves.values())
    return [trace / total if total > 0 else math.nan for trace in of_leaves.values()]


def _traces(kernel: Kernel) -> Traces:
    return {name: part.array.trace() for name, part in (kernel.leaves or {}).items()}


def _leaf_of(name: str, paths: Container[str]) -> str:
    """The path of the leaf that a kernel is of, or that its layer is stacked in."""
    return name if name in paths else _LAYER.sub("", name)

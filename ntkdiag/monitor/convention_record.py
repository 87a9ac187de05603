"""The convention record: what the numbers a monitor writes mean."""

import dataclasses
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

import ntkdiag
from ntkdiag import display
from ntkdiag.analysis.noise_scale import FEWEST_EXAMPLES
from ntkdiag.engine.calls.arguments import is_traced
from ntkdiag.kernel.digest import digest
from ntkdiag.kernel.reduction import FULL_ROWS
from ntkdiag.losses import CrossEntropy, Weighted
from ntkdiag.losses.alignable import why_not_alignable
from ntkdiag.losses.custom_loss import CustomLoss
from ntkdiag.models.paths import describe, leaves_by_path
from ntkdiag.monitor.instrument_set import InstrumentSet
from ntkdiag.monitor.measurer import Measurer
from ntkdiag.monitor.optimizer_reader import OptimizerReader
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.schedule import Schedule
from ntkdiag.optimizer.optimizer_rule import REASONS

NO_LOSS = "No loss was named: no stability numbers; pass loss=..."
# What stays the same over a run, however often it is resumed: when and what is measured need not.
SETTINGS = (
    "name",
    "probe",
    "labels_sha256",
    "alignment_probe",
    "reduction_asked",
    "loss",
    "denominator",
    "library",
    "mode",
    "parameters",
)

# Numbers that are lists along the layers.
_BY_LAYER = (
    "layer_trace",
    "layer_gradient",
    "layer_update",
    "layer_parameter",
    "layer_update_ratio",
    "layer_gradient_not_finite",
    "layer_parameter_not_finite",
)


def convention_record(
    measurer: Measurer,
    layout: ProbeLayout,
    instrument_set: InstrumentSet,
    params: PyTree,
    *,
    every: Schedule,
    call: str,
    layers: Collection[str] = (),
    followed: Collection[str] = (),
    batch_size: int | None = None,
) -> dict[str, Any]:
    """Everything needed to read the numbers later, as plain JSON values."""
    probe = measurer.probe
    notes = [*instrument_set.notes, *_notes_on_training(measurer, layout, instrument_set)]
    if instrument_set.has("kernel"):
        has_margin = instrument_set.has("margin")
        notes += _notes_on_kernel(measurer, layout, has_margin, followed)
    return {
        "source": "watch",
        "call": call,
        **settings_of(probe, params),
        "schedule": schedule_in_words(every),
        "batch_size": None if batch_size is None else int(batch_size),
        "instruments": [instrument.name for instrument in instrument_set.instruments],
        "layers": list(layers),
        "reduction": layout.reduction,
        "n_examples": layout.n_examples,
        "n_outputs": layout.n_outputs,
        "dtype": str(layout.dtype),
        "kernel_of": "train" if probe.is_trained_on else "held_out",
        "stability_of": "train" if probe.is_trained_on else None,
        **_alignment_probe(probe, layout),
        "labels": probe.y is not None or probe.held_out is not None,
        "denominator": _denominator(probe, layout),
        **(read_optimizer(measurer.reader) if measurer.reads_updates else {}),
        "notes": notes,
        **axes_by_layer(layers),
        "versions": {"ntkdiag": ntkdiag.__version__, "jax": jax.__version__},
    }


def settings_of(probe: Probe, params: PyTree = None) -> dict[str, Any]:
    """The entries of a record that are the same over a run; parameters as far as they are known."""
    held_out = probe.held_out
    settings = {
        "probe": probe.digest,
        "labels_sha256": _labels_digest(probe),
        "alignment_probe": probe.digest if held_out is None else held_out.digest,
        "reduction_asked": str(probe.reduction),
        "loss": None if probe.loss is None else probe.loss.name,
        "library": str(getattr(probe.f, "library", "callable")),
        "mode": str(getattr(probe.f, "mode", "unspecified")),
    }
    if params is not None:
        leaves = leaves_by_path(params)
        settings["parameters"] = {path: describe(leaf) for path, leaf in leaves.items()}
    return settings


def axes_by_layer(layers: Collection[str]) -> dict[str, Any]:
    """Names of the axes of numbers that are lists, and what is along them."""
    along = {"eigenvalues": "mode"} | dict.fromkeys(_BY_LAYER, "layer")
    dims = {}
    for quantity, axis in along.items():
        for end in ("", "_lower", "_upper"):
            dims[f"{quantity}{end}"] = [axis]
    return {"dims": dims, "coordinates": {"layer": list(layers)}}


def _labels_digest(probe: Probe) -> str | None:
    """SHA-256 of the labels of both probes; None without, and of traced ones."""
    labels = [probe.y, None if probe.held_out is None else probe.held_out.y]
    known = [y for y in labels if y is not None and not is_traced(y)]
    return digest(known) if known else None


def read_optimizer(reader: OptimizerReader) -> dict[str, Any]:
    """The update rule as it is read, and what each answer means."""
    return {
        "optimizer": "read from its updates",
        "optimizer_status": {str(int(code)): reason for code, reason in REASONS.items()},
        "optimizer_arrays": list(reader.arrays),
    }


def _notes_on_training(
    measurer: Measurer, layout: ProbeLayout, instrument_set: InstrumentSet
) -> list[str]:
    """What the numbers of the economy and spectral tiers are of."""
    probe = measurer.probe
    notes = []
    if instrument_set.compiled and measurer.is_joint:
        notes.append(
            "The model is measured as it is trained: normalisation takes its statistics from the "
            "probe, at the parameters of the step."
        )
    if instrument_set.has("margin"):
        notes.append(
            f"The margin is that of {layout.n_examples} examples; its interval that of the "
            "training set they were drawn from."
        )
    if instrument_set.has("noise_scale") and measurer.is_joint:
        notes.append(
            "The noise scale is NaN: examples interact, and none has a gradient of its own."
        )
    if instrument_set.has("noise_scale") and layout.n_examples < FEWEST_EXAMPLES:
        notes.append(f"The noise scale is NaN: it takes {FEWEST_EXAMPLES} examples or more.")
    if probe.loss is None:
        notes.append(NO_LOSS)
    return [*notes, *measurer.reader.failures]


def _alignment_probe(probe: Probe, layout: ProbeLayout) -> dict[str, Any]:
    """Which examples the alignment is of, and of which kernel of theirs."""
    is_held_out = probe.held_out is not None or not probe.is_trained_on
    held_out = probe.held_out
    return {
        "alignment_of": "held_out" if is_held_out else "train",
        "alignment_reduction": str(probe.reduction_of_alignment(layout)),
        "alignment_examples": layout.n_examples if held_out is None else held_out.n_examples,
    }


def schedule_in_words(every: Schedule) -> str:
    """What the schedule is called: schedules of ours say what they are, functions their name."""
    if dataclasses.is_dataclass(every):
        return repr(every)
    return getattr(every, "__name__", "own")


def _denominator(probe: Probe, layout: ProbeLayout) -> float | str | None:
    """What the sum of the loss is divided by, in words where it is counted."""
    loss = probe.loss
    if loss is None:
        return None
    if isinstance(loss, CustomLoss):
        return "its own"
    # A number the user stated is written as such, one that was counted by what was counted.
    denominator = loss.denominator_for(layout.output_shape)
    if getattr(loss, "denominator", None) is not None:
        return float(denominator)
    if isinstance(probe.y, Weighted):
        return "sum of the weights"
    if isinstance(loss, CrossEntropy) and loss.ignore is not None:
        return f"labels other than {loss.ignore}"
    if denominator == layout.n_examples:
        return "examples"
    return "examples and positions"


def _notes_on_kernel(
    measurer: Measurer,
    layout: ProbeLayout,
    has_margin: bool,
    followed: Collection[str],
) -> list[str]:
    """What has to be known of the kernel tier, and why some of its numbers are NaN."""
    probe = measurer.probe
    notes = _notes_on_stability(probe, layout, has_margin)
    notes += _notes_on_alignment(probe, layout)
    if probe.reduction == "auto" and layout.is_reduced:
        notes.append(_note_on_choice(layout))
    if layout.projections is not None:
        notes.append(
            f"The kernel is an estimate of the trace over outputs, {layout.n_outputs} times the "
            f"mean, from {layout.projections.k} random directions of them, the same at every step: "
            "its trace has an interval, its other numbers an error that is not known."
        )
    if layout.is_reduced:
        notes.append("Trace, eigenvalues, drift and alignment are those of the reduced kernel.")
    if followed:
        notes.append(f"Taken as they are at each step: {display.some_of(sorted(followed))}.")
    # What is not handed in, where the statistics are not those of the probe itself.
    measured_probe = probe if followed else measurer.probe_with_own_statistics
    if measured_probe is not probe:
        notes.append(
            "Running statistics were not handed in (model_state=): the kernel is evaluated with "
            "those of the probe, at the parameters of the step."
        )
    held_paths = [path for path in _fixed_arrays(measured_probe) if path not in followed]
    if held_paths:
        notes.append(
            "Held at the values they had when the measured function was built: "
            f"{display.some_of(held_paths)}."
        )
    if probe.loss is not None and probe.is_trained_on and not has_margin:
        notes.append(
            'The margin is NaN: it takes the instrument "margin", optimizer= and the state of that.'
        )
    reason = _why_no_alignment(probe, layout)
    if reason:
        notes.append(f"{reason[0].upper()}{reason[1:]}: the alignment is NaN.")
    notes.append("Eigenvalues below the noise floor of the kernel are NaN.")
    return notes


def _note_on_choice(layout: ProbeLayout) -> str:
    """Which reduction "auto" chose, and why."""
    rows = layout.n_examples * layout.n_outputs
    too_large = f"the full kernel has {rows:,} rows, more than {FULL_ROWS:,}"
    if layout.projections is None:
        return f'reduction="auto" chose "{layout.reduction}": {too_large}.'
    return (
        f'reduction="auto" chose {layout.reduction}: {too_large}, and the mean over outputs would '
        f'take {layout.n_outputs:,} backward passes of each example. reduction="mean" takes them.'
    )


def _notes_on_stability(probe: Probe, layout: ProbeLayout, has_margin: bool) -> list[str]:
    """Whether there is a critical learning rate, and what it holds for."""
    if layout.is_reduced:
        wrong = "the critical learning rate and the margin would be wrong and are NaN."
        if has_margin:
            wrong = "the critical learning rate would be wrong and is NaN."
        return [
            f"The kernel is reduced over outputs ({layout.reduction}): its largest eigenvalue is "
            f"not that of the full kernel, so {wrong}"
        ]
    if probe.loss is None:
        return []  # said already
    if not probe.is_trained_on:
        return [
            "Only held-out examples were given: the critical learning rate and the margin are NaN. "
            "On examples that are not trained on the curvature of the cross-entropy stays large, "
            "and late in training the margin would read 1.7 to 2.5 times too high and more. Pass "
            "train=(x, y)."
        ]
    holds_for = "The critical learning rate is that of SGD."
    if has_margin:
        holds_for = (
            "The critical learning rate is that of SGD; the margin is that of the optimizer, read "
            "from its updates."
        )
    return [
        f"Stability numbers use {layout.n_examples} probe examples; with few examples the largest "
        "eigenvalue per example is estimated too high on average.",
        holds_for,
    ]


def _why_no_alignment(probe: Probe, layout: ProbeLayout) -> str:
    """Why there is no alignment; "" where there is one."""
    y, n_examples = probe.y, layout.n_examples
    if probe.held_out is not None:
        y, n_examples = probe.held_out.y, probe.held_out.n_examples
    return why_not_alignable(y, (n_examples, *layout.output_shape[1:]), probe.loss)


def _notes_on_alignment(probe: Probe, layout: ProbeLayout) -> list[str]:
    """What the alignment is of."""
    if _why_no_alignment(probe, layout):
        return []
    if probe.held_out is not None:
        reduction = probe.reduction_of_alignment(layout)
        notes = [f"The alignment is of the {reduction} kernel of the held-out examples."]
        if probe.n_shared:
            notes.append(
                f"{probe.n_shared} of the {probe.held_out.n_examples} held-out examples are among "
                "those of train, and were trained on."
            )
        return notes
    if probe.is_trained_on:
        return [
            "The alignment is of examples that are trained on, whose labels a kernel comes to "
            "know; pass held_out=(x, y) for others."
        ]
    return []


def _fixed_arrays(probe: Probe) -> list[str]:
    """Paths of the numbers that the measured function holds fixed, sorted."""
    fixed = getattr(probe.f, "fixed", {})
    return sorted(path for path, leaf in fixed.items() if jnp.issubdtype(leaf.dtype, jnp.inexact))

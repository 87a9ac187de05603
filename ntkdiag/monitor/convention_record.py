"""The convention record: what the numbers a monitor writes mean."""

from collections.abc import Collection, Sequence
from typing import Any

import jax
from jaxtyping import PyTree

import ntkdiag
from ntkdiag.analysis.noise_scale import FEWEST_EXAMPLES
from ntkdiag.jaxtools.tracing import is_traced
from ntkdiag.models.paths import describe, leaves_by_path
from ntkdiag.monitor.context import Instrument
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.schedule import Schedule
from ntkdiag.optimizer.response import SENTENCES
from ntkdiag.probe_batch import digest

_NO_DATA = (
    "Measured without data: norms and the learning rate. Pass f, train= and loss= for the margin "
    "and all else."
)

# Numbers that are lists along the layers.
_BY_LAYER = ("layer_trace", "layer_gradient", "layer_update", "layer_parameter")


def convention_record(
    probe: Probe,
    instruments: Sequence[Instrument],
    params: PyTree,
    *,
    every: Schedule,
    call: str,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything needed to read the numbers later, as plain JSON values."""
    layers = list(leaves_by_path(params))
    axes = {"eigenvalues": "mode"} | dict.fromkeys(_BY_LAYER, "layer")
    record = {
        "source": "watch",
        "call": call,
        **settings_of(probe, params),
        "schedule": getattr(every, "__name__", None) or repr(every),
        "batch_size": None if probe.batch_size is None else int(probe.batch_size),
        "instruments": [instrument.name for instrument in instruments],
        "layers": layers,
        "optimizer_status": {str(int(code)): text for code, text in SENTENCES.items()},
        "dims": {name + end: [of] for name, of in axes.items() for end in ("", "_lower", "_upper")},
        "coordinates": {"layer": layers},
        "versions": {"ntkdiag": ntkdiag.__version__, "jax": jax.__version__},
    }
    if probe.f is None:
        return record | {"notes": [_NO_DATA, *notes]}
    outputs = probe.fit(params)
    is_trained_on = probe.held_out is None and probe.is_trained_on
    return record | {
        "reduction": "full",
        "n_examples": probe.n_examples,
        "n_outputs": outputs.size // probe.n_examples,
        "dtype": str(outputs.dtype),
        "alignment_of": "train" if is_trained_on else "held_out",
        "loss_in_words": probe.loss and probe.loss.describe(tuple(outputs.shape)),
        "notes": [*notes, *_notes(probe, {one.name for one in instruments}, outputs.shape)],
    }


def settings_of(probe: Probe, params: PyTree = None) -> dict[str, Any]:
    """The entries of a record that are the same over a run; parameters as far as they are known."""
    settings: dict[str, Any] = {}
    if probe.f is not None:
        held_out = probe.held_out
        labels = [probe.y, None if held_out is None else held_out.y]
        known = [y for y in labels if y is not None and not is_traced(y)]
        settings = {
            "probe": probe.digest,
            "labels_sha256": digest(known) if known else None,
            "alignment_probe": probe.digest if held_out is None else held_out.digest,
            "loss": None if probe.loss is None else probe.loss.name,
            "library": str(getattr(probe.f, "library", "callable")),
            "mode": str(getattr(probe.f, "mode", "unspecified")),
        }
    if params is not None:
        leaves = leaves_by_path(params)
        settings["parameters"] = {path: describe(leaf) for path, leaf in leaves.items()}
    return settings


def _notes(probe: Probe, names: Collection[str], shape: tuple[int, ...]) -> list[str]:
    """What the numbers are of, and why some of them are NaN."""
    notes = []
    if probe.is_joint:
        notes.append(
            "The model is measured as it is trained: normalization takes its statistics from the "
            "probe."
        )
    if "noise_scale" in names:
        notes.append(
            f"The noise scale is NaN where examples interact, of less than {FEWEST_EXAMPLES} "
            "examples, and, with a lower end, where the probe cannot tell the mean gradient from "
            "zero."
        )
    if probe.loss is None:
        notes.append("No loss was named: no stability numbers; pass loss=...")
    if not probe.is_trained_on:
        notes.append(
            "Only held-out examples were given: the margin is NaN. On examples that are not "
            "trained on the curvature of the cross-entropy stays large. Pass train=(x, y)."
        )
    if "kernel" in names:
        notes.append("Drift is from the kernel of the first measurement.")
        labelled = probe.of_alignment()
        if labelled.targets((labelled.n_examples, *shape[1:])) is None:
            notes.append("The alignment is NaN: there are no labels, or they are no targets.")
        elif probe.is_trained_on and probe.held_out is None:
            notes.append(
                "The alignment is of examples that are trained on, whose labels the kernel "
                "learns; pass held_out=(x, y) for others."
            )
    return notes

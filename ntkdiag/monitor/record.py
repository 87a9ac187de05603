"""The convention record: what the numbers a monitor writes mean."""

from typing import Any

import jax

from ntkdiag.monitor.probe import Layout, Probe


def convention_record(probe: Probe, layout: Layout, *, name: str, every: Any, source: str) -> dict[str, Any]:
    """Everything needed to read the numbers later, as plain JSON values.

    Args:
        probe: Model, probe batch and settings.
        layout: Shape and reduction of the kernel.
        name: Prefix of the names.
        every: The schedule.
        source: What writes, "watch" or "Monitor".

    Returns:
        The record.
    """
    import ntkdiag

    return {
        "source": source,
        "name": name,
        "schedule": repr(every),
        "outputs": layout.outputs,
        "n_examples": layout.n_examples,
        "n_outputs": layout.n_outputs,
        "dtype": str(layout.dtype),
        "probe": probe.digest(),
        "library": str(getattr(probe.f, "library", "callable")),
        "mode": str(getattr(probe.f, "mode", "unspecified")),
        "loss": probe.loss,
        "loss_denominator": "examples",
        "labels": probe.y is not None,
        "learning_rate": probe.learning_rate if isinstance(probe.learning_rate, int | float) else _said(probe),
        "momentum": probe.momentum,
        "nesterov": probe.nesterov,
        "notes": _notes(probe, layout),
        "versions": {"ntkdiag": ntkdiag.__version__, "jax": jax.__version__},
    }


def _said(probe: Probe) -> str | None:
    return None if probe.learning_rate is None else "schedule"


def _notes(probe: Probe, layout: Layout) -> list[str]:
    notes = []
    if layout.outputs != "full":
        notes.append(
            f"The kernel is reduced over outputs ({layout.outputs}): its largest eigenvalue is below that of the full "
            "kernel, so the critical learning rate and the margin would be unsafe and are NaN."
        )
        notes.append("Trace, eigenvalues, drift and alignment are those of the reduced kernel.")
    if layout.outputs == "full":
        notes.append(
            f"Stability numbers use {layout.n_examples} probe examples; few examples read the largest eigenvalue per "
            "example too high, which errs on the safe side."
        )
        notes.append("They hold for SGD with the recorded momentum, not for Adam.")
    if probe.learning_rate is None:
        notes.append("No learning rate was given: the margin is NaN.")
    if probe.y is None:
        notes.append("No labels were given: the alignment is NaN.")
    return notes

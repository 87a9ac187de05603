"""The convention record: what the numbers a monitor writes mean."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ntkdiag.monitor.probe import Layout, Probe


def convention_record(
    probe: Probe, layout: Layout, *, name: str, every: Any, source: str, injected: bool = False
) -> dict[str, Any]:
    """Everything needed to read the numbers later, as plain JSON values.

    Args:
        probe: Model, probe batch and settings.
        layout: Shape and reduction of the kernel.
        name: Prefix of the names.
        every: The schedule.
        source: What writes, "watch" or "Monitor".
        injected: Whether the learning rate is read from the optimizer state.

    Returns:
        The record.
    """
    import ntkdiag

    return {
        "source": source,
        "name": name,
        "schedule": repr(every) if dataclasses.is_dataclass(every) else getattr(every, "__name__", "own"),
        "outputs": layout.outputs,
        "n_examples": layout.n_examples,
        "n_outputs": layout.n_outputs,
        "dtype": str(layout.dtype),
        "probe": probe.digest,
        "library": str(getattr(probe.f, "library", "callable")),
        "mode": str(getattr(probe.f, "mode", "unspecified")),
        "loss": probe.loss,
        "loss_denominator": _denominator(probe, layout),
        "weight_decay": float(probe.weight_decay),
        "labels": probe.y is not None,
        "learning_rate": "opt_state" if injected else _rate(probe.learning_rate),
        "momentum": float(probe.momentum),
        "nesterov": bool(probe.nesterov),
        "notes": _notes(probe, layout, injected),
        "versions": {"ntkdiag": ntkdiag.__version__, "jax": jax.__version__},
    }


def _denominator(probe: Probe, layout: Layout) -> float | str:
    if probe.loss_denominator is not None:
        return float(probe.loss_denominator)
    return "examples" if probe.denominator(layout) == layout.n_examples else "examples and positions"


def _rate(rate: Any) -> float | str | None:
    if callable(rate) or isinstance(rate, Tracer):
        return "schedule"
    return None if rate is None else float(rate)


def _notes(probe: Probe, layout: Layout, injected: bool) -> list[str]:
    notes = []
    reduced = layout.outputs != "full" and layout.n_outputs > 1
    if reduced:
        notes.append(
            f"The kernel is reduced over outputs ({layout.outputs}): its largest eigenvalue is not that of the full "
            "kernel, so the critical learning rate and the margin would be wrong and are NaN."
        )
        notes.append("Trace, eigenvalues, drift and alignment are those of the reduced kernel.")
    else:
        notes.append(
            f"Stability numbers use {layout.n_examples} probe examples; with few examples the largest eigenvalue per "
            "example is estimated too high, which errs on the safe side."
        )
        notes.append("They hold for SGD with the recorded momentum, not for Adam.")
    fixed = [path for path, leaf in getattr(probe.f, "fixed", {}).items() if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    if fixed:
        shown = ", ".join(sorted(fixed)[:5]) + (f" and {len(fixed) - 5} more" if len(fixed) > 5 else "")
        notes.append(f"Held at the values they had when the measured function was built: {shown}.")
    if probe.learning_rate is None and not injected:
        notes.append("No learning rate was given: the margin is NaN.")
    if probe.y is None:
        notes.append("No labels were given: the alignment is NaN.")
    notes.append("Eigenvalues below the noise floor of the kernel are NaN.")
    return notes

"""What the numbers of a run mean, for the first line of its stream."""

from collections.abc import Iterable
from typing import Any

from ntkdiag import display
from ntkdiag.comparison.load import Side
from ntkdiag.comparison.versions import installed_versions
from ntkdiag.kernel.kernel import digest
from ntkdiag.measuring.settings import Settings
from ntkdiag.models.functional import Functional
from ntkdiag.models.paths import describe, leaves_by_path
from ntkdiag.optimizer.saved_state import optimizer_in_words
from ntkdiag.probe_batch import ProbeBatch

# Axes of the stored arrays, beside the steps.
_DIMS = {
    "eigenvalues": ["mode"],
    "modes": ["row", "mode_kept"],
    "leaf_shares": ["leaf"],
    "label_doubts": ["example"],
}
_DIMS_OF_KERNEL = ["example", "example_2"]
_DIMS_OF_FULL_KERNEL = ["example", "row_output", "example_2", "row_output_2"]


def record_of_run(first: Side, settings: Settings, shape: tuple[int, ...]) -> dict[str, Any]:
    """What the numbers of a run mean: they continue only where all of this is the same."""
    functional = first.functional
    leaves = leaves_by_path(functional.params)
    is_full = settings.reduction == "full"
    positions = [f"position_{axis}" for axis in range(len(shape) - 2)]
    dims = {
        **_DIMS,
        "kernel": _DIMS_OF_FULL_KERNEL if is_full else _DIMS_OF_KERNEL,
        "outputs": ["example", *positions, "output"][: len(shape)],
    }
    if settings.gradient_kernel:
        dims["self_influence"] = ["example"]
    content = {
        "format": "ntkdiag run 1",
        "source": "track",
        "model": {"library": functional.library, "mode": functional.mode},
        "parameters": {path: describe(leaf) for path, leaf in leaves.items()},
        "outputs": list(shape[1:]),
        "reduction": str(settings.reduction),
        "loss": settings.loss_in_words(shape),
        "descent": None if settings.descent is None else repr(settings.descent),
        **_optimizer_entry(functional, settings),
        **({"gradient_kernel": True} if settings.gradient_kernel else {}),
        **_left_out_entry(first),
        **_lacking_entry(first),
        "probes": [_described(probe) for probe in _probes(settings)],
        "dims": dims,
        "coordinates": {"leaf": list(leaves)},
        "versions": installed_versions(),
    }
    return display.plain(content)


def _optimizer_entry(functional: Functional, settings: Settings) -> dict[str, str]:
    """The optimizer in words; no entry without, as runs that were begun before have none."""
    if settings.optimizer is None:
        return {}
    return {"optimizer": optimizer_in_words(settings.optimizer, functional.params)}


def _left_out_entry(first: Side) -> dict[str, list[str]]:
    """Dictionaries beside the parameters that the model does not read; no entry without any."""
    return {"not_read": list(first.left_out)} if first.left_out else {}


def _lacking_entry(first: Side) -> dict[str, list[str]]:
    """Fixed arrays for which those of the model stand in; no entry without any."""
    return {"not_saved": list(first.lacking)} if first.lacking else {}


def _probes(settings: Settings) -> Iterable[ProbeBatch]:
    probes = (settings.probes.train, settings.probes.held_out)
    return [probe for probe in probes if probe is not None]


def _described(probe: ProbeBatch) -> dict[str, Any]:
    return {
        "name": probe.name,
        "examples": probe.n_examples,
        "x": probe.digest,
        "y": None if probe.y is None else digest(probe.y),
    }

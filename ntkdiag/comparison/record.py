"""What the numbers of a comparison, and of a run, mean, and what to know before trusting them."""

import dataclasses
import importlib.metadata
import platform
from typing import Any, TypeAlias

import jax

import ntkdiag
from ntkdiag import display
from ntkdiag.arrays import Number
from ntkdiag.comparison.restore import MOST_PATHS
from ntkdiag.comparison.sides import Side
from ntkdiag.descent import Descent
from ntkdiag.kernel.kernel import digest
from ntkdiag.losses.alignable import why_not_alignable
from ntkdiag.measuring.measure import Measured
from ntkdiag.measuring.probed_function import ProbedFunction
from ntkdiag.measuring.settings import Settings
from ntkdiag.models.paths import describe, leaves_by_path, shown
from ntkdiag.optimizer.saved_state import optimizer_in_words
from ntkdiag.probe_batch import ProbeBatch, shared_examples

PACKAGES = ("jax", "jaxlib", "flax", "equinox", "optax", "orbax-checkpoint", "numpy")
_WORDS = {"train": "trained on", "held_out": "held out"}  # what the examples of a probe are
# Axes of the stored arrays of a run, beside the steps.
_DIMS = {
    "eigenvalues": ["mode"],
    "modes": ["row", "mode_kept"],
    "leaf_shares": ["leaf"],
    "label_doubts": ["example"],
}
_DIMS_OF_KERNEL = ["example", "example_2"]
_DIMS_OF_FULL_KERNEL = ["example", "row_output", "example_2", "row_output_2"]

# Conventions by name: text, or plain numbers.
Facts: TypeAlias = dict[str, str | Number | None]


def facts_of_comparison(
    sides: tuple[Side, Side], function: ProbedFunction, measured: tuple[Measured, Measured]
) -> Facts:
    """Conventions of a comparison by name, as text or number, in the order a reader wants them."""
    first, a, settings = sides[0], measured[0], function.settings
    functional, probes = first.functional, settings.probes
    leaves = jax.tree.leaves(a.params)
    n_rows = len(a.eigenvalues)
    of_labels = settings if function.held_out is None else function.held_out
    found: Facts = {
        "model": f"{functional.library} {functional.name}".strip(),
        "parameters": sum(leaf.size for leaf in leaves),
        "parameter_dtype": ", ".join(sorted({str(leaf.dtype) for leaf in leaves})),
        "mode": functional.mode,
    }
    for name, side, of_side in zip("ab", sides, measured, strict=True):
        found[f"path_{name}"] = side.path
        found[f"parameters_{name}_sha256"] = of_side.params_sha256
        found[f"fixed_state_{name}"] = side.fixed_state
    found |= {
        "n_examples": settings.n_examples,
        "n_outputs": a.flat_outputs.shape[1],
        "reduction": str(of_labels.reduction),
        "kernel_probe": _WORDS[probes.of_kernel.name],
        "label_probe": _WORDS[probes.of_labels.name],
    }
    for name, probe in (("train", probes.train), ("held_out", probes.held_out)):
        found[f"{name}_examples"] = None if probe is None else probe.n_examples
        found[f"{name}_sha256"] = None if probe is None else probe.digest
    return {
        **found,
        "kernel": f"{settings.reduction}, {n_rows} × {n_rows}",
        "loss": settings.loss_in_words(a.outputs.shape) or "none named",
        **_update_rule(first, settings),
        "backend": jax.default_backend(),
        "versions": ", ".join(installed_versions()),
    }


def record_of_run(first: Side, settings: Settings, shape: tuple[int, ...]) -> dict[str, Any]:
    """What the numbers of a run mean: they continue only where all of this is the same."""
    functional = first.functional
    leaves = leaves_by_path(functional.params)
    is_full = settings.reduction == "full"
    positions = [f"position_{axis}" for axis in range(len(shape) - 2)]
    probes = (settings.probes.train, settings.probes.held_out)
    dims = {
        **_DIMS,
        "kernel": _DIMS_OF_FULL_KERNEL if is_full else _DIMS_OF_KERNEL,
        "outputs": ["example", *positions, "output"][: len(shape)],
    }
    content = {
        "format": "ntkdiag run 1",
        "source": "track",
        "model": {"library": functional.library, "mode": functional.mode},
        "parameters": {path: describe(leaf) for path, leaf in leaves.items()},
        "outputs": list(shape[1:]),
        "reduction": str(settings.reduction),
        "loss": settings.loss_in_words(shape),
        "descent": None if settings.descent is None else repr(settings.descent),
        "probes": [_described(probe) for probe in probes if probe is not None],
        "dims": dims,
        "coordinates": {"leaf": list(leaves)},
        "versions": installed_versions(),
    }
    if settings.optimizer is not None:
        content["optimizer"] = optimizer_in_words(settings.optimizer, functional.params)
    if settings.gradient_kernel:
        content["gradient_kernel"] = True
        dims["self_influence"] = ["example"]
    if first.left_out:
        content["not_read"] = list(first.left_out)
    if first.lacking:
        content["not_saved"] = list(first.lacking)
    return display.plain(content)


def notes_on(
    sides: tuple[Side, Side], settings: Settings, measured: tuple[Measured, Measured]
) -> tuple[str, ...]:
    """The notes of a comparison, in sentences."""
    a = measured[0]
    sentences = [*_notes_on_probes(settings, a), *_notes_on_the_kernel(settings, a)]
    if settings.loss is None:
        sentences.append("No loss was named: no stability numbers; pass loss=...")
    for side, of_side in zip(sides, measured, strict=True):
        if of_side.spectrum_status != "ok":
            sentences.append(
                f"The spectrum of {side.label} is {of_side.spectrum_status}: do not rely on its "
                "numbers."
            )
        if of_side.margin_status != "ok":
            sentences.append(f"{side.label}: {of_side.margin_status}")
        if side.lacking:
            sentences.append(
                f"{side.label} does not hold {shown(side.lacking, MOST_PATHS)}: it is evaluated "
                "with those of the model as given, which need not be its own."
            )
        if side.left_out:
            sentences.append(
                f"{side.label} holds {shown(side.left_out, MOST_PATHS)} beside the parameters, "
                "which the model does not read."
            )
    first = sides[0]
    if first.set_aside:
        sentences.append(
            f"The model returns {shown(first.set_aside, MOST_PATHS)} beside {first.output}, which "
            "is compared: functionalize(model, variables, output=...) chooses another."
        )
    return (*sentences, *_notes_on_labels(settings, a))


def installed_versions() -> list[str]:
    """Name and version of ntkdiag, of every package that is installed, and of Python."""
    lines = [f"ntkdiag {ntkdiag.__version__}"]
    for name in PACKAGES:
        try:
            lines.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return [*lines, f"Python {platform.python_version()}"]


def _update_rule(side: Side, settings: Settings) -> Facts:
    """The update rule in words: with its learning rate, and without."""
    if settings.optimizer is not None:
        words = optimizer_in_words(settings.optimizer, side.functional.params)
        rule = "the optimizer in its state at this point"
        return {"descent": rule, "update_rule": rule, "optimizer": words}
    descent = settings.descent or Descent()
    # The critical learning rate does not depend on the learning rate.
    update_rule = dataclasses.replace(descent, learning_rate=None).describe()
    return {"descent": descent.describe(), "update_rule": update_rule, "optimizer": None}


def _described(probe: ProbeBatch) -> dict[str, Any]:
    return {
        "name": probe.name,
        "examples": probe.n_examples,
        "x": probe.digest,
        "y": None if probe.y is None else digest(probe.y),
    }


def _notes_on_the_kernel(settings: Settings, measured: Measured) -> list[str]:
    """What a reduced kernel, or one of few examples, does not tell."""
    n_outputs = measured.kernel.convention.n_outputs
    if settings.reduction != "full" and n_outputs > 1:
        rows = settings.n_examples * n_outputs
        stability = "so no learning rate or margin is given"
        if "critical_learning_rate" in measured.numbers:
            stability = "so learning rate and margin come from products with that one"
        return [
            f"Kernels are reduced over outputs and positions ({settings.reduction}): their largest "
            f"eigenvalue is not that of the full kernel, {stability}; drift and alignment are "
            f'those of the reduced kernel. reduction="full" takes {rows:,} rows.'
        ]
    return []


def _notes_on_labels(settings: Settings, measured: Measured) -> list[str]:
    """What is left out where labels are no targets of the outputs, or there are none."""
    probe = settings.probes.of_labels
    shape = (probe.n_examples, *measured.outputs.shape[1:])
    reason = why_not_alignable(probe.y, shape, settings.loss)
    if not reason:
        return []
    has_loss = probe.y is not None or "loss" in measured.numbers
    and_loss = " and accuracy" if has_loss else ", accuracy and loss"
    return [
        f"{reason[0].upper()}{reason[1:]}: alignment, label power, leave-one-out{and_loss} are "
        "left out, and whether the kernel fits the task better is unknown."
    ]


def _notes_on_probes(settings: Settings, measured: Measured) -> list[str]:
    """What the probes that were given cannot tell, and which one would."""
    probes = settings.probes
    if probes.train is None and settings.loss is not None:
        return [
            "Only held-out examples were given: no critical learning rate and no margin. "
            "Stability is that of the loss that is trained, whose curvature vanishes where "
            "predictions become certain; on held-out examples it stays large, and late in "
            "training the margin would be 1.7 to 2.5 times too high or more. Pass train=(x, y), a "
            "part of the training set."
        ]
    if probes.held_out is None and "alignment" in measured.numbers:
        return [
            "Alignment, label power and leave-one-out are of examples that were trained on. After "
            "training a kernel knows their labels: leave-one-out may then be half of the true "
            "error or far less. Pass held_out=(x, y), examples that are not trained on."
        ]
    n_shared = shared_examples(probes)
    if n_shared and probes.held_out is not None:
        return [
            f"{n_shared} of the {probes.held_out.n_examples} held-out examples are among those of "
            "train: alignment, label power and leave-one-out are partly of examples that were "
            "trained on."
        ]
    return []

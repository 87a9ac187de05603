"""What the numbers of a comparison mean, and what to know before trusting them."""

import dataclasses
import sys
from typing import TypeAlias

import jax

from ntkdiag.arrays import Number
from ntkdiag.comparison.load import Side
from ntkdiag.comparison.restore import MOST_PATHS
from ntkdiag.comparison.versions import installed_versions
from ntkdiag.descent import Descent
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.losses.alignable import why_not_alignable
from ntkdiag.measuring.kernel_regression import RELATIVE_RIDGE
from ntkdiag.measuring.measured import Measured
from ntkdiag.measuring.settings import Settings
from ntkdiag.models.paths import shown
from ntkdiag.optimizer.saved_state import optimizer_in_words
from ntkdiag.probe_batch import Probes, shared_examples

FEW_EXAMPLES = 256  # of fewer, a note says what their number does to the largest eigenvalue
NO_LOSS = "none named"
_WORDS = {"train": "trained on", "held_out": "held out"}  # what the examples of a probe are

# Conventions by name: text, or plain numbers.
Facts: TypeAlias = dict[str, str | Number | None]


def facts(
    a: Side,
    b: Side,
    settings: Settings,
    output_shape: tuple[int, ...],
    measured: Measured,
    measured_b: Measured,
) -> Facts:
    """Conventions of a comparison by name, as text or number, in the order a reader wants them."""
    kernel = measured.kernel
    label_kernel = measured.held_out_kernel or kernel
    descent = settings.descent or Descent()
    loss = settings.loss_in_words(output_shape) or NO_LOSS
    learning_rate = None
    if descent.learning_rate is not None:
        learning_rate = descent.require_learning_rate()
    elif measured["learning_rate"] == measured_b["learning_rate"]:
        learning_rate = measured["learning_rate"]  # of an optimizer that was read, the same at B
    return {
        **_of_models(a, b),
        "fixed_state_a": a.fixed_state,
        "fixed_state_b": b.fixed_state,
        "n_examples": settings.n_examples,
        "n_outputs": measured.outputs.shape[1],
        "reduction": label_kernel.convention.reduction,
        "kernel_probe": _WORDS[settings.probes.of_kernel.name],
        "label_probe": _WORDS[settings.probes.of_labels.name],
        **_probes(settings.probes),
        "kernel": _describe_kernel(kernel),
        "label_kernel": _describe_kernel(label_kernel),
        "kernel_dtype": str(kernel.dtype),
        "leave_one_out_ridge": RELATIVE_RIDGE,
        "loss": loss,
        "learning_rate": learning_rate,
        "momentum": descent.momentum if settings.optimizer is None else None,
        # With the learning rate, and without: the critical learning rate does not depend on it.
        "descent": descent.describe(),
        "update_rule": dataclasses.replace(descent, learning_rate=None).describe(),
        **_optimizer(a, settings),
        "backend": jax.default_backend(),
        "versions": ", ".join(installed_versions(_packages())),
    }


def _of_models(a: Side, b: Side) -> Facts:
    """The model, under names of its own that of B where it is another one."""
    found: Facts = _of_model(a)
    of_b = _of_model(b)
    if of_b != found:
        found |= {f"{name}_b": value for name, value in of_b.items()}
    return found


def _of_model(side: Side) -> Facts:
    """The model of one side."""
    return {
        "model": side.model,
        "parameters": side.n_parameters,
        "parameter_dtype": ", ".join(side.parameter_dtypes),
        "mode": side.mode,
    }


def _optimizer(side: Side, settings: Settings) -> Facts:
    """The optimizer in words, instead of an update rule that was stated."""
    if settings.optimizer is None:
        return {"optimizer": None}
    words = optimizer_in_words(settings.optimizer, side.functional.params)
    rule = "the optimizer in its state at this point"
    return {"descent": rule, "update_rule": rule, "optimizer": words}


def _probes(probes: Probes) -> Facts:
    """Number and hash of the examples of each probe; None for one that was not given."""
    found: Facts = {}
    for name, probe in (("train", probes.train), ("held_out", probes.held_out)):
        found[f"{name}_examples"] = None if probe is None else probe.n_examples
        found[f"{name}_sha256"] = None if probe is None else probe.digest
    return found


def notes(
    a: Side,
    b: Side,
    settings: Settings,
    output_shape: tuple[int, ...],
    measured_a: Measured,
    measured_b: Measured,
) -> tuple[str, ...]:
    """What a reader has to know, in sentences.

    That is narrowed dtypes, what a probe cannot tell, a reduced kernel or a small probe, what was
    not named, damaged spectra.
    """
    sentences = []
    saved_dtypes = {*a.saved_dtypes, *b.saved_dtypes}
    computed_dtypes = {*a.parameter_dtypes, *b.parameter_dtypes}
    # JAX narrows float64 without a word unless it is told not to.
    if "float64" in saved_dtypes and "float64" not in computed_dtypes:
        sentences.append(
            "Parameters saved as float64 were computed in float32: switch on jax_enable_x64 to use "
            "them as saved."
        )
    sentences.extend(_notes_on_probes(settings, measured_a))
    n_outputs = measured_a.kernel.convention.n_outputs
    if settings.reduction != "full" and n_outputs > 1:
        rows = settings.n_examples * n_outputs
        chosen = str(settings.reduction)
        if settings.reduction_asked == "auto":
            chosen = f'{chosen}, which reduction="auto" chose for both sides'
        of_an_example = "outputs"
        if len(output_shape) > 2:  # [N ... C]
            sizes = " × ".join(map(str, output_shape[1:]))
            of_an_example = f"outputs, {sizes} of an example with its positions"
        stability = "so no learning rate or margin is given"
        if "critical_learning_rate" in measured_a.numbers:
            stability = "so learning rate and margin come from products with that one"
        sentences.append(
            f"Kernels are reduced over {of_an_example} ({chosen}): their largest eigenvalue is "
            f"not that of the full kernel, {stability}; drift and alignment are those of the "
            f'reduced kernel. reduction="full" takes {rows:,} rows.'
        )
    elif settings.n_examples < FEW_EXAMPLES:
        # Of few rows, the first eigenvalue takes in more of the trace than of many.
        sentence = (
            f"With {settings.n_examples} probe examples the largest eigenvalue per example is "
            "estimated too high on average"
        )
        if "margin_lower" in measured_a.numbers:
            sentence += "; the interval of the margin allows for it"
        sentences.append(f"{sentence}.")
    if settings.loss is None:
        sentences.append("No loss was named: no stability numbers; pass loss=...")
    for side in (measured_a, measured_b):
        if side.spectrum.status != "ok":
            sentences.append(
                f"The spectrum of {side.label} is {side.spectrum.status}: do not rely on its "
                "numbers."
            )
        if side.margin_status != "ok":
            sentences.append(f"{side.label}: {side.margin_status}")
    sentences += _notes_on_fixed_arrays(a, b)
    sentences += _notes_on_what_is_not_read(a, b)
    if a.set_aside:
        sentences.append(
            f"The model returns {shown(a.set_aside, MOST_PATHS)} beside {a.output}, which is "
            "compared: functionalize(model, variables, output=...) chooses another."
        )
    sentences += _notes_on_labels(settings, output_shape, measured_a)
    return tuple(sentences)


def _notes_on_labels(
    settings: Settings, output_shape: tuple[int, ...], measured: Measured
) -> list[str]:
    """What is left out where labels are no targets of the outputs, or there are none."""
    probe = settings.probes.of_labels
    shape = (probe.n_examples, *output_shape[1:])
    reason = why_not_alignable(probe.y, shape, settings.loss)
    if not reason:
        return []
    has_loss = probe.y is not None or "loss" in measured.numbers
    and_loss = " and accuracy" if has_loss else ", accuracy and loss"
    return [
        f"{reason[0].upper()}{reason[1:]}: alignment, label power, leave-one-out{and_loss} are "
        "left out, and whether the kernel turned to the task is unknown."
    ]


def _notes_on_fixed_arrays(a: Side, b: Side) -> list[str]:
    """Fixed arrays, such as batch statistics, that a side does not hold, and what stands in."""
    if a.lacking and a.lacking == b.lacking:
        return [
            f"Neither side holds {shown(a.lacking, MOST_PATHS)}: both are evaluated with those of "
            "the model as given, which need not be theirs."
        ]
    sentences = []
    for side, opposite in ((a, b), (b, a)):
        if not side.lacking:
            continue
        sentence = (
            f"{side.label} does not hold {shown(side.lacking, MOST_PATHS)}: it is evaluated with "
            "those of the model as given"
        )
        if not set(side.lacking) & set(opposite.lacking):
            sentence += f", {opposite.label} with its own"
        sentences.append(f"{sentence}.")
    return sentences


def _notes_on_what_is_not_read(a: Side, b: Side) -> list[str]:
    """Dictionaries beside the parameters that took no part in any number."""
    if a.left_out and a.left_out == b.left_out:
        return [f"Both sides hold {_not_read(a.left_out)}."]
    return [f"{side.label} holds {_not_read(side.left_out)}." for side in (a, b) if side.left_out]


def _not_read(names: tuple[str, ...]) -> str:
    """What is left out, in words."""
    return f"{shown(names, MOST_PATHS)} beside the parameters, which the model does not read"


def _notes_on_probes(settings: Settings, measured: Measured) -> list[str]:
    """What the probes that were given cannot tell, and which one would."""
    probes = settings.probes
    if probes.train is None and settings.loss is not None:
        return [
            "Only held-out examples were given: no critical learning rate and no margin. Stability "
            "is that of the loss that is trained, whose curvature vanishes where predictions "
            "become certain; on held-out examples it stays large, and late in training the margin "
            "would read 1.7 to 2.5 times too high and more. Pass train=(x, y), a part of the "
            "training set."
        ]
    if probes.held_out is None and "alignment" in measured.numbers:
        return [
            "Alignment, label power and leave-one-out are of examples that were trained on. After "
            "training a kernel knows their labels: leave-one-out may then read half of the true "
            "error, or far less. Pass held_out=(x, y), examples that are not trained on."
        ]
    n_shared = shared_examples(probes)
    if n_shared and probes.held_out is not None:
        return [
            f"{n_shared} of the {probes.held_out.n_examples} held-out examples are among those of "
            "train: alignment, label power and leave-one-out are in part of examples that were "
            "trained on."
        ]
    return []


def _describe_kernel(kernel: Kernel) -> str:
    """The reduction of a kernel in words, and its size."""
    n_rows = kernel.matrix.shape[0]
    reduction = {
        "full": "full kernel J Jᵀ",
        "mean": "mean over outputs, Σ_c Θ_cc / C",
        "trace": "trace over outputs, Σ_c Θ_cc",
        "random-projections": "trace over outputs, estimated from random directions",
        "sum-of-logits": "kernel of the summed outputs Σ_c f_c / √C",
    }[kernel.convention.reduction]
    return f"{reduction}, {n_rows} × {n_rows}"


def _packages() -> tuple[str, ...]:
    """Packages whose versions the numbers depend on: of the libraries those in use."""
    libraries = [name for name in ("flax", "equinox") if name in sys.modules]
    return ("jax", *libraries, "orbax-checkpoint")

"""What is known of one set of parameters on the probes, as `measure` returns it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from ntkdiag.analysis.alignment import Alignment
from ntkdiag.estimate import Estimate
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.spectrum import Spectrum
from ntkdiag.measuring.degeneracy import Condition
from ntkdiag.scalars import Number, nan_if_unknown

# Numbers that go by longer names where they stand alone.
_LONGER = {
    "equal": "equal_outputs",
    "spread": "output_spread",
    "alignment_of_train": "train_alignment",
    "alignment_of_train_above": "train_alignment_above",
    "alignment_of_train_chance": "train_alignment_chance",
    "alignment_of_train_standard_deviation": "train_alignment_standard_deviation",
}
_ALIGNMENTS = (
    "alignment",
    "alignment_chance",
    "alignment_standard_deviation",
    "alignment_above",
)
# Entries that are no numbers, even where they are not known.
_OF_OTHER_KINDS = ("label", "path", "label_power", "condition", "held_out")


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOut:
    """One side on held-out examples, beside what it is on those of `train`."""

    kernel: Kernel  # the empirical NTK of the held-out examples
    outputs: Float[np.ndarray, "n o"]  # `[N C]` model outputs
    loss: float | None  # loss on them; None where no loss was named
    # Share of labels that the outputs decide for; None unless labels are decisions.
    accuracy: float | None
    # The alignment of the examples of `train`, of a kernel of the same reduction as that of the
    # held-out ones; None where those of `train` have no labels.
    alignment_of_train: Alignment | None

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name; the alignment of the held-out examples is with those of the side."""
        of_train = _aligned(self.alignment_of_train, "alignment_of_train")
        return {"loss": self.loss, "accuracy": self.accuracy, **of_train}


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """One set of parameters on the probes: one side of a comparison, or a checkpoint of a run."""

    label: str  # name in tables
    path: str | None  # checkpoint path as given; None for values in memory
    step: int | None  # step number, where the checkpoint has one
    fixed_state: str  # where the arrays that are not parameters come from
    params_sha256: str  # SHA-256 of the parameters: path, dtype, shape and bytes of every leaf
    kernel: Kernel  # the empirical NTK on the probe
    spectrum: Spectrum  # its eigenvalues with their noise floor
    outputs: Float[np.ndarray, "n o"]  # `[N C]` model outputs
    # Path -> `[n n]`, the kernel of each leaf traced over outputs; empty of a checkpoint of a run.
    leaf_kernels: dict[str, Float[np.ndarray, "n n"]]
    condition: Condition  # whether it still tells examples apart, and what its outputs are like
    # Share of each leaf in the trace, in leaf order; None of a stored kernel.
    leaf_shares: list[float] | None = None
    # Centred kernel-target alignment, beside that of permuted labels; None without labels.
    alignment: Alignment | None = None
    # `[k]` cumulative label power C(k), kernel and labels centred; None without labels.
    label_power: Float[np.ndarray, " k"] | None = None
    # Squared error of kernel regression on an example left out, over the variance of the labels;
    # None without labels.
    leave_one_out: float | None = None
    loss: float | None = None  # loss on the probe; None without labels, or where no loss was named
    # Share of labels that the outputs decide for, by the largest output along the last axis or,
    # under a sigmoid, by the sign; None unless labels are classes or 0 and 1.
    accuracy: float | None = None
    # Where the quadratic model of the loss starts to diverge; None if the kernel is reduced, no
    # loss was named, or no examples of the training set were given.
    critical_learning_rate: float | None = None
    # Learning rate / critical learning rate; None without a learning rate, too; NaN where the
    # optimizer or its state is not known.
    margin: float | None = None
    learning_rate: float | None = None  # that of the margin; NaN where the optimizer does not tell
    # The 95 % interval of the margin of all training examples; None beside a stated rule where the
    # kernel is reduced or the loss not convex in the outputs.
    margin_interval: tuple[float, float] | None = None
    # "ok", or a sentence on what to know of the margin, or why there is none.
    margin_status: str = "ok"
    # Size of the optimizer's next update; None where the update rule is stated.
    update_norm: float | None = None
    # The same on held-out examples; None unless they were given beside `train`.
    held_out: HeldOut | None = None
    # `[n]` squared gradient of every example; None unless it was asked for.
    self_influence: Float[np.ndarray, " n"] | None = None
    # `[n]` by how much all other examples contradict the label of each; None unless labels are
    # classes.
    label_doubts: Float[np.ndarray, " n"] | None = None
    # Gradient noise scale; None unless it was asked for, and of few examples.
    noise_scale: Estimate | None = None

    @property
    def alignment_gap(self) -> float | None:
        """Alignment of examples trained on minus that of held-out ones, both above chance."""
        of_train = None if self.held_out is None else self.held_out.alignment_of_train
        if of_train is None or self.alignment is None:
            return None
        return float(of_train.above - self.alignment.above)

    def __repr__(self) -> str:
        numbers = {"trace": self.trace, "loss": self.loss, "margin": self.margin}
        if self.alignment is not None:
            numbers["alignment"] = float(self.alignment.value)
        known = [f"{name} {value:.4g}" for name, value in numbers.items() if value is not None]
        return f"Measured({self.label!r}: {', '.join(known)})"

    @property
    def trace(self) -> float:
        """Sum of the eigenvalues of the kernel in its convention."""
        return float(np.trace(np.asarray(self.kernel.matrix, np.float64)))

    @property
    def norm(self) -> float:
        """Frobenius norm of the kernel."""
        return float(np.linalg.norm(np.asarray(self.kernel.matrix, np.float64)))

    @property
    def numbers(self) -> dict[str, float]:
        """Every single number by its name in `ntkdiag.quantities`, NaN where it is not known."""
        found = _numbers(self.to_dict())
        return {name: nan_if_unknown(value) for name, value in found.items()}

    @property
    def known_numbers(self) -> dict[str, float]:
        """Those that were asked for: without what labels, a loss or an optimizer is missing for."""
        found = _numbers(self.to_dict())
        return {name: float(value) for name, value in found.items() if value is not None}

    @property
    def row(self) -> dict[str, Any]:
        """What judgements look at: the known numbers, shares of leaves, and the step."""
        row = {**self.known_numbers, "leaf_shares": self.leaf_shares}
        return row | {"step": self.step, "margin_status": self.margin_status}

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name, eigenvalues above the noise floor only; no kernels, no outputs."""
        spectrum = self.spectrum
        lower, upper = self.margin_interval or (None, None)
        return {
            "label": self.label,
            "path": self.path,
            "step": self.step,
            "fixed_state": self.fixed_state,
            "params_sha256": self.params_sha256,
            "eigenvalues": spectrum.eigenvalues[: spectrum.rank],
            "unresolved_eigenvalues": spectrum.size - spectrum.rank,
            "noise_floor": spectrum.noise_floor,
            "spectrum_status": spectrum.status,
            "trace": self.trace,
            "norm": self.norm,
            "participation_ratio": spectrum.participation_ratio,
            "entropy_rank": spectrum.entropy_rank,
            "condition": vars(self.condition),
            **_aligned(self.alignment, "alignment"),
            "label_power": self.label_power,
            "leave_one_out": self.leave_one_out,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "critical_learning_rate": self.critical_learning_rate,
            "margin": self.margin,
            "learning_rate": self.learning_rate,
            "margin_lower": lower,
            "margin_upper": upper,
            "margin_status": self.margin_status,
            "update_norm": self.update_norm,
            "alignment_gap": self.alignment_gap,
            "held_out": None if self.held_out is None else self.held_out.to_dict(),
            **_noise(self.noise_scale),
        }


def _numbers(content: Mapping[str, Any]) -> dict[str, Number | None]:
    """The single numbers of what `to_dict` has; of held-out examples they begin "held_out_"."""
    numbers: dict[str, Number | None] = {"rank": len(content["eigenvalues"])}
    held_out = content["held_out"]
    for name, value in content.items():
        if name not in _OF_OTHER_KINDS:
            # Beside held-out examples the labels are theirs.
            is_theirs = held_out is not None and name in _ALIGNMENTS
            _add(numbers, f"held_out_{name}" if is_theirs else name, value)
    for name, value in content["condition"].items():
        _add(numbers, _LONGER.get(str(name), str(name)), value)
    for name, value in (held_out or {}).items():
        _add(numbers, _LONGER.get(name, f"held_out_{name}"), value)
    return numbers


def _add(numbers: dict[str, Number | None], name: str, value: Any) -> None:
    """Note a value that is one number, or not known; texts and arrays are none."""
    is_text = isinstance(value, str)
    if value is None or (not is_text and np.ndim(value) == 0):
        numbers[name] = value


def _noise(noise: Estimate | None) -> dict[str, float]:
    """The noise scale with its interval; nothing where it was not asked for."""
    if noise is None:
        return {}
    ends = {"noise_scale_lower": noise.lower, "noise_scale_upper": noise.upper}
    return {name: float(value) for name, value in ({"noise_scale": noise.value} | ends).items()}


def _aligned(aligned: Alignment | None, name: str) -> dict[str, Number | None]:
    """An alignment beside its chance level, under names that begin alike; None without labels."""
    names = (name, f"{name}_chance", f"{name}_standard_deviation", f"{name}_above")
    if aligned is None:
        return dict.fromkeys(names)
    values = (aligned.value, aligned.chance, aligned.standard_deviation, aligned.above)
    return dict(zip(names, values, strict=True))

"""Findings about the two ends of a training: of a comparison, and of the checkpoints of a run.

Both ends are rows, numbers by their names in `ntkdiag.quantities`. A network that is dead or has
collapsed has one finding. For others there are the regime, the task, the running statistics and the
change of the loss, each with the numbers that decided.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ntkdiag.analysis.alignment import Alignment
from ntkdiag.analysis.degenerate import AT_CONSTANT_LOSS
from ntkdiag.judging.finding import Finding
from ntkdiag.judging.of_rows import Row, number_of
from ntkdiag.judging.regime import Regime, State, Task, regime_of, state, task_of
from ntkdiag.judging.thresholds import (
    ALIGNMENT_DEVIATIONS,
    ALIGNMENT_GROWTH,
    LAZY_DISTANCE,
    LAZY_E1,
    NONLINEAR_DISTANCE,
    NONLINEAR_E1,
)

CRITERION = (
    "DEAD if no parameter tells two examples apart, COLLAPSED if the outputs are equal over "
    "examples. Otherwise, regime: "
    f"LAZY if e1 < {LAZY_E1} and S_c < {LAZY_DISTANCE}, the model linearized at A explains B; "
    f"NONLINEAR if e1 >= {NONLINEAR_E1}, or e1 >= {LAZY_E1} and S_c > {NONLINEAR_DISTANCE}; "
    "UNCHANGED if the parameters changed no output beyond rounding; BETWEEN otherwise. Task: the "
    "alignment grew or fell if its odds above chance, (alignment - chance) / (1 - alignment), "
    f"changed by a factor of {ALIGNMENT_GROWTH:g} or more, and the alignment by more than "
    f"{ALIGNMENT_DEVIATIONS:g} standard deviations over permuted labels."
)
_NORMAL_QUANTILE = 1.959964  # of 97.5 %


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What happened, along two axes."""

    state: State  # "dead", "collapsed" or "alive": B itself, before all else
    # "lazy", "between" or "nonlinear"; "unchanged" if the parameters changed no output beyond
    # rounding; "unknown" where S_c is undefined and e1 does not decide.
    regime: Regime
    # Whether the alignment with the labels, above chance, "grew", "fell", or stayed the "same";
    # "unknown" without labels, or where it is undefined.
    task: Task
    criterion: str = CRITERION  # the rule

    @property
    def name(self) -> str:
        """The first word, in capitals: the state where it is not "alive", else the regime."""
        return (self.regime if self.state == "alive" else self.state).upper()

    @property
    def headline(self) -> str:
        """Both axes in a few words, such as "NONLINEAR, alignment grew"."""
        if self.state != "alive" or self.task == "unknown":
            return self.name
        return f"{self.name}, {self.task_words}"

    @property
    def task_words(self) -> str:
        """The task in words, such as "alignment grew"."""
        if self.task == "unknown":
            return "alignment unknown"
        return "alignment unchanged" if self.task == "same" else f"alignment {self.task}"

    def to_dict(self) -> dict[str, str]:
        """All fields and the name."""
        return {"name": self.name, **vars(self)}


@dataclasses.dataclass(frozen=True)
class Ends:
    """The two ends, and what lies between them."""

    before: Row  # numbers of the beginning
    after: Row  # numbers of the end
    e1: float | None  # None where nothing changed beyond rounding
    distance_centred: float | None  # S_c of the kernels
    first: str  # what the beginning is called
    step: int | None  # that of the end
    examples: Mapping[str, int]  # how many there are, of "train" and "held_out"
    # Numbers of the parameters of the beginning with the fixed arrays of the end, such as running
    # statistics, where these differ: what other statistics did, parameters did not.
    start: Row = dataclasses.field(default_factory=dict)
    linear_from: int | None = None  # the step from which on the linearized network predicts the end
    since: int | None = None  # the step from which on the state is that of the end

    @property
    def verdict(self) -> Verdict:
        """What happened, by `CRITERION`."""
        before, after = self._alignments
        spreads = [number_of(row, "output_spread") for row in (self.before, self.start)]
        return Verdict(
            state=state_of(self.after, min(filter(math.isfinite, spreads), default=0.0)),
            regime=regime_of(self.e1, self._distance),
            task=task_of(before, after),
        )

    @property
    def findings(self) -> list[Finding]:
        """The findings, the state first."""
        verdict = self.verdict
        if verdict.state != "alive":
            return [self._state(verdict.state)]
        findings = [
            self._regime(verdict.regime),
            self._task(verdict.task),
            self._statistics(),
            loss_change(self.before, self.after, self.examples),
        ]
        return [finding for finding in findings if finding is not None]

    @property
    def _distance(self) -> float | None:
        """S_c; None where one end is dead: a constant kernel, centred, is rounding."""
        is_dead = number_of(self.before, "dead") == 1 or number_of(self.after, "dead") == 1
        return None if is_dead else self.distance_centred

    @property
    def _prefix(self) -> str:
        """What the names of numbers about labels begin with."""
        return "held_out_" if "held_out_alignment" in self.after else ""

    @property
    def _are_held_out(self) -> bool:
        """Whether the labels are of examples that were not trained on."""
        return bool(self._prefix) or "train" not in self.examples

    @property
    def _alignments(self) -> tuple[Alignment | None, Alignment | None]:
        name = f"{self._prefix}alignment"
        before = self.start if name in self.start else self.before
        return _alignment(before, name), _alignment(self.after, name)

    @property
    def _trust(self) -> str:
        n = self.examples.get("train") or self.examples.get("held_out")
        return f"Measured on the {n} probe examples."

    def _state(self, of_end: State) -> Finding:
        """That the network is dead or has collapsed."""
        since = "" if self.since is None else f" from step {self.since} on"
        what = {
            "dead": f"The network is dead{since}: no parameter tells two examples apart",
            "collapsed": f"The network has collapsed{since}: its outputs are the same for every "
            "example, or nearly",
        }[of_end]
        spreads = [_written(number_of(row, "output_spread")) for row in (self.before, self.after)]
        numbers = (
            f"outputs spread {spreads[0]} over examples at {self.first}, {spreads[1]} at the end"
        )
        loss, constant = (number_of(self.after, name) for name in ("loss", "constant_loss"))
        if math.isfinite(loss) and math.isfinite(constant):
            numbers += f"; the loss is {loss:.4g}, that of the best constant outputs {constant:.4g}"
        return Finding(
            id=of_end,
            severity="error",
            quantities=("dead", "equal_outputs", "output_spread", "loss", "constant_loss"),
            sentence=f"{what}; {numbers}.",
            value=number_of(self.after, "output_spread"),
            step=self.step,
            trust=self._trust,
            do="Return to an earlier checkpoint and continue with a smaller learning rate.",
        )

    def _regime(self, regime: Regime) -> Finding:
        """How far the network linearized at the beginning explains the end."""
        later = "a later checkpoint" if self.linear_from is None else f"step {self.linear_from}"
        network = f"The network linearized at {self.first}"
        ids, what, do = {
            "lazy": (
                "linear-regime",
                f"{network} predicts the end",
                "Train the linearized model, too (ntkdiag.baselines.linear_baseline).",
            ),
            "between": ("between-regimes", f"{network} predicts the end in part", ""),
            "nonlinear": (
                "nonlinear-regime",
                f"{network} does not predict the end",
                f"Linearize at {later}.",
            ),
            "unchanged": ("unchanged", f"The outputs are those of {self.first} up to rounding", ""),
            "unknown": ("regime-unknown", "The kernel is constant over examples at one end", ""),
        }[regime]
        error = "" if self.e1 is None else f" (relative error e1 = {self.e1:.3g})"
        is_far = self.e1 is not None and self.e1 >= NONLINEAR_E1
        return Finding(
            id=ids,
            severity="info",
            quantities=("e1", "drift_distance_centred"),
            sentence=f"{what}{error}; {_rotation(self._distance)}.",
            value=self.e1,
            threshold=NONLINEAR_E1 if is_far else LAZY_E1,
            step=self.step,
            trust=self._trust,
            do=do,
        )

    def _task(self, task: Task) -> Finding | None:
        """Whether the kernel became more that of the labels; None where that is not known."""
        before, after = self._alignments
        if task == "unknown" or before is None or after is None:
            return None
        of_examples = "held-out examples" if self._are_held_out else "the training probe"
        went = {"grew": "grew", "fell": "fell", "same": "stayed about the same"}[task]
        n = self.examples["held_out" if self._are_held_out else "train"]
        deviation = float(after.standard_deviation) / (1.0 - float(after.chance))
        trust = f"Based on {n} examples; ± is the standard deviation over permuted labels."
        if not self._are_held_out:
            trust += " After training a kernel knows the labels it was trained on."
        return Finding(
            id=f"alignment-{task}",
            severity="warning" if task == "fell" else "info",
            quantities=(f"{self._prefix}alignment_above",),
            sentence=f"Alignment with the labels of {of_examples} {went}: "
            f"{float(before.above):.2g} to {float(after.above):.2g} above chance "
            f"(± {deviation:.2g}).",
            value=float(after.above),
            threshold=ALIGNMENT_GROWTH,
            step=self.step,
            trust=trust,
            do="Find the checkpoints between which it fell (ntkdiag.track), and check labels and "
            "learning rate there."
            if task == "fell"
            else "",
        )

    def _statistics(self) -> Finding | None:
        """What other fixed arrays, such as running statistics, did by themselves."""
        share = number_of(self.start, "share_of_fixed_arrays")
        if not math.isfinite(share):
            return None
        of_parameters = number_of(self.start, "share_of_parameters")
        distance = number_of(self.start, "fixed_arrays_distance_centred")
        return Finding(
            id="statistics-moved",
            severity="info",
            quantities=("share_of_fixed_arrays", "share_of_parameters"),
            sentence=f"Fixed arrays such as running statistics alone caused {100 * share:.3g} % "
            f"of the change of the outputs, the parameters {100 * of_parameters:.3g} %; through "
            f"the fixed arrays, {_rotation(distance)}.",
            value=share,
            step=self.step,
            trust="Drift, e1 and alignment are those of the parameters alone.",
        )


def state_of(row: Row, spread_before: float) -> State:
    """Whether a checkpoint is dead or collapsed, as `ntkdiag.analysis.degenerate` defines it."""
    loss, constant = number_of(row, "loss"), number_of(row, "constant_loss")
    return state(
        is_dead=number_of(row, "dead") == 1,
        equal=number_of(row, "equal_outputs") == 1,
        spread=number_of(row, "output_spread"),
        spread_before=spread_before,
        at_constant_loss=loss >= AT_CONSTANT_LOSS * constant,  # not of NaN
    )


def loss_change(before: Row, after: Row, examples: Mapping[str, int]) -> Finding | None:
    """How the loss went, and the accuracies at the end; None where the loss is not known."""
    losses = number_of(before, "loss"), number_of(after, "loss")
    if not all(map(math.isfinite, losses)):
        return None
    parts = [
        f"The loss {'fell' if losses[1] < losses[0] else 'rose'} from {losses[0]:.3g} to "
        f"{losses[1] + 0.0:.3g}"
    ]
    for name, of in (("", "the training probe"), ("held_out_", "held-out examples")):
        accuracy = number_of(after, f"{name}accuracy")
        n = examples.get("held_out" if name else "train")
        if math.isfinite(accuracy) and n:
            lower, upper = _wilson_interval(accuracy, n)
            parts.append(
                f"the accuracy on {of} ends at {100 * accuracy:.1f} % "
                f"(95 % interval {100 * lower:.1f} to {100 * upper:.1f} %)"
            )
    return Finding(
        id="loss",
        severity="info",
        quantities=("loss", "accuracy", "held_out_accuracy"),
        sentence=f"{'; '.join(parts)}.",
        value=losses[1],
        step=after.get("step"),
    )


def interference_findings(
    change: float, interval: tuple[float, float], hardest: Sequence[int], trust: str
) -> list[Finding]:
    """A finding where training on new examples harms old ones by the whole interval."""
    if not interval[0] > 0.0:
        return []
    return [
        Finding(
            id="new-harms-old",
            severity="warning",
            quantities=("change", "lower"),
            sentence=f"Training on the new examples raises the mean loss on the old ones by "
            f"{change:.3g}, most on the examples {', '.join(map(str, hardest))}.",
            value=change,
            interval=interval,
            threshold=0.0,
            trust=trust,
            do="Mix old examples into the new ones, the hardest hit first, or lower the rate.",
        )
    ]


def _alignment(row: Row, name: str) -> Alignment | None:
    """An alignment with its chance level; None where that was not measured."""
    names = (name, f"{name}_chance", f"{name}_standard_deviation")
    if any(name not in row for name in names):
        return None
    value, chance, deviation = (number_of(row, name) for name in names)
    return Alignment(value, chance, deviation, reduction="matrix")


def _wilson_interval(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a probability, of which a share came true in n trials."""
    z = _NORMAL_QUANTILE
    centre = share + z**2 / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    lower, upper = ((centre + sign * half) / (1 + z**2 / n) for sign in (-1, 1))
    return max(0.0, lower), min(1.0, upper)


def _written(value: Any) -> str:
    """Three digits; a number that is not finite is undefined, as for a kernel of zero."""
    return f"{value:.3g}" if value is not None and math.isfinite(value) else "undefined"


def _rotation(distance: float | None) -> str:
    """How far a kernel rotated, as the end of a sentence."""
    if distance is None or not math.isfinite(distance):
        return "the rotation of the kernel is undefined"
    return f"the kernel rotated by {distance:.3g} (centred distance)"

"""What is found in a run: its state, its stability, and what was found while it trained."""

import math

import numpy as np

from ntkdiag import display
from ntkdiag.judging.finding import Finding, by_urgency
from ntkdiag.judging.label_finding import label_findings
from ntkdiag.judging.margin_finding import margin_findings
from ntkdiag.judging.noise_finding import noise_findings
from ntkdiag.judging.regime import regime_of
from ntkdiag.judging.regime_finding import regime_findings
from ntkdiag.judging.state_finding import state_findings
from ntkdiag.monitor.writers import read_findings
from ntkdiag.report.run_margins import Margins
from ntkdiag.report.run_state import sentence_of_state, states_of
from ntkdiag.report.run_subject import RunSubject
from ntkdiag.runs.run_stream import RunStream

_NON_FINITE = 2  # the status of a measurement with NaN or infinity
# How many steps had a gradient or parameters with NaN or infinity, and in which layers.
_STEPS_NOT_FINITE = "not_finite_steps"
_IN_GRADIENT, _IN_PARAMETERS = "layer_gradient_not_finite", "layer_parameter_not_finite"
_MOST_LAYERS = 3  # more are counted


def findings_of(subject: RunSubject) -> list[Finding]:
    """All findings, the most urgent first."""
    found = [
        *_state(subject),
        *_not_finite(subject),
        *_gradient_not_finite(subject),
        *_stability(subject),
        *_regime(subject),
        *_noise(subject),
        *_labels(subject),
        *_live(subject),
    ]
    if not found and not _can_be_judged(subject):
        found = [_unknown()]
    return by_urgency(found)


def _can_be_judged(subject: RunSubject) -> bool:
    """Whether there is a number that a finding could have come from."""
    has_looked = subject.measured(_STEPS_NOT_FINITE) is not None
    return has_looked or bool(states_of(subject)) or Margins.of(subject) is not None


def _unknown() -> Finding:
    return Finding(
        id="unknown",
        severity="info",
        quantities=("margin", "dead"),
        sentence="Nothing can be judged: no margin was measured, and no checkpoint tracked.",
        do="Watch with loss=, or track the checkpoints: ntkdiag.track(..., loss=, descent=).",
        verify="ntkdiag check says another finding, or none.",
    )


def _state(subject: RunSubject) -> list[Finding]:
    """A network that ends dead or collapsed."""
    states = states_of(subject)
    if not states:
        return []
    spread = subject.series("output_spread")
    return state_findings(
        states[-1],
        None if spread is None else float(spread[-1]),
        f"{sentence_of_state(subject)}.",
        int(subject.steps[-1]),
        f"Of {len(states)} checkpoints and {subject.n_examples} examples.",
    )


def _not_finite(subject: RunSubject) -> list[Finding]:
    """Numbers of the last step that are NaN or infinite."""
    statuses = subject.watched.numbers("status")
    loss = subject.series("loss")
    if len(statuses) and statuses[-1] == _NON_FINITE:
        step, name = int(subject.watched.steps[-1]), "status"
    elif loss is not None and np.isfinite(loss).any() and not math.isfinite(loss[-1]):
        step, name = int(subject.steps[-1]), "loss"
    else:
        return []
    return [
        Finding(
            id="not-finite",
            severity="error",
            quantities=(name,),
            sentence="The run ends with NaN or infinity in parameters, outputs or gradient.",
            value=math.nan,
            step=step,
            trust="Of the last measurement.",
            do="Go back to the last finite step; clip the gradient or lower the rate.",
            verify="The loss of later steps is finite.",
        )
    ]


def _gradient_not_finite(subject: RunSubject) -> list[Finding]:
    """The first step at which a gradient, or what it did to the parameters, was not finite."""
    watched = subject.watched
    counts = watched.numbers(_STEPS_NOT_FINITE)
    places = np.flatnonzero(counts > 0)
    if not len(places):
        return []
    place = int(places[0])
    step, count = int(watched.numbers("not_finite_step")[place]), int(np.nanmax(counts))
    what, layers = "gradient", _layers_not_finite(subject, _IN_GRADIENT, place)
    if not layers:
        what, layers = "update", _layers_not_finite(subject, _IN_PARAMETERS, place)
    has_spread = bool(_layers_not_finite(subject, _IN_PARAMETERS, len(watched) - 1))
    where = f" in {display.some_of(layers, _MOST_LAYERS)}" if layers else ""
    end = "the run ends with others in the parameters" if has_spread else "the parameters have none"
    others = "" if count == 1 else f", and of {count - 1} later ones,"
    return [
        Finding(
            id="gradient-not-finite",
            severity="error" if has_spread else "warning",
            quantities=(_STEPS_NOT_FINITE, _IN_GRADIENT, _IN_PARAMETERS),
            sentence=f"The {what} of step {step}{others} had NaN or infinity{where}; {end}.",
            value=float(count),
            threshold=0.0,
            step=step,
            layer=layers[0] if layers else None,
            trust="Some numbers of each array are looked at in every step, all at measured ones.",
            do="Look at the batch of that step; skip such steps (optax.apply_if_finite), clip the "
            "gradient, or scale the loss in half precision.",
            verify="not_finite_steps stays 0 in another run.",
        )
    ]


def _layers_not_finite(subject: RunSubject, quantity: str, place: int) -> list[str]:
    """The layers in which a measurement counted numbers that are not finite."""
    layers = subject.watch_record.get("layers", [])
    counted = [subject.watched.numbers(quantity, number)[place] for number in range(len(layers))]
    return [layer for layer, count in zip(layers, counted, strict=True) if count > 0]


def _stability(subject: RunSubject) -> list[Finding]:
    """The margin of the last step, and the largest there was."""
    margins = Margins.of(subject)
    if margins is None or sentence_of_state(subject):
        return []
    trust = f"Of {len(margins.steps)} margins, {margins.n_checkpoints} of them of checkpoints."
    steps: list[int | None] = [int(step) for step in margins.steps]
    return margin_findings(steps, margins.values, margins.lower, margins.upper, trust)


def _regime(subject: RunSubject) -> list[Finding]:
    """How far the network linearized at the first checkpoint explains the last one."""
    distances, e1 = subject.series("drift_distance_centred"), subject.matrix("e1")
    if distances is None or e1 is None or not math.isfinite(e1[0, -1]):
        return []
    if sentence_of_state(subject):
        return []
    from_first = float(e1[0, -1])
    return regime_findings(
        regime_of(from_first, float(distances[-1])),
        from_first,
        first=f"step {subject.steps[0]}",
        step=int(subject.steps[-1]),
        trust=f"Of {len(subject.steps)} checkpoints and {subject.n_examples} examples.",
    )


def _noise(subject: RunSubject) -> list[Finding]:
    """A batch far from the last noise scale that is known, where both are there."""
    batch = subject.watch_record.get("batch_size")
    if not isinstance(batch, int):
        return []
    steps, lower, upper = _noise_scales(subject)
    known = np.flatnonzero(np.isfinite(lower))
    if not len(known):
        return []
    last = known[-1]
    trust = "Of single gradients of the probe: it holds at this step, for rates tuned to the batch."
    ends = float(lower[last]), float(upper[last])
    return noise_findings(batch, *ends, step=int(steps[last]), trust=trust)


def _noise_scales(subject: RunSubject) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps and ends of intervals of the noise scale, of the monitor or else of checkpoints."""
    lower = subject.watched.numbers("noise_scale_lower")
    if np.isfinite(lower).any():
        return subject.watched.steps, lower, subject.watched.numbers("noise_scale_upper")
    names = ("noise_scale_lower", "noise_scale_upper")
    lower, upper = (subject.series(name) for name in names)
    if lower is None or upper is None:
        return np.zeros(0), np.zeros(0), np.zeros(0)
    return np.asarray(subject.steps), lower, upper


def _labels(subject: RunSubject) -> list[Finding]:
    """Labels that all other examples contradict."""
    doubts = subject.label_doubts
    return [] if doubts is None else label_findings(doubts)


def _live(subject: RunSubject) -> list[Finding]:
    """What was found while the run trained: the first of each id and layer."""
    if subject.run is None:
        return []
    first: dict[tuple[str, str | None], Finding] = {}
    for name in subject.run.names:
        for finding in read_findings(RunStream(subject.run.root, name).path):
            first.setdefault((finding.id, finding.layer), finding)
    return list(first.values())

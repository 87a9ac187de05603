"""Figures of whether a run will train: margins, loss, what one step does to the network."""

import numpy as np
from jaxtyping import Float

from ntkdiag.report.figures.run_figure import Curve, LineFigure, RunFigure
from ntkdiag.report.run_subject import RunSubject

PAGE = "training"


def over_checkpoints(subject: RunSubject, names: dict[str, str]) -> list[Curve]:
    """The numbers of the checkpoints that there are, by name and what each is called."""
    curves = []
    for name, label in names.items():
        values = subject.series(name)
        if values is not None:
            steps = np.asarray(subject.steps, np.float64)
            ends = _ends(subject, name)
            curves.append(Curve(label, steps, values, interval=ends))
    return curves


def _ends(
    subject: RunSubject, name: str
) -> tuple[Float[np.ndarray, " T"], Float[np.ndarray, " T"]] | None:
    """Both ends of the intervals of a number of the checkpoints; None where it has none."""
    lower, upper = (subject.series(f"{name}_{end}") for end in ("lower", "upper"))
    if lower is None or upper is None or not np.any(lower < upper):
        return None
    return lower, upper


def over_measurements(subject: RunSubject, names: dict[str, str]) -> list[Curve]:
    """The numbers of the monitor that there are, each with its interval."""
    curves = []
    for name, label in names.items():
        measured = subject.measured(name)
        if measured is not None:
            steps, values = measured
            curves.append(Curve(label, steps, values, interval=subject.interval(name)))
    return curves


def _margins(subject: RunSubject) -> list[Curve]:
    of_monitor = over_measurements(subject, {"margin": "monitor, while training"})
    return of_monitor + over_checkpoints(subject, {"margin": "checkpoints, full batch"})


def _losses(subject: RunSubject) -> list[Curve]:
    prefix = "trained on" if subject.has_both_probes else "loss of the probe"
    of_checkpoints = over_checkpoints(subject, {"loss": prefix, "held_out_loss": "held out"})
    return of_checkpoints or over_measurements(subject, {"loss": "probe of the monitor"})


def _accuracies(subject: RunSubject) -> list[Curve]:
    prefix = "trained on" if subject.has_both_probes else "accuracy on the probe"
    return over_checkpoints(subject, {"accuracy": prefix, "held_out_accuracy": "held out"})


def _step_errors(subject: RunSubject) -> list[Curve]:
    curves = over_measurements(subject, {"step_error": "one step of the optimizer"})
    e1 = subject.matrix("e1")
    if e1 is not None:
        # e1 [i i + 1]: linearized at a checkpoint, for the outputs of the next one.
        steps = np.asarray(subject.steps[1:], np.float64)
        curves.append(Curve("from checkpoint to checkpoint", steps, np.diagonal(e1, 1).copy()))
    return curves


TRAINING: tuple[RunFigure, ...] = (
    LineFigure(
        name="margin",
        page=PAGE,
        title="Stability margin",
        caption="The learning rate over the critical one. At 1, the edge of stability, gradient "
        "descent on the quadratic model of the loss begins to oscillate; well above, it diverges.",
        needs="It needs track(..., train=, loss=, descent=), or a monitor with a loss.",
        curves=_margins,
        from_zero=True,
        level=1.0,
        level_name="edge of stability",
    ),
    LineFigure(
        name="loss",
        page=PAGE,
        title="Loss",
        caption="The loss on the probes, which are a part of the data.",
        needs="It needs track(..., loss=) and labels.",
        curves=_losses,
        logarithmic_y=True,
    ),
    LineFigure(
        name="accuracy",
        page=PAGE,
        title="Accuracy",
        caption="The share of labels that the outputs decide for.",
        needs="It needs labels that are classes.",
        curves=_accuracies,
        from_zero=True,
    ),
    LineFigure(
        name="step_error",
        page=PAGE,
        title="Error of the linearized network over a step",
        caption="‖f − f_lin‖ over the change of f, for the network linearized at the beginning of "
        "a step. Below 0.1 steps are in the reach of the linear model; near 1 they are not.",
        needs="It needs two checkpoints, or a monitor with the step error.",
        curves=_step_errors,
        from_zero=True,
    ),
)

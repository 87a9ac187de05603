"""The figure of how the kernel fits the labels."""

from ntkdiag.report.figures.run_figure import Curve, LineFigure, RunFigure
from ntkdiag.report.figures.run_training import over_checkpoints, over_measurements
from ntkdiag.report.run_subject import RunSubject

PAGE = "generalization"


def _alignments(subject: RunSubject) -> list[Curve]:
    names = {
        "alignment_above": "of the probe",
        "train_alignment_above": "trained on",
        "held_out_alignment_above": "held out",
    }
    curves = over_checkpoints(subject, names)
    return curves or over_measurements(subject, {"alignment": "monitor"})


LABELS: tuple[RunFigure, ...] = (
    LineFigure(
        name="alignment",
        page=PAGE,
        title="Alignment with the labels",
        caption="Centred alignment of kernel and labels, at checkpoints above that of permuted "
        "labels: 0 is chance, 1 a kernel of the labels alone.",
        needs="It needs labels.",
        curves=_alignments,
        y_name="alignment",
    ),
)

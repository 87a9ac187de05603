"""All figures of runs and comparisons: what each shows, which numbers it needs, how it is drawn.

A figure is drawn from one dataset. Its numbers have the names of `ntkdiag.quantities`: those of
checkpoints lie along `step`, those of the two sides of a comparison along `side`, and those of a
monitor, whose names begin with "watch_", along `watch_step`. A figure is there where one of the
numbers that it needs is known. `result.plot` draws each by its name, and every other number of the
checkpoints in the same way.
"""

import dataclasses
import functools
import textwrap
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from ntkdiag import display, errors
from ntkdiag.quantities import axis_words, quantity
from ntkdiag.report import drawing
from ntkdiag.report.drawing import Curve, colours_of_states, draw_curves, draw_level, even_indices
from ntkdiag.report.style import FAINT, recolour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from xarray import Dataset

# Section of a page -> its title, in their order.
SECTIONS: Mapping[str, str] = {
    "training": "Will it train?",
    "regime": "Regime",
    "kernel": "Which kernel",
    "generalization": "Generalization",
    "layers": "Layers",
}
MOST_EIGENVALUES = 12  # that are drawn over training
MOST_SPECTRA = 24
MOST_LETTERS_OF_AXIS = 30  # in a line beside an axis of a figure for paper
MOST_MODES = 150  # of a spectrum
MOST_LEAVES = 8  # that have a colour of their own
MOST_GREY_LEAVES = 32  # that are drawn beside them


@dataclasses.dataclass(frozen=True)
class Figure:
    """One figure."""

    name: str  # as `run.plot.<name>()` calls it
    section: str  # the part of the page that it is in; see `SECTIONS`
    title: str  # what it shows, in a few words
    caption: str  # how to read it
    needs: tuple[str, ...]  # names of numbers, of which one is enough
    draw: Callable[["Dataset", "Axes"], None]
    over: str = "step"  # the dimension that these numbers have; a monitor has its own

    def is_there(self, dataset: "Dataset") -> bool:
        """Whether a dataset has the numbers."""
        for name in self.needs:
            if name not in dataset:
                continue
            values = dataset[name]
            is_over = self.over in values.dims or name.startswith("watch_")
            if is_over and np.isfinite(values.values).any():
                return True
        return False


def plots(
    of: str,
    dataset: "Callable[[], Dataset]",
    numbers: Iterable[str] = (),
    matrices: Iterable[str] = (),
) -> types.SimpleNamespace:
    """The figures of a result by name, and those of its numbers and of its numbers of pairs."""
    figures = {name: _figure_of(name, _lines(name), "step") for name in numbers}
    for name in matrices:
        figures[name] = _figure_of(name, _pairs(name, axis_words(name)), "step_2")
    figures |= FIGURES
    methods = types.SimpleNamespace()
    for name, figure in figures.items():
        # Errors name the call as it is written.
        called = errors.called(f"{of}.plot.{name}()")
        setattr(methods, name, called(functools.partial(_plot, figure, dataset)))
    return methods


def _figure_of(name: str, draw: Callable[["Dataset", "Axes"], None], over: str) -> Figure:
    """A figure of a number that the page has no figure of."""
    return Figure(name, "", name, "", (name,), draw, over)


def _plot(figure: Figure, dataset: "Callable[[], Dataset]", *, ax: "Axes | None" = None) -> "Axes":
    """Draw a figure on the axes of the user, or on new ones, in the colours of paper."""
    data = dataset()
    if not figure.is_there(data):
        there = [name for name, other in FIGURES.items() if other.is_there(data)]
        raise errors.InvalidInputError(
            expected=f"a figure whose numbers are there: {', '.join(there)}",
            got=repr(figure.name),
            do=f"It needs {' or '.join(figure.needs)}; docs/track.md says what each number needs.",
        )
    ax = display.axes_to_draw_on(ax)
    figure.draw(data, ax)
    ax.set_ylabel(textwrap.fill(ax.get_ylabel(), MOST_LETTERS_OF_AXIS))
    drawing.add_legend(ax)
    recolour(ax)
    return ax


def _lines(
    *names: str, y_name: str = "", level: str = "", **options: Any
) -> Callable[["Dataset", "Axes"], None]:
    """What draws numbers over the steps by their words in the table; `level` names 1."""
    words = y_name or axis_words(names[0].removeprefix("watch_"))

    def draw(dataset: "Dataset", ax: "Axes") -> None:
        draw_curves(ax, _over_steps(dataset, names), words, **options)
        if level:
            draw_level(ax, 1.0, level)

    return draw


def _pairs(
    name: str, bar: str, *, rows: str = "step", columns: str = "step", largest: float | None = None
) -> Callable[["Dataset", "Axes"], None]:
    def draw(dataset: "Dataset", ax: "Axes") -> None:
        drawing.draw_pairs(ax, dataset[name], bar, rows=rows, columns=columns, largest=largest)

    return draw


def _over_steps(dataset: "Dataset", names: Sequence[str]) -> list[Curve]:
    """The numbers that are known, with their intervals."""
    curves = []
    for name in names:
        if name not in dataset or not np.isfinite(dataset[name].values).any():
            continue
        values = dataset[name]
        known = quantity(name.removeprefix("watch_"))
        label = name.replace("_", " ") if known is None else known.words
        is_drawn = np.ones(len(values), bool)
        if name.startswith("watch_"):  # a monitor may measure it now and then
            label += ", monitor"
            is_drawn = np.isfinite(values.values)
        steps = values[values.dims[0]].values.astype(np.float64)
        interval = None
        if f"{name}_lower" in dataset and f"{name}_upper" in dataset:
            lower, upper = (dataset[f"{name}_{end}"].values[is_drawn] for end in ("lower", "upper"))
            interval = (lower, upper) if np.any(lower < upper) else None
        curves.append(Curve(label, steps[is_drawn], values.values[is_drawn], interval=interval))
    return curves


def _resolved(dataset: "Dataset") -> Float[np.ndarray, "s k"]:
    """Eigenvalues; NaN for those below the noise floor, which are rounding."""
    eigenvalues = dataset["eigenvalues"].values
    return np.where(eigenvalues > dataset["noise_floor"].values[:, None], eigenvalues, np.nan)


def _spectrum(dataset: "Dataset", ax: "Axes") -> None:
    """The resolved eigenvalues of every checkpoint, or of both sides, over their index."""
    resolved = _resolved(dataset)
    over = dataset["eigenvalues"].dims[0]
    chosen = even_indices(len(resolved), MOST_SPECTRA)
    # Of very many modes those that lie evenly on a logarithmic axis.
    x = np.arange(1.0, resolved.shape[1] + 1)
    if len(x) > MOST_MODES:
        x = np.unique(np.geomspace(1, len(x), MOST_MODES).round())
    curves = []
    for index, colour in zip(chosen, colours_of_states(len(chosen)), strict=True):
        name = dataset[over].values[index]
        label = f"step {name}" if over == "step" else str(name).upper()
        curves.append(Curve(label, x, resolved[index][x.astype(int) - 1], colour=colour))
    draw_curves(
        ax,
        curves,
        axis_words("eigenvalues"),
        x_name="index",
        logarithmic_x=True,
        logarithmic_y=True,
    )
    if len(curves) <= 2:
        for curve, floor in zip(curves, dataset["noise_floor"].values, strict=True):
            ax.axhline(floor, color=curve.colour, linestyle=drawing.DASHED, linewidth=1)


def _eigenvalues(dataset: "Dataset", ax: "Axes") -> None:
    """Some eigenvalues over training, and the noise floor; else the largest of a monitor."""
    is_tracked = "eigenvalues" in dataset
    name = "eigenvalues" if is_tracked else "watch_eigenvalues"
    resolved = _resolved(dataset) if is_tracked else dataset[name].values
    steps = dataset[dataset[name].dims[0]].values.astype(np.float64)
    n_resolved = int(np.isfinite(resolved).sum(axis=1).max(initial=0))
    last = max(1, n_resolved if is_tracked else min(n_resolved, MOST_EIGENVALUES))
    indices = np.unique(np.geomspace(1, last, MOST_EIGENVALUES).round().astype(int))
    curves = []
    for index, colour in zip(indices, colours_of_states(len(indices)), strict=True):
        curves.append(Curve(f"λ{index}", steps, resolved[:, index - 1], colour=colour))
    if is_tracked:
        floors = dataset["noise_floor"].values
        curves.append(Curve("noise floor", steps, floors, dashed=True))
    draw_curves(ax, curves, axis_words("eigenvalues"), logarithmic_y=True)


def _label_power(dataset: "Dataset", ax: "Axes") -> None:
    power = dataset["label_power"].values
    k = np.arange(1.0, power.shape[1] + 1.0)
    curves = []
    for name, of_side, rank in zip(("A", "B"), power, dataset["rank"].values, strict=True):
        # Directions of eigenvalues below the noise floor are rounding, and not drawn.
        curves.append(Curve(name, k[: int(rank)], of_side[: int(rank)]))
    curves.append(Curve("labels spread evenly", k, k / len(k), colour=FAINT, dashed=True))
    draw_curves(
        ax,
        curves,
        "share of the labels, C(k)",
        x_name="number of modes k, fastest first",
        logarithmic_x=True,
    )
    ax.set_ylim(0, 1.02)


def _leaf_shares(dataset: "Dataset", ax: "Axes") -> None:
    shares = dataset["leaf_shares"]
    names = [str(name) for name in shares["leaf"].values]
    steps = dataset["step"].values.astype(np.float64)
    draw_curves(ax, _largest(names, steps, shares.values), "share of the trace", from_zero=True)


def _layer_updates(dataset: "Dataset", ax: "Axes") -> None:
    update = dataset["watch_layer_update"]
    names = [str(name) for name in update["layer"].values]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = update.values / dataset["watch_layer_parameter"].values
    ratio[~np.isfinite(ratio)] = np.nan  # a layer that begins at zero has none
    steps = dataset["watch_step"].values.astype(np.float64)
    curves = _largest(names, steps, ratio)
    draw_curves(ax, curves, axis_words("update_ratio"), logarithmic_y=True)


def _largest(
    names: list[str], steps: Float[np.ndarray, " s"], values: Float[np.ndarray, "s l"]
) -> list[Curve]:
    """Curves of the layers that reach highest; the first of them in colour, over the others."""
    is_known = np.isfinite(values).any(axis=1)
    values = values[is_known]
    highest = np.where(np.isfinite(values), values, -np.inf).max(axis=0, initial=-np.inf)
    by_height = np.argsort(-highest, kind="stable").tolist()
    in_colour = sorted(by_height[:MOST_LEAVES])
    in_grey = sorted(by_height[MOST_LEAVES : MOST_LEAVES + MOST_GREY_LEAVES])
    colours = [drawing.GREY] * len(in_grey) + colours_of_states(len(in_colour))
    curves = []
    for index, colour in zip([*in_grey, *in_colour], colours, strict=True):
        name = names[index] or "(the only leaf)"
        curves.append(Curve(name, steps[is_known], values[:, index], colour=colour))
    return curves


_RANKS = ("rank", "entropy_rank", "participation_ratio", "watch_participation_ratio")
_ALIGNMENTS = (
    "alignment_above",
    "train_alignment_above",
    "held_out_alignment_above",
    "watch_alignment",
)

FIGURES: Mapping[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure(
            name="margin",
            section="training",
            title="Stability margin",
            caption="The learning rate over the critical one. At 1, the edge of stability, "
            "gradient descent on the quadratic model of the loss begins to oscillate; well above, "
            "it diverges.",
            needs=("margin", "watch_margin"),
            draw=_lines("margin", "watch_margin", level="edge of stability", from_zero=True),
        ),
        Figure(
            name="loss",
            section="training",
            title="Loss",
            caption="The loss on the probes, which are a part of the data.",
            needs=("loss", "held_out_loss", "watch_loss"),
            draw=_lines("loss", "held_out_loss", "watch_loss", logarithmic_y=True),
        ),
        Figure(
            name="accuracy",
            section="training",
            title="Accuracy",
            caption="The share of labels that the outputs decide for.",
            needs=("accuracy", "held_out_accuracy"),
            draw=_lines("accuracy", "held_out_accuracy", from_zero=True),
        ),
        Figure(
            name="step_error",
            section="training",
            title="Error of the linearized network over one optimizer step",
            caption="‖f − f_lin‖ over the change of f in one step of the optimizer, as a monitor "
            "measures it. Below 0.1 steps are in the reach of the linear model; near 1 they are "
            "not.",
            needs=("watch_step_error",),
            draw=_lines("watch_step_error", from_zero=True),
        ),
        Figure(
            name="drift_distance_centred",
            section="regime",
            title="Rotation of the kernel",
            caption="Centred distance from the first kernel: 0 is the same direction, 1 an "
            "unrelated one. Below 0.01 the kernel hardly rotated, beyond 0.1 features moved.",
            needs=("drift_distance_centred",),
            draw=_lines("drift_distance_centred", from_zero=True),
        ),
        Figure(
            name="drift",
            section="regime",
            title="Change of the kernel",
            caption="‖Θ − Θ₀‖ / ‖Θ₀‖ from the first kernel, its scale included. Checkpoints and "
            "monitors may measure different examples.",
            needs=("drift", "watch_drift"),
            draw=_lines("drift", "watch_drift", from_zero=True),
        ),
        Figure(
            name="e1",
            section="regime",
            title="Linearization error of all pairs",
            caption="Row: where the network is linearized; column: what it predicts. Dark columns "
            "to the right of a row say that from there on the network is nearly linear.",
            needs=("e1",),
            draw=_pairs(
                "e1",
                "e₁, 1 is no prediction",
                rows="linearized at step",
                columns="predicting step",
                largest=1.0,
            ),
            over="step_2",
        ),
        Figure(
            name="distance_centred",
            section="regime",
            title="Distance of all pairs of kernels",
            caption="1 − cosine between two kernels, centred over examples. Dark blocks are phases "
            "in which the kernel rests.",
            needs=("distance_centred",),
            draw=_pairs("distance_centred", "centred distance"),
            over="step_2",
        ),
        Figure(
            name="spectrum",
            section="kernel",
            title="Eigenvalues of every kernel",
            caption="Eigenvalues above the noise floor, over their index. From blue, the first "
            "kernel, to orange, the last one. With two kernels, dashed lines mark the noise "
            "floors.",
            needs=("eigenvalues",),
            draw=_spectrum,
            over="mode",
        ),
        Figure(
            name="eigenvalues",
            section="kernel",
            title="Eigenvalues over training",
            caption="Some eigenvalues, the largest blue. Below the dashed noise floor there is "
            "rounding, and nothing is drawn.",
            needs=("eigenvalues", "watch_eigenvalues"),
            draw=_eigenvalues,
        ),
        Figure(
            name="ranks",
            section="kernel",
            title="How many modes the kernel has",
            caption="Eigenvalues above the noise floor; exp of the entropy of λ / Σλ; "
            "(Σλ)² / Σλ². They fall when the kernel compresses.",
            needs=("rank", "watch_participation_ratio"),
            draw=_lines(*_RANKS, y_name="modes", logarithmic_y=True),
        ),
        Figure(
            name="alignment",
            section="generalization",
            title="Alignment with the labels",
            caption="Centred alignment of kernel and labels: in a monitored run the alignment "
            "itself, at checkpoints the alignment above chance. 0 is then chance, 1 a kernel of "
            "the labels alone.",
            needs=_ALIGNMENTS,
            draw=_lines(*_ALIGNMENTS),
        ),
        Figure(
            name="label_power",
            section="generalization",
            title="Label power",
            caption="Share of the centred labels within the k fastest modes of the centred kernel. "
            "A curve that rises early means that what is learned fast is what the labels ask for.",
            needs=("label_power",),
            draw=_label_power,
            over="label_mode",
        ),
        Figure(
            name="leaf_shares",
            section="layers",
            title="Who carries the kernel",
            caption="Share of every parameter in the trace of the kernel, the eight largest in "
            "colour: whose motion moves the outputs.",
            needs=("leaf_shares",),
            draw=_leaf_shares,
        ),
        Figure(
            name="layer_updates",
            section="layers",
            title="How fast each layer moves",
            caption="‖Δθ‖ / ‖θ‖ of one step of the optimizer, layer by layer; the eight largest in "
            "colour. A layer far below the others hardly trains.",
            needs=("watch_layer_update",),
            draw=_layer_updates,
        ),
    )
}

"""The figures of a run: what each shows, how it is drawn, and its numbers as a table.

Every figure has one axes, so that it can stand in a page or in a figure of the user:

- `LineFigure` draws curves over steps or over an index;
- `PairFigure` draws a matrix over all pairs of checkpoints;
- `AreaFigure` draws shares that add up to one, above each other.

A figure that has nothing to show says what it needs. Of very many numbers some are drawn, with
their extremes.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from ntkdiag.quantities import axis_words
from ntkdiag.report.figures.style import A_COLOUR, B_COLOUR, INK, logarithmic, step_axis
from ntkdiag.report.figures.thinning import curves_to_draw, even_places, places_to_draw
from ntkdiag.report.run_subject import RunSubject

if TYPE_CHECKING:
    from matplotlib.axes import Axes


TableRow = dict[str, Any]  # one line of the table of a figure: names and plain values

DASHED = (0, (4, 3))
# Colours that are told apart with every common kind of colour blindness.
PALETTE = (A_COLOUR, B_COLOUR, "#2f9e78", "#b05fb0", "#9a7b16", "#7a8494")
# From the first state to the last: none of them is lost on a light page, or on a dark one.
GREY = "#9aa0a8"  # of curves that no legend names
STATES = ("#3b7dd8", "#9263c4", "#e07b1f")
MOST_POINTS = 150  # of a curve over modes or examples
MOST_DRAWN = 1200  # points of all curves of a figure together
FEWEST_DRAWN = 60  # of one curve, however many there are
MOST_CURVES = 40
MOST_STATES = 24
MOST_PAIRED = 40  # checkpoints of a matrix whose numbers are in its table
LARGEST_DRAWN = 1e100  # limits of an axis overflow before its numbers do
MOST_MARKED = 40  # points of a curve, each with a marker
MOST_IN_LEGEND = 8  # of more curves the legend is left to the page


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """One line of a figure."""

    label: str  # its name in the legend, and in the table
    x: Float[np.ndarray, " n"]  # `[n]` where
    y: Float[np.ndarray, " n"]  # `[n]` values; NaN leaves a gap
    colour: str | None = None  # its colour; None takes the next one
    dashed: bool = False  # whether it is a level to compare with
    # `[n]` lower and `[n]` upper ends; None without.
    interval: tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]] | None = None


@dataclasses.dataclass(frozen=True)
class RunFigure(abc.ABC):
    """One figure of a run."""

    name: str  # as `run.plot.<name>()` calls it
    page: str  # the page of the report that it is on; see `PAGES`
    title: str  # what it shows, in a few words
    caption: str  # how to read it
    needs: str  # what a run has to have for it, a sentence

    @abc.abstractmethod
    def is_there(self, subject: RunSubject) -> bool:
        """Whether a run has the numbers."""

    @abc.abstractmethod
    def draw(self, subject: RunSubject, ax: "Axes") -> None:
        """Draw it on axes."""

    @abc.abstractmethod
    def table(self, subject: RunSubject) -> list[TableRow]:
        """Its numbers as far as a page shows them, a dictionary for each line."""

    def legend(self, ax: "Axes") -> None:
        """Add the names of what is drawn, where there are several and not too many."""
        handles, names = ax.get_legend_handles_labels()
        if 1 < len(names) <= MOST_IN_LEGEND:
            ax.legend(handles, names)


@dataclasses.dataclass(frozen=True)
class LineFigure(RunFigure):
    """Curves over steps, or over an index."""

    curves: Callable[[RunSubject], Sequence[Curve]]  # what there is to draw of a run
    x_name: str = "step"  # what the horizontal axis is: "step" or another one
    # The number whose words stand at the vertical axis; that of the figure's own name where none is
    # given.
    quantity: str = ""
    y_name: str = ""  # words at the vertical axis, where it is no quantity
    # Whether the horizontal axis is logarithmic; steps find their own scale.
    logarithmic_x: bool = False
    logarithmic_y: bool = False  # whether the vertical one is
    # Whether it begins at zero, so that a small change does not look like a large one.
    from_zero: bool = False
    level: float | None = None  # a value to compare with, a dashed line; None without
    level_name: str = ""  # what that value is
    # Whether the curves are states of one thing, of which a legend names the ends.
    are_states: bool = False

    def is_there(self, subject: RunSubject) -> bool:
        """Whether some curve has a point."""
        return any(np.isfinite(curve.y).any() for curve in self.curves(subject))

    def shown_curves(self, subject: RunSubject) -> list[Curve]:
        """The curves as they are drawn: of very many some, and of each so many points."""
        curves = self.curves(subject)
        if self.are_states:
            chosen = even_places(len(curves), MOST_STATES)
        else:
            chosen = curves_to_draw([curve.y for curve in curves], MOST_CURVES)
        most = max(FEWEST_DRAWN, MOST_DRAWN // max(1, len(chosen)))
        return [_thinned(_drawable(curves[place]), most) for place in chosen]

    def draw(self, subject: RunSubject, ax: "Axes") -> None:
        """Draw the curves, each with its interval, and the level beside them."""
        curves = self.shown_curves(subject)
        has_few_points = (
            not self.are_states and max(len(curve.x) for curve in curves) <= MOST_MARKED
        )
        for number, curve in enumerate(curves):
            colour = PALETTE[number % len(PALETTE)] if curve.colour is None else curve.colour
            style = DASHED if curve.dashed else "-"
            ax.plot(
                curve.x,
                curve.y,
                color=colour,
                linestyle=style,
                marker="o" if has_few_points and not curve.dashed else None,
                label=None if curve.colour == GREY else curve.label,
            )
            if curve.interval is not None:
                ax.fill_between(curve.x, *curve.interval, color=colour, alpha=0.15, linewidth=0)
        has_positive = any((curve.y > 0).any() for curve in curves)
        logarithmic(ax, has_positive, x=self.logarithmic_x, y=self.logarithmic_y)
        if self.level is not None:
            style = {"color": INK, "linestyle": DASHED, "linewidth": 1, "alpha": 0.6}
            ax.axhline(self.level, label=self.level_name, **style)
        if self.x_name == "step":
            step_axis(ax, np.unique(np.concatenate([curve.x for curve in curves])))
        if self.from_zero:
            ax.set_ylim(bottom=0)
        ax.set_xlabel(self.x_name)
        ax.set_ylabel(self.y_name or axis_words(self.quantity or self.name))

    def table(self, subject: RunSubject) -> list[TableRow]:
        """A line for each point that is drawn."""
        lines = []
        for curve in self.shown_curves(subject):
            for place, (x, y) in enumerate(zip(curve.x.tolist(), curve.y.tolist(), strict=True)):
                line = {"series": curve.label, self.x_name: x, "value": y}
                if curve.interval is not None:
                    lower, upper = curve.interval
                    line |= {"lower": float(lower[place]), "upper": float(upper[place])}
                lines.append(line)
        return lines

    def legend(self, ax: "Axes") -> None:
        """Add the names of the curves; of states, those of the first and the last one."""
        handles, names = ax.get_legend_handles_labels()
        if self.are_states and len(names) > 2:
            handles, names = handles[:: len(names) - 1], names[:: len(names) - 1]
        if 1 < len(names) <= MOST_IN_LEGEND:
            ax.legend(handles, names)


@dataclasses.dataclass(frozen=True)
class PairFigure(RunFigure):
    """A matrix over all pairs of checkpoints, as a heat map."""

    matrix: str  # its name in `Track.matrix`
    rows: str = "step"  # what the row of an entry is
    columns: str = "step"  # what its column is
    bar: str = ""  # what the colours are
    # The value at which the colours end; None for the largest there is.
    largest: float | None = None

    def is_there(self, subject: RunSubject) -> bool:
        """Whether a pair is known."""
        return subject.matrix(self.matrix) is not None

    def draw(self, subject: RunSubject, ax: "Axes") -> None:
        """Draw it with the first checkpoint at the lower left."""
        values = subject.matrix(self.matrix)
        assert values is not None
        image = ax.imshow(
            values,
            vmin=0.0,
            vmax=self.largest,
            origin="lower",
            cmap="viridis",
            interpolation="nearest",
            aspect="auto",
        )
        # Of many steps, about a dozen are named.
        steps = subject.steps
        places = range(0, len(steps), -(-len(steps) // 14))
        names = [str(steps[place]) for place in places]
        longest = max(map(len, names))
        ax.set_xticks(places, names, rotation=90 if longest > 2 and len(names) > 6 else 0)
        ax.set_yticks(places, names)
        ax.set_xlabel(self.columns)
        ax.set_ylabel(self.rows)
        ax.grid(False)
        ax.tick_params(length=0)
        bar = ax.figure.colorbar(image, ax=ax, pad=0.02)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
        bar.ax.tick_params(labelcolor=INK, length=0)
        bar.set_label(self.bar)

    def table(self, subject: RunSubject) -> list[TableRow]:
        """A line for each pair of checkpoints; of many checkpoints some."""
        values = subject.matrix(self.matrix)
        assert values is not None
        places = even_places(len(subject.steps), MOST_PAIRED).tolist()
        lines = []
        for row in places:
            for column in places:
                steps = {"row_step": subject.steps[row], "column_step": subject.steps[column]}
                lines.append({**steps, "value": float(values[row, column])})
        return lines


@dataclasses.dataclass(frozen=True)
class AreaFigure(RunFigure):
    """Shares that add up to one, above each other."""

    # Name -> `[T]` its share at every checkpoint.
    shares: Callable[[RunSubject], dict[str, Float[np.ndarray, " T"]]]

    def is_there(self, subject: RunSubject) -> bool:
        """Whether there are shares at more than one checkpoint."""
        return len(subject.steps) > 1 and bool(self.shares(subject))

    def draw(self, subject: RunSubject, ax: "Axes") -> None:
        """Draw the first name at the bottom."""
        places = self._shown_places(subject)
        steps = np.asarray(subject.steps)[places]
        shares = self.shares(subject)
        ax.stackplot(
            steps,
            *(values[places] for values in shares.values()),
            labels=list(shares),
            colors=colours_of_states(len(shares)),
            linewidth=0,
        )
        step_axis(ax, steps)
        ax.margins(x=0)  # an area has no points at its ends
        ax.set_ylim(0, 1)
        ax.set_xlabel("step")
        ax.set_ylabel("share")
        ax.grid(False)

    def table(self, subject: RunSubject) -> list[TableRow]:
        """A line for each name at each checkpoint that is drawn."""
        places = self._shown_places(subject)
        lines = []
        for name, values in self.shares(subject).items():
            for place in places.tolist():
                line = {"series": name, "step": subject.steps[place], "value": float(values[place])}
                lines.append(line)
        return lines

    def _shown_places(self, subject: RunSubject) -> Int[np.ndarray, " places"]:
        shares = list(self.shares(subject).values())
        return places_to_draw(shares, max(FEWEST_DRAWN, MOST_DRAWN // len(shares)))


def _drawable(curve: Curve) -> Curve:
    """A curve without the numbers that are too large for an axis, or infinite."""
    interval = None
    if curve.interval is not None:
        lower, upper = curve.interval
        interval = _with_room(lower), _with_room(upper)
    return dataclasses.replace(curve, y=_with_room(curve.y), interval=interval)


def _with_room(numbers: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
    """Numbers, NaN in the place of those that are too large for an axis."""
    has_room = np.abs(numbers.astype(np.float64)) < LARGEST_DRAWN
    return np.where(has_room, numbers, np.nan)


def _thinned(curve: Curve, most: int) -> Curve:
    """A curve with about so many of its points: the extremes of its values and of its interval."""
    columns = [curve.y, *(curve.interval or ())]
    places = places_to_draw(columns, most)
    if len(places) == len(curve.x):
        return curve
    interval = None
    if curve.interval is not None:
        lower, upper = curve.interval
        interval = lower[places], upper[places]
    return dataclasses.replace(curve, x=curve.x[places], y=curve.y[places], interval=interval)


def colours_of_states(count: int) -> list[str]:
    """Colours from the first of so many states to the last."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    ramp = LinearSegmentedColormap.from_list("states", STATES)
    return [to_hex(ramp(place)) for place in np.linspace(0.0, 1.0, count)]


def spread_places(count: int) -> Int[np.ndarray, " places"]:
    """All places of so many modes; of very many, those that lie evenly on a logarithmic axis."""
    if count <= MOST_POINTS:
        return np.arange(count)
    return np.unique(np.geomspace(1, count, MOST_POINTS).round().astype(int)) - 1

"""The comparison of a network with its linear baselines: a table and a sentence for the paper."""

import dataclasses
import io
from typing import TYPE_CHECKING

from jaxtyping import Array, Float, PyTree

from ntkdiag import display
from ntkdiag.baselines.gap_over_training import GapHistory

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

# Field of a contender -> its title in the table, and how its numbers are written.
COLUMNS = {
    "train_loss": ("train loss", "{:.4g}"),
    "test_loss": ("test loss", "{:.4g}"),
    "accuracy": ("accuracy", "{:.1%}"),
    "agreement": ("agreement", "{:.1%}"),
    "distance": ("distance", "{:.3g}"),
}


@dataclasses.dataclass(frozen=True, eq=False)
class BaselineResult:
    """One line of the table."""

    name: str  # what it is
    # On the training examples; None for kernel ridge regression under another loss than its own.
    train_loss: float | None
    test_loss: float | None  # on the test examples; None likewise
    accuracy: float | None  # on the test examples; None where labels are no classes
    # Share of test examples on which it decides like the trained network; None for outputs that are
    # no classes.
    agreement: float | None
    # Root mean square difference of its test outputs from those of the trained network; None where
    # the outputs are on another scale.
    distance: float | None
    # Its outputs on the test examples.
    outputs: Float[Array, "m *o"] = dataclasses.field(repr=False)

    def __repr__(self) -> str:
        return display.described(self)

    def cells(self) -> list[str]:
        """Its numbers as the table writes them, a dash for what it has not."""
        written = []
        for field, (_, form) in COLUMNS.items():
            value = getattr(self, field)
            written.append("–" if value is None else form.format(value))
        return written


@dataclasses.dataclass(frozen=True, eq=False)
class LinearBaseline:
    """A network beside its linearizations and the regressions with its kernels.

    All are judged on the same test examples. Printing shows the table and the methods.

    Attributes:
        contenders: Network, linearized at init, linearized at the checkpoint, kernel ridge on K_0
            and on K_T: the lines of the table. Each has `name`, `train_loss`, `test_loss`,
            `accuracy`, `agreement` and `distance` (to the trained network on the test examples) and
            `outputs` there, with None for what it has not; `baseline["network"]` is the one whose
            name begins so.
        gap: Network against its linearization at init.
        gap_later: Network against its linearization at the checkpoint, steps counted from there.
        checkpoint: Step at which the network was linearized again.
        steps: Steps of training in all.
        params: Parameters of the trained network.
        methods: What was done, in sentences.
    """

    contenders: tuple[BaselineResult, ...]
    gap: GapHistory
    gap_later: GapHistory
    checkpoint: int
    steps: int
    params: PyTree = dataclasses.field(repr=False)
    methods: str = ""

    def __repr__(self) -> str:
        return display.described(self)

    def __getitem__(self, name: str) -> BaselineResult:
        """The contender of that name, or whose name begins so."""
        for contender in self.contenders:
            if contender.name.startswith(name):
                return contender
        names = ", ".join(repr(contender.name) for contender in self.contenders)
        raise KeyError(f"{name!r}: there are {names}")

    def table(self) -> "Table":
        """The results as a `rich.table.Table`, without columns that nobody has a number in."""
        from rich import box
        from rich.table import Table

        table = Table(
            title="Linear baselines", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
        )
        table.add_column("model", no_wrap=True)
        is_shown = self._columns_with_numbers()
        for (title, _), shown in zip(COLUMNS.values(), is_shown, strict=True):
            if shown:
                table.add_column(title, justify="right", no_wrap=True)
        for contender in self.contenders:
            cells = zip(contender.cells(), is_shown, strict=True)
            table.add_row(contender.name, *[cell for cell, shown in cells if shown])
        return table

    def _columns_with_numbers(self) -> list[bool]:
        """Which columns any contender has a number in."""
        with_numbers = []
        for field in COLUMNS:
            numbers = [getattr(contender, field) for contender in self.contenders]
            with_numbers.append(any(number is not None for number in numbers))
        return with_numbers

    def to_dict(self) -> dict[str, display.PlainValue]:
        """The table, both gaps and the methods as plain JSON values, without outputs and params."""
        lines = []
        for contender in self.contenders:
            lines.append({field: getattr(contender, field) for field in ("name", *COLUMNS)})
        return display.plain(
            {
                "contenders": lines,
                "gap": self.gap.to_dict(),
                "gap_later": self.gap_later.to_dict(),
                "checkpoint": self.checkpoint,
                "steps": self.steps,
                "methods": self.methods,
            }
        )

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the gap of the outputs over training, from initialisation and from the checkpoint.

        Args:
            ax: Axes of matplotlib to draw on; a new figure without.

        Returns:
            The axes.

        Raises:
            MissingDependencyError: Without matplotlib.
        """
        axes = display.axes_to_draw_on(ax)
        # Both over the steps of the whole run.
        later_steps = self.gap_later.steps + self.checkpoint
        axes.plot(self.gap.steps, self.gap.rms, ".-", label="linearized at init")
        name = f"linearized at step {self.checkpoint}"
        axes.plot(later_steps, self.gap_later.rms, ".-", label=name)
        axes.set(xlabel="step", ylabel="root mean square gap of the outputs")
        axes.legend()
        return axes

    def __str__(self) -> str:
        from rich.console import Console

        # 100 columns and no colours, whatever terminal this is printed on.
        file = io.StringIO()
        console = Console(file=file, width=100, color_system=None, legacy_windows=False)
        console.print(self.table())
        console.print(self.methods, markup=False, highlight=False)
        lines = file.getvalue().rstrip().splitlines()
        return "\n".join(line.rstrip() for line in lines)

"""The comparison of a network with its linear baselines: a table and a sentence for the paper."""

import dataclasses
import io
from typing import Any

from ntkdiag.baselines.gap_over_training import GapHistory


@dataclasses.dataclass(frozen=True, eq=False)
class Contender:
    """One line of the table.

    Attributes:
        name: What it is.
        train_loss: On the training examples; None for kernel ridge regression under another loss than its own.
        test_loss: On the test examples; None likewise.
        accuracy: On the test examples; None where labels are no classes.
        agreement: Share of test examples on which it decides like the trained network; None for outputs that are no
            classes.
        distance: Root mean square difference of its test outputs from those of the trained network; None where the
            outputs are on another scale.
        outputs: Its outputs on the test examples.
    """

    name: str
    train_loss: float | None
    test_loss: float | None
    accuracy: float | None
    agreement: float | None
    distance: float | None
    outputs: Any = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, eq=False)
class LinearBaseline:
    """A network beside its linearizations and the regressions with its kernels, all judged on the same test examples.

    Printing shows the table and the methods.

    Attributes:
        contenders: Network, linearized at init, linearized at the checkpoint, kernel ridge on K_0 and on
            K_T: the lines of the table. Each has `name`, `train_loss`, `test_loss`, `accuracy`,
            `agreement` and `distance` (to the trained network on the test examples) and `outputs` there,
            with None for what it has not; `baseline["network"]` is the one whose name begins so.
        gap: Network against its linearization at init.
        gap_later: Network against its linearization at the checkpoint, steps counted from there.
        checkpoint: Step at which the network was linearized again.
        steps: Steps of training in all.
        params: Parameters of the trained network.
        methods: What was done, in sentences.
    """

    contenders: tuple[Contender, ...]
    gap: GapHistory
    gap_later: GapHistory
    checkpoint: int
    steps: int
    params: Any = dataclasses.field(repr=False)
    methods: str = ""

    def __getitem__(self, name: str) -> Contender:
        """The contender of that name, or whose name begins so."""
        found = [contender for contender in self.contenders if contender.name.startswith(name)]
        if not found:
            raise KeyError(
                f"{name!r}: there are {', '.join(repr(c.name) for c in self.contenders)}"
            )
        return found[0]

    def table(self) -> Any:
        """The results as a `rich.table.Table`.

        Cost: none.

        Returns:
            The table.
        """
        from rich import box
        from rich.table import Table

        table = Table(
            title="Linear baselines", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
        )
        table.add_column("model", no_wrap=True)
        columns = {
            "train_loss": ("train loss", "{:.4g}"),
            "test_loss": ("test loss", "{:.4g}"),
            "accuracy": ("accuracy", "{:.1%}"),
            "agreement": ("agreement", "{:.1%}"),
            "distance": ("distance", "{:.3g}"),
        }
        shown = {
            key: spec
            for key, spec in columns.items()
            if any(getattr(c, key) is not None for c in self.contenders)
        }
        for title, _ in shown.values():
            table.add_column(title, justify="right", no_wrap=True)
        for c in self.contenders:
            values = [(getattr(c, key), form) for key, (_, form) in shown.items()]
            table.add_row(
                c.name, *("–" if value is None else form.format(value) for value, form in values)
            )
        return table

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        return Group(self.table(), Text(self.methods))

    def __str__(self) -> str:
        from rich.console import Console

        file = io.StringIO()
        Console(file=file, width=100, color_system=None, legacy_windows=False).print(
            self.__rich__()
        )
        return "\n".join(line.rstrip() for line in file.getvalue().rstrip().splitlines())

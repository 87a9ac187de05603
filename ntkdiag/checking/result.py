"""The result of a self-check: it prints as tables, and exports as plain values."""

import dataclasses
from typing import TYPE_CHECKING

from ntkdiag import display
from ntkdiag.checking.findings import Check, Leaf

if TYPE_CHECKING:
    from rich.console import Group


@dataclasses.dataclass(frozen=True)
class SelfCheck:
    """What a self-check found; print it for a table.

    Attributes:
        model: Library and name of the model.
        mode: The mode it is evaluated in, as kernels write it into their convention.
        trainable: The arrays that are differentiated, each with `path`, `shape`, `dtype`, `size`
            (how many numbers) and `bytes`.
        fixed: Those that are held fixed, likewise.
        findings: One answer per question, each with `question`, `status` ("ok", "note", "wrong" or
            "not checked") and `text`; `check["engine"]` is the one of that name.
        seconds: How long it took.
    """

    model: str
    mode: str
    trainable: tuple[Leaf, ...]
    fixed: tuple[Leaf, ...]
    findings: tuple[Check, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; notes do not count."""
        return all(finding.status != "wrong" for finding in self.findings)

    def __getitem__(self, question: str) -> Check:
        """The finding of that name."""
        for finding in self.findings:
            if finding.question == question:
                return finding
        questions = ", ".join(repr(finding.question) for finding in self.findings)
        raise KeyError(f"{question!r}: there are {questions}")

    def to_dict(self) -> dict[str, display.PlainValue]:
        """Everything as plain JSON values, with `ok`."""
        return display.plain({"ok": self.ok, **dataclasses.asdict(self)})

    def __rich__(self) -> "Group":
        """The tables, for `rich.print`."""
        # Imported here: rich is not needed to check a model.
        from rich.console import Group
        from rich.padding import Padding
        from rich.text import Text

        from ntkdiag.checking import tables

        verdict = Text(self._verdict, "bold green" if self.ok else "bold red")
        heading = Text.assemble(
            (self.model, "bold"), f", mode {self.mode}: ", verdict, f"  ({self.seconds:.1f} s)"
        )
        parts = [
            heading,
            tables.leaves_table("Differentiated", self.trainable),
            tables.leaves_table("Held fixed", self.fixed),
            tables.findings_table("Checked", self.findings),
        ]
        return Group(*(Padding(part, (0, 0, 1, 0)) for part in parts))

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        """The tables as plain text, 110 columns wide."""
        from ntkdiag.checking import tables

        return tables.as_text(self)

    @property
    def _verdict(self) -> str:
        return "nothing is wrong" if self.ok else "something is wrong"

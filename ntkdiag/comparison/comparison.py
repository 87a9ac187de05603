"""The result of comparing two checkpoints.

The numbers are here. `ntkdiag.report` shows them; the methods that need it import it, so that
comparing loads no plotting library.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from ntkdiag import display, errors
from ntkdiag.comparison.record import Facts
from ntkdiag.comparison.result import Result
from ntkdiag.judging.finding import Finding, by_urgency
from ntkdiag.judging.labels import label_findings
from ntkdiag.judging.of_ends import Ends, Verdict
from ntkdiag.judging.of_rows import margin_finding
from ntkdiag.judging.of_run import margin_finding_of
from ntkdiag.measuring.measure import Measured
from ntkdiag.quantities import quantity
from ntkdiag.runs.labelled import attributes_of, with_meanings

if TYPE_CHECKING:
    import xarray

    from ntkdiag.report.page import Page
    from ntkdiag.report.screens import Screen


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison(Result):
    """Two checkpoints, seen through their kernels on one probe.

    `print(comparison)` shows the verdict, six key numbers and the findings,
    `text(everything=True)` has all tables, and a notebook shows findings and numbers.
    `save("report.html")` writes a report, `plot` draws the figures, `to_dict()` gives the numbers.

    Attributes:
        sides: Both sides as they were measured; `sides[0].kernel` is the kernel of A.
        labels: Their names.
        numbers: Every single number of the change by its name in `ntkdiag.quantities`, as
            `comparison["e1"]` has it, NaN where it is not known. Drift and prediction are those by
            the parameters: both kernels have the fixed arrays of B.
        arrays: `[N C]` outputs at A with the fixed arrays of B, "outputs_start", and those at B
            predicted by the model linearized there, "outputs_linearized"; of every leaf `[l]`
            "leaf_moved" and others.
        ends: Both sides as rows of numbers, and the numbers between them, for judgements.
        facts: Conventions: what the numbers mean and where they come from, in order, as text or
            plain numbers.
        notes: What a reader has to know before trusting a number.
        classes: `[N]` class numbers of the probe, or None.
        fixed_arrays: Paths of the fixed arrays, such as running statistics, that differ.
    """

    sides: tuple[Measured, Measured]
    labels: tuple[str, str]
    numbers: Mapping[str, int | float]
    arrays: Mapping[str, np.ndarray]
    ends: Ends
    facts: Facts
    notes: tuple[str, ...]
    classes: Int[np.ndarray, " n"] | None
    fixed_arrays: tuple[str, ...] = ()

    @property
    def a(self) -> "xarray.Dataset":
        """Everything that was measured at A, as a selection of the dataset: `a["loss"]`."""
        return _of_side(self.dataset, "a")

    @property
    def b(self) -> "xarray.Dataset":
        """Everything that was measured at B, as a selection of the dataset: `b["loss"]`."""
        return _of_side(self.dataset, "b")

    @errors.public
    def __getitem__(self, name: str) -> Any:
        """A number of the change, or an array of it, by name; NaN where it is not known."""
        if name in self.arrays:
            return self.arrays[name]
        if name not in self.numbers and quantity(name) is None:
            raise errors.InvalidInputError(
                expected=f"one of {', '.join([*self.numbers, *self.arrays])}",
                got=display.shortened(name),
                do="docs/quantities.md says what each is.",
            )
        return self.numbers.get(name, math.nan)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        sides = f"{self.labels[0]!r} -> {self.labels[1]!r}"
        sentence = self.ends.findings[0].sentence
        return f"Comparison({sides}: {self.verdict.headline}; {sentence})"

    def __rich__(self) -> "Screen":
        from ntkdiag.report.screens import Screen

        return Screen(self)

    def text(self, *, everything: bool = False) -> str:
        """What the terminal shows, as plain text; `everything` adds all numbers and notes."""
        from ntkdiag.report.screens import comparison_text

        return comparison_text(self, everything=everything)

    @functools.cached_property
    def dataset(self) -> "xarray.Dataset":
        """Everything but the kernels as a dataset; conventions, notes and verdict are attributes.

        Its axes are side (a, b), mode, label_mode, leaf, example and output.
        """
        import xarray

        sides = self.sides
        variables: dict[str, tuple[list[str], Any]] = {}
        for name in dict.fromkeys([*sides[0].numbers, *sides[1].numbers]):
            variables[name] = (["side"], [side.numbers.get(name, math.nan) for side in sides])
        for name, value in self.numbers.items():
            variables[name] = ([], value)

        # Of each side: its spectrum and its outputs, and how much of the labels is in its modes.
        eigenvalues = [np.asarray(side.eigenvalues, np.float64) for side in sides]
        variables["eigenvalues"] = (["side", "mode"], np.stack(eigenvalues))
        outputs = [side.flat_outputs for side in sides]
        variables["outputs"] = (["side", "example", "output"], np.stack(outputs))
        of_sides = {"label_power": "label_mode", "label_doubts": "example", "leaf_shares": "leaf"}
        for name, axis in of_sides.items():
            if name in sides[0].arrays:
                variables[name] = (["side", axis], np.stack([side.arrays[name] for side in sides]))
        for name, array in self.arrays.items():
            axes = ["leaf"] if name.startswith("leaf_") else ["example", "output"]
            variables[name] = (axes, array)
        if self.classes is not None:
            variables["label"] = (["example"], np.asarray(self.classes))

        leaves = _paths_of_leaves(self)
        conventions = {
            **display.plain(dict(self.facts)),
            "notes": list(self.notes),
            "verdict": self.verdict.to_dict(),
            "labels": list(self.labels),
        }
        coordinates = {"side": ["a", "b"], "leaf": leaves}
        return with_meanings(xarray.Dataset(variables, coordinates, attributes_of(conventions)))

    def _page(self) -> "Page":
        from ntkdiag.report.comparison_page import comparison_page

        return comparison_page(self)

    @property
    def findings(self) -> list[Finding]:
        """What is found in the numbers, the most urgent first; see docs/findings.md."""
        found = self.ends.findings
        if self.verdict.state != "alive":
            return found
        margin = margin_finding([self.ends.after], 1)
        found += [margin] if margin else margin_finding_of([self.ends.before, self.ends.after])
        if "label_doubts" in self.sides[0].arrays:
            doubts = [side.arrays["label_doubts"] for side in self.sides]
            found += label_findings(np.mean(doubts, axis=0))
        return by_urgency(found)

    @property
    def verdict(self) -> Verdict:
        """Regime and task, DEAD or COLLAPSED before both."""
        return self.ends.verdict

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain JSON values, without kernels and outputs."""
        of_leaves = {name: array for name, array in self.arrays.items() if "leaf" in name}
        content = {
            "verdict": self.verdict.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
            "facts": self.facts,
            "notes": list(self.notes),
            "between": dict(self.numbers),
            "fixed_arrays": list(self.fixed_arrays),
            "leaves": {"path": _paths_of_leaves(self), **of_leaves},
        }
        for name, label, side in zip("ab", self.labels, self.sides, strict=True):
            eigenvalues = side.eigenvalues[: side.numbers["rank"]]
            content[name] = {"label": label, **side.row, "eigenvalues": eigenvalues}
        return display.plain(content)


def _paths_of_leaves(comparison: Comparison) -> list[str]:
    return [display.printable(path) for path in comparison.sides[0].leaf_kernels]


def _of_side(dataset: "xarray.Dataset", side: str) -> "xarray.Dataset":
    names = [name for name, variable in dataset.items() if "side" in variable.dims]
    return dataset[names].sel(side=side)

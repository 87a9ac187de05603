"""The result of comparing two checkpoints.

The numbers are held here. How they are shown is told in `ntkdiag.report`, which is imported by the
methods that need it, so that comparing does not load what draws.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from ntkdiag import display, errors
from ntkdiag.arrays import nan_if_unknown
from ntkdiag.comparison.facts import Facts
from ntkdiag.comparison.parameter_movement import LeafMovement
from ntkdiag.comparison.result import Result
from ntkdiag.judging.finding import Finding, by_urgency
from ntkdiag.judging.labels import label_findings
from ntkdiag.judging.of_ends import Ends, Verdict
from ntkdiag.judging.of_rows import margin_finding
from ntkdiag.judging.of_run import margin_finding_of
from ntkdiag.measuring.measured import Measured, number_named
from ntkdiag.runs.labelled import attributes_of, with_meanings

if TYPE_CHECKING:
    import xarray

    from ntkdiag.report.page import Page
    from ntkdiag.report.screens import Screen

# Of a leaf that moved, the numbers that belong to neither side.
_OF_LEAF = ("size", "norm", "moved", "relative", "distance_centred")


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison(Result):
    """Two checkpoints, seen through their kernels on one probe.

    `print(comparison)` shows the verdict, six key numbers and the findings,
    `text(everything=True)` has all tables, and a notebook shows findings and numbers.
    `save("report.html")` writes a report, `plot` draws the figures, `to_dict()` gives the numbers.

    Attributes:
        a: Everything measured at A.
        b: Everything measured at B.
        numbers: Every single number of the change by its name in `ntkdiag.quantities`, as
            `comparison["e1"]` has it, NaN where it is not known. Drift and prediction are those by
            the parameters: both kernels have the fixed arrays of B.
        arrays: `[N C]` outputs at A with the fixed arrays of B, "outputs_start", and those at B
            predicted by the model linearized there, "outputs_linearized".
        movement: Motion of the parameters, one entry per leaf and the sum at the end.
        ends: Both sides as rows of numbers, and what lies between them, for judgements.
        facts: Conventions: what the numbers mean and where they come from, in order, as text or
            plain numbers.
        notes: What a reader has to know before trusting a number.
        classes: `[N]` class numbers of the probe, or None.
        fixed_arrays: Paths of the fixed arrays, such as running statistics, that differ.
    """

    a: Measured
    b: Measured
    numbers: Mapping[str, int | float]
    arrays: Mapping[str, np.ndarray]
    movement: tuple[LeafMovement, ...]
    ends: Ends
    facts: Facts
    notes: tuple[str, ...]
    classes: Int[np.ndarray, " n"] | None
    fixed_arrays: tuple[str, ...] = ()

    @errors.public
    def __getitem__(self, name: str) -> Any:
        return number_named(name, self.numbers, self.arrays)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        sides = f"{self.a.label!r} -> {self.b.label!r}"
        said = self.ends.findings[0].sentence
        return f"Comparison({sides}: {self.verdict.headline}; {said})"

    def __rich__(self) -> "Screen":
        from ntkdiag.report.screens import Screen

        return Screen(self)

    def text(self, *, everything: bool = False) -> str:
        """What the terminal shows, as plain text: the verdict, six key numbers, the findings.

        Args:
            everything: All numbers and notes, too.

        Returns:
            The text.
        """
        from ntkdiag.report.screens import comparison_text

        return comparison_text(self, everything=everything)

    @functools.cached_property
    def dataset(self) -> "xarray.Dataset":
        """Everything but the kernels as a dataset; conventions, notes and verdict are attributes.

        Its axes are side (a, b), mode, leaf, example and output; label power is over label_mode,
        the modes of the kernel that the labels are compared with.
        """
        return _dataset(self)

    def _dataset_of_figures(self) -> "xarray.Dataset":
        from ntkdiag.report.comparison_page import dataset_of_figures

        return dataset_of_figures(self)

    def _page(self) -> "Page":
        from ntkdiag.report.comparison_page import comparison_page

        return comparison_page(self)

    @property
    def findings(self) -> list[Finding]:
        """What is found in the numbers, the most urgent first.

        Dead or collapsed networks, the margin, the regime, the alignment, parameters that no
        gradient reaches any more, labels that look wrong. docs/findings.md tells what each means.
        """
        found = self.ends.findings
        if self.verdict.state != "alive":
            return found
        margin = margin_finding([self.ends.after], 1)
        found += [margin] if margin else margin_finding_of([self.ends.before, self.ends.after])
        if "label_doubts" in self.a.arrays:
            doubts = [side.arrays["label_doubts"] for side in (self.a, self.b)]
            found += label_findings(np.mean(doubts, axis=0))
        return by_urgency(found)

    @property
    def verdict(self) -> Verdict:
        """Regime and task, DEAD or COLLAPSED before both."""
        return self.ends.verdict

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain JSON values; what is not finite or not known is None.

        Returns:
            A dictionary; kernels and outputs themselves are left out, eigenvalues are those above
            the noise floor.
        """
        content = {
            "verdict": self.verdict.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
            "facts": self.facts,
            "notes": list(self.notes),
            "a": self.a.to_dict(),
            "b": self.b.to_dict(),
            "between": dict(self.numbers),
            "fixed_arrays": list(self.fixed_arrays),
            "movement": [leaf.to_dict() for leaf in self.movement],
        }
        return display.plain(content)


def _dataset(comparison: Comparison) -> "xarray.Dataset":
    """Everything but the kernels, with its axes."""
    import xarray

    a = comparison.a
    b = comparison.b
    variables: dict[str, tuple[list[str], Any]] = {}
    sides = [a.numbers, b.numbers]
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        variables[name] = (["side"], [side.get(name, math.nan) for side in sides])
    for name, value in comparison.numbers.items():
        variables[name] = ([], value)

    # Of each side: its spectrum and its outputs, and how much of the labels is in its modes.
    eigenvalues = [np.asarray(side.spectrum.eigenvalues, np.float64) for side in (a, b)]
    variables["eigenvalues"] = (["side", "mode"], np.stack(eigenvalues))
    variables["outputs"] = (["side", "example", "output"], np.stack([a.outputs, b.outputs]))
    for name, axis in (("label_power", "label_mode"), ("label_doubts", "example")):
        if name in a.arrays:
            variables[name] = (["side", axis], np.stack([a[name], b[name]]))
    for name, array in comparison.arrays.items():
        variables[name] = (["example", "output"], array)
    if comparison.classes is not None:
        variables["label"] = (["example"], np.asarray(comparison.classes))

    # Of each leaf: how far it moved, and its share of the kernel on both sides.
    leaves = comparison.movement[:-1]  # without their sum
    for name in _OF_LEAF:
        of_leaves = [nan_if_unknown(getattr(leaf, name)) for leaf in leaves]
        variables[f"leaf_{name}"] = (["leaf"], of_leaves)
    shares = [[leaf.share_a for leaf in leaves], [leaf.share_b for leaf in leaves]]
    variables["leaf_shares"] = (["side", "leaf"], shares)

    coordinates = {"side": ["a", "b"], "leaf": [leaf.path for leaf in leaves]}
    attributes = attributes_of({**_conventions(comparison), "labels": [a.label, b.label]})
    dataset = xarray.Dataset(variables, coords=coordinates, attrs=attributes)
    return with_meanings(dataset)


def _conventions(comparison: Comparison) -> dict[str, Any]:
    """What the numbers mean, and what a reader has to know, as plain values."""
    return {
        **display.plain(dict(comparison.facts)),
        "notes": list(comparison.notes),
        "verdict": display.plain(comparison.verdict.to_dict()),
    }

"""The result of comparing two checkpoints."""

import dataclasses
import json
import os
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from ntkdiag import errors
from ntkdiag.analysis import drift
from ntkdiag.analysis.drift import Drift
from ntkdiag.comparison.linearized_change import Prediction
from ntkdiag.comparison.measured import Measured
from ntkdiag.comparison.parameter_movement import LeafMovement
from ntkdiag.comparison.verdict import Verdict, regime

if TYPE_CHECKING:
    from ntkdiag.report.monitor_records import History


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Two checkpoints of one model, seen through their kernels on one probe.

    `print(comparison)` shows a table, `save("report.html")` writes a page to hand on, `to_dict()` gives the numbers.

    Attributes:
        a: Everything measured at A.
        b: Everything measured at B.
        drift: Motion from kernel A to kernel B.
        movement: Motion of the parameters, one entry per leaf and the sum at the end.
        prediction: Outputs at B predicted by the model linearized at A.
        verdict: LAZY, RICH, MIXED or UNCHANGED, with the numbers it rests on.
        facts: Conventions: what the numbers mean and where they come from, in order, as text or plain numbers.
        notes: What a reader has to know before trusting a number.
        classes: `[N]` class numbers of the probe, or None.
    """

    a: Measured
    b: Measured
    drift: Drift
    movement: tuple[LeafMovement, ...]
    prediction: Prediction
    verdict: Verdict
    facts: dict[str, Any]
    notes: tuple[str, ...]
    classes: np.ndarray | None

    def __str__(self) -> str:
        from ntkdiag.report.comparison_table import comparison_text

        return comparison_text(self)

    def __repr__(self) -> str:
        return f"Comparison({self.a.label!r} -> {self.b.label!r}: {self.verdict.name}, {self.verdict.numbers})"

    def __rich__(self) -> Any:
        from ntkdiag.report.comparison_table import comparison_table

        return comparison_table(self)

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain JSON values; what is not finite or not known is None.

        Returns:
            A dictionary; kernels and outputs themselves are left out, eigenvalues are those above the noise floor.
        """
        from ntkdiag.comparison.json_values import comparison_as_dict

        return comparison_as_dict(self)

    @errors.public
    def save(
        self,
        path: str | os.PathLike[str],
        *,
        history: "History | None" = None,
    ) -> pathlib.Path:
        """Write the comparison as one self-contained HTML page, or as JSON.

        Args:
            path: File ending in ``.html`` or ``.json``; replaced if it exists. Its folder is made if need be.
            history: Records of `watch` to draw beside it: a file written by `JsonLines`, or its rows. HTML only.

        Returns:
            The path written.

        Raises:
            InvalidInputError: As `check_report` does.
            MissingDependencyError: jinja2 or matplotlib is not installed (HTML only).
        """
        path = pathlib.Path(path).expanduser()
        check_report(path, history=history)
        if path.suffix == ".json":
            text = json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        else:
            from ntkdiag.report.html import comparison_html

            text = comparison_html(self, history=history)
        _replace(path, text)
        return path


def check_report(path: pathlib.Path, *, history: "History | None" = None) -> None:
    """Refuse what `Comparison.save` cannot do, before there is a comparison.

    Raises:
        InvalidInputError: The path has another ending than ``.html`` or ``.json`` or cannot be written, or `history`
            holds no measurement or is not for an ``.html`` file.
        MissingDependencyError: jinja2 or matplotlib is not installed (HTML only).
    """
    path = path.expanduser()
    if path.suffix not in (".html", ".json"):
        raise errors.InvalidInputError(
            call=f"Comparison.save({os.fspath(path)!r})",
            expected="a file name that ends in .html or .json",
            got=f"the ending {path.suffix!r}",
            do='Write comparison.save("report.html").',
        )
    if path.suffix == ".html":
        from ntkdiag.report.dependencies import require_report
        from ntkdiag.report.monitor_records import read_history

        require_report()
        read_history(history)
    elif history is not None:
        raise errors.InvalidInputError(
            call=f"Comparison.save({os.fspath(path)!r}, history=...)",
            expected="an .html file beside a history, which is drawn",
            got="a .json file",
            do="Leave history out.",
        )
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise errors.InvalidInputError(
            call=f"Comparison.save({os.fspath(path)!r})",
            expected="a file in a folder that can be written to",
            got="a folder" if path.is_dir() else f"{folder}, which cannot",
            do="Choose another path.",
        )


def compare_measured(
    a: Measured,
    b: Measured,
    *,
    movement: tuple[LeafMovement, ...],
    prediction: Prediction,
    facts: dict[str, Any],
    notes: tuple[str, ...],
    classes: np.ndarray | None,
) -> Comparison:
    """Put two measured sides together: what is a function of both kernels is computed here.

    Cost: O(N^2 C^2).

    Args:
        a: Side A.
        b: Side B, on the same probe and in the same convention.
        movement: Motion of the parameters.
        prediction: Prediction of B from A.
        facts: Conventions.
        notes: Notes.
        classes: `[N]` class numbers, or None.

    Returns:
        The comparison.
    """
    moved = drift(a.kernel, b.kernel)
    verdict = regime(prediction.e1, float(moved.distance_centred), a.alignment, b.alignment)
    return Comparison(a, b, moved, movement, prediction, verdict, facts, notes, classes)


def _replace(path: pathlib.Path, text: str) -> None:
    # A reader never sees half a report.
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)

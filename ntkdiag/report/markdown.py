"""A comparison as Markdown."""

from ntkdiag.report.reported import Comparison
from ntkdiag.report.rows import all_rows


def comparison_markdown(comparison: Comparison) -> str:
    """The verdict as a heading, findings as a list, numbers as a table."""
    a, b = comparison.a.label, comparison.b.label
    lines = [f"## {_plain(a)} → {_plain(b)}: {comparison.verdict.headline}", ""]
    lines += [_plain(comparison.verdict.numbers), ""]
    for finding in comparison.findings:
        lines.append(f"- **{finding.severity}** `{finding.id}`: {_plain(finding.sentence)}")
        if finding.do:
            lines[-1] += f" {_plain(finding.do)}"
    if comparison.findings:
        lines.append("")
    lines += ["| number | | A | B | ratio |", "|---|---|---:|---:|---:|"]
    for row in all_rows(comparison):
        cells = [row.name, row.symbol, *row.values]
        cells += [""] * (5 - len(cells))
        lines.append(f"| {' | '.join(_plain(cell) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Text that Markdown does not read as its own signs."""
    for sign in "\\|`*_<>[]":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())

"""What a comparison prints: the answer first, everything for who asks, nothing three letters wide."""

import io

import jax
import numpy as np
import pytest
import rich.console
from internals import Screen

import ntkdiag

N, C = 12, 3


@pytest.fixture(scope="module")
def comparison():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 4)).astype(np.float32)
    shapes = {"first": (4, 8), "second": (8, 8), "third": (8, C)}
    a, b = (
        {name: rng.normal(size=shape).astype(np.float32) / 2 for name, shape in shapes.items()}
        for _ in range(2)
    )

    def f(params, x):
        hidden = jax.nn.relu(x @ params["first"])
        return jax.nn.relu(hidden @ params["second"]) @ params["third"]

    probe = (x, np.arange(N) % C)
    return ntkdiag.compare(a, b, model=f, train=probe, loss="cross_entropy", descent=0.1)


def printed(what, width):
    """What rich prints in a terminal of so many columns."""
    console = rich.console.Console(width=width, file=io.StringIO(), color_system=None)
    console.print(what)
    lines = console.file.getvalue().rstrip().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def rows_of(text, title="quantity"):
    """The rows of the first table with this heading."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip().startswith(title)) + 2
    return lines[start : lines.index("", start)]


def test_a_narrow_screen_has_verdict_six_numbers_and_the_findings(comparison):
    text = printed(comparison, 80)
    lines = text.splitlines()
    assert lines[0] == comparison.verdict.headline
    assert max(map(len, lines)) <= 80
    assert len(rows_of(text)) == 6
    joined = " ".join(text.split())
    assert comparison.findings
    assert all(f"• {finding}" in joined for finding in comparison.findings)
    assert "meaning" not in text
    assert "…" not in text


def test_from_100_columns_on_the_meanings_stand_beside_the_numbers(comparison):
    for width in (100, 120):
        text = printed(comparison, width)
        assert "meaning" in text
        assert "the model linearized at A" in " ".join(text.split())
    assert str(comparison) == comparison.text()


def test_everything_has_all_tables_and_notes(comparison):
    for width in (80, 110):
        text = printed(Screen(comparison, everything=True), width)
        for title in (
            "Kernel",
            "Task",
            "From A to B",
            "Parameters (kernels of leaves are traced over outputs)",
        ):
            assert any(line.startswith(title) for line in text.splitlines())
        joined = " ".join(text.split())
        assert all(str(finding) in joined for finding in comparison.findings)
        assert all(note in joined for note in comparison.notes)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width


def test_the_first_screen_counts_what_it_leaves_out(comparison):
    text = " ".join(comparison.text().split())
    assert "3 parameters leaf by leaf, 2 notes." in text
    assert "comparison.text(everything=True)" in text

"""The report: what it says, that it loads nothing, and that hostile names stay text."""

import html.parser
import io
import pathlib
import re
import sys

import jax
import numpy as np
import pytest
import rich.console
from internals import FIGURES, Screen, number

from ntkdiag import compare
from ntkdiag.errors import MissingDependencyError

HOSTILE = "<script>alert('x')</script> & \"$\\frac{1}{2}$\""
N, C = 6, 2


def model(params, x):
    return jax.numpy.tanh(x @ params[HOSTILE]["w"]) @ params["head_1"]


def params(seed):
    rng = np.random.default_rng(seed)
    tree = {HOSTILE: {"w": rng.normal(size=(3, 4))}, "head_1": rng.normal(size=(4, C)) * (seed > 0)}
    return jax.tree.map(lambda leaf: leaf.astype(np.float32), tree)


@pytest.fixture(scope="module")
def comparison():
    x = np.random.default_rng(9).normal(size=(N, 3)).astype(np.float32)
    return compare(
        params(0),
        params(1),
        model=model,
        train=(x, np.arange(N) % C),
        loss="mse",
        descent=10.0,
    )


@pytest.fixture(scope="module")
def page(comparison, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert comparison.save(path) == path
    return path.read_text(encoding="utf-8")


class Tags(html.parser.HTMLParser):
    """Every start tag with its attributes, every id, and the visible text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_hostile_names_stay_text(page, comparison):
    assert "<script" not in page
    assert HOSTILE in Tags(page).text  # untouched by TeX or escapes
    assert HOSTILE in comparison.to_dict()["leaves"]["path"][0]


def test_a_kernel_that_is_constant_turns_by_nothing_defined():
    bias = lambda params, x: params["b"] + 0 * x[:, :2] + jax.numpy.tanh(x @ params["w"])
    one, other = (
        {"b": np.zeros(2, np.float32), "w": np.full((3, 2), w, np.float32)} for w in (1e5, 0.5)
    )
    x = np.abs(np.random.default_rng(9).normal(size=(N, 3))).astype(np.float32) + 1
    found = compare(one, other, model=bias, train=(x, None))
    assert found.a["dead"]
    [regime] = [one for one in found.findings if one.id == "nonlinear-regime"]
    assert regime.sentence.endswith("the rotation of the kernel is undefined.")


def test_ids_are_unique_over_all_figures(page):
    ids = [attributes["id"] for _, attributes in Tags(page).tags if "id" in attributes]
    assert len(ids) > 50
    references = {
        value for _, attributes in Tags(page).tags for value in attributes.values() if value
    }
    drawn = {name.split("-")[0] for name in ids} - {"figure", "page", "heading"}
    assert drawn == {
        "spectrum",
        "label_power",
    }
    assert drawn < set(FIGURES)
    used = {value[1:] for value in references if value.startswith("#") and "-" in value}
    assert used <= set(ids)


@pytest.mark.smoke
def test_the_page_holds_verdict_numbers_and_conventions(page, comparison):
    text = " ".join(Tags(page).text.split())
    assert comparison.verdict.headline in text
    assert number(comparison.b["alignment_above"].item()) in text
    assert number(comparison.b["margin"].item()) in text
    assert comparison.facts["train_sha256"] in text
    assert comparison.facts["descent"] in text
    assert comparison.sides[0].params_sha256 in text
    assert comparison.facts["versions"] in text
    for finding in comparison.findings:
        assert f"<code>{finding.id}</code>" in page
        assert finding.sentence in text
        assert finding.do in text


def test_the_fields_of_a_finding_are_those_of_the_documentation(comparison):
    page = (pathlib.Path(__file__).parents[2] / "docs" / "findings.md").read_text()
    table = page[page.index("| field |") : page.index("Every field")].strip()
    named = " ".join(row.split("|")[1] for row in table.splitlines()[2:])
    documented = re.findall(r"`(\w+)`", named)
    for finding in comparison.findings:
        assert sorted(finding.to_dict()) == sorted(documented)


def printed(what, width):
    """What rich prints in a terminal of so many columns."""
    console = rich.console.Console(width=width, file=io.StringIO(), color_system=None)
    console.print(what)
    lines = console.file.getvalue().rstrip().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def rows_of(text):
    """The rows of the table of quantities."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip().startswith("quantity")) + 2
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
    assert "…" not in text


def test_everything_has_all_numbers_and_notes(comparison):
    for width in (80, 110):
        text = printed(Screen(comparison, everything=True), width)
        for title in ("Kernel", "Training", "Kernel and labels", "From A to B"):
            assert title in text.splitlines()
        ends = [re.escape(number(side["trace"])) for side in (comparison.a, comparison.b)]
        assert re.search(rf"trace  tr Θ +{ends[0]} +{ends[1]} +[\d.,e-]+×", text)
        joined = " ".join(text.split())
        assert all(str(finding) in joined for finding in comparison.findings)
        assert all(note in joined for note in comparison.notes)
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_missing_packages_are_named(comparison, tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        MissingDependencyError, match=rf'{package}.*pip install "ntkdiag\[report\]"'
    ):
        comparison.save(tmp_path / "r.html")

"""The report: what it says, that it loads nothing, and that hostile names stay text."""

import builtins
import html.parser
import json
import re

import jax
import numpy as np
import pytest
from internals import COMPARISON_FIGURES, MISSING, number, percent, ratio

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
        descent=0.1,
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


def test_the_page_loads_nothing(page):
    assert "http://" not in page
    assert "https://" not in page
    assert "@import" not in page
    found = Tags(page)
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": policy}) in found.tags
    assert not {tag for tag, _ in found.tags} & {
        "script",
        "link",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
    }
    for tag, attributes in found.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href"):
                assert value.startswith(("#", "data:image/png;base64,")), (tag, value[:60])
    assert all(url.startswith("#") for url in re.findall(r"url\(([^)]*)\)", page))


def test_hostile_names_stay_text(page, comparison):
    assert "<script" not in page
    assert HOSTILE in Tags(page).text  # untouched by TeX or escapes
    assert HOSTILE in comparison.to_dict()["movement"][0]["path"]


@pytest.mark.slow
def test_rich_markup_in_names_stays_text():
    x = np.ones((2, 1), np.float32) * [[1], [2]]
    name = "[red]w[/red] :smile:"
    tree = {name: np.ones((1, 1), np.float32)}
    comparison = compare(
        tree,
        {name: tree[name] * 2},
        model=lambda p, x: x @ p[name],
        train=(x.astype(np.float32), None),
    )
    assert name in comparison.text(everything=True)


def test_a_kernel_of_zero_is_said_and_not_a_number():
    dead = jax.tree.map(np.zeros_like, params(1))
    x = np.random.default_rng(9).normal(size=(N, 3)).astype(np.float32)
    found = compare(
        params(1), dead, model=model, train=(x, np.arange(N) % C), loss="mse", descent=0.1
    )
    assert [finding.id for finding in found.findings] == ["dead"]
    assert found.verdict.name == "DEAD"
    assert "nan" not in str(found)


def test_parameters_that_gradients_lost_are_a_finding():
    x = np.random.default_rng(9).normal(size=(N, 3)).astype(np.float32)
    a = {"w": np.ones((3, 2), np.float32), "b": np.ones(2, np.float32)}
    f = lambda p, x: x @ p["w"] + jax.nn.relu(x[:, :1] ** 2 + p["b"])
    found = compare(a, {**a, "b": a["b"] - 99}, model=f, train=(x, None)).findings
    [lost] = [finding for finding in found if finding.id == "parameters-lost"]
    assert (lost.layer, lost.value) == ("b", 1.0)


def test_a_kernel_that_is_constant_turns_by_nothing_defined():
    bias = lambda params, x: params["b"] + 0 * x[:, :2] + jax.numpy.tanh(x @ params["w"])
    one, other = (
        {"b": np.zeros(2, np.float32), "w": np.full((3, 2), w, np.float32)} for w in (1e5, 0.5)
    )
    x = np.abs(np.random.default_rng(9).normal(size=(N, 3))).astype(np.float32) + 1
    found = compare(one, other, model=bias, train=(x, None))
    assert found.a.condition.dead
    assert found.verdict.numbers.count("S_c = undefined") == 1


def test_ids_are_unique_over_all_figures(page):
    ids = [attributes["id"] for _, attributes in Tags(page).tags if "id" in attributes]
    assert len(ids) > 50
    references = {
        value for _, attributes in Tags(page).tags for value in attributes.values() if value
    }
    prefixes = {name.split("-")[0] for name in ids}
    assert prefixes == set(COMPARISON_FIGURES)
    used = {value[1:] for value in references if value.startswith("#") and "-" in value}
    assert used <= set(ids)


def test_figures_follow_the_colours_of_the_page(page):
    svg = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert svg.count("<svg") == 6
    assert "currentColor" in svg
    assert "var(--line)" in svg
    assert "#010203" not in svg
    assert "mathdefault" not in svg


@pytest.mark.smoke
def test_the_page_holds_verdict_numbers_and_conventions(page, comparison):
    text = " ".join(Tags(page).text.split())
    assert f"{comparison.verdict.name}{comparison.verdict.task_words}" in text
    assert number(comparison.b.alignment.value) in text
    assert number(comparison.b.margin) in text
    assert comparison.facts["train_sha256"] in text
    assert comparison.facts["descent"] in text
    assert comparison.a.params_sha256 in text
    assert comparison.facts["versions"] in text
    for finding in comparison.findings:
        assert finding.sentence in text
        assert finding.do in text


def test_the_terminal_table(comparison):
    text = comparison.text(everything=True)
    assert max(map(len, text.splitlines())) <= 110
    assert re.search(r"trace  tr Θ +[\d.,e-]+ +[\d.,e-]+ +[\d.,e-]+×", text)
    ends = [number(side.trace) for side in (comparison.a, comparison.b)]
    assert re.search(rf"trace  tr Θ +{re.escape(ends[0])} +{re.escape(ends[1])} ", text)
    assert "from zero" in text  # the head started at zero
    assert f"trained on: N = 6, probe {comparison.facts['train_sha256'][:12]}" in text
    assert (
        "Note: With 6 probe examples the largest eigenvalue per example is estimated too high"
        in text
    )


@pytest.mark.slow
def test_a_page_without_labels_and_learning_rate(tmp_path, comparison):
    x = np.random.default_rng(9).normal(size=(N, 3)).astype(np.float32)
    bare = compare(params(1), params(2), model=model, train=(x, None), reduction="mean")
    text = bare.save(tmp_path / "bare.html").read_text(encoding="utf-8")
    assert "Stability margin" not in text
    assert text.count("<svg") == 5


def test_json(comparison, tmp_path):
    path = comparison.save(tmp_path / "new" / "comparison.json")
    assert json.loads(path.read_text(encoding="utf-8")) == comparison.to_dict()
    assert [entry.name for entry in path.parent.iterdir()] == [
        "comparison.json"
    ]  # nothing temporary is left


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_missing_packages_are_named(comparison, tmp_path, monkeypatch, package):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr("importlib.import_module", lambda name: absent(name))
    with pytest.raises(
        MissingDependencyError, match=rf'got no {package}\. Run: pip install "ntkdiag\[report\]"'
    ):
        comparison.save(tmp_path / "r.html")


def test_numbers():
    texts = {
        0.0: "0",
        1234.5678: "1,235",
        0.0123456: "0.01235",
        1e-7: "1.000e-07",
        2.5e6: "2.500e+06",
        100.0: "100",
        12345: "12,345",
        None: MISSING,
        float("nan"): MISSING,
        float("inf"): MISSING,
        -3.5: "-3.5",
    }
    for value, text in texts.items():
        assert number(value) == text


def test_ratios_and_shares():
    assert ratio(6.0, 2.0) == "3×"
    assert ratio(1.0, 0.0) == ratio(1.0, -1.0) == ratio(None, 1.0) == MISSING
    assert percent(0.1234) == "12.3 %"
    assert percent(None) == percent(float("nan")) == MISSING

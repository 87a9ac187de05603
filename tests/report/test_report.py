"""The report: what it says, that it loads nothing, and that hostile names stay text."""

import builtins
import html.parser
import json
import re

import jax
import numpy as np
import pytest
from internals import MISSING, number, percent, ratio, readings

from ntkdiag import JsonLines, compare
from ntkdiag.errors import InvalidInputError, MissingDependencyError

HOSTILE = "<script>alert('x')</script> & \"$\\frac{1}{2}$\""
N, C = 6, 2


def model(params, x):
    return jax.numpy.tanh(x @ params[HOSTILE]["w"]) @ params["head_1"]


def params(seed):
    rng = np.random.default_rng(seed)
    tree = {HOSTILE: {"w": rng.normal(size=(3, 4))}, "head_1": rng.normal(size=(4, C)) * (seed > 0)}
    return jax.tree.map(lambda leaf: leaf.astype(np.float32), tree)


def rows(steps=(0, 10, 20)):
    return [
        {
            "step": step,
            "eigenvalues": [3.0 + step, 1.0],
            "distance_centred": step / 100,
            "alignment": 0.1,
            "margin": None,
        }
        for step in steps
    ]


@pytest.fixture(scope="module")
def comparison():
    x = np.random.default_rng(9).normal(size=(N, 3)).astype(np.float32)
    labels = (HOSTILE, "end_of run")
    return compare(
        params(0),
        params(1),
        model=model,
        train=(x, np.arange(N) % C),
        loss="mse",
        descent=0.1,
        names=labels,
    )


@pytest.fixture(scope="module")
def page(comparison, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert comparison.save(path, history=rows()) == path
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


@pytest.mark.long
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
    assert page.count("&lt;/script&gt;") >= 5  # with the tick label of the movement figure
    assert (
        Tags(page).text.count(HOSTILE) >= 4
    )  # title, heading, table of leaves, methods; untouched by TeX or escapes
    assert HOSTILE in comparison.to_dict()["movement"][0]["path"]


@pytest.mark.long
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
    said = readings(found)
    assert said[0] == (
        "B is dead: no parameter moves an output on the probe. Its outputs are the same for every "
        "example."
    )
    assert not any("critical" in sentence for sentence in said)
    assert found.verdict.name == "DEAD"
    assert "nan" not in " ".join([*said, found.verdict.numbers])


def test_a_kernel_that_is_constant_turns_by_nothing_defined():
    bias = lambda params, x: params["b"] + 0 * x[:, :2] + jax.numpy.tanh(x @ params["w"])
    one, other = (
        {"b": np.zeros(2, np.float32), "w": np.full((3, 2), w, np.float32)} for w in (1e5, 0.5)
    )
    x = np.abs(np.random.default_rng(9).normal(size=(N, 3))).astype(np.float32) + 1
    found = compare(one, other, model=bias, train=(x, None))
    assert readings(found)[:2] == [
        "A is dead: every parameter moves the outputs of all examples alike. Only the kernel of b "
        "is not zero.",
        "Centred over examples, the kernel at A is zero: how far it turned is undefined. Its trace "
        f"changed by a factor of {number(found.b.trace / found.a.trace, 3)}.",
    ]


def test_ids_are_unique_over_all_figures(page):
    ids = [attributes["id"] for _, attributes in Tags(page).tags if "id" in attributes]
    assert len(ids) > 50
    references = {
        value for _, attributes in Tags(page).tags for value in attributes.values() if value
    }
    prefixes = {name.split("-")[0] for name in ids}
    assert prefixes == {"spectra", "heatmaps", "movement", "prediction", "labels", "history"}
    used = {value[1:] for value in references if value.startswith("#") and "-" in value}
    assert used <= set(ids)


def test_figures_follow_the_colours_of_the_page(page):
    svg = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    assert svg.count("<svg") == 6
    assert "currentColor" in svg
    assert "var(--line)" in svg
    assert "#010203" not in svg
    assert "mathdefault" not in svg


def test_the_page_holds_verdict_numbers_and_conventions(page, comparison):
    text = " ".join(Tags(page).text.split())
    assert f"{comparison.verdict.name}{comparison.verdict.task_words}" in text
    assert "What to do next" in text
    assert number(comparison.b.alignment.value) in text
    assert number(comparison.b.margin) in text
    assert comparison.facts["train_sha256"] in text
    assert "3 measurements from step 0 to step 20" in text
    assert (
        "full-batch gradient descent with learning rate 0.1 and momentum 0 on the linearized model"
        in text
    )
    assert comparison.facts["versions"] in text
    for sentence in readings(comparison):
        assert sentence in text


def test_the_terminal_table(comparison):
    text = comparison.text(everything=True)
    assert max(map(len, text.splitlines())) <= 110
    assert re.search(r"trace  tr Θ +[\d.,e-]+ +[\d.,e-]+ +[\d.,e-]+×", text)
    assert "from zero" in text  # the head started at zero
    assert f"trained on: N = 6, probe {comparison.facts['train_sha256'][:12]}" in text
    assert (
        "Note: With 6 probe examples the largest eigenvalue per example is estimated too high"
        in text
    )


@pytest.mark.long
def test_a_page_without_labels_learning_rate_and_history(tmp_path, comparison):
    x = np.random.default_rng(9).normal(size=(N, 3)).astype(np.float32)
    bare = compare(params(1), params(2), model=model, train=(x, None), reduction="mean")
    text = bare.save(tmp_path / "bare.html").read_text(encoding="utf-8")
    assert "Stability margin" not in text
    assert "During training" not in text
    assert text.count("<svg") == 4


def test_json(comparison, tmp_path):
    path = comparison.save(tmp_path / "new" / "comparison.json")
    assert json.loads(path.read_text(encoding="utf-8")) == comparison.to_dict()
    assert [entry.name for entry in path.parent.iterdir()] == [
        "comparison.json"
    ]  # nothing temporary is left


def test_other_endings_are_refused(comparison, tmp_path):
    with pytest.raises(
        InvalidInputError,
        match=r"expected a file name that ends in \.html or \.json; got the ending '\.pdf'",
    ):
        comparison.save(tmp_path / "report.pdf")


@pytest.mark.slow
def test_history_from_a_log_file(comparison, tmp_path):
    log = JsonLines(tmp_path / "ntk.jsonl")
    for row in rows((0, 5)):
        log.write(row["step"], {name: value for name, value in row.items() if name != "step"})
    page = comparison.save(tmp_path / "r.html", history=tmp_path / "ntk.jsonl").read_text(
        encoding="utf-8"
    )
    assert "2 measurements from step 0 to step 5" in page


@pytest.mark.long
def test_history_below_home_and_of_numpy_arrays(comparison, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    log = JsonLines("~/run.jsonl")
    for row in rows():
        log.write(row["step"], {key: value for key, value in row.items() if key != "step"})
    arrays = [{**row, "eigenvalues": np.array(row["eigenvalues"])} for row in rows()]
    for index, history in enumerate(("~/run.jsonl", arrays)):
        text = comparison.save(tmp_path / f"{index}.html", history=history).read_text(
            encoding="utf-8"
        )
        assert "During training" in text


def test_history_of_values_that_are_no_numbers(comparison, tmp_path):
    """A log may come from elsewhere: what is no number is not drawn."""
    hostile = ["text", None, [[1.0], [2.0, 3.0]], {"a": 1}, [1.0, "a", None], True, "=1+1"]
    log = []
    for step, value in enumerate(hostile):
        row = {name: value for name in rows()[0] if name not in ("step", "status")}
        log.append({"step": step, "status": 0, **row})
    path = tmp_path / "run.jsonl"
    lines = [{"record": {"call": "watch", "reduction": ["mean"]}}, *log]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "history-" in comparison.save(tmp_path / "r.html", history=path).read_text()


def test_history_that_holds_nothing_is_refused(comparison, tmp_path):
    with pytest.raises(
        InvalidInputError, match=r"got no measurement in it\. Pass the path given to JsonLines"
    ):
        comparison.save(tmp_path / "r.html", history=[])
    with pytest.raises(InvalidInputError, match="got no file at"):
        comparison.save(tmp_path / "r.html", history=tmp_path / "nowhere.jsonl")
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234.5678, "1,235"),
        (0.0123456, "0.01235"),
        (1e-7, "1.000e-07"),
        (2.5e6, "2.500e+06"),
        (1.0, "1"),
        (100.0, "100"),
        (12345, "12,345"),
        (None, MISSING),
        (float("nan"), MISSING),
        (float("inf"), MISSING),
        (-3.5, "-3.5"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_ratios_and_shares():
    assert ratio(6.0, 2.0) == "3×"
    assert ratio(1.0, 0.0) == ratio(1.0, -1.0) == ratio(None, 1.0) == MISSING
    assert percent(0.1234) == "12.3 %"
    assert percent(None) == percent(float("nan")) == MISSING


@pytest.mark.long
def test_history_of_sessions_with_other_numbers_of_eigenvalues(comparison, tmp_path):
    of_both = rows()
    for row in of_both[1:]:
        row["eigenvalues"] = row["eigenvalues"][:1]
    text = comparison.save(tmp_path / "r.html", history=of_both).read_text(encoding="utf-8")
    assert "history-" in text


def test_history_of_other_numbers_is_refused(comparison, tmp_path):
    with pytest.raises(InvalidInputError, match="got no measurement in it"):
        comparison.save(tmp_path / "r.html", history=[{"step": 0, "wall_time": 1.0}])


@pytest.mark.long
def test_history_without_the_kernel_tier(comparison, tmp_path):
    """Curvatures, the error of a step and the trace are drawn in its place, with their intervals."""
    economy = [
        {
            "step": step,
            "status": 1,
            "optimizer_status": 0,
            "trace": 5.0,
            "trace_lower": 4.0,
            "trace_upper": 6.0,
            "step_error": 0.1,
            "curvatures": [0.5, 0.25],
            "margin": 0.5,
        }
        for step in (0, 10)
    ]
    page = comparison.save(tmp_path / "r.html", history=economy).read_text(encoding="utf-8")
    assert "2 measurements from step 0 to step 10" in page
    for title in (
        "Largest 2 curvatures, critical at 1",
        "Relative error of the linearized model in one step",
        "Trace of the kernel",
        "Stability margin",
    ):
        assert title in page
    drawing = page[page.index("history-") :]
    assert "Alignment" not in drawing[: drawing.index("</svg>")]


def test_reports_that_cannot_be_written_are_refused(comparison, tmp_path):
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInputError, match="got a folder"):
        comparison.save(tmp_path / "folder.html")
    with pytest.raises(InvalidInputError, match="which cannot"):
        comparison.save(tmp_path / "file" / "r.html")
    with pytest.raises(InvalidInputError, match="file beside a history"):
        comparison.save(tmp_path / "r.json", history=rows())


@pytest.mark.long
def test_the_curve_of_the_alignment_names_its_reduction_and_shows_chance(comparison, tmp_path):
    path = tmp_path / "run.jsonl"
    record = {"record": {"call": "watch", "reduction": "mean"}}
    lines = [record, *({**row, "alignment_chance": 0.05} for row in rows())]
    path.write_text("\n".join(map(json.dumps, lines)))
    comparison.save(tmp_path / "page.html", history=path)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Alignment, mean; dashed: chance" in page
    # A run that was taken up with another reduction has one curve of two numbers.
    resumed = [*lines, {"record": {"call": "watch", "reduction": "full"}}]
    path.write_text("\n".join(map(json.dumps, resumed)))
    comparison.save(tmp_path / "page.html", history=path)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Alignment, full and mean; dashed" in page

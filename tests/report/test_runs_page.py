"""The page of several runs: a table of what differs, a line for each run, and nothing that is loaded."""

import json
import re

import numpy as np
import pytest
from internals import SeveralRuns, figures_of_runs, runs_html
from stored_runs import RECORD, STEPS, store

import ntkdiag
from ntkdiag import errors
from ntkdiag.monitor import JsonLines


def descent(rate):
    return f"Descent(learning_rate={rate}, kind='heavy-ball')"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two seeds of each of three learning rates."""
    root = tmp_path_factory.mktemp("sweep")
    for place, rate in enumerate((0.01, 0.1, 0.3)):
        for seed in range(2):
            store(root / f"lr{rate}_s{seed}", 2 * place + seed, descent=descent(rate))
    return root


@pytest.fixture(scope="module")
def runs(root):
    return ntkdiag.open_runs(root, by="descent")


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    path = runs.save(tmp_path_factory.mktemp("page") / "new" / "sweep.html")
    return path.read_text()


def numbers_in(page):
    text = re.search(r'<script type="application/json" id="numbers">(.*?)</script>', page)[1]
    return json.loads(text)


def cells_of(page):
    """The lines of the table of the runs."""
    table = page[page.index("<table>") : page.index("</table>")]
    lines = [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", line) for line in table.split("<tr>")]
    return [line for line in lines if line]


def test_the_table_has_what_differs_and_where_each_run_ended(page, runs):
    head, *lines = cells_of(page)
    assert head == ["run", "group", "learning rate", "last step", "last loss"]
    assert len(lines) == 6
    assert lines[0] == ["lr0.01_s0", "learning_rate=0.01", "0.01", "100", "0.009901"]
    assert [line[2] for line in lines] == ["0.01", "0.01", "0.1", "0.1", "0.3", "0.3"]
    assert "There is no margin that all runs have" in page


def test_each_figure_has_a_line_for_every_run(page, runs):
    numbers = numbers_in(page)
    assert next(iter(numbers)) == "loss"
    assert {"drift", "trace", "velocity"} <= set(numbers)
    assert "spectrum_status" not in numbers
    for name in ("loss", "trace"):
        columns = numbers[name]["columns"]
        assert list(dict.fromkeys(columns["series"])) == [member.name for member in runs.members]
        values = np.concatenate(list(runs.series(name).values()))
        np.testing.assert_allclose(columns["value"], values, rtol=1e-6)
    for curve in range(6):
        assert f'id="run-loss-curve-{curve}"' in page


def test_runs_of_one_group_share_a_colour(runs):
    figure = figures_of_runs(runs)[0]
    assert figure.name == "loss"
    curves = figure.curves(SeveralRuns(runs))
    colours = [curve.colour for curve in curves]
    assert colours[0] == colours[1]
    assert len(set(colours)) == 3


def test_many_groups_have_the_shades_of_a_sweep(tmp_path):
    paths = []
    for place in range(8):
        paths.append(store(tmp_path / f"run{place}", place, descent=descent(0.01 * (place + 1))))
    runs = ntkdiag.open_runs(paths)
    curves = figures_of_runs(runs)[0].curves(SeveralRuns(runs))
    assert len({curve.colour for curve in curves}) == 8


def test_it_loads_nothing_and_escapes_names(tmp_path):
    name = '<b>lr & "1"</b>'.replace("/", "")
    runs = ntkdiag.open_runs({name: [store(tmp_path / "a", 0)], "b": [store(tmp_path / "b", 1)]})
    page = runs_html(runs)
    assert "<b>lr" not in page
    assert "&lt;b&gt;lr &amp; &#34;1&#34;&lt;b&gt;" in page
    assert page.count("<script") == 2
    assert not re.search(r"""(src|href)=["'](?!#)""", page)


def test_margins_of_a_monitor_stand_first(tmp_path):
    for place, name in enumerate(("slow", "fast")):
        lines = JsonLines(tmp_path / name / "watch.jsonl")
        lines.start({"call": "watch", "source": "watch", "optimizer": f"adam({place})"})
        for step in range(4):
            row = {"margin": 0.1 * step + place, "loss": 1.0 / (step + 1), "status": 0}
            lines.write(step, row)
    runs = ntkdiag.open_runs(tmp_path, stream="watch")
    page = runs.save(tmp_path / "sweep.html").read_text()
    assert list(numbers_in(page))[:2] == ["margin", "loss"]
    by_name = {line[0]: line for line in cells_of(page)}
    assert by_name["run"] == [
        "run",
        "optimizer",
        "last step",
        "last loss",
        "last margin",
        "largest margin",
    ]
    assert by_name["fast"] == ["fast", "adam(1)", "3", "0.25", "1.3", "1.3"]
    assert "edge of stability" in page


def test_what_all_runs_have_in_common_is_said_once(page):
    common = page[page.index("What all runs have in common") :]
    assert "mean over 6 examples of half the squared error" in common
    assert "learning_rate=0.1" not in common


def test_runs_that_differ_in_nothing_say_so(tmp_path):
    runs = ntkdiag.open_runs([store(tmp_path / "a", 0), store(tmp_path / "b", 1)])
    assert "they differ in a seed, if at all" in runs_html(runs)


def test_more_settings_than_the_table_has_room_for_are_counted(tmp_path):
    paths = []
    for place in range(2):
        parameters = {f"layer {layer}": f"float32[{place + 2}]" for layer in range(9)}
        paths.append(store(tmp_path / f"run{place}", place, parameters=parameters))
    runs = ntkdiag.open_runs(paths)
    page = runs_html(runs)
    assert len(cells_of(page)[0]) == 1 + 6 + 2
    assert "They differ in 3 more entries of their records." in page


def test_numbers_as_json(runs, tmp_path):
    path = runs.save(tmp_path / "sweep.json")
    content = json.loads(path.read_text())
    assert content == runs.to_dict()
    run = content["lr0.1_s1"]
    assert run["group"] == "learning_rate=0.1"
    assert run["settings"] == {"descent.learning_rate": "0.1"}
    assert [row["step"] for row in run["rows"]] == list(STEPS)
    assert run["record"]["loss"] == RECORD["loss"]


def test_another_ending_is_refused(runs, tmp_path):
    with pytest.raises(errors.InvalidInputError, match=r"Runs\.save\(.*ends in \.html or \.json"):
        runs.save(tmp_path / "sweep.pdf")


def test_the_same_runs_give_the_same_page(runs, page):
    assert runs_html(runs) == page

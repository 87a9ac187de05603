"""`save_paper`: a folder with the numbers of its object, LaTeX that TeX can read, and nothing half-written."""

import csv
import io
import json
import re
import shutil
import subprocess

import matplotlib.pyplot as plt
import numpy as np
import pytest
from internals import SOURCES, latex, latex_number
from stored_runs import LEAVES, STEPS, store
from synthetic_run import write_tracked

import ntkdiag
from ntkdiag import errors
from ntkdiag.monitor import JsonLines

A = {"50%_of & {all}": np.eye(3, 2, dtype=np.float32)}
NAME = r"50\%\_of \& \{all\}"


def f(params, x):
    (w,) = params.values()
    return x @ w


@pytest.fixture(scope="module")
def comparison():
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    b = {name: 2 * w + 0.5 for name, w in A.items()}
    return ntkdiag.compare(A, b, model=f, train=(x, np.arange(6) % 2), loss="mse", descent=0.1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return ntkdiag.open_run(store(tmp_path_factory.mktemp("paper") / "run"))


@pytest.fixture(scope="module")
def of_run(run, tmp_path_factory):
    """The folder of a run."""
    return run.save_paper(tmp_path_factory.mktemp("out") / "run")


@pytest.fixture(scope="module")
def of_comparison(comparison, tmp_path_factory):
    """The folder of a comparison."""
    return comparison.save_paper(tmp_path_factory.mktemp("out") / "comparison")


def read_csv(path):
    return list(csv.DictReader(io.StringIO(path.read_text())))


def cells_of(table, first):
    """The cells of the line of a LaTeX table that begins so."""
    (line,) = [line for line in table.splitlines() if line.strip().startswith(f"{first} &")]
    return [cell.strip() for cell in line.strip().removesuffix(r"\\").split("&")]


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def refused(call, *args, **kwargs):
    """The message of the error that a call raises."""
    with pytest.raises(errors.NtkdiagError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


@pytest.mark.long
def test_numbers_of_the_checkpoints(run, of_run):
    track = run.tracked
    lines = read_csv(of_run / "tables" / "checkpoints.csv")
    assert [int(line["step"]) for line in lines] == list(STEPS)
    for name in ("trace", "drift", "loss", "drift_distance_centred"):
        np.testing.assert_array_equal([float(line[name]) for line in lines], track.series(name))
    np.testing.assert_array_equal(
        [float(line["e1_from_0"]) for line in lines], track.matrix("e1")[0]
    )
    table = (of_run / "tables" / "checkpoints.tex").read_text()
    cells = cells_of(table, STEPS[-1])
    heads = cells_of(table, "step")
    shown = dict(zip(heads, cells, strict=True))
    assert float(shown["loss"]) == pytest.approx(track.series("loss")[-1], rel=5e-3)
    assert float(shown["$D$"]) == pytest.approx(track.series("drift")[-1], rel=5e-3)
    assert float(shown["$e_1$ from 0"]) == pytest.approx(track.matrix("e1")[0, -1], rel=5e-3)
    assert cells_of(table, STEPS[0])[-1] == "--"  # nothing is predicted of the first checkpoint
    assert table.count(r"\toprule") == table.count(r"\midrule") == table.count(r"\bottomrule") == 1


def test_numbers_of_a_figure(run, of_run):
    lines = read_csv(of_run / "figures" / "drift.csv")
    np.testing.assert_array_equal(
        [float(line["value"]) for line in lines], run.tracked.series("drift")
    )
    lines = read_csv(of_run / "figures" / "e1.csv")
    values = np.array([float(line["value"]) for line in lines]).reshape(len(STEPS), len(STEPS))
    np.testing.assert_array_equal(values, run.tracked.matrix("e1"))


@pytest.mark.long
def test_names_of_parameters_are_escaped(of_run, of_comparison):
    table = (of_run / "tables" / "leaves.tex").read_text()
    assert r"50\%\_odd \& \{names\} &" in table
    assert {line["parameter"] for line in read_csv(of_run / "tables" / "leaves.csv")} == set(LEAVES)
    table = (of_comparison / "tables" / "leaves.tex").read_text()
    assert f"{NAME} & 6 &" in table
    assert read_csv(of_comparison / "tables" / "leaves.csv")[0]["path"] == "50%_of & {all}"


FORMULAS = ['=HYPERLINK("https://example.org")', "+1+1", "-2+3", "@SUM(A1)"]


def test_no_cell_of_a_table_is_a_formula(tmp_path):
    """Names of parameters, and those of groups of runs, come from elsewhere."""
    write_tracked(
        tmp_path / "run", steps=[0, 10], margins=[0.5, -0.5], e1=np.zeros((2, 2)), leaves=FORMULAS
    )
    paper = ntkdiag.open_run(tmp_path / "run").save_paper(tmp_path / "paper")
    runs = ntkdiag.open_runs({name: [tmp_path / "run"] for name in FORMULAS[:2]})
    of_runs = runs.save_paper(tmp_path / "runs")
    files = [*paper.rglob("*.csv"), *of_runs.rglob("*.csv")]
    tables = [csv.reader(io.StringIO(file.read_text())) for file in files]
    cells = [cell for table in tables for line in table for cell in line]
    assert {f"'{name}" for name in FORMULAS} <= set(cells)
    begin = {cell[0] for cell in cells if cell and not is_number(cell)}
    assert not begin & set("=+-@\t\r\n＝")
    assert "-0.5" in cells  # numbers below zero stay


def is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def test_numbers_of_a_comparison(comparison, of_comparison):
    lines = {
        line["quantity"]: line for line in read_csv(of_comparison / "tables" / "quantities.csv")
    }
    assert float(lines["trace"]["a"]) == comparison.a.trace
    assert float(lines["trace"]["b"]) == comparison.b.trace
    assert float(lines["margin"]["b"]) == comparison.b.margin
    assert float(lines["loss"]["b"]) == comparison.b.loss
    change = {
        line["quantity"]: float(line["value"])
        for line in read_csv(of_comparison / "tables" / "change.csv")
    }
    assert change["e1"] == comparison.prediction.e1
    assert change["drift_distance_centred"] == float(comparison.drift.distance_centred)
    table = (of_comparison / "tables" / "quantities.tex").read_text()
    _, symbol, a, _, _ = cells_of(table, "trace")
    assert symbol == r"tr $\Theta$"
    assert float(a.replace(",", "")) == pytest.approx(comparison.a.trace, rel=1e-3)


@pytest.mark.parametrize("name", ["drift", "e1", "leaf_shares"])
def test_pdf_with_truetype_fonts_and_no_date(of_run, name):
    content = (of_run / "figures" / f"{name}.pdf").read_bytes()
    assert content.startswith(b"%PDF-")
    assert content.rstrip().endswith(b"%%EOF")
    assert b"/FontFile2" in content
    assert b"/Type3" not in content
    assert b"CreationDate" not in content
    box = re.search(rb"/MediaBox \[([^\]]+)\]", content)
    width = float(box[1].split()[2]) / 72
    assert width == pytest.approx(3.25)
    svg = (of_run / "figures" / f"{name}.svg").read_text()
    assert "<svg" in svg
    assert "<dc:date>" not in svg


def test_figures_of_two_panels_are_as_wide_as_the_text(of_comparison):
    widths = {}
    for name in ("spectra", "prediction"):
        content = (of_comparison / "figures" / f"{name}.pdf").read_bytes()
        widths[name] = float(re.search(rb"/MediaBox \[([^\]]+)\]", content)[1].split()[2]) / 72
    assert widths == pytest.approx({"spectra": 6.75, "prediction": 3.25})


def test_methods_and_what_they_cite(comparison, of_run, of_comparison, run):
    text = (of_run / "methods.txt").read_text()
    assert (
        "with 8 parameters, in eval mode, was computed at 4 checkpoints from step 0 to step 100"
        in text
    )
    assert "ntkdiag 0.1.0, jax 0.10.2, numpy 2.4.6" in text
    assert comparison.facts["train_sha256"] in (of_comparison / "methods.txt").read_text()
    for folder in (of_run, of_comparison):
        tex, bib = (folder / "methods.tex").read_text(), (folder / "references.bib").read_text()
        assert tex.isascii()
        cited = set(re.findall(r"\\cite\{(\w+)\}", tex))
        assert cited == set(re.findall(r"@\w+\{(\w+),", bib))
        assert {"ntkdiag", "jacot2018neural", "fort2020deep", "chizat2019lazy"} <= cited
    # The stored run has neither margins nor labels.
    assert "cohen2021gradient" not in (of_run / "references.bib").read_text()
    assert "cohen2021gradient" in (of_comparison / "references.bib").read_text()
    assert len({source.key for source in SOURCES}) == len(SOURCES)


def test_versions_and_conventions(run, of_run, comparison, of_comparison):
    versions = json.loads((of_run / "versions.json").read_text())
    assert versions["versions"]["ntkdiag"] == ntkdiag.__version__
    assert versions["conventions"]["checkpoints"] == run.record()
    assert versions["seeds"] == "not in the record: state the seeds of the training"
    assert sorted(contents(of_run)) == versions["files"]
    facts = json.loads((of_comparison / "versions.json").read_text())["conventions"]["facts"]
    assert facts["reduction"] == comparison.facts["reduction"]


def test_braces_of_all_latex_are_in_balance(of_run, of_comparison):
    for folder in (of_run, of_comparison):
        for name, content in contents(folder).items():
            if name.endswith((".tex", ".bib")):
                plain = re.sub(r"\\[{}]", "", content.decode())
                assert plain.count("{") == plain.count("}"), name
                assert plain.count("$") % 2 == 0, name
        article = (folder / "article.tex").read_text()
        inside = re.findall(r"\\(?:input|includegraphics)\{([^}]+)\}", article)
        for name in inside:
            assert (folder / name).exists() or (folder / f"{name}.tex").exists()


def test_the_article_is_set(of_run, of_comparison, tmp_path):
    engines = [tool for tool in ("tectonic", "pdflatex") if shutil.which(tool)]
    if not engines:
        pytest.skip("neither tectonic nor pdflatex is installed")
    for folder in (of_run, of_comparison):
        copy = tmp_path / folder.name
        shutil.copytree(folder, copy)
        options = ["-interaction=nonstopmode", "-halt-on-error"] if engines[0] == "pdflatex" else []
        subprocess.run([engines[0], *options, "article.tex"], cwd=copy, check=True, timeout=300)
        assert (copy / "article.pdf").exists()


@pytest.mark.slow
def test_the_same_result_gives_the_same_bytes(run, of_run, tmp_path):
    assert contents(run.tracked.save_paper(tmp_path / "again")) == contents(of_run)


@pytest.mark.slow
def test_what_is_there_is_not_lost(run, of_run, tmp_path):
    folder = tmp_path / "out"
    shutil.copytree(of_run, folder)
    n_files = len(contents(folder))
    assert refused(run.save_paper, folder) == (
        f"Run.save_paper(path): expected a new or an empty folder at {str(folder)!r}; got one with {n_files} files. "
        "Choose another path, or pass overwrite=True to replace what save_paper wrote."
    )
    (folder / "methods.txt").write_text("changed")
    run.save_paper(folder, overwrite=True)
    assert contents(folder) == contents(of_run)
    (folder / "notes.txt").write_text("mine")
    (folder / "plots.py").write_text("mine")
    assert refused(run.save_paper, folder, overwrite=True) == (
        "Run.save_paper(path, overwrite=True): expected a folder of files that save_paper wrote; got 'notes.txt' "
        "and 1 others. Move them away, or choose another path."
    )
    assert (folder / "notes.txt").read_text() == "mine"
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter.tex").write_text("mine")
    assert "got 'chapter.tex'." in refused(run.save_paper, other, overwrite=True)
    assert refused(run.save_paper, other / "chapter.tex") == (
        f"Run.save_paper(path): expected a folder at {str(other / 'chapter.tex')!r}; got a file. Choose another path."
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "thesis"]


@pytest.mark.slow
def test_a_save_that_fails_leaves_nothing(run, tmp_path, monkeypatch):
    from ntkdiag.report import paper_folder

    real = paper_folder.os.replace

    def fail(source, target):
        raise OSError("full")

    monkeypatch.setattr(paper_folder.os, "replace", fail)
    with pytest.raises(errors.InvalidInputError, match="got OSError: full"):
        run.save_paper(tmp_path / "out")
    monkeypatch.setattr(paper_folder.os, "replace", real)
    assert list(tmp_path.iterdir()) == []


def test_a_replacement_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    from ntkdiag.report import paper_folder

    folder = tmp_path / "out"
    paper_folder.write_folder(folder, {"table.csv": b"old"}, {})
    before = contents(folder)
    real = paper_folder.os.replace

    def fail_on_new(source, target):
        if target == folder:
            raise OSError("full")
        real(source, target)

    monkeypatch.setattr(paper_folder.os, "replace", fail_on_new)
    with pytest.raises(errors.InvalidInputError, match="got OSError: full"):
        paper_folder.write_folder(folder, {"table.csv": b"new"}, {})
    assert contents(folder) == before
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.long
def test_several_runs(tmp_path):
    for seed in range(3):
        store(tmp_path / f"a{seed}", seed)
    runs = ntkdiag.open_runs({"50%_lr": [tmp_path / f"a{seed}" for seed in range(3)]})
    folder = runs.save_paper(tmp_path / "out")
    mean = runs.mean("drift")["50%_lr"]
    lines = [
        line for line in read_csv(folder / "tables" / "seeds.csv") if line["quantity"] == "drift"
    ]
    for column in ("mean", "standard_deviation", "lower", "upper"):
        values = [float(line[column]) for line in lines]
        np.testing.assert_array_equal(values, getattr(mean, column))
    table = (folder / "tables" / "seeds.tex").read_text()
    _, n, step, *_ = cells_of(table, r"50\%\_lr")
    assert (n, step) == ("3", "100")
    assert rf"{latex_number(mean.mean[-1], 3)} $\pm$" in table
    assert (folder / "figures" / "drift.pdf").read_bytes().startswith(b"%PDF-")
    assert "quantile t of Student's distribution" in (folder / "methods.txt").read_text()


def test_a_run_of_a_monitor_alone(tmp_path):
    lines = JsonLines(tmp_path / "run" / "ntk.jsonl")
    lines.start(
        {
            "call": "watch",
            "n_examples": 32,
            "seed": 4,
            "instruments": ["margin"],
            "reduction": "full",
        }
    )
    for step in range(3):
        lines.write(step, {"status": 0, "margin": 0.5 + step})
    folder = ntkdiag.open_run(tmp_path / "run").save_paper(tmp_path / "out")
    values = [float(line["value"]) for line in read_csv(folder / "figures" / "margin.csv")]
    assert values == [0.5, 1.5, 2.5]
    assert json.loads((folder / "versions.json").read_text())["seeds"] == 4
    assert "measured on 32 examples" in (folder / "methods.txt").read_text()
    JsonLines(tmp_path / "empty" / "ntk.jsonl").start({"call": "watch"})
    assert refused(ntkdiag.open_run(tmp_path / "empty").save_paper, tmp_path / "no") == (
        "Run.save_paper(path): expected a run with checkpoints of track or measurements of a monitor; got neither. "
        "Track it: ntkdiag.track(..., out=...)."
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "50%_a & b#1 $x {y} ~^\\",
            r"50\%\_a \& b\#1 \$x \{y\} \textasciitilde{}\textasciicircum{}\textbackslash{}",
        ),
        ("Θ = J Jᵀ", r"$\Theta$ = J J$^{\top}$"),
        ("ε √n λ₁", r"$\varepsilon$ $\surd$n $\lambda _{1}$"),
        ("‖Δθ‖ ≤ 1 – 2", r"$\|\Delta \theta \|$ $\le$ 1 -- 2"),
        ("layer<0>", r"layer\textless{}0\textgreater{}"),
    ],
)
def test_text_as_latex(text, expected):
    assert latex(text) == expected


def test_numbers_as_latex():
    assert latex_number(1.25e-7, 3) == r"$1.25\times 10^{-7}$"
    assert latex_number(-0.5) == "$-0.5$"
    assert latex_number(float("nan")) == latex_number(None) == "--"
    assert latex_number(0.123456, 3) == "0.123"


@pytest.mark.slow
def test_figures_of_the_user_are_left_alone(run, tmp_path):
    settings, figures = dict(plt.rcParams), plt.get_fignums()
    run.save_paper(tmp_path / "out")
    assert dict(plt.rcParams) == settings
    assert plt.get_fignums() == figures

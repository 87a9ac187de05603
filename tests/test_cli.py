"""The command line: every command end to end, and one clean message for every error."""

import json
import pathlib
import re
import sys

import jax
import numpy as np
import pytest
import rich.console
from orbax.checkpoint import v1

import ntkdiag
from ntkdiag import cli, demo
from ntkdiag.checkpoints.params import load_params
from ntkdiag.demo.digits import load_digits
from ntkdiag.errors import InvalidInputError, MissingDependencyError
from ntkdiag.monitor.writers import read_json_lines
from ntkdiag.report import comparison_table

MODULE = """
import jax.numpy as jnp

def net(params, x):
    return jnp.tanh(x @ params["w"])

def make():
    return net

class Holder:
    inner = staticmethod(net)
"""


@pytest.fixture
def run(monkeypatch, capsys):
    """Call the command line as a shell would; returns exit status, output and error output."""

    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["ntkdiag", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, *capsys.readouterr()

    return call


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """Two checkpoints, a probe and a module with the model, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "net_for_cli", None)  # restored afterwards
    del sys.modules["net_for_cli"]
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        v1.save(tmp_path / name, {"w": rng.normal(size=(3, 2)).astype(np.float32)})
    np.savez(
        tmp_path / "probe.npz", x=rng.normal(size=(6, 3)).astype(np.float32), y=np.arange(6) % 2
    )
    (tmp_path / "net_for_cli.py").write_text(MODULE)
    return tmp_path


def test_version(run):
    status, out, err = run("version")
    assert (status, err) == (0, "")
    assert out.splitlines()[:2] == [f"ntkdiag {ntkdiag.__version__}", f"jax {jax.__version__}"]


def test_the_version_alone(run):
    assert run("--version") == (0, f"ntkdiag {ntkdiag.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "completed"),
    [("ntkdiag comp", "compare"), ("ntkdiag compare a b --exp", "--explain")],
)
def test_a_shell_completes_commands_and_options(run, monkeypatch, words, completed):
    """As the script does that `ntkdiag --install-completion` installs for bash."""
    monkeypatch.setenv("_NTKDIAG_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    status, out, _ = run()
    assert (status, out.split()) == (0, [completed])


@pytest.mark.parametrize("attribute", ["net", "make", "Holder.inner"])
def test_compare(run, workspace, attribute):
    options = (
        "--model",
        f"net_for_cli:{attribute}",
        "--train",
        "probe.npz",
        "--out",
        "r.json",
        "--loss",
        "mse",
        "--learning-rate",
        0.1,
    )
    status, out, err = run("compare", "a", "b", *options)
    assert (status, err) == (0, "")
    assert "stability margin" in out
    assert "report: r.json" in out
    assert json.loads((workspace / "r.json").read_text())["facts"]["n_examples"] == 6


@pytest.mark.slow
def test_compare_with_held_out_examples(run, workspace):
    rng = np.random.default_rng(1)
    np.savez(
        workspace / "test.npz", x=rng.normal(size=(4, 3)).astype(np.float32), y=np.arange(4) % 2
    )
    model = ("--model", "net_for_cli:net", "--loss", "mse", "--learning-rate", 0.1)
    both = ("--train", "probe.npz", "--held-out", "test.npz", "--out", "both.json")
    status, _, err = run("compare", "a", "b", *model, *both)
    assert (status, err) == (0, "")
    content = json.loads((workspace / "both.json").read_text())
    assert content["facts"]["held_out_examples"] == 4
    assert content["b"]["held_out"]["loss"] > 0

    run("compare", "a", "b", *model, "--held-out", "test.npz", "--out", "alone.json")
    content = json.loads((workspace / "alone.json").read_text())
    assert content["b"]["stability_margin"] is None
    assert content["notes"][0].startswith("Only held-out examples were given")

    status, _, err = run("compare", "a", "b", *model)
    assert status == 1
    assert err == (
        "ntkdiag: ntkdiag compare: expected --train FILE.npz, --held-out FILE.npz, or both; got neither. See: ntkdiag "
        "compare --help\n"
    )


def test_track(run, workspace):
    pathlib.Path("run").mkdir()
    for name, step in (("a", 0), ("b", 10)):
        pathlib.Path(name).rename(f"run/{step}")
    words = ("--model", "net_for_cli:net", "--train", "probe.npz", "--loss", "cross_entropy")
    status, out, err = run("track", "run", *words, "--out", "ntk")
    assert (status, err) == (0, "")
    assert "2 checkpoints, steps 0 to 10" in out
    assert "e1 from 0" in out
    status, out, _ = run("track", "run", *words, "--out", "ntk", "--json")
    content = json.loads(out)
    assert [row["step"] for row in content["checkpoints"]] == [0, 10]
    e1 = ntkdiag.open_run("ntk").rows()[1]["pairs"]["e1_to"][0]
    assert content["matrices"]["e1"][0][1] == e1
    status, _, err = run("track", "run", *words[:2])
    assert status == 1
    assert err.startswith("ntkdiag: ntkdiag track: expected --train FILE.npz")
    status, _, err = run("track", "run", *words, "--out", "ntk", "--learning-rate", "0.1")
    assert status == 1
    assert "descent" in err


def test_compare_says_that_the_model_is_imported(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    status, out, _ = run("compare", "--help")
    assert status == 0
    assert "IMPORTS CODE" in out
    assert "which runs its code" in out


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"--model": "net"}, ("ntkdiag compare --model net: expected module:attribute", "got net")),
        (
            {"--model": "nowhere_at_all:net"},
            ("a module that can be imported", "No module named 'nowhere_at_all'"),
        ),
        (
            {"--model": "net_for_cli:other"},
            ("a module with that attribute", "has no attribute 'other'"),
        ),
        ({"--model": "nowhere.py:net"}, ("a file that can be imported", "no file at 'nowhere.py'")),
        ({"--train": "nowhere.npz"}, ("an .npz file written by numpy.savez", "No such file")),
        ({"--train": "net_for_cli.py"}, ("an .npz file written by numpy.savez",)),
        ({"--train": "nothing.npz"}, ("expected an array named x in the file; got z",)),
        (
            {"--train": "objects.npz"},
            ("an .npz file written by numpy.savez", "Object arrays cannot be loaded"),
        ),
        (
            {"--out": "r.pdf", "--train": "nowhere.npz"},
            ("expected a file name that ends in .html or .json",),
        ),
        (
            {"--out": "r.html", "--history": "none.jsonl", "--train": "nowhere.npz"},
            ("got no file at 'none.jsonl'",),
        ),
    ],
)
def test_errors_are_one_message_without_a_traceback(run, workspace, options, parts):
    np.savez(workspace / "nothing.npz", z=np.zeros(3))
    np.savez(workspace / "objects.npz", x=np.array([{}], dtype=object))
    given = {"--model": "net_for_cli:net", "--train": "probe.npz", **options}
    status, _, err = run("compare", "a", "b", *(word for pair in given.items() for word in pair))
    assert status == 1
    assert err.startswith("ntkdiag: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


def test_a_step_of_what_is_no_manager_root(run, workspace):
    status, _, err = run(
        "compare", "a@3", "b", "--model", "net_for_cli:net", "--train", "probe.npz"
    )
    assert status == 1
    assert ": expected an Orbax checkpoint" in err
    assert "and step=3" in err


@pytest.mark.parametrize("name", ["broken_for_cli:net", "broken_for_cli.py:net"])
@pytest.mark.parametrize(
    ("line", "error"),
    [("import numpy; numpy.no_such_thing", AttributeError), ("import no_such_module", ImportError)],
)
def test_errors_inside_the_module_keep_their_traceback(workspace, monkeypatch, name, line, error):
    (workspace / "broken_for_cli.py").write_text(f"# a module\n{line}\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["ntkdiag", "selfcheck", name])
    monkeypatch.setattr(cli.app, "pretty_exceptions_enable", False)
    monkeypatch.delitem(sys.modules, "broken_for_cli", raising=False)
    with pytest.raises(error) as caught:
        cli.main()
    places = [(pathlib.Path(entry.path).name, entry.lineno) for entry in caught.traceback]
    assert ("broken_for_cli.py", 1) in places  # lines count from 0
    sys.modules.pop("broken_for_cli", None)


def test_a_file_imports_what_lies_next_to_it_when_it_is_called(run, workspace):
    folder = workspace / "elsewhere"
    folder.mkdir()
    (folder / "beside_for_cli.py").write_text(MODULE)
    lines = [
        "def make():",
        "    import numpy as np, beside_for_cli",
        "    x = np.ones((2, 3), np.float32)",
    ]
    lines.append(
        "    return {'model': beside_for_cli.net, 'variables': {'w': np.ones((3, 2), np.float32)}, 'x': x}"
    )
    (folder / "case_for_cli.py").write_text("\n".join(lines))
    status, out, err = run("selfcheck", "elsewhere/case_for_cli.py:make")
    assert (status, err) == (0, "")
    assert "nothing is wrong" in out
    for name in ("beside_for_cli", "case_for_cli"):
        del sys.modules[name]


def test_wrong_usage_is_status_2(run):
    status, _, err = run("compare", "a")
    assert status == 2
    assert "Missing argument" in err


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """A demo of a second: one probe example per class, two narrow layers, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ntkdiag.demo.training.PROBE_PER_CLASS", 1)
    monkeypatch.setattr("ntkdiag.demo.run_through.PROBE_PER_CLASS", 1)
    monkeypatch.setattr("ntkdiag.demo.networks.WIDTHS", (2, 3))


@pytest.mark.slow
@pytest.mark.parametrize("library", ["linen", "equinox", "nnx"])
def test_demo(run, tiny, tmp_path, library):
    status, out, err = run("demo", "--model", library, "--steps", 3, "--every", 2)
    root = tmp_path / "runs" / f"digits-{library}"
    assert (status, err) == (0, "")
    assert re.search(r"step +2  lambda [\d.]+", out)
    assert f"report: runs/digits-{library}/report.html" in out
    assert "2 measurements from step 0 to step 2" in (root / "report.html").read_text(
        encoding="utf-8"
    )
    assert sorted(int(path.name) for path in (root / "checkpoints").iterdir()) == [0, 1, 2, 3]
    records, rows = read_json_lines(root / "ntk.jsonl")
    assert [row["step"] for row in rows] == [0, 2]
    assert records[0]["loss"] == "cross_entropy"
    # What watch measured at step 0 is what compare measures of the checkpoint of step 0.
    trace = float(re.search(r"trace  tr Θ +([\d.,e+-]+)", out).group(1).replace(",", ""))
    np.testing.assert_allclose(rows[0]["ntk_trace"], trace, rtol=2e-3)
    assert len(jax.tree.leaves(load_params(root / "checkpoints", 3))) == 6


def test_demo_never_writes_into_an_existing_folder(run, tiny, tmp_path):
    (tmp_path / "mine").mkdir()
    status, _, err = run("demo", "--out", "mine")
    assert status == 1
    assert (
        "ntkdiag demo --out mine: expected a folder that does not exist yet; got FileExistsError"
        in err
    )
    assert "a run is never overwritten" in err
    (tmp_path / "runs" / "digits-linen").mkdir(parents=True)
    assert demo.run_directory.make_run_directory(None, "digits-linen").root.name == "digits-linen-2"


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--model", "torch", "expected one of linen, equinox, nnx; got torch"),
        ("--steps", 0, "expected a positive number; got 0"),
        ("--every", 0, "expected a positive number; got 0"),
    ],
)
def test_demo_settings_are_checked(run, tiny, option, value, expected):
    status, _, err = run("demo", option, value)
    assert (status, err) == (
        1,
        f"ntkdiag: ntkdiag demo {option} {value}: {expected}. See: ntkdiag demo --help\n",
    )


def test_demo_names_the_extra_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingDependencyError, match=r'Run: pip install "ntkdiag\[demo\]"'):
        load_digits(0)


def test_the_probes_are_stratified_and_what_their_names_say():
    digits = load_digits(0)
    trained = {image.tobytes() for image in digits.x_train}
    for probe, is_trained in ((digits.train_probe(6), True), (digits.held_out_probe(6), False)):
        x, y = probe
        assert x.shape == (60, 8, 8, 1)
        assert list(np.bincount(y)) == [6] * 10
        assert {image.tobytes() in trained for image in x} == {is_trained}


def test_an_error_of_ntkdiag_is_not_swallowed_outside_the_command_line():
    with pytest.raises(InvalidInputError, match="--steps"):
        demo.run_demo(demo.DemoSettings(steps=0))


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        (
            "probe.npz",
            ["--history", "log.jsonl"],
            "expected --out with the report to draw it in; got no --out",
        ),
        (
            "probe.npz",
            ["--out", "r.json", "--history", "log.jsonl"],
            "file beside a history, which is drawn",
        ),
        ("bare.npy", [], "got an array without a name (.npy)"),
        ("cut.npz", [], "expected an .npz file written by numpy.savez"),
    ],
)
def test_data_and_history_that_cannot_be_used(run, workspace, data, options, said):
    np.save(workspace / "bare.npy", np.ones(3))
    (workspace / "cut.npz").write_bytes((workspace / "probe.npz").read_bytes()[:-40])
    status, out, err = run(
        "compare", "a", "b", "--model", "net_for_cli:net", "--train", data, *options
    )
    assert (status, out) == (1, "")
    assert said in err
    assert "Traceback" not in err


def test_tables_in_a_pipe_are_as_wide_as_they_want_to_be(run, workspace):
    _, out, _ = run("compare", "a", "b", "--model", "net_for_cli:net", "--train", "probe.npz")
    assert max(map(len, out.splitlines())) > 100
    assert "…" not in out


def test_a_narrow_terminal_shows_the_answer_and_names_the_options_for_the_rest(
    run, workspace, monkeypatch
):
    monkeypatch.setattr(comparison_table, "terminal", lambda: rich.console.Console(width=80))
    command = ("compare", "a", "b", "--model", "net_for_cli:net", "--train", "probe.npz")
    _, first_screen, _ = run(*command)
    assert max(map(len, first_screen.splitlines())) <= 80
    assert len(first_screen.splitlines()) < 40
    assert "Sum of the eigenvalues" not in first_screen
    assert "See --all, --explain for what the numbers mean" in " ".join(first_screen.split())
    _, explained, _ = run(*command, "--explain", "--out", "r.json")
    assert "Sum of the eigenvalues: the overall speed of learning." in " ".join(explained.split())
    assert "See --all." in " ".join(explained.split())  # not what was given
    _, everything, _ = run(*command, "--all")
    for title in ("Kernel", "Task", "From A to B", "Parameters"):
        assert any(line.startswith(title) for line in everything.splitlines())
    assert "…" not in everything

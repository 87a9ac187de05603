"""`ntkdiag compare`: what it prints and writes, how it fails, and a gate for continuous integration."""

import json
import os
import pathlib
import sys
import warnings
import zipfile

import flax.serialization
import numpy as np
import pytest
import rich.console

from ntkdiag.report import comparison_table

pytest_plugins = ["shell"]
WORDS = ("compare", "a", "b", "--case", "net_for_shell.py:net", "--train", "probe.npz")


@pytest.mark.parametrize("attribute", ["net", "make"])
def test_compare(shell, workspace, attribute):
    options = (
        "--case",
        f"net_for_shell.py:{attribute}",
        "--train",
        "probe.npz",
        "--out",
        "r.json",
        "--loss",
        "mse",
        "--learning-rate",
        0.1,
    )
    status, out, err = shell("compare", "a", "b", *options)
    assert (status, err) == (0, "")
    assert "stability margin" in out
    assert "report: r.json" in out
    assert json.loads((workspace / "r.json").read_text())["facts"]["n_examples"] == 6


@pytest.mark.slow
def test_compare_with_held_out_examples(shell, workspace):
    rng = np.random.default_rng(1)
    np.savez(
        workspace / "test.npz", x=rng.normal(size=(4, 3)).astype(np.float32), y=np.arange(4) % 2
    )
    model = ("--case", "net_for_shell.py:net", "--loss", "mse", "--learning-rate", 0.1)
    both = ("--train", "probe.npz", "--held-out", "test.npz", "--out", "both.json")
    status, _, err = shell("compare", "a", "b", *model, *both)
    assert (status, err) == (0, "")
    content = json.loads((workspace / "both.json").read_text())
    assert content["facts"]["held_out_examples"] == 4
    assert content["b"]["held_out"]["loss"] > 0

    shell("compare", "a", "b", *model, "--held-out", "test.npz", "--out", "alone.json")
    content = json.loads((workspace / "alone.json").read_text())
    assert content["b"]["margin"] is None
    assert content["notes"][0].startswith("Only held-out examples were given")

    status, _, err = shell("compare", "a", "b", *model)
    assert status == 2
    assert err == (
        "ntkdiag: ntkdiag compare --case net_for_shell.py:net: expected --train FILE.npz, --held-out FILE.npz, or x, "
        "train or held_out in the case; got neither. See: ntkdiag compare --help\n"
    )


def test_compare_says_that_the_model_is_imported(shell, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    status, out, _ = shell("compare", "--help")
    assert status == 0
    assert "IMPORTS CODE" in out
    assert "which runs its code" in out


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"--case": "net"}, ("ntkdiag compare --case net: expected path.py:name", "got net")),
        ({"--case": "net_for_shell:net"}, ("expected path.py:name, such as net.py:case",)),
        (
            {"--case": "net_for_shell.py:other"},
            ("a file with an object of that name", "has no 'other'"),
        ),
        ({"--case": "nowhere.py:net"}, ("a file that can be imported", "no file at 'nowhere.py'")),
        ({"--train": "nowhere.npz"}, ("an .npz file written by numpy.savez", "No such file")),
        ({"--train": "net_for_shell.py"}, ("an .npz file written by numpy.savez",)),
        (
            {"--train": "twice.npz"},
            ("expected each name once in the file; got two arrays named 'x'",),
        ),
        ({"--train": "nothing.npz"}, ("expected an array named x in the file; got z",)),
        (
            {"--train": "objects.npz"},
            ("an .npz file written by numpy.savez", "Object arrays cannot be loaded"),
        ),
        (
            {"--out": "r.pdf", "--train": "nowhere.npz"},
            ("expected a file name that ends in .html or .json",),
        ),
    ],
)
def test_errors_are_one_message_without_a_traceback(shell, workspace, options, parts):
    np.savez(workspace / "nothing.npz", z=np.zeros(3))
    np.savez(workspace / "objects.npz", x=np.array([{}], dtype=object))
    with zipfile.ZipFile(workspace / "twice.npz", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zipfile, which notices
        for _ in range(2):
            archive.write(workspace / "probe.npz", "x.npy")
    given = {"--case": "net_for_shell.py:net", "--train": "probe.npz", **options}
    status, _, err = shell("compare", "a", "b", *(word for pair in given.items() for word in pair))
    # Reports are refused by the function that writes them, all else is about words.
    assert status == (1 if "--out" in options else 2)
    assert err.startswith("ntkdiag: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


def test_a_step_of_what_is_no_manager_root(shell, workspace):
    status, _, err = shell(
        "compare", "a@3", "b", "--case", "net_for_shell.py:net", "--train", "probe.npz"
    )
    assert status == 1
    assert ": expected a checkpoint" in err
    assert "and step=3" in err


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("bare.npy", "got an array without a name (.npy)"),
        ("cut.npz", "expected an .npz file written by numpy.savez"),
    ],
)
def test_data_that_cannot_be_used(shell, workspace, data, said):
    np.save(workspace / "bare.npy", np.ones(3))
    (workspace / "cut.npz").write_bytes((workspace / "probe.npz").read_bytes()[:-40])
    status, out, err = shell("compare", "a", "b", "--case", "net_for_shell.py:net", "--train", data)
    assert (status, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_tables_in_a_pipe_are_as_wide_as_they_want_to_be(shell, workspace):
    _, out, _ = shell("compare", "a", "b", "--case", "net_for_shell.py:net", "--train", "probe.npz")
    assert max(map(len, out.splitlines())) > 100
    assert "…" not in out


def test_a_narrow_terminal_shows_the_answer_and_names_the_options_for_the_rest(
    shell, workspace, monkeypatch
):
    monkeypatch.setattr(comparison_table, "terminal", lambda: rich.console.Console(width=80))
    command = ("compare", "a", "b", "--case", "net_for_shell.py:net", "--train", "probe.npz")
    _, first_screen, _ = shell(*command)
    assert max(map(len, first_screen.splitlines())) <= 80
    assert len(first_screen.splitlines()) < 40
    assert "Sum of the eigenvalues" not in first_screen
    assert "See --all, --out report.html" in " ".join(first_screen.split())
    _, everything, _ = shell(*command, "--all")
    for title in ("Kernel", "Task", "From A to B", "Parameters"):
        assert any(line.startswith(title) for line in everything.splitlines())
    assert "…" not in everything


CASE = ("compare", "a", "b", "--case", "net_for_shell.py:case")


def test_json_is_all_that_stands_on_standard_output(shell, workspace):
    status, out, err = shell(*CASE, "--json", "--out", "r.json")
    assert (status, err) == (0, "the user's own words\nreport: r.json\n")
    assert json.loads(out, parse_constant=pytest.fail) == json.loads(
        (workspace / "r.json").read_text()
    )


def test_a_case_brings_examples_loss_and_learning_rate(shell, workspace):
    _, out, _ = shell(*CASE, "--json")
    margin = json.loads(out)["b"]["margin"]
    assert margin > 0
    _, out, _ = shell(*CASE, "--json", "--learning-rate", 0.3)
    assert json.loads(out)["b"]["margin"] == pytest.approx(3 * margin)


def test_it_ends_as_check_does(shell, workspace):
    words = ("--learning-rate", "1e6")
    status, _, err = shell(*CASE, *words, "--fail-on", "warning")
    assert status == 1
    assert "warning" in err
    assert "margin-" in err
    assert shell(*CASE, *words, "--fail-on", "error")[0] == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="names are letters elsewhere")
def test_names_of_bytes_that_are_no_letters(shell, workspace):
    """Checkpoints, examples and reports may be called so; code may not, which JAX could not compile."""
    name = os.fsdecode(b"a\xff.msgpack")
    params = {"w": np.arange(6, dtype=np.float32).reshape(3, 2)}
    pathlib.Path(name).write_bytes(flax.serialization.to_bytes(params))
    probe = os.fsdecode(b"\xfe.npz")
    os.rename("probe.npz", probe)
    words = ["compare", name, "b", "--case", "net_for_shell.py:net", "--train", probe]
    for out in (b"r\xff.html", b"r\xff.json"):
        assert shell(*words, "--out", os.fsdecode(out))[0] == 0
        assert "a?.msgpack" in pathlib.Path(os.fsdecode(out)).read_text(encoding="utf-8")
    status, out, _ = shell(*words)
    assert (status, "a?.msgpack" in out) == (0, True)
    case = os.fsdecode(b"c\xff.py")
    os.rename("net_for_shell.py", case)
    status, _, err = shell("compare", "a", "b", "--case", f"{case}:net", "--train", probe)
    assert status == 2
    assert "expected a path in UTF-8, which JAX needs for code; got '" in err
    os.rename("b", os.fsdecode(b"b\xff"))
    status, _, err = shell(
        "compare", "a", os.fsdecode(b"b\xff"), "--case", "b.py:net", "--train", probe
    )
    assert status == 1
    assert "got a path that is no UTF-8, which Orbax cannot open. Rename it." in err

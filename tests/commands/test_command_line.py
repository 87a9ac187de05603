"""The program as a whole: help, completion, versions, exit statuses, one message for every error."""

import pathlib
import re
import shlex
import subprocess
import sys

import jax
import pytest
import typer

import ntkdiag
from ntkdiag.commands import command_line

pytest_plugins = ["shell"]

ROOT = pathlib.Path(__file__).parents[2]
COMMANDS = typer.main.get_command(command_line.app)
# What help and usage errors leave alone; JAX is imported with ntkdiag.
SLOW_TO_IMPORT = (
    "flax",
    "equinox",
    "optax",
    "orbax",
    "matplotlib",
    "pandas",
    "xarray",
    "sklearn",
    "scipy",
)


@pytest.mark.smoke
def test_version(shell):
    status, out, err = shell("--version")
    assert (status, err) == (0, "")
    assert out.splitlines()[:2] == [f"ntkdiag {ntkdiag.__version__}", f"jax {jax.__version__}"]


def test_a_shell_completes_commands_and_options(shell, monkeypatch):
    """As the script does that `ntkdiag --install-completion` installs for bash."""
    monkeypatch.setenv("_NTKDIAG_COMPLETE", "complete_bash")
    for words, completed in (("ntkdiag comp", "compare"), ("ntkdiag compare a b --al", "--all")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        status, out, _ = shell()
        assert (status, out.split()) == (0, [completed])


def test_wrong_usage_is_one_message_and_status_4(shell):
    usage = {
        ("compare", "a"): "ntkdiag compare: Missing argument 'B'. See: ntkdiag compare --help",
        ("nothing",): "ntkdiag: No such command 'nothing'. See: ntkdiag --help",
    }
    for words, said in usage.items():
        assert shell(*words) == (4, "", f"ntkdiag: {said}\n")
    status, out, err = shell("plan", "net.py:net", "--reduction", "test")
    assert (status, out) == (4, "")
    assert err.startswith("ntkdiag: ntkdiag plan: Invalid value for '--reduction': ")
    assert err.endswith(". See: ntkdiag plan --help\n")
    assert err.count("\n") == 1


def command_lines(text):
    """Every line that begins with the name of the program, with its continuations."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = [line.strip() for line in joined.splitlines()]
    return [
        line for line in lines if line.startswith("ntkdiag ") and not line.startswith("ntkdiag --")
    ]


def parse(line):
    """Whether the words of a line are those of a command; raises where they are not."""
    _, command, *words = shlex.split(line, comments=True)
    if ">" in words:  # into a file
        words = words[: words.index(">")]
    COMMANDS.commands[command].make_context(command, words)


def test_the_examples_of_a_command_are_commands():
    for name, command in COMMANDS.commands.items():
        examples = command_lines(command.epilog)
        assert 1 <= len(examples) <= 3
        for line in examples:
            assert line.startswith(f"ntkdiag {name}")
            parse(line)


def test_the_documentation_shows_commands_that_there_are():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    lines = []
    for page in pages:
        for block in re.findall(
            r"^```bash\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL
        ):
            lines += command_lines(block)
    assert len(lines) > 5
    for line in lines:
        parse(line)


def python(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, **options
    )


def test_help_imports_no_framework():
    code = (
        "import sys\nfrom ntkdiag.commands import command_line\nsys.argv = ['ntkdiag', 'track', '--help']\n"
        "try:\n    command_line.main()\nexcept SystemExit:\n"
        f"    print([name for name in {SLOW_TO_IMPORT} if name in sys.modules], file=sys.stderr)"
    )
    run = python("-c", code)
    assert "Examples:" in run.stdout
    assert run.stderr == "[]\n"


@pytest.mark.slow
def test_a_process_of_its_own(tmp_path):
    run = python("-m", "ntkdiag", "--version")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith(f"ntkdiag {ntkdiag.__version__}\n")
    run = python("-m", "ntkdiag", "show", "nowhere", cwd=tmp_path)
    assert (run.returncode, run.stdout) == (4, "")
    assert run.stderr.startswith(
        "ntkdiag: open_run(path): expected a run directory at 'nowhere'; got no such path."
    )

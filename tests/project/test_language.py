"""The language of documentation, messages and comments: correct spelling, and the usual terms."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "README.md",
    ROOT / "integrations" / "README.md",
]

# What not to write, as a regular expression -> what to write.
INSTEAD = {
    r"\banew\b": "again",
    r"\b(are|is) told by\b": "is identified by",
    r"\bbelongs? into\b": "belongs in",
    r"\bdealt out\b": "permuted",
    r"\bfinds? out\b": "determines",
    r"\bgo(es)? on\b": "continues",
    r"\bhand(s|ed)? (in|on|over)\b": "passes",
    r"\bin all and by\b": "in total and per",
    r"\bin the place of\b": "instead of",
    r"\bit is said\b": "the message says",
    r"\bkernels? turn(s|ed)?\b": "the kernel rotates",
    r"\blaid beside\b": "compared with",
    r"\blies? beside\b": "is next to",
    r"\bonce more\b": "again",
    r"\bput together\b": "assembled",
    r"\bseldom\b": "rarely",
    r"\bso few numbers\b": "arrays with at most so many elements",
    r"\bspectrums\b": "spectra",
    r"\b[Ww]hat costs is\b": "say who pays what: `watch` adds 1 ms",
    r"(?<![.\w])\w+(al|ard|ear|gn|im|ular)is(e|ed|es|er|ing|ation)\b": "the spelling with -ize",
}


def texts():
    """Path -> text of every page and module."""
    return {path: path.read_text() for path in [*PAGES, *(ROOT / "ntkdiag").rglob("*.py")]}


def without_code(text):
    """A text without what stands in backticks."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def test_no_phrase_for_which_there_is_a_usual_one():
    wrong = []
    for path, text in texts().items():
        for phrase, better in INSTEAD.items():
            for match in re.finditer(phrase, without_code(text)):
                wrong.append(f'{path.relative_to(ROOT)}: "{match[0]}"; write: {better}')
    assert not wrong, "\n".join(wrong)


def test_spelling():
    pytest.importorskip("codespell_lib", reason="codespell is in the extra dev")
    folders = ["docs", "examples", "integrations", "ntkdiag", "tests", "benchmarks"]
    command = [sys.executable, "-m", "codespell_lib", *map(str, ROOT.glob("*.md")), *folders]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout

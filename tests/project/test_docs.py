"""The documentation is complete and true: every public name once, every block and doctest runs, no link is broken."""

import ast
import collections
import doctest
import functools
import importlib
import pathlib
import pkgutil
import re
import sys
import types

import pytest

import ntkdiag

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = (
    "ntkdiag",
    "ntkdiag.models",
    "ntkdiag.analysis",
    "ntkdiag.checkpoints",
    "ntkdiag.neural_tangents",
    "ntkdiag.engine",
    "ntkdiag.gradients",
    "ntkdiag.kernel",
    "ntkdiag.baselines",
    "ntkdiag.comparison",
    "ntkdiag.checking",
    "ntkdiag.linearization",
    "ntkdiag.losses",
    "ntkdiag.matrix_free",
    "ntkdiag.monitor",
    "ntkdiag.predict",
    "ntkdiag.report",
    "ntkdiag.runs",
)
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
TEXTS += [path for path in (ROOT / "integrations").rglob("*.md") if ".venv" not in path.parts]
API_PAGES = sorted((DOCS / "api").glob("*.md"))
DIRECTIVE = re.compile(
    r"^\.\. (?:py:)?(?:auto)?(?:function|class|data|exception):: (\S+)$", flags=re.MULTILINE
)
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def documented():
    """What the API pages describe, in order."""
    return [name for page in API_PAGES for name in DIRECTIVE.findall(page.read_text())]


def resolve(name):
    """What a user reaches by this name after `import ntkdiag`."""
    return functools.reduce(getattr, name.split(".")[1:], ntkdiag)


def pages_to_run():
    """README and every page with Python blocks."""
    for path in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]:
        if PYTHON_BLOCK.search(path.read_text()):
            yield pytest.param(path, id=path.name)


@pytest.mark.slow
@pytest.mark.parametrize("page", list(pages_to_run()))
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # dataclasses and pytrees look their module up
    for block in PYTHON_BLOCK.finditer(text):
        lines = "\n" * text[: block.start(1)].count(
            "\n"
        )  # so that a traceback names the line of the page
        exec(compile(lines + block[1], str(page), "exec"), vars(module))


def public_names():
    """What the `__init__.py` files hand on, the first by its stub: `from x import y as y`."""
    for package in PACKAGES:
        module = resolve(package)
        path = pathlib.Path(module.__file__)
        stub = path.with_suffix(".pyi")
        for statement in ast.parse((stub if stub.exists() else path).read_text()).body:
            if isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    assert alias.asname == alias.name, (
                        f"{package}: import {alias.name} as itself to make it public"
                    )
                    value = getattr(module, alias.name)
                    if not isinstance(value, types.ModuleType | types.UnionType):
                        yield f"{package}.{alias.name}", value
    for name in ("gradient_descent", "gradient_descent_mse", "max_learning_rate"):
        yield (
            f"ntkdiag.neural_tangents.predict.{name}",
            getattr(ntkdiag.neural_tangents.predict, name),
        )
    for name, error in exceptions().items():
        yield f"ntkdiag.errors.{name}", error


def exceptions():
    """Name -> exception of everything that ntkdiag raises on purpose."""
    return {
        name: value
        for name, value in vars(ntkdiag.errors).items()
        if isinstance(value, type) and issubclass(value, ntkdiag.errors.NtkdiagError)
    }


@pytest.mark.smoke
def test_every_public_name_is_documented_exactly_once():
    entries = collections.Counter(id(resolve(name)) for name in documented())
    names = collections.defaultdict(list)
    for name, value in public_names():
        names[id(value)].append(name)
    assert len(names) > 50
    wrong = {min(names[key], key=len): entries[key] for key in names if entries[key] != 1}
    assert not wrong, f"public names and how often they stand in docs/api: {wrong}"


def test_api_pages_use_the_shortest_name_and_nothing_private():
    shortest = collections.defaultdict(list)
    for name, value in public_names():
        shortest[id(value)].append(name)
    for name in documented():
        assert name == min(shortest[id(resolve(name))], key=lambda name: name.count(".")), name


def test_every_exception_has_a_row_that_says_what_it_also_is():
    page = (DOCS / "findings.md").read_text()
    for name, error in exceptions().items():
        if error is not ntkdiag.errors.NtkdiagError:
            assert f"| `{name}` | `{error.__bases__[-1].__name__}` |" in page


def modules_with_examples():
    for info in pkgutil.walk_packages(ntkdiag.__path__, "ntkdiag."):
        spec = importlib.util.find_spec(info.name)
        if ">>>" in pathlib.Path(spec.origin).read_text():
            yield info.name


@pytest.mark.slow
def test_docstring_examples_run():
    names = list(modules_with_examples())
    assert names
    for name in names:
        results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
        assert results.attempted > 0, name
        assert results.failed == 0, name


@pytest.mark.smoke
def test_links_between_files_lead_somewhere():
    broken = []
    for path in TEXTS:
        text = path.read_text()
        for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text):
            if re.match(r"[a-z]+:", target) or target.startswith("#"):
                continue
            if not (path.parent / target.partition("#")[0]).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert not broken, "\n".join(broken)


def test_every_path_that_is_written_exists():
    folders = "benchmarks|docs|examples|integrations|ntkdiag|tests"
    paths = re.compile(rf"`((?:{folders})/[\w/.-]+\.(?:py|md))`")
    wrong = []
    for text in TEXTS:
        for path in paths.findall(text.read_text()):
            if not ((ROOT / path).exists() or (text.parent / path).exists()):
                wrong.append(f"{text.relative_to(ROOT)}: {path}")
    assert not wrong, "\n".join(wrong)


def resolves(name):
    """Whether a user who imports `ntkdiag`, or the module of that name, reaches something."""
    value, reached = ntkdiag, "ntkdiag"
    for part in name.split(".")[1:]:
        reached += f".{part}"
        try:
            value = getattr(value, part)
        except AttributeError:
            if importlib.util.find_spec(reached) is None:
                return False
            value = importlib.import_module(reached)
    return True


def test_every_name_that_is_written_exists():
    texts = [*TEXTS, ROOT / "CHANGELOG.md", *sorted((ROOT / "examples").glob("*"))]
    texts += sorted((ROOT / "ntkdiag").rglob("*.py"))
    names = re.compile(r"(?<![\w./-])ntkdiag(?:\.[A-Za-z_]\w*)+")
    wrong = []
    for path in texts:
        for name in sorted(set(names.findall(path.read_text()))):
            try:
                exists = resolves(name)
            except ModuleNotFoundError:  # below what is no package
                exists = False
            if not exists:
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert not wrong, "\n".join(wrong)


def blocks_of_readme(language):
    """The blocks of the README in a language, in their order."""
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_readme_says_how_to_begin_and_how_to_test():
    commands = [
        [line.partition("#")[0].strip() for line in block.splitlines()]
        for block in blocks_of_readme("bash")
    ]
    assert commands == [
        [
            "git clone <this repository> ntkdiag && cd ntkdiag",
            "python3 -m venv .venv && source .venv/bin/activate",
            'pip install -e ".[demo]" && ntkdiag demo',
        ],
        ['pip install -e ".[test]" && pytest'],
    ]


@pytest.mark.slow
def test_the_first_block_of_the_readme_prints_margins(capsys):
    exec(blocks_of_readme("python")[0], {})
    lines = capsys.readouterr().out.splitlines()
    measured = [line for line in lines if line.startswith("step ")]
    assert [int(line.split()[1]) for line in measured] == [0, 50, 100, 150, 200]
    number = r"\d[\d.e+-]*"
    for line in measured:
        assert re.search(
            rf"loss {number}  margin {number} \[{number}, {number}\]  learning_rate 0.01", line
        )
        assert len(line) <= 90
    assert 0.0 < float(lines[-2].removeprefix("margin ")) < 1.0
    eigenvalues = [float(text) for text in re.findall(number, lines[-1])]
    assert len(eigenvalues) == 5
    assert eigenvalues == sorted(eigenvalues, reverse=True)

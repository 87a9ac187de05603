"""The layout of the code: one-way imports, no names or paths that do not belong in it."""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "ntkdiag"

# What each layer may import of ours: one direction, from models to the command line. What is in BASE is below
# everything; `ntkdiag` itself may be imported for its version.
BASE = {
    "arrays", "call_f", "descent", "display", "errors", "estimate", "jaxtools", "losses", "memory", "ntkdiag",
    "path_argument", "plugins", "progress", "pytree_dataclass", "quantities",
}  # fmt: skip
LAYERS = {
    "models": "",
    "kernel": "",
    "engine": "kernel",
    "matrix_free": "kernel engine linearization",
    "linearization": "models engine",
    "predict": "kernel matrix_free linearization",
    "baselines": "models kernel engine linearization predict",
    "analysis": "kernel matrix_free",
    "gradients": "kernel engine matrix_free linearization judging report",
    "judging": "analysis",
    "neural_tangents": "kernel engine linearization predict analysis",
    "checkpoints": "",
    "optimizer": "models",
    "runs": "",
    "measuring": (
        "models kernel engine matrix_free linearization analysis gradients checkpoints optimizer "
        "probe_batch monitor"
    ),
    "comparison": (
        "models kernel engine analysis judging checkpoints optimizer runs measuring probe_batch "
        "report"
    ),
    "probe_batch": "models kernel engine",
    "report": "kernel analysis judging runs monitor",
    "opened_run": "judging runs comparison report",
    "monitor": "models kernel engine predict analysis judging optimizer runs probe_batch",
    "checking": "models engine",
    "demo": "models kernel measuring comparison report opened_run monitor",
    "__main__": "commands",
    "commands": (
        "models kernel engine judging checkpoints optimizer runs measuring comparison probe_batch "
        "report opened_run monitor checking demo"
    ),
}
# A file that is imported only when it is used, and what it imports beside.
IMPORTED_LATE = {"ntkdiag/monitor/exact_kernel.py": {"measuring"}}

MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path):
    return path.relative_to(ROOT).as_posix()


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


def layer_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def nodes_that_run(tree):
    """All nodes of a file but those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from nodes_that_run(node)


def imports_of(path):
    """Line and full name of everything of ours that a file imports, anywhere in it."""
    for node in nodes_that_run(parsed(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "ntkdiag")


def test_imports_point_one_way():
    assert len(MODULES) > 50
    wrong = []
    for path in MODULES:
        layer = layer_of(path)
        allowed = BASE | {layer} | set(LAYERS.get(layer, "").split())
        if layer == "__init__":  # it re-exports everything
            allowed = BASE | LAYERS.keys()
        allowed |= IMPORTED_LATE.get(name_of(path), set())
        for line, name in imports_of(path):
            target = [*name.split("."), "ntkdiag"][1].replace("__version__", "ntkdiag")
            if target not in allowed:
                wrong.append(f"{name_of(path)}:{line} imports {target}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.smoke
def test_every_folder_is_a_layer_and_layers_have_no_circle():
    assert {layer_of(path) for path in MODULES} - {"__init__"} <= LAYERS.keys() | BASE
    done, todo = set(BASE), dict(LAYERS)
    while ready := [layer for layer, below in todo.items() if set(below.split()) <= done]:
        done |= set(ready)
        todo = {layer: below for layer, below in todo.items() if layer not in ready}
    assert not todo


# What other rooms use of the engine, and the one file that builds its calls by itself.
PUBLIC_ENGINE = {"ntkdiag.engine.ntk", "ntkdiag.engine.plan", "ntkdiag.engine.Memory"}
BUILDS_CALLS = "ntkdiag/neural_tangents/kernels.py"


def test_other_rooms_see_three_names_of_the_engine():
    wrong = []
    for path in MODULES:
        if layer_of(path) not in ("engine", "__init__") and name_of(path) != BUILDS_CALLS:
            for line, name in imports_of(path):
                if name.startswith("ntkdiag.engine") and name not in PUBLIC_ENGINE:
                    wrong.append(f"{name_of(path)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


RUN_CODE = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def runs_code(node):
    """Whether a part of a program may unpickle or evaluate something."""
    if isinstance(node, ast.Import):
        return any(alias.name.partition(".")[0] in RUN_CODE for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] in RUN_CODE
    if isinstance(node, ast.keyword):
        return node.arg == "allow_pickle" and getattr(node.value, "value", None) is not False
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("eval", "exec")


def test_nothing_is_unpickled_or_evaluated():
    """Checkpoints and run directories are data: reading them never runs code."""
    wrong = [
        f"{name_of(path)}: {ast.unparse(node)}"
        for path in MODULES
        for node in ast.walk(parsed(path))
        if runs_code(node)
    ]
    assert not wrong, "\n".join(wrong)


FOLDERS = ("ntkdiag", "tests", "docs", "examples", "integrations", "benchmarks", ".ci")
GENERATED = {"_build", "__pycache__", ".venv", ".ruff_cache"}


def test_no_path_of_a_machine():
    machine = re.compile(r"(?<![\w.])/(?:home|root|Users|work|opt|mnt)/[\w.]|[A-Z]:\\\\Users")
    suffixes = {".py", ".md", ".toml", ".cfg", ".txt", ".yml", ".html", ".css", ".j2", ""}
    paths = [*ROOT.glob("*"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*"))]
    wrong = [
        f"{name_of(path)}:{number} {line.strip()[:80]}"
        for path in paths
        if path.is_file() and path.suffix in suffixes and not GENERATED & set(path.parts)
        if path.name != ".git" and path != pathlib.Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if machine.search(line)
    ]
    assert not wrong, "\n".join(wrong)

"""The layout of the code: one-way imports, no names or paths that do not belong in it."""

import ast
import functools
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "ntkdiag"

# What each layer may import of ours: one direction, from models to the command line. `jaxtools` and `errors` are
# below everything; `ntkdiag` itself may be imported for its version.
BASE = {
    "jaxtools",
    "errors",
    "plugins",
    "display",
    "scalars",
    "pytree_dataclass",
    "memory",
    "losses",
    "progress",
    "descent",
    "estimate",
    "arrays",
    "call_f",
    "path_argument",
    "quantities",
    "ntkdiag",
}
LAYERS = {
    "jaxtools": set(),
    "errors": set(),
    "plugins": set(),
    "display": set(),
    "scalars": set(),
    "pytree_dataclass": set(),
    "memory": set(),
    "losses": set(),
    "descent": set(),
    "estimate": set(),
    "arrays": set(),
    "call_f": set(),
    "path_argument": set(),
    "quantities": set(),
    "progress": set(),
    "models": set(),
    "kernel": set(),
    "engine": {"kernel"},
    "matrix_free": {"kernel", "engine", "linearization"},
    "linearization": {"models", "engine"},
    "predict": {"kernel", "linearization", "matrix_free"},
    "baselines": {"models", "kernel", "engine", "linearization", "predict"},
    "analysis": {"kernel", "matrix_free"},
    "gradients": {"kernel", "engine", "matrix_free", "linearization", "judging", "report"},
    "judging": {"analysis"},
    "neural_tangents": {"analysis", "kernel", "engine", "linearization", "predict"},
    "checkpoints": set(),
    "optimizer": {"models"},
    "runs": set(),
    "measuring": {
        "models",
        "kernel",
        "engine",
        "linearization",
        "matrix_free",
        "analysis",
        "gradients",
        "monitor",
        "checkpoints",
        "optimizer",
        "probe_batch",
    },
    "comparison": {
        "measuring",
        "models",
        "kernel",
        "engine",
        "analysis",
        "judging",
        "checkpoints",
        "optimizer",
        "probe_batch",
        "report",
        "runs",
    },
    "probe_batch": {"kernel", "engine", "models"},
    "report": {"kernel", "analysis", "judging", "runs", "monitor"},
    "opened_run": {"runs", "comparison", "judging", "report"},
    "monitor": {
        "models",
        "kernel",
        "engine",
        "analysis",
        "judging",
        "predict",
        "probe_batch",
        "runs",
        "optimizer",
    },
    "checking": {"models", "engine"},
    "demo": {"models", "kernel", "measuring", "comparison", "monitor", "report", "opened_run"},
    "__main__": {"commands"},
    "commands": {
        "checkpoints",
        "optimizer",
        "measuring",
        "models",
        "kernel",
        "engine",
        "comparison",
        "judging",
        "runs",
        "monitor",
        "probe_batch",
        "report",
        "checking",
        "opened_run",
        "demo",
    },
}


# A file that is imported only when it is used, and what it imports beside.
IMPORTED_LATE = {"ntkdiag/monitor/exact_kernel.py": {"measuring"}}


def sources():
    """Every Python file of the repository that git would keep."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.splitlines()]
    else:  # an unpacked sdist
        paths = [
            path
            for path in ROOT.rglob("*.py")
            if not any(part.startswith(".") for part in path.parts)
        ]
    return sorted(path for path in set(paths) if path.exists())


SOURCES = sources()
MODULES = [path for path in SOURCES if PACKAGE in path.parents]


def name_of(path):
    return path.relative_to(ROOT).as_posix()


@functools.cache
def parsed(path):
    return ast.parse(path.read_text())


def layer_of(parts):
    return parts[0].removesuffix(".py")


def imported_layers(path):
    """Layers of ours that a file imports, anywhere in it."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: relative import"
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            package, _, rest = target.partition(".")
            if package == "ntkdiag":
                layer = rest.partition(".")[0]
                yield node.lineno, layer if layer and layer != "__version__" else "ntkdiag"


def test_imports_point_one_way():
    assert len(MODULES) > 50
    wrong = []
    for path in MODULES:
        layer = layer_of(path.relative_to(PACKAGE).parts)
        allowed = LAYERS.get(layer, LAYERS.keys()) | BASE | {layer}  # `__init__` hands on all
        for line, target in imported_layers(path):
            if target not in allowed | IMPORTED_LATE.get(name_of(path), set()):
                wrong.append(f"{name_of(path)}:{line} imports {target}")
    assert not wrong, "\n".join(wrong)


# What other rooms use of the engine, and the one file that builds its calls by itself.
PUBLIC_ENGINE = {"ntkdiag.engine.ntk", "ntkdiag.engine.plan", "ntkdiag.engine.Memory"}
BUILDS_CALLS = "ntkdiag/neural_tangents/kernels.py"


def test_other_rooms_see_three_names_of_the_engine():
    wrong = []
    for path in MODULES:
        inside = layer_of(path.relative_to(PACKAGE).parts) in ("engine", "__init__")
        for node in ast.walk(parsed(path)):
            if inside or name_of(path) == BUILDS_CALLS or not isinstance(node, ast.ImportFrom):
                continue
            targets = {f"{node.module}.{alias.name}" for alias in node.names}
            of_engine = {target for target in targets if target.startswith("ntkdiag.engine")}
            wrong += [f"{name_of(path)} imports {name}" for name in of_engine - PUBLIC_ENGINE]
    assert not wrong, "\n".join(wrong)


@pytest.mark.smoke
def test_every_folder_is_a_known_layer():
    found = {layer_of(path.relative_to(PACKAGE).parts) for path in MODULES} - {"__init__"}
    assert found <= LAYERS.keys()


def test_layers_have_no_circle():
    done, todo = set(BASE), dict(LAYERS)
    while ready := [layer for layer, below in todo.items() if below <= done]:
        done |= set(ready)
        todo = {layer: below for layer, below in todo.items() if layer not in ready}
    assert not todo


def test_nothing_is_unpickled_or_evaluated():
    """Checkpoints and run directories are data: reading them never runs code."""
    modules = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
    wrong = []
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = (
                    [node.module or ""]
                    if isinstance(node, ast.ImportFrom)
                    else [a.name for a in node.names]
                )
                bad = any(name.partition(".")[0] in modules for name in names)
            elif isinstance(node, ast.keyword):
                bad = node.arg == "allow_pickle" and getattr(node.value, "value", None) is not False
            else:
                bad = isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
                    "eval",
                    "exec",
                )
            if bad:
                wrong.append(
                    f"{name_of(path)}:{node.value.lineno if isinstance(node, ast.keyword) else node.lineno}"
                )
    assert not wrong


def texts():
    """Text files of the repository: code, documentation, configuration."""
    suffixes = {
        ".py",
        ".md",
        ".toml",
        ".cfg",
        ".txt",
        ".yml",
        ".yaml",
        ".html",
        ".css",
        ".js",
        ".j2",
        "",
    }
    for folder in (
        ROOT,
        *(ROOT / name for name in ("ntkdiag", "tests", "docs", "examples", "integrations", ".ci")),
    ):
        for path in folder.glob("*") if folder == ROOT else folder.rglob("*"):
            generated = {"_build", "__pycache__", ".venv", ".ruff_cache"} & set(path.parts)
            text = path.is_file() and path.suffix in suffixes and path.name != ".git"
            if text and not generated:
                yield path


def test_no_path_of_a_machine():
    machine = re.compile(r"(?<![\w.])/(?:home|root|Users|work|opt|mnt)/[\w.]|[A-Z]:\\\\Users")
    wrong = [
        f"{name_of(path)}:{number} {line.strip()[:80]}"
        for path in texts()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if machine.search(line) and path != pathlib.Path(__file__)
    ]
    assert not wrong, "\n".join(wrong)

"""The structure of the package: no circle between files, one name for one thing, tests where one looks for them."""

import ast
import collections
import functools
import pathlib

import internals
import pytest

import ntkdiag

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "ntkdiag"
TESTS = ROOT / "tests"


def module_name(path):
    """`ntkdiag/kernel/kernel.py` -> `ntkdiag.kernel.kernel`; a package is called by its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def parsed(name):
    return ast.parse(MODULES[name].read_text())


def imported_modules(name):
    """Modules of ours that a file imports anywhere in it: inside functions and for type checkers too.

    `ntkdiag` itself is left out: it is imported for its version.
    """
    for node in ast.walk(parsed(name)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            targets = [target if target in MODULES else node.module for target in inside]
        else:
            continue
        yield from (target for target in targets if target in MODULES and target != "ntkdiag")


def import_graph():
    """Module -> the modules it imports."""
    return {name: set(imported_modules(name)) - {name} for name in MODULES}


def reached(graph, start):
    """Everything that `start` imports, and what those import, and so on."""
    seen, ahead = set(), [start]
    while ahead:
        fresh = graph[ahead.pop()] - seen
        seen |= fresh
        ahead += fresh
    return seen


def circles(graph):
    """The largest groups of modules of which each imports each, over others or not."""
    reach = {name: reached(graph, name) for name in graph}
    groups = {
        frozenset(target for target in reach[name] if name in reach[target])
        for name in graph
        if name in reach[name]
    }
    return sorted(map(sorted, groups))


def test_the_graph_is_not_empty():
    graph = import_graph()
    assert len(graph) > 150
    assert "ntkdiag.errors" in graph["ntkdiag.engine.ntk"]


def test_a_circle_is_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a", "e"}, "e": {"d"}, "f": {"e"}}
    assert circles(graph) == [["a", "b", "c"], ["d", "e"]]


def test_files_do_not_import_each_other_in_circles():
    found = circles(import_graph())
    assert not found, (
        f"Move what both need into a file of its own, or hand it in as an argument: {found}"
    )


def test_no_two_files_share_a_name():
    paths = collections.defaultdict(list)
    for path in MODULES.values():
        if path.name not in ("__init__.py", "__main__.py"):
            paths[path.name].append(path.relative_to(ROOT).as_posix())
    shared = {name: where for name, where in paths.items() if len(where) > 1}
    assert not shared, f"Name them after what each of them does: {shared}"


def test_no_two_classes_share_a_name():
    modules = collections.defaultdict(list)
    for module in MODULES:
        for node in parsed(module).body:
            if isinstance(node, ast.ClassDef):
                modules[node.name].append(module)
    shared = {name: where for name, where in modules.items() if len(where) > 1}
    assert not shared, f"One name, one idea: {shared}"


def test_no_package_hides_behind_a_public_function():
    """`ntkdiag.linearize` is a function: a folder of that name could not be reached."""
    for name, path in MODULES.items():
        parent, _, last = name.rpartition(".")
        if parent == "ntkdiag" or path.name == "__init__.py":
            value = getattr(ntkdiag, last, None)
            assert not callable(value), f"{name} carries the name of a public function"


def folders(top):
    return {path.parent.relative_to(top).parts[0] for path in top.glob("*/*.py")}


def test_the_folders_of_the_tests_are_those_of_the_package():
    """`demo` is tested by the command line; `project`, `support` and `cases` are of the tests alone."""
    assert folders(TESTS) - {"project", "support", "cases"} == folders(PACKAGE) - {"demo"}


@pytest.mark.parametrize("folder", sorted(folders(PACKAGE) - {"demo"}))
def test_every_folder_of_tests_imports_what_it_tests(folder):
    texts = [path.read_text() for path in (TESTS / folder).glob("test_*.py")]
    assert any("ntkdiag" in text for text in texts)


def test_no_two_test_files_share_a_name():
    """Test files have no package around them: of two of one name the second is not imported."""
    names = collections.Counter(path.name for path in TESTS.rglob("*.py"))
    assert not [name for name, count in names.items() if count > 1]


def below_public_names(path):
    """Files of the package, other than the public `errors`, that a test file imports by where they are."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ntkdiag"):
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            # Where a package hands on an object called like its file, that is what is imported.
            targets = (
                [node.module]
                if node.module in FILES
                else [name for name in inside if name in FILES]
            )
            yield from (name for name in targets if not is_handed_on(name))


FILES = {name for name, path in MODULES.items() if path.name != "__init__.py"} - {"ntkdiag.errors"}


def is_handed_on(name):
    """Whether a package has an object, and not a file, under the name of one of its files."""
    package, _, own = name.rpartition(".")
    return f"as {own}\n" in stub_of(package)


def stub_of(package):
    """What a package hands on: the text of its `__init__`, and of the stub beside it."""
    init = MODULES[package]
    stub = init.with_suffix(".pyi")
    return init.read_text() + (stub.read_text() if stub.exists() else "")


def test_few_tests_import_below_the_public_packages():
    """A file that moves touches `tests/support/internals.py`, and the tests that replace a part of it."""
    tests = {path.name: sorted(set(below_public_names(path))) for path in TESTS.rglob("test_*.py")}
    below = {name: files for name, files in tests.items() if files}
    assert below
    assert len(below) <= 30, below


@pytest.mark.parametrize("file", internals.NAMES)
def test_internals_are_where_they_are_said_to_be(file):
    for name in internals.NAMES[file].split():
        assert getattr(internals, name) is not None

"""The selections name tests that exist."""

import ast
import pathlib

import pytest
from selected import BLAS, SMOKE

TESTS = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize("file", SMOKE)
def test_what_is_selected_exists(file):
    tree = ast.parse((TESTS / file).read_text())
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    missing = {test.partition("[")[0] for test in SMOKE[file]} - functions
    assert not missing, f"{file} has no {sorted(missing)}"


def test_every_folder_has_a_part_in_it():
    folders = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    assert folders == {file.partition("/")[0] for file in SMOKE if "/" in file}


def test_its_size_is_that_of_a_minute():
    assert 60 <= sum(map(len, SMOKE.values())) <= 120


def test_the_files_of_linear_algebra_exist():
    assert not [file for file in BLAS if not (TESTS / file).exists()]

"""What somebody reads who follows one cold call through the package stays as short as it is."""

import pytest

from benchmarks import way

# Name of the call -> the most files, and the most functions.
BOUNDS = {"ntk of a function": (42, 339), "ntk of a functionalized model": (50, 367)}


def sizes(call):
    passed = way.passed(call)
    return len({one.file for one in passed}), len(passed)


@pytest.mark.parametrize("name", BOUNDS)
def test_ntk_passes_few_files_and_functions(name):
    files, functions = sizes(way.CALLS[name]())
    most_files, most_functions = BOUNDS[name]
    assert 0 < files <= most_files, f"{name}: `python -m benchmarks.way --list` says which files"
    assert functions <= most_functions, f"{name}: `python -m benchmarks.way --list` says which ones"


def test_what_is_not_counted():
    """Lambdas, comprehensions, bodies of classes, what runs on import, and functions of others."""
    passed = way.passed(lambda: [number for number in (lambda: [1])()])
    assert passed == []


@pytest.mark.slow
def test_compare_asks_once_what_each_argument_is():
    passed = way.passed(way.compare_of_checkpoints())
    assert len({one.file for one in passed}) <= 119
    assert [one.times for one in passed if (one.file, one.name) == way.CLASSIFIES] == [3]

"""`--fail-on`: how a condition is read, when it holds, and what nobody can decide."""

import math

import pytest
import typer

from ntkdiag.commands.gates import STATUS, judge, numbers_in, read_gates
from ntkdiag.commands.usage import UsageError

NAN = math.nan


def gate(text):
    (read,) = read_gates([text], "track")
    return read


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("drift>0.5", ("last", "drift", ">", 0.5)),
        (" a.loss <= -1e-3 ", ("last", "a.loss", "<=", -1e-3)),
        ("eigenvalues.0>=+2.", ("last", "eigenvalues.0", ">=", 2.0)),
        ("any:margin==1", ("any", "margin", "==", 1.0)),
        ("all : e1 != .5", ("all", "e1", "!=", 0.5)),
    ],
)
def test_a_condition_is_read(text, parts):
    read = gate(text)
    assert (read.over, read.name, read.sign, read.bound) == parts


@pytest.mark.parametrize(
    "text",
    [
        "drift",
        "drift>",
        ">1",
        "drift=1",
        "drift>x",
        "drift > 1 or True",
        "__import__('os')>1",
        "some:drift>1",
    ],
)
def test_a_condition_that_is_none(text):
    with pytest.raises(UsageError) as caught:
        gate(text)
    assert str(caught.value) == (
        f"ntkdiag track --fail-on {text!r}: expected NAME OP NUMBER with OP one of < <= > >= == !=; got {text}. "
        "See: ntkdiag track --help"
    )


@pytest.mark.parametrize(
    ("sign", "below", "equal", "above"),
    [
        ("<", True, False, False),
        ("<=", True, True, False),
        (">", False, False, True),
        (">=", False, True, True),
        ("==", False, True, False),
        ("!=", True, False, True),
    ],
)
def test_the_signs(sign, below, equal, above):
    for value, expected in ((0.0, below), (1.0, equal), (2.0, above)):
        assert gate(f"x{sign}1").holds([{"x": value}]) is expected


@pytest.mark.parametrize(
    ("values", "last", "any_", "all_"),
    [
        ([0.0, 2.0], True, True, False),
        ([2.0, 0.0], False, True, False),
        ([2.0, 3.0], True, True, True),
        ([0.0, 0.5], False, False, False),
        ([2.0, NAN], None, True, None),
        ([0.0, NAN], None, None, False),
        ([NAN, 2.0], True, True, None),
        ([], None, None, None),
    ],
)
def test_checkpoints(values, last, any_, all_):
    rows = [{"x": value} for value in values]
    assert gate("x>1").holds(rows) is last
    assert gate("any:x>1").holds(rows) is any_
    assert gate("all:x>1").holds(rows) is all_


def test_a_checkpoint_without_the_number_is_not_counted():
    assert gate("all:velocity>1").holds([{"step": 0.0}, {"velocity": 2.0}]) is True
    assert gate("velocity>1").holds([{"velocity": 2.0}, {"step": 0.0}]) is None


def test_numbers_by_dotted_name():
    content = {
        "a": {"loss": 1, "label": "A", "ok": True},
        "values": [1.5, None],
        "text": "x",
        "gone": None,
    }
    numbers = numbers_in(content)
    assert math.isnan(numbers.pop("values.1"))
    assert math.isnan(numbers.pop("gone"))
    assert numbers == {"a.loss": 1.0, "values.0": 1.5}


def test_names_that_are_known():
    known = ("drift", "a.", "eigenvalues")
    read_gates(["drift>1", "a.anything.5>1", "eigenvalues.3>1"], "compare", known)
    for text in ("drfit>1", "b.loss>1", "drift.relative>1"):
        with pytest.raises(
            UsageError, match=r"expected the name of a number: drift, a\.\.\., eigenvalues; got "
        ):
            read_gates([text], "compare", known)


@pytest.mark.parametrize(
    ("text", "rows", "said"),
    [
        ("x>1", [{"x": 2.5}], "x is 2.5"),
        ("any:x>1", [{"x": 0.5}, {"x": 2.5}], "x is 0.5 to 2.5 over 2 checkpoints"),
        ("any:x>1", [{"x": NAN}, {"x": 2.5}], "x is 2.5 to 2.5 over 2 checkpoints"),
        ("x>1", [{"x": NAN}], "x is unresolved"),
        ("x>1", [{"z": 1.0}], "x is unresolved: it was not measured"),
    ],
)
def test_a_command_ends_with_status_3(capsys, text, rows, said):
    with pytest.raises(typer.Exit) as ended:
        judge([gate(text)], rows, "track", ("x",))
    assert ended.value.exit_code == STATUS == 3
    assert capsys.readouterr() == ("", f"ntkdiag: ntkdiag track --fail-on {text!r}: {said}\n")


def test_what_does_not_hold_says_nothing(capsys):
    judge([gate("x>1"), gate("any:x>1")], [{"x": 0.0}], "track")
    assert capsys.readouterr() == ("", "")


def test_a_name_that_turns_out_to_be_none():
    rows = [{"x": 1.0, "values.0": 2.0, "values.1": 3.0}]
    with pytest.raises(UsageError) as caught:
        judge([gate("y>1")], rows, "compare")
    assert str(caught.value) == (
        "ntkdiag compare --fail-on 'y>1': expected the name of a number: values.0, x; got y. "
        "See: ntkdiag compare --help"
    )

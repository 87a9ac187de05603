"""Paths, differences, repacking, the choice of trainable leaves, and the split it leads to."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import (
    differences,
    leaves_by_path,
    partition,
    trainable_mask,
)

from ntkdiag import errors

TREE = {
    "body": [
        {"kernel": np.ones((2, 3), np.float32), "bias": np.zeros(3, np.float32)},
        {"kernel": np.ones((3, 3), np.float32)},
    ],
    "head": {"kernel": np.ones((3, 1), jnp.bfloat16), "table": np.arange(4, dtype=np.int32)},
}
PATHS = ["body/0/bias", "body/0/kernel", "body/1/kernel", "head/kernel", "head/table"]


def message(text):
    return pytest.raises(errors.InvalidInputError, match=re.escape(text))


def chosen(trainable):
    mask = trainable_mask(TREE, trainable)
    assert list(mask) == PATHS
    return [path for path, is_trainable in mask.items() if is_trainable]


def test_two_leaves_of_one_name_are_refused():
    with pytest.raises(errors.StructureError, match='got two leaves named "a/b"'):
        leaves_by_path({"a/b": 1, "a": {"b": 2}})


@pytest.mark.smoke
def test_differences_list_every_path_once():
    other = {
        "body": [{"kernel": jnp.ones((2, 4)), "bias": jnp.zeros(3)}, {"scale": jnp.ones(3)}],
        "head": {"kernel": jnp.ones((3, 1)), "table": jnp.arange(4)},
    }
    assert differences(TREE, TREE) == []
    assert differences(TREE, other) == [
        "body/1/kernel: missing, expected float32[3, 3]",
        "body/1/scale: unexpected float32[3]",
        "body/0/kernel: expected float32[2, 3], got float32[2, 4]",
        "head/kernel: expected bfloat16[3, 1], got float32[3, 1]",
    ]
    assert differences(jnp.ones(2), jnp.ones(3)) == [
        "(the whole tree): expected float32[2], got float32[3]"
    ]


def test_the_choice_of_trainable_leaves():
    for trainable, expected in [
        (None, PATHS[:4]),
        ("**/kernel", ["body/0/kernel", "body/1/kernel", "head/kernel"]),
        ("body/**/bias", ["body/0/bias"]),
        ("body/?/k*", ["body/0/kernel", "body/1/kernel"]),
        (["head/*", "**/bias"], ["body/0/bias", "head/kernel"]),
        (
            lambda path, leaf: leaf.ndim == 2 and path.startswith("body"),
            ["body/0/kernel", "body/1/kernel"],
        ),
        (lambda leaf: leaf.ndim == 1, ["body/0/bias"]),
        (
            {"body": [True, False], "head": {"kernel": True, "table": False}},
            [*PATHS[:2], "head/kernel"],
        ),
        ({path: path == "body/0/kernel" for path in PATHS}, ["body/0/kernel"]),
        ("head/table", ["head/table"]),
    ]:
        assert chosen(trainable) == expected


def test_a_choice_that_is_none_is_refused():
    for trainable in [lambda a, b, c: True, {"tail": True}, 3]:
        with message('trainable="**/kernel"'):
            chosen(trainable)


def split(tree, trainable=None, check=True):
    return partition(tree, trainable, check=check)


def test_held_leaves_are_absent_and_come_back():
    own, part = split(
        {"a": {"w": jnp.ones(2), "n": 3}, "b": {"w": jnp.zeros(2)}, "f": jnp.sin}, "a/*"
    )
    assert leaves_by_path(own).keys() == {"a/w"}
    assert own.keys() == {"a"}
    assert part.fixed.keys() == {"b/w"}
    full = part.merge({"a": {"w": jnp.full(2, 5.0)}})
    assert full["f"] is jnp.sin
    assert full["a"]["n"] == 3
    np.testing.assert_array_equal(full["a"]["w"], [5, 5])


def test_nothing_trainable():
    for tree in ({"n": jnp.arange(3)}, {}):
        with message("at least one trainable floating parameter"):
            split(tree)


def test_complex_parameters_are_refused_even_unasked():
    with pytest.raises(
        errors.InvalidInputError,
        match=re.escape("got complex64 at w. Keep real and imaginary parts"),
    ):
        split({"w": jnp.ones(2, jnp.complex64)})


def test_parameters_that_are_not_finite():
    tree = {"a": jnp.ones(2), "b": {"w": jnp.array([1.0, jnp.inf])}, "held": jnp.array([jnp.nan])}
    with message("got NaN or infinity in b/w"):
        split(tree, ["a", "b/*"])
    assert split(tree, check=False)[1].fixed == {}


def test_donated_parameters_are_named():
    params = {"w": jnp.ones(2)}
    jax.jit(lambda p: jax.tree.map(lambda leaf: leaf + 1, p), donate_argnums=0)(params)
    with message("got deleted buffers: w"):
        split(params)

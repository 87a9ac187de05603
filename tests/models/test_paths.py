"""Paths of leaves, and the choice of those that are trainable."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from internals import (
    leaves_by_path,
    trainable_mask,
)

from ntkdiag import errors
from ntkdiag.models import functionalize

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
    for trainable in [{"tail": True}, 3]:
        with message('trainable="**/kernel"'):
            chosen(trainable)


def test_parameters_that_cannot_be_trained():
    donated = {"w": jnp.ones(2)}
    donated["w"].delete()
    for tree, remedy in [
        ({"n": jnp.arange(3)}, "at least one trainable floating parameter"),
        ({}, "at least one trainable floating parameter"),
        ({"w": jnp.ones(2, jnp.complex64)}, "got complex64 at w. Keep real and imaginary parts"),
        (donated, "got deleted buffers: w"),
    ]:
        with message(remedy):
            functionalize(lambda params, x: x, tree)

"""Probes by name: what a pair may be, what is refused, and how examples are recognised in both."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import read_probes, shared_examples

import ntkdiag
from ntkdiag.errors import InvalidInputError

X = np.random.default_rng(0).normal(size=(4, 3))
OTHER = X + 10
Y = np.array([0, 1, 1, 0])


def f(params, x):
    return x @ params


def test_the_probe_of_each_kind_of_number():
    both = read_probes((X, Y), (OTHER, Y))
    assert (both.of_kernel.name, both.of_labels.name) == ("train", "held_out")
    alone = read_probes(None, (OTHER, Y))
    assert (alone.of_kernel.name, alone.of_labels.name) == ("held_out", "held_out")
    alone = read_probes((X, None), None)
    assert (alone.of_kernel.name, alone.of_labels.name) == ("train", "train")


@pytest.mark.usefixtures("wrong_types")
def test_what_is_refused():
    for train, held_out, message in [
        (None, None, "examples to measure on"),
        (X, None, "got a ndarray. Write train=(x, y)"),
        (None, {"image": X, "label": Y}, "got a dict. Write held_out=(x, y)"),
        ((X, Y, Y, Y), None, "got a tuple of 4"),
        ((X, Y), (OTHER[:, :2], Y), "train has float32[3]; got float32[2]"),
        ((X, Y), ({"x": OTHER}, Y), "Only the number of examples may differ"),
        ((X, Y), (OTHER, None), "Pass the labels, or leave held_out out"),
        ((X, Y), (X.copy(), Y), "held-out examples that are not trained on"),
    ]:
        with jax.enable_x64(False), pytest.raises(InvalidInputError) as caught:
            ntkdiag.watch(optax.sgd(0.1), f, train=train, held_out=held_out)
        assert str(caught.value).startswith("watch(optimizer, f")
        assert message in str(caught.value)


@pytest.mark.usefixtures("wrong_types")
def test_all_doors_read_the_same_pairs():
    for call in [
        lambda x: ntkdiag.watch(optax.sgd(0.1), f, train=x),
        lambda x: ntkdiag.Monitor(f, train=x),
        lambda x: ntkdiag.compare(jnp.ones((3, 2)), jnp.zeros((3, 2)), model=f, train=x),
    ]:
        with pytest.raises(InvalidInputError, match=r"Write train=\(x, y\), train=\(x, None\)"):
            call(X)


def test_labels_are_one_array_or_a_tree_of_arrays():
    """Lists are rows, tuples of numbers too; tuples of arrays and dictionaries are handed on as they are."""
    for rows in ([0, 1, 1, 0], (0, 1, 1, 0), np.array([0, 1, 1, 0]), [np.int64(0), 1, 1, 0]):
        np.testing.assert_array_equal(read_probes((X, rows), None).of_kernel.y, Y)
    two_rows = [np.ones(2), np.zeros(2), np.ones(2), np.ones(2)]
    assert read_probes((X, two_rows), None).of_kernel.y.shape == (4, 2)
    tree = {"labels": Y, "mask": [True, False, True, True], "rest": (Y, None)}
    y = read_probes((X, tree), None).of_kernel.y
    assert jax.tree.structure(y) == jax.tree.structure({**tree, "mask": 0})
    assert read_probes((X, None, None), None).of_kernel.y is None
    np.testing.assert_array_equal(read_probes((X, Y, None), None).of_kernel.y, Y)


def test_examples_that_are_in_both_are_counted():
    tree = lambda x: {"image": x, "length": np.arange(len(x))}
    assert shared_examples(read_probes((X, Y), (OTHER, Y))) == 0
    mixed = np.concatenate([OTHER[:1], X[1:2], X[3:], OTHER[1:2]])
    assert shared_examples(read_probes((X, Y), (mixed, Y))) == 2
    # Of a tree all leaves have to agree: the lengths of one of these do not.
    assert shared_examples(read_probes((tree(X), Y), (tree(mixed), Y))) == 1
    keys = jax.random.split(jax.random.key(0), 4)
    assert shared_examples(read_probes((keys, Y), (keys[1:], Y[1:]))) == 3
    assert shared_examples(read_probes((X, Y), None)) == 0

"""compare() with examples of the training set and held-out ones: which number is of which, and what says so."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference

import ntkdiag
from ntkdiag import compare

N, M, C = 6, 8, 3
RIDGE = 1e-3  # of leave-one-out, in units of the mean diagonal entry


def f(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


def params(seed):
    rng = np.random.default_rng(seed)
    return {"w": rng.normal(size=(3, 4)), "b": rng.normal(size=4), "v": rng.normal(size=(4, C))}


def examples(n, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.permutation(np.arange(n) % C)


TRAIN, HELD_OUT = examples(N, 5), examples(M, 6)
LOSS = {"loss": "cross_entropy", "descent": 0.1}


@pytest.fixture(scope="module", autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def both():
    return compare(params(0), params(1), model=f, train=TRAIN, held_out=HELD_OUT, **LOSS)


@pytest.fixture(scope="module")
def train_alone():
    return compare(params(0), params(1), model=f, train=TRAIN, **LOSS)


@pytest.fixture(scope="module")
def held_out_alone():
    return compare(params(0), params(1), model=f, held_out=HELD_OUT, **LOSS)


def mean_kernel(at, x):
    return np.einsum("nomo->nm", reference.ntk(f, at, x)) / C


def centred(kernel):
    h = np.eye(len(kernel)) - 1 / len(kernel)
    return h @ kernel @ h


def centred_labels(y):
    targets = np.eye(C)[y]
    return targets - targets.mean(0)


def aligned(kernel, y):
    target = centred_labels(y) @ centred_labels(y).T
    kernel = centred(kernel)
    return np.sum(kernel * target) / np.linalg.norm(kernel) / np.linalg.norm(target)


def refitted(kernel, y):
    """The squared error of kernel ridge regression fitted without each example in turn, over the variance."""
    labels, n = centred_labels(y), len(y)
    ridge = RIDGE * np.trace(kernel) / n
    errors = []
    for i in range(n):
        rest = np.delete(np.arange(n), i)
        weights = np.linalg.solve(kernel[np.ix_(rest, rest)] + ridge * np.eye(n - 1), labels[rest])
        errors.append(np.sum((labels[i] - kernel[i, rest] @ weights) ** 2))
    return np.mean(errors) / np.mean(np.sum(labels**2, axis=1))


def cross_entropy(at, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(f(at, x), y).mean()


@pytest.mark.slow
def test_what_is_measured_of_held_out_examples(both):
    x, y = HELD_OUT
    for side, at in ((both.a, params(0)), (both.b, params(1))):
        kernel = mean_kernel(at, x)
        np.testing.assert_allclose(side.alignment.value, aligned(kernel, y), rtol=1e-9)
        np.testing.assert_allclose(side.leave_one_out, refitted(kernel, y), rtol=1e-7)
        vectors = np.linalg.eigh(centred(kernel))[1][:, ::-1]
        power = np.cumsum(np.sum((vectors.T @ centred_labels(y)) ** 2, axis=1))
        np.testing.assert_allclose(side.label_power, power / power[-1], rtol=1e-6)
        np.testing.assert_allclose(side.held_out.loss, cross_entropy(at, x, y), rtol=1e-9)
        assert side.held_out.accuracy == np.mean(f(at, x).argmax(1) == y)


def test_the_alignment_of_train_beside_it_is_of_a_kernel_reduced_alike(both):
    for side, at in ((both.a, params(0)), (both.b, params(1))):
        of_train = side.held_out.alignment_of_train
        np.testing.assert_allclose(
            of_train.value, aligned(mean_kernel(at, TRAIN[0]), TRAIN[1]), rtol=1e-9
        )
        assert of_train.reduction == side.alignment.reduction == "mean"
        assert (of_train.trained_on, side.alignment.trained_on) == (True, False)
        assert side.alignment_gap == of_train.above - side.alignment.above


def test_all_else_is_of_train(both, train_alone):
    for side, alone in ((both.a, train_alone.a), (both.b, train_alone.b)):
        for name in ("trace", "margin", "critical_learning_rate", "loss", "accuracy"):
            assert getattr(side, name) == getattr(alone, name), name
    assert both.drift.relative == train_alone.drift.relative
    assert both.prediction.e1 == train_alone.prediction.e1
    np.testing.assert_allclose(both.a.loss, cross_entropy(params(0), *TRAIN), rtol=1e-9)


@pytest.mark.slow
def test_a_reduction_that_is_stated_holds_for_both():
    found = compare(params(0), params(1), model=f, train=TRAIN, held_out=HELD_OUT, reduction="full")
    alone = compare(params(0), params(1), model=f, held_out=HELD_OUT, reduction="full")
    assert found.a.held_out.alignment_of_train.reduction == found.a.alignment.reduction == "full"
    assert found.a.alignment.value == alone.a.alignment.value


def test_held_out_alone_has_no_stability_numbers_and_says_why(held_out_alone, both):
    for side in (held_out_alone.a, held_out_alone.b):
        assert side.critical_learning_rate is side.margin is side.held_out is None
    assert held_out_alone.notes[0] == (
        "Only held-out examples were given: no critical learning rate and no margin. Stability is that of the loss "
        "that is trained, whose curvature vanishes where predictions become certain; on held-out examples it stays "
        "large, and late in training the margin would read 1.7 to 2.5 times too high and more. Pass train=(x, y), a "
        "part of the training set."
    )
    assert "stability margin" not in held_out_alone.text(everything=True)
    assert "allows for it" not in held_out_alone.text(everything=True)
    np.testing.assert_allclose(
        held_out_alone.a.trace,
        np.trace(reference.ntk(f, params(0), HELD_OUT[0]).reshape(M * C, -1)),
    )
    assert held_out_alone.a.loss == both.a.held_out.loss
    assert "loss, held out" in held_out_alone.text(everything=True)


def test_train_alone_says_that_its_examples_were_trained_on(train_alone):
    assert train_alone.notes[0] == (
        "Alignment, label power and leave-one-out are of examples that were trained on. After training a kernel knows "
        "their labels: leave-one-out may then read half of the true error, or far less. Pass held_out=(x, y), "
        "examples that are not trained on."
    )
    assert train_alone.a.alignment.trained_on is True
    text = train_alone.text(everything=True)
    for row in (
        "alignment, trained on, full",
        "label power, trained on",
        "leave-one-out error, trained on",
    ):
        assert row in text, row
    content = train_alone.to_dict()
    assert content["facts"]["label_probe"] == "trained on"
    assert content["a"]["held_out"] is None
    np.testing.assert_allclose(
        train_alone.a.leave_one_out, refitted(mean_kernel(params(0), TRAIN[0]), TRAIN[1]), rtol=1e-7
    )


def test_the_table_says_which_examples_each_number_is_of(both):
    text = both.text(everything=True)
    for row in (
        "loss, trained on",
        "loss, held out",
        "accuracy, held out",
        "alignment, held out, mean",
        "gap, trained on − held out",
        "label power, held out",
        "leave-one-out error, held out",
    ):
        assert row in text, row
    assert "were trained on" not in " ".join(both.notes)


def test_facts_hold_the_hashes_of_both_probes(both, train_alone):
    digests = [ntkdiag.ntk(f, params(0), x).convention.probe for x, _ in (TRAIN, HELD_OUT)]
    assert [both.facts["train_sha256"], both.facts["held_out_sha256"]] == digests
    assert [both.facts["train_examples"], both.facts["held_out_examples"]] == [N, M]
    assert (both.facts["kernel_probe"], both.facts["label_probe"]) == ("trained on", "held out")
    assert train_alone.facts["held_out_sha256"] is train_alone.facts["held_out_examples"] is None
    content = json.loads(json.dumps(both.to_dict(), allow_nan=False))
    assert content["a"]["held_out"]["loss"] == both.a.held_out.loss
    assert content["a"]["alignment_gap"] == both.a.alignment_gap


def test_examples_in_both_probes_are_counted():
    x, y = HELD_OUT
    mixed = np.concatenate([TRAIN[0][:2], x[2:]])
    found = compare(params(0), params(1), model=f, train=TRAIN, held_out=(mixed, y))
    assert (
        "2 of the 8 held-out examples are among those of train: alignment, label power and leave-one-out are in part "
        "of examples that were trained on."
    ) in found.notes


def test_labels_of_held_out_examples_alone():
    found = compare(params(0), params(1), model=f, train=(TRAIN[0], None), held_out=HELD_OUT)
    assert found.a.loss is found.a.accuracy is found.a.alignment_gap is None
    assert found.a.alignment.reduction == "mean"
    assert not any("No labels" in note for note in found.notes)


def test_labels_that_do_not_fit_are_refused_before_anything_is_computed():
    for y, text in (
        (np.arange(M), r"class numbers `y` in \[0, 3\)"),
        (np.zeros(M, int), "labels that differ"),
    ):
        with pytest.raises(ntkdiag.errors.InvalidInputError, match=text):
            compare(params(0), params(1), model=f, train=TRAIN, held_out=(HELD_OUT[0], y))

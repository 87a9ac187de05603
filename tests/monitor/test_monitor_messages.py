"""What `watch` says when something is wrong, word for word."""

import functools

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from monitor_problem import f, problem

import ntkdiag
from ntkdiag import Monitor, errors
from ntkdiag.monitor import watch

SGD = optax.sgd(0.1)
small = functools.partial(watch, SGD, top_k=3, instruments="kernel")
CALL = "watch(optimizer, f)"


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"f": 3},
            "expected a function f(params, x); got a int. Turn a model into one: f, params = "
            "ntkdiag.functionalize(model, variables).",
        ),
        (
            {"x": np.float32(1)},
            "expected x with the same number of examples, at least one, on the leading axis of every leaf; "
            "got shapes (). x and y have the examples first.",
        ),
        (
            {"x": (np.ones((2, 3)), np.ones((3, 3)))},
            "expected x with the same number of examples, at least one, on the leading axis of every leaf; "
            "got shapes (2, 3); (3, 3). x and y have the examples first.",
        ),
        (
            {"top_k": 0},
            "expected an integer top_k of at least 1; got top_k=0. Correct this argument.",
        ),
        (
            {"loss": "hinge"},
            'expected `loss` as "mse", "cross_entropy", "sigmoid_cross_entropy", an object of ntkdiag.losses, or a '
            "function loss(outputs, y); got 'hinge'. Leave it out where no loss is meant: there are no stability "
            "numbers then.",
        ),
        (
            {"reduction": "diagonal"},
            "expected reduction to be one of ('auto', 'full', 'mean', 'trace', 'sum-of-logits'), or "
            "RandomProjections(k); got reduction='diagonal'. Correct this argument.",
        ),
        (
            {"optimizer": 0.1},
            "expected an optimizer of Optax; got a float. Wrap the whole optimizer: "
            'ntkdiag.watch(optax.adamw(1e-3), fn, train=(x, y), loss="cross_entropy").',
        ),
    ],
)
def test_messages_at_the_call(options, text):
    _, x, y = problem()
    call = "watch(optimizer, f, train=(x, y))" if "x" in options else CALL
    x = options.pop("x", x)
    with pytest.raises(errors.InvalidInputError) as caught:
        watch(**{"optimizer": SGD, "f": f, "train": (x, y), **options})
    assert str(caught.value) == f"{call}: {text}"


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"optimizer": "adam"},
            "expected an optimizer of Optax; got a str. Wrap the whole optimizer: "
            'ntkdiag.watch(optax.adamw(1e-3), fn, train=(x, y), loss="cross_entropy").',
        ),
    ],
)
def test_messages_of_a_monitor(options, text):
    _, x, y = problem()
    with pytest.raises(errors.InvalidInputError) as caught:
        Monitor(f, train=(x, y), **options)
    assert str(caught.value) == f"Monitor(f): {text}"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"top_k": 11},
            "expected top_k of at most 10, the rows of the full kernel; got top_k=11. "
            "Lower top_k or use a larger probe.",
        ),
        (
            {"loss": "cross_entropy", "f": lambda params, x: f(params, x)[:, 0]},
            "expected two or more logits on the last axis of the outputs, for cross-entropy; got outputs of shape "
            '(5,). Use loss="sigmoid_cross_entropy" for a single logit.',
        ),
        (
            {"y": np.zeros((4, 2))},
            "expected `y` of shape (5, 2), or integer class numbers (5,); got float64 of shape (4, 2). "
            "Labels go row by row with the examples.",
        ),
        (
            {"y": np.zeros(5)},
            "expected `y` of shape (5, 2), or integer class numbers (5,); got float64 of shape (5,). "
            "Labels go row by row with the examples.",
        ),
        (
            {"y": np.array([1, 2, 1, 2, 1])},
            "expected class numbers `y` in [0, 2); got values from 1 to 2. Number the classes from 0; pass floating "
            "point targets if these are no classes.",
        ),
        (
            {"y": np.full((5, 2), np.nan)},
            "expected finite `y`; got NaN or Inf. Drop the examples without a label everywhere.",
        ),
        (
            {"y": np.ones(5, int)},
            "expected labels that differ between examples; got the same label for every example. "
            "Use a probe with several classes or targets, or leave the labels out.",
        ),
        (
            {"f": lambda params, x: {"one": f(params, x), "two": f(params, x)}},
            "expected f(params, x) to return one array with the 5 examples of x on its leading axis; "
            "got shape (5, 2), shape (5, 2). Wrap f so that it returns the outputs to diagnose.",
        ),
        (
            {"f": lambda params, x: f(params, x).sum()},
            "expected f(params, x) to return one array with the 5 examples of x on its leading axis; "
            "got shape (). Wrap f so that it returns the outputs to diagnose.",
        ),
    ],
)
def test_messages_when_model_and_probe_meet(options, text):
    params, x, y = problem()
    y = options.pop("y", y)
    options = {"f": f, "train": (x, y), "top_k": 3, "instruments": "kernel", **options}
    with pytest.raises(errors.InvalidInputError) as caught:
        watch(SGD, **options).init(params)
    assert str(caught.value) == f"{CALL}.init(params): {text}"
    # A Functional knows its parameters: nothing is left to init.
    with pytest.raises(errors.InvalidInputError) as caught:
        watch(SGD, **{**options, "f": ntkdiag.functionalize(options["f"], params)})
    assert str(caught.value) == f"{CALL}: {text}"


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("instruments", [3, None, object(), "a" * 5000])
def test_message_of_what_is_no_instrument(instruments):
    _, x, y = problem()
    with pytest.raises(errors.InvalidInputError) as caught:
        watch(SGD, f, train=(x, y), loss="mse", instruments=instruments)
    text = str(caught.value)
    assert 'expected "auto", names of tiers or instruments ("economy", ' in text
    assert len(text) < 1000  # of a name without end the beginning is shown
    assert repr(instruments)[:90] in text


@pytest.mark.parametrize("instruments", ["kernel", "economy"])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_message_of_one_example(instruments, n_outputs):
    params, x, y = problem()
    of_some = ntkdiag.functionalize(lambda params, x: f(params, x)[:, :n_outputs], params)
    for make, call in (
        (functools.partial(watch, SGD), CALL),
        (Monitor, "Monitor(f)"),
    ):
        with pytest.raises(errors.InvalidInputError) as caught:
            make(of_some, train=(x[:1], y[:1]), loss="mse", instruments=instruments)
        assert str(caught.value) == (
            f"{call}: expected two or more examples on the leading axis of every leaf of x; got "
            "one. Pass a batch [N ...]: what is centred needs two examples or more."
        )


def test_message_when_examples_interact():
    params, x, y = problem()

    def normalised(params, x):
        return f(params, x - x.mean(axis=0))

    for make, call in (
        (lambda: watch(SGD, normalised, train=(x, y)).init(params), f"{CALL}.init(params)"),
        (lambda: watch(SGD, ntkdiag.functionalize(normalised, params), train=(x, y)), CALL),
    ):
        with pytest.raises(errors.ExamplesInteractError) as caught:
            make()
        assert str(caught.value).startswith(
            f"{call}: expected outputs of one example that do not depend on the other examples of the batch; "
            "got outputs"
        )
        assert "Let f evaluate, not train: running statistics" in str(caught.value)


def test_message_when_the_model_does_not_run():
    params, x, y = problem()
    with pytest.raises(errors.InvalidInputError) as caught:
        small(f, train=(x[:, :2], y)).init(params)
    assert str(caught.value).startswith(
        f"{CALL}.init(params): expected f(params, x) to run; got TypeError: dot_general"
    )
    assert str(caught.value).endswith(
        ". Check that x has the shape f takes, and that params are those of f."
    )


def test_an_update_without_parameters_is_said_once_and_passes_through(caplog):
    params, x, y = problem()
    tx = small(f, train=(x, y), every=lambda step: step == 5)
    state = tx.init(params)
    for update in (tx.update, jax.jit(tx.update), tx.update):
        updates, state = update(params, state)
        jax.tree.map(np.testing.assert_allclose, updates, SGD.update(params, SGD.init(params))[0])
    assert int(state.ntk_count) == 3
    assert int(state.ntk_measurements) == 0
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{CALL}: tx.update(updates, state) came without the parameters, which are measured. Pass "
        "them on: tx.update(updates, state, params). This is said once; training goes on."
    )


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"memory": "much"}, "expected a positive number of bytes"),
        ({"top_k": True}, "an integer top_k of at least 1; got top_k=True"),
    ],
)
def test_settings_at_the_call(options, match):
    _, x, y = problem()
    with pytest.raises(errors.InvalidInputError, match=match):
        watch(SGD, f, train=(x, y), **options)


@pytest.mark.usefixtures("wrong_types")
def test_a_time_share_that_is_no_number():
    _, x, y = problem()
    with pytest.raises(errors.InvalidInputError, match="a positive share of the wall time"):
        Monitor(f, train=(x, y), time_share="2%")


def test_a_train_state_in_place_of_its_parameters():
    net = nn.Dense(2)
    variables = net.init(jax.random.key(0), np.ones((1, 3)))
    state = TrainState.create(apply_fn=net.apply, params=variables["params"], tx=optax.adam(0.1))
    fn = ntkdiag.functionalize(net, variables)
    with pytest.raises(errors.StructureError, match=r"Pass the \.params of this TrainState"):
        watch(SGD, fn, train=(np.arange(9.0, dtype=np.float32).reshape(3, 3), None)).init(state)

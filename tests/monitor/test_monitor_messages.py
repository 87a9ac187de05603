"""What `watch` and `Monitor` say when something is wrong: the remedy."""

import numpy as np
import optax
import pytest
from monitor_problem import f, problem

import ntkdiag
from ntkdiag import errors
from ntkdiag.monitor import watch

SGD = optax.sgd(0.1)
CALL = "watch(optimizer, f)"


@pytest.mark.usefixtures("wrong_types")
def test_messages_at_the_call():
    _, x, y = problem()
    for options, part in [
        ({"f": 3}, "f, params = ntkdiag.functionalize(model, variables)"),
        ({"train": (np.float32(1), y)}, "x and y have the examples first"),
        ({"train": ((np.ones((2, 3)), np.ones((3, 3))), y)}, "got shapes (2, 3); (3, 3)"),
        ({"top_k": 0}, "an integer top_k of at least 1; got top_k=0"),
        ({"top_k": True}, "an integer top_k of at least 1; got top_k=True"),
        ({"loss": "hinge"}, "a function loss(outputs, y); got 'hinge'"),
        ({"n_train": 1}, "Leave it out where it is not known"),
        ({"optimizer": 0.1}, "expected an optimizer of Optax; got builtins.float"),
        ({"instruments": 3}, 'expected "auto", names of instruments'),
        ({"instruments": "a" * 5000}, 'expected "auto", names of instruments'),
    ]:
        with pytest.raises(errors.InvalidInputError) as caught:
            watch(**{"optimizer": SGD, "f": f, "train": (x, y), **options})
        assert part in str(caught.value)
        assert len(str(caught.value)) < 1000  # of a name without end the beginning is shown


def test_messages_when_model_and_probe_meet():
    params, x, y = problem()
    several = lambda params, x: {"one": f(params, x), "two": f(params, x)}
    for options, part in [
        (
            {"loss": "cross_entropy", "f": lambda params, x: f(params, x)[:, 0]},
            'Use loss="sigmoid_cross_entropy" for a single logit',
        ),
        ({"train": (x, np.zeros((4, 2)))}, "Labels have one row for each example"),
        ({"train": (x, np.array([1, 2, 1, 2, 1]))}, "Number the classes from 0"),
        ({"train": (x, np.full((5, 2), np.nan))}, "expected finite `y`"),
        ({"train": (x, np.ones(5, int))}, "Use a probe with several classes or targets"),
        ({"f": several}, "Wrap f so that it returns the outputs to diagnose"),
        ({"train": (x[:, :2], y)}, "Check that x has the shape f takes"),
    ]:
        options = {"f": f, "train": (x, y), "top_k": 3, "instruments": "kernel", **options}
        with pytest.raises(errors.InvalidInputError) as caught:
            watch(SGD, **options).init(params)
        assert part in str(caught.value)
        # A Functional knows its parameters: nothing is left to init.
        with pytest.raises(errors.InvalidInputError) as caught:
            watch(SGD, **{**options, "f": ntkdiag.functionalize(options["f"], params)})
        assert str(caught.value).startswith(f"{CALL}: expected ")

"""What the compatible calls say when something does not fit, word by word."""

import jax.numpy as jnp
import numpy as np
import pytest
from internals import _warn_about_switches

import ntkdiag
from ntkdiag import errors
from ntkdiag import neural_tangents as nt
from ntkdiag.neural_tangents import predict

X = np.ones((3, 4), np.float32)
Z = np.ones((2, 4), np.float32)
W = np.ones((4, 2), np.float32)
CALL = "ntk_fn(x1, x2, params): expected "


def f(params, x, **_):
    return x @ params


def ntk(f=f, *arguments, x1=X, x2=None, params=W, kwargs=None, **options):
    return nt.empirical_ntk_fn(f, *arguments, **options)(x1, x2, params, **(kwargs or {}))


def batch_norm(params, x):
    h = x @ params
    return (h - h.mean(0)) / jnp.sqrt(h.var(0) + 1.0)


AXES = {
    "both": (
        lambda: ntk(diagonal_axes=(1,)),
        "`trace_axes` and `diagonal_axes` without an axis in common; got axis 1 of the output of shape (3, 2) in both. "
        "A traced axis is gone, a diagonal one appears once: choose. trace_axes is (-1,) unless given.",
    ),
    "different lengths, trace": (
        lambda: ntk(f, (0,), x2=Z),
        "f(x1) and f(x2) of the same length along `trace_axes`; got shapes (3, 2) and (2, 2), lengths 3 and 2. "
        "Only axes that x1 and x2 share can be traced or diagonalised.",
    ),
    "different lengths, diagonal": (
        lambda: ntk(f, (), (0,), x2=Z),
        "f(x1) and f(x2) of the same length along `diagonal_axes`; got shapes (3, 2) and (2, 2), lengths 3 and 2. "
        "Only axes that x1 and x2 share can be traced or diagonalised.",
    ),
    "out of range": (
        lambda: ntk(lambda p, x: {"a": f(p, x)}, (2,)),
        "`trace_axes` among the 2 axes of the output at ['a'] of shape (3, 2); got axis 2. "
        "Pass trace_axes=() to leave all axes as they are.",
    ),
    "out of range, negative": (
        lambda: ntk(f, (), (-3,)),
        "`diagonal_axes` among the 2 axes of the output of shape (3, 2); got axis -3. "
        "Pass diagonal_axes=() to leave all axes as they are.",
    ),
    "scalar": (
        lambda: ntk(lambda p, x: f(p, x).sum()),
        "`trace_axes` among the 0 axes of the output of shape (); got axis -1. "
        "Pass trace_axes=() to leave all axes as they are.",
    ),
    "only the examples": (
        lambda: ntk(lambda p, x: f(p, x)[:, 0]),
        "an output axis for `trace_axes` behind that of the examples; got axis -1 of the output of shape (3,), whose "
        "only axis is the first. Pass trace_axes=() for a kernel [N N], or trace_axes=(0,) if you mean the first axis.",
    ),
    "no integer": (
        lambda: ntk(f, "1"),
        "`trace_axes` as an integer or a tuple of integers; got '1'. They are axes of the outputs of f.",
    ),
    "flag": (
        lambda: ntk(f, (), (True,)),
        "`diagonal_axes` as an integer or a tuple of integers; got (True,). They are axes of the outputs of f.",
    ),
    "cross terms": (
        lambda: ntk(lambda p, x: (f(p, x), f(p, x)[:, 0]), (1,), cross_terms=True),
        "`trace_axes` among the 1 axes of the output at [0] and at [1] of shape (3,); got axis 1. "
        "Pass trace_axes=() to leave all axes as they are.",
    ),
    "cross terms, lengths": (
        lambda: ntk(lambda p, x: (f(p, x), f(p, x)[:, :1]), cross_terms=True),
        "f(x1) and f(x2) of the same length along `trace_axes`; got shapes (3, 2) and (3, 1) at [0] and at [1], lengths"
        " 2 and 1. Only axes that x1 and x2 share can be traced or diagonalised.",
    ),
    "cross terms, number": (
        lambda: ntk(lambda p, x: (f(p, x), f(p, x)[:, None]), (1, -1), cross_terms=True),
        "`trace_axes` that name as many axes of both outputs; got axes [1] and [1, 2] at [0] and at [1]. "
        "Pass trace_axes=() for cross terms between outputs of different shapes.",
    ),
}
VMAP = {
    "pair for one array": (
        lambda: ntk(vmap_axes=(0, 0)),
        "`vmap_axes` with axes for x1 as an integer or a tree like it, PyTreeDef(*); got (0, 0). "
        "A triple is (axes of x, axes of outputs, axes of keyword arguments); a pair is a tree of two axes.",
    ),
    "another tree": (
        lambda: ntk(vmap_axes=(0, {"y": 0}, {})),
        "`vmap_axes` with axes for the outputs as an integer or a tree like it, PyTreeDef(*); got {'y': 0}. "
        "A triple is (axes of x, axes of outputs, axes of keyword arguments); a pair is a tree of two axes.",
    ),
    "no integer": (
        lambda: ntk(vmap_axes=0.0),
        "integers or None as `vmap_axes` of x1; got 0.0. Name axes by number.",
    ),
    "out of range": (
        lambda: ntk(lambda p, x: x["a"] @ p, vmap_axes=2, x1={"a": X}),
        "`vmap_axes` among the axes of x1; got axis 2 for x1['a'] of shape (3, 4). "
        "Pass None for a leaf that all examples share.",
    ),
    "different lengths": (
        lambda: ntk(lambda p, x: (x[0] + x[1].sum()) @ p, vmap_axes=0, x1=(X, Z)),
        "`vmap_axes` of the same length in x1 and the keyword arguments under `kwargs_axes`; got axis 0 of shape (3, 4)"
        ", axis 0 of shape (2, 4). Keyword arguments per example for x1 and x2 go in as a pair, such as "
        "pattern=(pattern1, pattern2).",
    ),
    "nothing mapped": (
        lambda: ntk(vmap_axes=(None, 0, {})),
        "`vmap_axes` of the same length in x1 and the keyword arguments under `kwargs_axes`; got no axis at all. "
        "Keyword arguments per example for x1 and x2 go in as a pair, such as pattern=(pattern1, pattern2).",
    ),
    "one batched keyword for two inputs": (
        lambda: ntk(
            lambda p, x, m: f(p, x) * m.sum(),
            vmap_axes=(0, 0, {"m": 0}),
            x2=Z,
            kwargs={"m": X[:, :1]},
        ),
        "`vmap_axes` of the same length in x2 and the keyword arguments under `kwargs_axes`; got axis 0 of shape (2, 4)"
        ", axis 0 of shape (3, 1). Keyword arguments per example for x1 and x2 go in as a pair, such as "
        "pattern=(pattern1, pattern2).",
    ),
    "unknown keyword": (
        lambda: ntk(vmap_axes=(0, 0, {"mask": 0}), kwargs={"scale": 2.0}),
        "`kwargs_axes` for keyword arguments that are passed; got an axis for 'mask'. Passed: 'scale'.",
    ),
    "axis of a number": (
        lambda: ntk(vmap_axes=(0, 0, {"scale": 0}), kwargs={"scale": 2.0}),
        "`vmap_axes` among the axes of the keyword argument 'scale'; got axis 0 for the keyword argument 'scale' of "
        "shape (). Pass None for a leaf that all examples share.",
    ),
    "output without examples": (
        lambda: ntk(vmap_axes=(0, None, {})),
        "`vmap_axes` that name the example axis of every output; got None for output 0. "
        "An output without examples has no kernel between examples: pass vmap_axes=None.",
    ),
    "aggregated": (
        lambda: ntk(lambda p, x: f(p, x).sum(0, keepdims=True), vmap_axes=0),
        "outputs of x1 with 3 examples along `vmap_axes`; got shapes [(1, 2)], axes [0]. "
        "Do not reduce over examples inside f.",
    ),
    "wrong output axis": (
        lambda: ntk(vmap_axes=(0, 1, {})),
        "outputs of x1 with 3 examples along `vmap_axes`; got shapes [(3, 2)], axes [1]. "
        "Do not reduce over examples inside f.",
    ),
    "fails alone": (
        lambda: ntk(lambda p, x: x.reshape(3, 4) @ p, vmap_axes=0),
        "f to accept one example of x1, as `vmap_axes` says; got TypeError: cannot reshape array of shape (1, 4) (size "
        "4) into shape (3, 4) (size 12). Keyword arguments with one entry per example go under kwargs_axes.",
    ),
    "other outputs alone": (
        lambda: ntk(lambda p, x, m: (x * m) @ p, vmap_axes=0, kwargs={"m": X}),
        "outputs of shapes [(1, 2)] for one example of x1; got shapes [(3, 2)]. "
        "Keyword arguments with one entry per example go under kwargs_axes.",
    ),
}
ARGUMENTS = {
    "variables of Flax": (
        lambda: ntk(lambda p, x: x @ p["params"], params={"params": W, "batch_stats": W}),
        "trainable parameters; got a mapping with 'params' and 'batch_stats', which would be differentiated too. Pass "
        "variables['params'] and close over the rest in f, or use ntkdiag.functionalize(model, variables); check=False "
        "differentiates everything.",
    ),
    "complex parameters": (
        lambda: ntk(lambda p, x: jnp.abs(x @ p), params=W.astype(np.complex64)),
        "parameters that are real floating-point arrays; got complex64 at the only leaf. Keep real and imaginary "
        "parts as two parameters, and join them in f with jax.lax.complex.",
    ),
    "no parameters": (
        lambda: ntk(lambda p, x: x, params={}),
        "at least one parameter; got an empty tree. Pass the parameters of f.",
    ),
    "complex outputs": (
        lambda: ntk(lambda p, x: f(p, x) * 1j),
        "real floating-point outputs of f(params, x); got complex64[3, 2]. Return real and imaginary parts as two "
        "outputs.",
    ),
    "integer outputs": (
        lambda: ntk(lambda p, x: {"y": f(p, x), "class": f(p, x).argmax(1)}, ()),
        "real floating-point outputs of f(params, x); got int32[3] at ['class']. "
        "Return only what can be differentiated.",
    ),
    "no outputs": (
        lambda: ntk(lambda p, x: ()),
        "f(params, x) to return arrays; got none. Return the outputs of the network.",
    ),
    "other outputs": (
        lambda: ntk(lambda p, x: f(p, x) if x.shape[0] == 3 else f(p, x)[None], x2=Z),
        "f(x1) and f(x2) with the same outputs and the same numbers of axes; got PyTreeDef(*) of shapes [(3, 2)] and "
        "PyTreeDef(*) of shapes [(1, 2, 2)]. The kernel has the shape zip(f(x1).shape, f(x2).shape).",
    ),
    "number as key": (
        lambda: ntk(kwargs={"rng": 0}),
        "`rng` as a key of jax.random, or a pair of them; got int. Pass jax.random.key(seed).",
    ),
    "array as key": (
        lambda: ntk(kwargs={"rng": X}),
        "`rng` as a key of jax.random, or a pair of them; got ArrayImpl of dtype float32. Pass jax.random.key(seed).",
    ),
}


def said(kind, call):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("call", "message"), [pytest.param(*row, id=name) for name, row in AXES.items()]
)
def test_axes(call, message):
    assert said(errors.InvalidInputError, call) == CALL + message


@pytest.mark.parametrize(
    ("call", "message"), [pytest.param(*row, id=name) for name, row in VMAP.items()]
)
def test_vmap_axes(call, message):
    assert said(errors.InvalidInputError, call) == CALL + message


@pytest.mark.parametrize(
    ("call", "message"), [pytest.param(*row, id=name) for name, row in ARGUMENTS.items()]
)
def test_arguments(call, message):
    assert said(errors.InvalidInputError, call) == CALL + message


def test_the_nngp_says_so_in_its_own_name():
    call = lambda: nt.empirical_nngp_fn(f)(X[0], None, W)
    assert said(errors.InvalidInputError, call).startswith(
        "nngp_fn(x1, x2, params): expected an output axis"
    )


INTERACT = (
    " when an example is evaluated by itself. Let f evaluate, not train: running "
    "statistics, dropout off or one mask for all; put keyword arguments that hold one entry per "
    "example under kwargs_axes, as in vmap_axes=(0, 0, {'rng': 0}) for one key each; or pass "
    "vmap_axes=None, which differentiates the batch as a whole. check=False leaves this check out."
)


def test_examples_that_interact():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    message = said(errors.ExamplesInteractError, lambda: ntk(batch_norm, x1=x, vmap_axes=0))
    expected = (
        CALL + "outputs of one example that do not depend on the other examples of the batch; "
        "got outputs that change by 1.2 (scale 0)"
    )
    assert message == expected + INTERACT


def test_an_interaction_that_values_do_not_show():
    """A gate that is zero hides it, until the parameters are moved."""
    gated = lambda p, x: x @ p["w"] + p["gate"] * x.mean(0) @ p["w"]
    params = {"w": W, "gate": np.zeros((), np.float32)}
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    message = said(
        errors.ExamplesInteractError, lambda: ntk(gated, x1=x, params=params, vmap_axes=0)
    )
    assert message.startswith(CALL + "outputs of one example that do not depend on the other")
    assert message.endswith(INTERACT)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("value", [4, -1, "1", 1.0, True, None])
def test_implementation(value):
    message = said(errors.InvalidInputError, lambda: nt.empirical_ntk_fn(f, implementation=value))
    call = "empirical_ntk_fn(f)" if value is None else "empirical_ntk_fn(f, implementation)"
    assert message == (
        f"{call}: expected an `NtkImplementation` or its number, 0 to 3; got "
        f"implementation={value!r}. Leave it out: AUTO plans for each parameter."
    )


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize("get", [(), ("ntk", "NTK"), "both", ("nngp", 1), 3])
def test_get(get):
    message = said(errors.InvalidInputError, lambda: nt.empirical_kernel_fn(f)(X, None, get, W))
    assert message == (
        'kernel_fn(x1, x2, get, params): expected `get` as "nngp", "ntk", a tuple of them without repetition, or None '
        f"for both; got {get!r}. The arguments are x1, x2, get, params, in this order."
    )


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("batch_size", -1, "0"), ("batch_size", 2.0, "0"), ("device_count", 99, "-1 to 1")],
)
def test_batch_numbers(name, value, expected):
    message = said(
        errors.InvalidInputError, lambda: nt.batch(nt.empirical_ntk_fn(f), **{name: value})
    )
    assert message == (
        f"batch(kernel_fn, {name}): expected `{name}` as an integer from {expected}; got {value!r}. "
        "Leave it out for the default."
    )


@pytest.mark.usefixtures("wrong_types")
def test_batch_of_an_unknown_function():
    message = said(
        errors.UnsupportedModelError, lambda: nt.batch(lambda x1, x2, params: x1 @ x1.T, 2)
    )
    assert message == (
        "batch(kernel_fn, batch_size): expected a kernel function made by empirical_ntk_fn, empirical_nngp_fn or "
        "empirical_kernel_fn; got function. Of another function nobody knows whether its tiles make up the whole: wrap "
        "f, not the kernel."
    )


@pytest.mark.parametrize(
    ("cotangents", "got"),
    [
        (np.ones((2, 2), np.float32), "float32[2, 2] in PyTreeDef(*)"),
        (np.ones((3, 2), np.int32), "int32[3, 2] in PyTreeDef(*)"),
        ([np.ones((3, 2), np.float32)], "float32[3, 2] in PyTreeDef([*])"),
        ((), "nothing in PyTreeDef(())"),
    ],
)
def test_cotangents(cotangents, got):
    product = nt.empirical_ntk_vp_fn(f, X, None, W)
    assert said(errors.InvalidInputError, lambda: product(cotangents)) == (
        "ntk_vp_fn(cotangents): expected cotangents like f(params, x2): float32[3, 2] in "
        f"PyTreeDef(*); got {got}. A product takes one number for each output on x2."
    )


def test_switches_warn_once():
    _warn_about_switches.cache_clear()
    with pytest.warns(
        UserWarning,
        match="^_j_rules, _s_rules and _fwd switched internals of neural-tangents; the tangent ",
    ):
        nt.empirical_ntk_fn(f, _j_rules=False)
    nt.empirical_kernel_fn(f, _s_rules=True, _fwd=False)  # warnings are errors here


K = np.eye(3, dtype=np.float32)
Y = np.ones((3, 1), np.float32)
MSE = "gradient_descent_mse(k_train_train, y_train"
ANY = "gradient_descent(loss, k_train_train, y_train"
PREDICT_MSE = "predict_fn(t, fx_train_0, fx_test_0, k_test_train)"
PREDICT_ANY = "predict_fn(t, fx_train_or_state_0, fx_test_0, k_test_train)"


def squared(f, y):
    return ((f - y) ** 2).sum()


def mse(*arguments, k=K, y=Y, **options):
    return predict.gradient_descent_mse(k, y, **options)(*arguments)


def flow(*arguments, loss=squared, **options):
    return predict.gradient_descent(loss, K, Y, **options)(*arguments)


PREDICT = {
    "kernel and targets": (
        lambda: mse(trace_axes=()),
        MSE + ", trace_axes): expected `k_train_train` of shape (3, 3, 1, 1), which is "
        "zip(y_train.shape, y_train.shape) without trace_axes=(); got shape (3, 3). Pass the "
        "trace_axes that the kernel was computed with.",
    ),
    "test kernel": (
        lambda: mse(1.0, 0.0, 0.0, np.ones((2, 4), np.float32)),
        PREDICT_MSE + ": expected `k_test_train` of shape (m, 3); got shape (2, 4). "
        "It is zip(y_test.shape, y_train.shape) without the trace_axes.",
    ),
    "initial outputs": (
        lambda: mse(1.0, np.ones(3, np.float32)),
        PREDICT_MSE + ": expected `fx_train_0` of shape (3, 1), or one number; got shape (3,). "
        "Outputs have the shape of the targets.",
    ),
    "test kernel missing": (
        lambda: mse(1.0, 0.0, 0.0),
        PREDICT_MSE + ": expected `k_test_train` beside `fx_test_0`; got None. "
        "Pass ntk_fn(x_test, x_train, params).",
    ),
    "nothing to predict": (
        lambda: mse(1.0, None),
        PREDICT_MSE
        + ": expected `fx_train_0` or `fx_test_0`; got None twice. Pass what to predict.",
    ),
    "learning rate": (
        lambda: mse(learning_rate=0.0),
        MSE
        + ", learning_rate): expected a positive `learning_rate`; got 0.0. Its units stand in the docstring.",
    ),
    "regularisation": (
        lambda: mse(diag_reg=-1.0),
        MSE
        + ", diag_reg): expected a non-negative `diag_reg`; got -1.0. Its units stand in the docstring.",
    ),
    "before the start": (
        lambda: mse(-1.0),
        PREDICT_MSE + ": expected a non-negative `t`; got -1.0. Its units stand in the docstring.",
    ),
    "negative eigenvalues": (
        lambda: mse(k=-K),
        PREDICT_MSE
        + ": expected a kernel J J^T, which has no negative eigenvalues; got 3 eigenvalues below the noise floor "
        "-9.5e-07. Compute all rows in one call and one batch size; see `Spectrum.asymmetry`.",
    ),
    "unsorted": (
        lambda: flow(np.array([2.0, 1.0])),
        PREDICT_ANY + ": expected finite times t >= 0 in strictly increasing order; got [2. 1.]. "
        "Sort them; convergence at infinity is not certain for a general loss.",
    ),
    "repeated": (
        lambda: flow([1.0, 1.0]),
        PREDICT_ANY
        + ": expected finite times t >= 0 in strictly increasing order; got [1.0, 1.0]. "
        "Sort them; convergence at infinity is not certain for a general loss.",
    ),
    "infinite": (
        lambda: flow(),
        PREDICT_ANY + ": expected finite times t >= 0 in strictly increasing order; got None. "
        "Sort them; convergence at infinity is not certain for a general loss.",
    ),
    "momentum": (
        lambda: flow(momentum=1.0),
        ANY
        + ", momentum): expected `momentum` in [0, 1), or None; got 1.0. None is gradient flow.",
    ),
    "loss": (
        lambda: flow(loss=lambda f, y: (f - y) ** 2),
        ANY
        + "): expected a `loss(f, y)` that returns one number; got ShapeDtypeStruct(shape=(3, 1), dtype=float32). "
        "Sum or average in it.",
    ),
    "nothing to integrate": (
        lambda: flow(1.0, None),
        PREDICT_ANY + ": expected outputs at time 0; got None twice. Pass what to predict.",
    ),
    "another reduction": (
        lambda: predict.max_learning_rate(ntkdiag.ntk(f, W, X, reduction="trace"), 6),
        "max_learning_rate(ntk_train_train, y_train_size): expected a kernel with "
        'reduction="full" or "mean"; got reduction="trace" of 2 outputs. '
        '"mean" is neural-tangents\' trace_axes=(-1,), "full" is trace_axes=().',
    ),
    "size of targets": (
        lambda: predict.max_learning_rate(K),
        "max_learning_rate(ntk_train_train): expected `y_train_size` beside a kernel [N N]; got None. "
        "Pass y_train.size: N times the number of outputs that were traced, or N for a single output.",
    ),
    "diagonal kernel": (
        lambda: predict.max_learning_rate(np.ones((3, 3, 2), np.float32)),
        "max_learning_rate(ntk_train_train): expected a kernel of shape zip(y_train.shape, y_train.shape); got shape "
        "(3, 3, 2). Compute it without diagonal_axes, as ntk_fn(x_train, None, params).",
    ),
}


@pytest.mark.parametrize(
    ("call", "message"), [pytest.param(*row, id=name) for name, row in PREDICT.items()]
)
def test_predict(call, message):
    assert said(errors.InvalidInputError, call) == message

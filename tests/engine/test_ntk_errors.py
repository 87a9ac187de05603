"""What `ntk` says to bad input."""

import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from jax import lax

import ntkdiag
from ntkdiag.errors import InvalidInputError, MemoryBudgetError, UnsupportedModelError

F, PARAMS, X = cases.mlp()


def refuse(match, *args, error=InvalidInputError, **kwargs):
    with pytest.raises(error, match=match):
        ntkdiag.ntk(*args, **kwargs)


def test_integer_parameters():
    params = {**PARAMS, "b": jnp.arange(7)}
    refuse(r"real floating-point arrays; got int32 at \['b'\]. Hold it fixed", F, params, X)


def test_complex_parameters():
    refuse(
        r"got complex64 at \['b'\]. Keep real and imaginary parts",
        F,
        {**PARAMS, "b": PARAMS["b"].astype(jnp.complex64)},
        X,
    )


def test_parameters_that_are_no_arrays():
    refuse(r"got str at \['b'\]", F, {**PARAMS, "b": "seven"}, X)


def test_numbers_that_are_no_arrays():
    refuse(r"got float at \['a'\]. Make numbers arrays", lambda p, x: p["a"] * x, {"a": 1.0}, X)


def test_a_train_state_in_place_of_parameters():
    state = TrainState.create(apply_fn=None, params=PARAMS, tx=optax.sgd(0.1))
    refuse("got int at .step. Pass its `params` alone", F, state, X)


@pytest.mark.smoke
def test_what_f_raises_says_what_f_was_given():
    def notes(*args):
        with pytest.raises(Exception, match=r".") as caught:
            ntkdiag.ntk(*args)
        return "\n".join(caught.value.__notes__)

    assert "with one example, on an axis of length 1: params/b float32[7], " in notes(
        F, PARAMS, X[:, :2]
    )
    assert ", x float32[1, 2]." in notes(F, PARAMS, X[:, :2])
    many = {f"w{k}": jnp.ones(k + 1) for k in range(20)}
    found = notes(lambda p, x: x @ p["w0"], many, X)
    assert found.count("params/") == 6
    assert "..., x float32[1, 5]" in found
    refuse("are handed to f: was one of its own meant?", F, PARAMS, X, output="full")


def test_no_parameters():
    refuse("at least one parameter; got an empty tree", F, {}, X)


@pytest.mark.smoke
def test_nan_parameters():
    params = {**PARAMS, "w": jnp.asarray(PARAMS["w"]).at[0, 0].set(jnp.nan)}
    refuse(r"finite parameters; got NaN or infinity in \['w'\]", F, params, X)
    assert np.isnan(np.asarray(ntkdiag.ntk(F, params, X, check=False))).any()


def test_empty_batch():
    refuse(r"at least one; got x: \(0, 5\)", F, PARAMS, X[:0])


def test_empty_columns():
    refuse(r"ntk\(f, params, x, x2\): expected x2 as arrays", F, PARAMS, X, X[:0])


def test_examples_that_do_not_match():
    refuse(
        r"first axis is the examples, the same for all.*\(3, 5\).*\(2, 5\)",
        F,
        PARAMS,
        {"a": X, "b": X[:2]},
    )


def test_scalar_input():
    refuse("Add an example axis", F, PARAMS, jnp.array(1.0))


def test_output_without_example_axis():
    refuse(r"example axis first, length 1; got float32\[\]", lambda p, x: F(p, x).sum(), PARAMS, X)


def test_integer_output():
    refuse(
        r"real floating arrays.*got int32\[1, 4\]",
        lambda p, x: F(p, x).astype(jnp.int32),
        PARAMS,
        X,
    )


def test_empty_output():
    refuse(r"got float32\[1, 0\]", lambda p, x: F(p, x)[:, :0], PARAMS, X)


def test_unknown_outputs():
    refuse(
        "one of 'mean', 'trace', 'full'.*got 'tracee'.*4 outputs per example",
        F,
        PARAMS,
        X,
        reduction="tracee",
    )


def test_projection_of_the_wrong_shape():
    refuse(
        r"a projection of shape \[4, k\]; got an array of shape \(3, 2\)",
        F,
        PARAMS,
        X,
        reduction=np.ones((3, 2)),
    )


def test_one_random_projection_has_no_error():
    refuse("with 2 <= k", F, PARAMS, X, reduction=ntkdiag.kernel.RandomProjections(1))


def test_unknown_precision():
    refuse(
        r"a precision that jax\.default_matmul_precision takes; got 'tf32'",
        F,
        PARAMS,
        X,
        precision="tf32",
    )


@pytest.mark.usefixtures("wrong_types")
def test_unknown_examples():
    refuse("expected 'independent' or 'joint'; got 'both'", F, PARAMS, X, examples="both")


def test_glob_that_matches_nothing():
    refuse(
        r"per_leaf='kernel', which matches none. The parameters are: b, c, v, w",
        F,
        PARAMS,
        X,
        per_leaf="kernel",
    )


@pytest.mark.parametrize("memory", ["lots", "-1", 0, "3XB", "1e"])
def test_unreadable_budget(memory):
    refuse("expected a positive number of bytes", F, PARAMS, X, memory=memory)


@pytest.mark.smoke
def test_budget_too_small_names_the_smallest_that_works():
    with pytest.raises(MemoryBudgetError, match=r"a budget of at least (.*); got 100 B") as info:
        ntkdiag.ntk(F, PARAMS, X, memory=100)
    least = info.value.args[0].split("at least ")[1].split(";")[0]
    assert ntkdiag.ntk(
        F, PARAMS, X, memory=float(least.split()[0]) * {"B": 1.02, "kB": 1020}[least.split()[1]]
    ).shape == (3, 3)


def test_preconditioner_of_another_tree():
    match = "one per leaf, or one per parameter; got a tree with w. Give it the tree of params: b, c, v, w"
    refuse(match, F, PARAMS, X, preconditioner={"w": 1.0})
    names = dict.fromkeys(map(str.upper, PARAMS), 1.0)
    refuse("one per parameter; got a tree with", F, PARAMS, X, preconditioner=names)
    wrong = {name: jnp.ones(3) for name in PARAMS}
    refuse("one per parameter; got shapes", F, PARAMS, X, preconditioner=wrong)


def test_preconditioner_from_the_optimizer_of_an_nnx_model():
    from flax import nnx

    net = nnx.Linear(5, 2, rngs=nnx.Rngs(0))
    fn = ntkdiag.functionalize(net)
    squares = jax.tree.map(lambda p: p**2 + 1, nnx.state(net, nnx.Param))
    kernel = ntkdiag.ntk(fn, fn.params, X, preconditioner=squares)
    plain = {name: value**2 + 1 for name, value in fn.params.items()}
    assert jnp.array_equal(kernel.array, ntkdiag.ntk(fn, fn.params, X, preconditioner=plain).array)


@pytest.mark.slow
def test_the_budget_named_is_enough():
    for options in (
        {},
        {"reduction": "full"},
        {"per_leaf": True},
        {"reduction": ntkdiag.kernel.RandomProjections(3)},
    ):
        with pytest.raises(MemoryBudgetError) as error:
            ntkdiag.ntk(F, PARAMS, X, memory=10, **options)
        least = re.search(r"at least ([0-9.]+ \w+)", str(error.value))[1]
        assert ntkdiag.ntk(F, PARAMS, X, memory=least, **options).n_examples == len(X)


def test_outputs_without_a_derivative():
    refuse("Return only what can be differentiated", lambda p, x: F(p, x).astype(int), PARAMS, X)
    refuse("real and imaginary parts as two outputs", lambda p, x: F(p, x) + 1j, PARAMS, X)


def test_globs_that_find_nothing_left():
    refuse("which matches none that is left", F, PARAMS, X, per_leaf=["**", next(iter(PARAMS))])


def test_preconditioner_must_be_positive():
    refuse("zero, negative or NaN. Add the epsilon", F, PARAMS, X, preconditioner=0.0)


def test_matrix_of_a_diagonal_kernel():
    kernel = ntkdiag.ntk(F, PARAMS, X, reduction="diagonal")
    with pytest.raises(InvalidInputError, match=r"index `kernel.array\[..., o\]`"):
        _ = kernel.matrix


NO_DERIVATIVE = {
    "while": (
        lambda p, x: lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1])), (0, x @ p["w"])
        )[1],
        "Reverse-mode differentiation does not work for lax.while_loop",
    ),
    "while over parameters": (
        lambda p, x: x @ lax.while_loop(lambda w: w.sum() < 9, lambda w: w + 1, p["w"]),
        "Reverse-mode differentiation does not work for lax.while_loop",
    ),
    "fori": (
        lambda p, x: lax.fori_loop(0, jnp.int32(x[0, 0]), lambda _, h: h * 2, x @ p["w"]),
        "or lax.fori_loop with dynamic start/stop values",
    ),
    "callback": (
        lambda p, x: jax.pure_callback(
            np.sin, jax.ShapeDtypeStruct((1, 7), "f"), x @ p["w"], vmap_method="sequential"
        ),
        "Pure callbacks do not support JVP",
    ),
}


@pytest.mark.parametrize("name", NO_DERIVATIVE)
def test_functions_without_a_reverse_derivative(name):
    f, reason = NO_DERIVATIVE[name]
    match = rf"f\(params, x\): expected a function that JAX can differentiate in reverse mode; got .*{reason}.*lax.scan"
    refuse(match, f, {"w": PARAMS["w"]}, X, error=UnsupportedModelError)
    with pytest.raises(UnsupportedModelError, match=match):
        ntkdiag.plan(f, {"w": PARAMS["w"]}, X)


def test_an_error_that_is_not_of_the_derivative_stays_what_it_is(monkeypatch):
    def broken(*args, **kwargs):
        raise ValueError("a mistake of ours")

    f = lambda p, x: F(p, x) + 0  # not traced before
    monkeypatch.setattr(ntkdiag.engine.jacobian.parts.Part, "factor", broken)
    refuse("a mistake of ours", f, PARAMS, X, error=ValueError)


def test_donated_parameters_and_inputs():
    gone = jax.tree.map(jnp.array, PARAMS)
    gone["b"].delete()
    refuse(r"live arrays in params; got deleted buffers: \['b'\]. They were donated", F, gone, X)
    x = jnp.array(X)
    x.delete()
    refuse("live arrays in x; got deleted buffers: the only leaf", F, PARAMS, x)
    refuse("live arrays in x2", F, PARAMS, X, x)


def test_columns_unlike_rows():
    refuse(
        r"x2 as a tree of arrays like x, each.*got .*\(3, 5\).*'a'.*\(3, 5\)",
        F,
        PARAMS,
        X,
        {"a": X},
    )
    refuse(r"each with as many axes.*\(3, 5\).*\(3, 1, 5\)", F, PARAMS, X, X[:, None])


def test_complex_output():
    refuse(r"real floating arrays.*got complex64\[1, 4\]", lambda p, x: F(p, x) * 1j, PARAMS, X)


def test_no_output():
    refuse("real floating arrays.*got nothing", lambda p, x: {}, PARAMS, X)


def test_outputs_of_the_second_function():
    refuse(
        r"example axis first, length 1; got int32\[1\]",
        F,
        PARAMS,
        X,
        f2=lambda p, x: x[:, 0].astype(int),
    )
    other = lambda p, x: F(p, x)[:, :3]
    match = r"f2=.*\"full\" or \"sum-of-logits\" between .*got \"mean\" with 4 and 3 outputs"
    refuse(match, F, PARAMS, X, f2=other)


def test_complex_projection():
    refuse(
        r"a projection of shape \[4, k\]; got .*dtype complex128",
        F,
        PARAMS,
        X,
        reduction=np.ones((4, 2)) * 1j,
    )


@pytest.mark.usefixtures("wrong_types")
def test_per_leaf_that_is_no_path():
    refuse("True, or at least one path glob; got 3", F, PARAMS, X, per_leaf=3)


def test_interacting_examples():
    f = lambda p, x: F(p, x) - F(p, x).mean(0)
    refuse(
        "do not depend on the other examples.*joint",
        f,
        PARAMS,
        X,
        error=ntkdiag.errors.ExamplesInteractError,
    )


def test_errors_of_the_function_itself_come_through():
    refuse(
        r"f\(params, x\) to run; got TypeError: .*contracting dimensions",
        lambda p, x: x @ p["w"].T,
        PARAMS,
        X,
    )


@pytest.mark.parametrize("memory", [1e16, "2E9", "1e+9", 2e9])
def test_budgets_in_powers_of_ten(memory):
    assert ntkdiag.plan(F, PARAMS, X, memory=memory).budget_bytes == int(float(memory))


def with_nan(x):
    x = np.array(x)
    x[0, 0] = np.nan
    return x


def test_nan_among_the_examples():
    """It is named by the path of its leaf; infinities, as masks hold them, are not refused."""
    f = lambda p, x: F(p, x["image"][0])
    tree = {"image": [with_nan(X)], "mask": np.full(X.shape, -np.inf, np.float32)}
    message = r"examples {0} without NaN; got NaN in {0}\['image'\]\[0\]\. Drop the examples"
    refuse(message.format("x"), f, PARAMS, tree)
    whole = {**tree, "image": [X]}
    refuse(message.format("x2"), f, PARAMS, whole, tree)
    assert np.isfinite(np.asarray(ntkdiag.ntk(f, PARAMS, whole))).all()
    assert np.isnan(np.asarray(ntkdiag.ntk(f, PARAMS, tree, check=False))).any()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ntkdiag.NTKOperator(F, PARAMS, x),
        lambda x: ntkdiag.compare(PARAMS, PARAMS, model=F, train=(x, None)),
        lambda x: ntkdiag.Monitor(F, train=(x, None)),
        lambda x: ntkdiag.linearization_gap(F, PARAMS, PARAMS, x),
        lambda x: ntkdiag.selfcheck(F, PARAMS, x),
    ],
    ids=["NTKOperator", "compare", "Monitor", "linearization_gap", "selfcheck"],
)
def test_nan_among_the_examples_of_other_calls(call):
    with pytest.raises(InvalidInputError, match="examples x without NaN; got NaN in x"):
        call(with_nan(X))


def test_nan_in_a_projection():
    projection = np.full((4, 1), np.nan, np.float32)
    refuse("a finite projection; got NaN or Inf", F, PARAMS, X, reduction=projection)


@pytest.mark.parametrize("per_leaf", [[], (), ""])
def test_no_globs_at_all(per_leaf):
    refuse("expected True, or at least one path glob", F, PARAMS, X, per_leaf=per_leaf)

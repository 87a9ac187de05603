"""Arrays of other libraries: at the one door that converts or refuses them, and in every public call.

Each call takes `given`, which every array that a user passes goes through: as it is, or as another library holds it.
"""

import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse
from internals import as_array, as_examples, with_arrays
from jax.experimental import sparse

import ntkdiag
from ntkdiag import analysis, baselines, kernel, losses, matrix_free, neural_tangents, predict
from ntkdiag.errors import InvalidInputError

A = np.arange(6.0).reshape(3, 2)


class HoldsArray:
    """A tensor of another library that NumPy can read."""

    def __init__(self, array):
        self._array = array
        self.shape = array.shape

    def __array__(self, dtype=None, copy=None):
        return self._array


class HoldsMemory:
    """A tensor of another library that lends its memory, and has nothing else."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def big_endian(array):
    return array.astype(array.dtype.newbyteorder(">"))


def masked(array):
    return np.ma.masked_array(array, array > 0)


REFUSED = {
    "dtype object": lambda a: a.astype(object),
    "dtype <U": lambda a: a.astype(str),
    "a masked array": masked,
    "a sparse coo_array": scipy.sparse.coo_array,
    "a sparse BCOO": lambda a: sparse.BCOO.fromdense(jnp.asarray(a)),
}


@pytest.mark.parametrize("change", [HoldsArray, HoldsMemory, big_endian, np.ndarray.tolist])
def test_what_holds_numbers_is_read(change):
    got = as_array(change(A), "y")
    assert got.dtype == np.float64
    assert got.dtype.isnative
    np.testing.assert_array_equal(got, A)


@pytest.mark.parametrize("library", ["torch", "tensorflow"])
def test_the_libraries_themselves(library):
    module = pytest.importorskip(library)
    tensor = module.as_tensor(A) if library == "torch" else module.constant(A)
    np.testing.assert_array_equal(as_array(tensor, "y"), A)


def test_traced_numbers_come_through():
    def total(value):
        assert as_array(value, "y") is value
        return as_array([value, 2 * value], "y").sum()

    assert jax.jit(total)(1.0) == 3.0


@pytest.mark.parametrize("got", REFUSED)
def test_what_holds_no_numbers_is_refused(got):
    change = REFUSED[got]
    with pytest.raises(InvalidInputError, match=f"expected `y` as an array of numbers; got {got}"):
        as_array(change(A), "y")
    with pytest.raises(InvalidInputError, match=rf"expected `x\['a'\]\[0\]` as .* got {got}"):
        as_examples({"a": (change(A), A)})


def test_other_values_are_refused():
    for value, got in [
        ([[1.0, 2.0], [3.0]], r"a list \(setting an array element with a sequence"),
        (None, r"a NoneType \(dtype object\)"),
        (np.array(["2020-01-01"], "datetime64[D]"), r"dtype datetime64\[D\]"),
        (np.longdouble(1) * np.ones(2), "dtype float128|dtype longdouble"),
    ]:
        with pytest.raises(InvalidInputError, match=f"`y` as an array of numbers; got {got}"):
            as_array(value, "y")


def test_arguments_of_f_that_are_no_arrays_stay():
    got = with_arrays({"train": False, "name": "a", "scale": HoldsArray(A)}, "kwargs")
    assert (got["train"], got["name"]) == (False, "a")
    np.testing.assert_array_equal(got["scale"], A)
    with pytest.raises(InvalidInputError, match=r"`kwargs\['mask'\]` .* got a masked array"):
        with_arrays({"mask": masked(A)}, "kwargs")


# A network of two layers with eight examples, and the public calls on it.

N, D, H, C = 8, 3, 5, 2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)).astype(np.float32)
X2 = RNG.normal(size=(3, D)).astype(np.float32)
Y = RNG.normal(size=(N, C)).astype(np.float32)
Y2 = RNG.normal(size=(3, C)).astype(np.float32)
CLASSES = np.arange(N) % 2
CLASSES2 = np.array([1, 0, 1])
PARAMS = {
    "w": RNG.normal(size=(D, H)).astype(np.float32),
    "b": RNG.normal(size=H).astype(np.float32),
    "v": RNG.normal(size=(H, C)).astype(np.float32),
}
MOVED = {name: value + np.float32(0.1) for name, value in PARAMS.items()}


def f(params, x):
    """The network; it broadcasts and promotes nothing by itself."""
    hidden = jnp.tanh(x @ params["w"] + params["b"][None])
    return hidden @ params["v"]


def params():
    return jax.tree.map(jnp.asarray, PARAMS)


def moved():
    return jax.tree.map(jnp.asarray, MOVED)


def full_kernel():
    return ntkdiag.ntk(f, params(), X, reduction="full")


def matrix():
    """The mean kernel as a user may hold it, without its convention."""
    return np.asarray(ntkdiag.ntk(f, params(), X).array)


def operator():
    return ntkdiag.NTKOperator(f, params(), X)


def outputs(x=X):
    return np.asarray(f(params(), x))


def two_probes(given):
    return {"train": (given(X), given(CLASSES)), "held_out": (given(X2), given(CLASSES2))}


def ntk(given):
    ntkdiag.ntk(f, params(), given(X), given(X2), reduction="full", per_leaf=True)
    ntkdiag.ntk(f, params(), given(X), preconditioner=jax.tree.map(jnp.ones_like, params()))
    ntkdiag.ntk(f, params(), given(X), reduction=kernel.RandomProjections(2), memory="1GB")
    ntkdiag.plan(f, params(), given(X), reduction="full")


def gradient_kernel(given):
    labels = {"loss": "cross_entropy", "x2": given(X2), "y2": given(CLASSES2)}
    ntkdiag.gradient_kernel(f, params(), given(X), given(CLASSES), per_leaf=True, **labels)
    losses_of, examples = ntkdiag.example_losses(f, params(), given(X), given(Y), loss="mse")
    losses_of(params(), examples)


def influence(given):
    train, test = (given(X), given(Y)), (given(X2), given(Y2))
    ntkdiag.influence(f, params(), train, test, loss="mse", ridge=1.0)


def interference(given):
    old, new = (given(X), given(Y)), (given(X2), given(Y2))
    sgd = optax.sgd(0.01)
    ntkdiag.interference(f, params(), old=old, new=new, loss="mse", optimizer=sgd, steps=2)


def analyses(given):
    ntkdiag.spectrum(given(matrix()))
    ntkdiag.top_spectrum(given(matrix()), 2)
    ntkdiag.top_spectrum(operator(), 2)
    ntkdiag.drift(given(matrix()), given(matrix() + np.eye(N, dtype=np.float32)))
    ntkdiag.alignment(full_kernel(), given(CLASSES))
    ntkdiag.alignment(given(matrix()), given(Y))
    analysis.self_influence(given(matrix()))
    analysis.noise_scale(given(matrix()))


def stability(given):
    momentum = ntkdiag.Descent(0.1, momentum=0.9)
    labelled = {"outputs": given(outputs()), "y": given(CLASSES)}
    ntkdiag.critical_learning_rate(full_kernel(), momentum, loss="mse")
    ntkdiag.stability_margin(full_kernel(), momentum, loss="cross_entropy", **labelled)


def values_of_losses(given):
    ones = jnp.ones(N * C, jnp.float32)
    at = jnp.asarray(outputs())
    for loss in (losses.MSE(), losses.CrossEntropy()):
        loss(at, loss.read(given(CLASSES), (N, C)))
        loss(at, losses.Weighted(given(CLASSES), given(np.arange(N, dtype=np.float32))))
        # The curvature of a squared error does not look at the outputs.
        loss.curvature(at if loss.is_quadratic else given(outputs())).times(ones)
    sigmoid = losses.SigmoidCrossEntropy()
    sigmoid(at, sigmoid.read(given(np.ones((N, C), np.float32)), (N, C)))


def modes(given):
    of_matrix, loss = given(matrix()), losses.MSE(denominator=float(N))
    analysis.modes(of_matrix, given(Y), descent=0.1, loss=loss).steps_to(0.5)
    analysis.modes(of_matrix, given(Y), centred=True)
    analysis.leave_one_out(given(matrix()), given(Y), 0.1)


def products(given):
    K = ntkdiag.NTKOperator(f, params(), given(X), given(X2), batch_size=2)
    return K @ given(Y2), K.cotangent(given(Y)), K.tangent(params()), K.outputs()


def least_squares(given):
    for solver in (matrix_free.CG(), matrix_free.CG("parameters")):
        f0 = given(outputs())
        matrix_free.least_squares(operator(), given(Y), ridge=0.1, f0=f0, solver=solver)


def gradient_flow(given):
    cross = np.asarray(ntkdiag.ntk(f, params(), X2, X).array)
    start = {"f0": given(outputs()), "f0_test": given(outputs(X2))}
    options = {"ridge": 0.1, "loss": losses.MSE(denominator=float(N))}
    times = np.array([0.5, np.inf])
    predict.gradient_flow(
        given(matrix()), given(Y), times, kernel_test=given(cross), **start, **options
    )
    logits = {"loss": "cross_entropy", "f0": given(outputs())}
    predict.integrate_flow(full_kernel(), given(CLASSES), 0.5, **logits)


def gradient_descent(given):
    loss = losses.MSE(denominator=float(N))
    predict.gradient_descent(given(matrix()), given(Y), 0.1, 5, loss=loss)
    logits = {"loss": "cross_entropy", "f0": given(outputs())}
    predict.iterate_descent(full_kernel(), given(CLASSES), 0.1, 3, **logits)
    predict.iterate_descent(operator(), given(CLASSES), 0.1, 3, loss="cross_entropy")


def linearize(given):
    ntkdiag.linearize(f, params())(moved(), given(X))
    ntkdiag.taylor_expand(f, params(), 2)(moved(), given(X))
    ntkdiag.linearized_model(f, params())(moved(), given(X))
    ntkdiag.linearization_gap(f, PARAMS, MOVED, given(X))


def compare(given):
    options = {"loss": "cross_entropy", "descent": 0.1, **two_probes(given)}
    ntkdiag.compare(PARAMS, MOVED, model=f, **options)


def track(given):
    options = {"loss": "cross_entropy", "descent": 0.1, **two_probes(given)}
    ntkdiag.track(enumerate([PARAMS, MOVED]), model=f, **options)


def linear_baseline(given):
    data = (given(X), given(CLASSES), given(X2), given(CLASSES2))
    options = {"variables": params(), "loss": "cross_entropy", "steps": 2}
    baselines.linear_baseline(f, data, optax.sgd(0.1), **options)


def watch(given):
    probe = {"train": (given(X), given(CLASSES)), "loss": "cross_entropy"}
    tx = ntkdiag.watch(optax.sgd(0.1, momentum=0.9), f, every=1, top_k=2, **probe)
    _, state = jax.jit(tx.update)(params(), tx.init(params()), params())
    ntkdiag.record(state)
    ntkdiag.rewatch(tx, ntkdiag.unwatch(state), params())


def monitor(given):
    with tempfile.TemporaryDirectory() as folder:
        options = {"loss": "mse", "every": 2, "instruments": "kernel", "top_k": 2}
        hook = ntkdiag.Monitor(
            f, writers=[ntkdiag.monitor.RunLog(folder)], **options, **two_probes(given)
        )
        hook(0, params())
        hook.close()


def empirical(given):
    ntk_fn = neural_tangents.empirical_ntk_fn(f)
    ntk_fn(given(X), given(X2), params())
    neural_tangents.empirical_nngp_fn(f)(given(X), None, params())
    neural_tangents.batch(ntk_fn, 2)(given(X), None, params())
    neural_tangents.empirical_ntk_vp_fn(f, given(X), None, params())(given(Y))
    neural_tangents.linearize(f, params())(moved(), given(X))


def dynamics(given):
    squared = lambda fx, y: 0.5 * jnp.square(fx - y).mean()
    of_mse = neural_tangents.predict.gradient_descent_mse(given(matrix()), given(Y))
    flow = neural_tangents.predict.gradient_descent(squared, given(matrix()), given(Y))
    of_mse(1.0, given(outputs()))
    flow(1.0, given(outputs()))
    neural_tangents.predict.max_learning_rate(given(matrix()), Y.size)


FAST = [ntk, gradient_kernel, interference, stability, values_of_losses, modes, products, linearize]
SLOW = [
    influence, analyses, least_squares, gradient_flow, gradient_descent, compare, track, linear_baseline,
    watch, monitor, empirical, dynamics,
]  # fmt: skip
CALLS = [*FAST, *(pytest.param(call, marks=pytest.mark.slow) for call in SLOW)]


class Foreign:
    """Arrays of other libraries, of one kind after the other."""

    def __init__(self):
        self.number = 0

    def __call__(self, array):
        self.number += 1
        return big_endian(array) if self.number % 2 else HoldsMemory(array)


@pytest.fixture
def under():
    """Change settings of JAX for the time of a test."""
    before = {}

    def change(name, value):
        before[name] = getattr(jax.config, name)
        jax.config.update(name, value)

    yield change
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("call", CALLS)
def test_every_public_call(call, under):
    """It promotes no ranks and no dtypes, reads all arrays of numbers, and refuses masked ones."""
    under("jax_numpy_rank_promotion", "raise")
    under("jax_numpy_dtype_promotion", "strict")
    call(Foreign())
    with pytest.raises(InvalidInputError, match="as an array of numbers; got a masked array"):
        call(masked)


def test_an_f_that_does_not_run():
    """Every call that runs f says the same of an f that does not."""
    wrong = lambda params, x: x.T @ params["w"]
    start, probe = params(), (X, Y)
    for call in [
        lambda: ntkdiag.ntk(wrong, start, X),
        lambda: ntkdiag.NTKOperator(wrong, start, X),
        lambda: ntkdiag.linearize(wrong, start)(start, X),
        lambda: ntkdiag.linearization_gap(wrong, start, start, X),
        lambda: ntkdiag.compare(start, MOVED, model=wrong, train=probe),
        lambda: ntkdiag.Monitor(ntkdiag.functionalize(wrong, start), train=probe),
        lambda: neural_tangents.empirical_ntk_fn(wrong)(X, None, start),
        lambda: baselines.linear_baseline(wrong, (X, Y, X, Y), None, variables=start, loss="mse"),
    ]:
        with pytest.raises(InvalidInputError, match=r"expected f\(params, x\) to run; got .*shape"):
            call()

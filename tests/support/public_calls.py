"""One call of every public function, on a network of two layers with eight examples.

Each call takes `given`, which every array that a user hands in goes through: as it is, or as what
another library would hold. What it returns are numbers that do not depend on that.
"""

import collections
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
from public_names import documented

import ntkdiag
from ntkdiag import analysis, baselines, matrix_free, models, neural_tangents, predict

CALLS = {}
# Results and settings, which calls of other names make or take; protocols and errors.
WITHOUT_A_CALL = {
    *(name for name in documented() if name.startswith("ntkdiag.errors.")),
    "ntkdiag.analysis.Alignment",
    "ntkdiag.analysis.Drift",
    "ntkdiag.analysis.LeaveOneOut",
    "ntkdiag.analysis.Modes",
    "ntkdiag.analysis.NoiseScale",
    "ntkdiag.baselines.LinearBaseline",
    "ntkdiag.checking.SelfCheck",
    "ntkdiag.comparison.Comparison",
    "ntkdiag.comparison.Result",
    "ntkdiag.comparison.Track",
    "ntkdiag.engine.Plan",
    "ntkdiag.Functional",
    "ntkdiag.gradients.ExampleLosses",
    "ntkdiag.gradients.Influence",
    "ntkdiag.gradients.Interference",
    "ntkdiag.kernel.Convention",
    "ntkdiag.kernel.Spectrum",
    "ntkdiag.linearization.LinearizationGap",
    "ntkdiag.losses.Loss",
    "ntkdiag.matrix_free.Solution",
    "ntkdiag.matrix_free.TopSpectrum",
    "ntkdiag.monitor.Context",
    "ntkdiag.monitor.Estimate",
    "ntkdiag.monitor.Finding",
    "ntkdiag.monitor.Measurement",
    "ntkdiag.monitor.Terminal",
    "ntkdiag.monitor.WatchState",
    "ntkdiag.monitor.Writer",
    "ntkdiag.neural_tangents.NtkImplementation",
    "ntkdiag.open_runs",
    "ntkdiag.Run",
    "ntkdiag.predict.Prediction",
    "ntkdiag.report.paper_style",
}

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


def kernel(reduction="full"):
    return ntkdiag.ntk(f, params(), X, reduction=reduction)


def matrix():
    """The mean kernel as a user may hold it, without its convention."""
    return np.asarray(kernel("mean").array)


def operator():
    return ntkdiag.NTKOperator(f, params(), X)


def outputs(x=X):
    return np.asarray(f(params(), x))


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


def call_of(*names):
    """A call for these public names."""

    def note(call):
        CALLS.update(dict.fromkeys(names, call))
        return call

    return note


# Kernels, and what is computed of them.


@call_of("ntkdiag.ntk", "ntkdiag.Kernel")
def ntk(given):
    full = ntkdiag.ntk(f, params(), given(X), given(X2), reduction="full", per_leaf=True)
    mean = ntkdiag.ntk(f, params(), given(X), preconditioner=jax.tree.map(jnp.ones_like, params()))
    estimate = ntkdiag.ntk(
        f, params(), given(X), reduction=ntkdiag.kernel.RandomProjections(2), memory="1GB"
    )
    return full.array, full @ given(Y2), mean.array, mean @ given(Y), estimate.array


@call_of("ntkdiag.kernel.RandomProjections")
def projections(given):
    return ntkdiag.ntk(f, params(), given(X), reduction=given(np.eye(C, dtype=np.float32))).array


@call_of("ntkdiag.plan")
def plan(given):
    return ntkdiag.plan(f, params(), given(X), reduction="full").flops


@call_of("ntkdiag.gradient_kernel")
def gradient_kernel(given):
    G = ntkdiag.gradient_kernel(
        f,
        params(),
        given(X),
        given(CLASSES),
        loss="cross_entropy",
        x2=given(X2),
        y2=given(CLASSES2),
        per_leaf=True,
    )
    return G.array, G.leaves["b"].array


@call_of(
    "ntkdiag.analysis.noise_scale",
    "ntkdiag.analysis.self_influence",
)
def noise_scale(given):
    return (
        analysis.self_influence(given(matrix())),
        vars(analysis.noise_scale(given(matrix()))),
    )


@call_of("ntkdiag.influence")
def influence(given):
    train, test = (given(X), given(Y)), (given(X2), given(Y2))
    found = ntkdiag.influence(f, params(), train, test, loss="mse", ridge=1.0)
    return found.prediction, found.loss, found.e1


@call_of("ntkdiag.interference")
def interference(given):
    old, new = (given(X), given(Y)), (given(X2), given(Y2))
    found = ntkdiag.interference(
        f, params(), old=old, new=new, loss="mse", learning_rate=0.01, steps=2
    )
    return found.change, found.by_example


@call_of("ntkdiag.example_losses")
def example_losses(given):
    g, examples = ntkdiag.example_losses(f, params(), given(X), given(Y), loss="mse")
    return g(params(), examples)


@call_of("ntkdiag.clear_caches")
def clear_caches(given):
    ntkdiag.clear_caches()


@call_of("ntkdiag.spectrum")
def spectrum(given):
    decomposed = ntkdiag.spectrum(given(matrix()))
    return decomposed.eigenvalues, decomposed.participation_ratio, decomposed.condition_number


@call_of("ntkdiag.top_spectrum")
def top_spectrum(given):
    return (
        ntkdiag.top_spectrum(given(matrix()), 2).eigenvalues,
        ntkdiag.top_spectrum(operator(), 2).eigenvalues,
    )


@call_of("ntkdiag.drift")
def drift(given):
    later = matrix() + np.eye(N, dtype=np.float32)
    return vars(ntkdiag.drift(given(matrix()), given(later)))


@call_of(
    "ntkdiag.alignment",
)
def alignment(given):
    return (
        vars(ntkdiag.alignment(kernel(), given(CLASSES))),
        vars(ntkdiag.alignment(given(matrix()), given(Y))),
    )


@call_of(
    "ntkdiag.critical_learning_rate",
    "ntkdiag.stability_margin",
    "ntkdiag.Descent",
)
def stability(given):
    momentum = ntkdiag.Descent(0.1, momentum=0.9)
    return (
        ntkdiag.critical_learning_rate(kernel(), momentum, loss="mse"),
        ntkdiag.stability_margin(
            kernel(), momentum, loss="cross_entropy", outputs=given(outputs()), y=given(CLASSES)
        ),
    )


@call_of(
    "ntkdiag.losses.MSE",
    "ntkdiag.losses.CrossEntropy",
    "ntkdiag.losses.SigmoidCrossEntropy",
    "ntkdiag.losses.Weighted",
)
def losses(given):
    numbers = []
    ones = jnp.ones(N * C, jnp.float32)
    for loss in (ntkdiag.losses.MSE(), ntkdiag.losses.CrossEntropy()):
        # The curvature of a squared error does not look at the outputs.
        at = outputs() if loss.is_quadratic else given(outputs())
        numbers.append(loss(jnp.asarray(outputs()), loss.read(given(CLASSES), (N, C))))
        weighted = ntkdiag.losses.Weighted(given(CLASSES), given(np.arange(N, dtype=np.float32)))
        numbers.append(loss(jnp.asarray(outputs()), weighted))
        numbers.append(loss.curvature(at).times(ones))
    sigmoid = ntkdiag.losses.SigmoidCrossEntropy()
    labels = np.ones((N, C), np.float32)
    return *numbers, sigmoid(jnp.asarray(outputs()), sigmoid.read(given(labels), (N, C)))


@call_of(
    "ntkdiag.analysis.modes",
    "ntkdiag.analysis.spectral_position",
)
def modes(given):
    of_matrix = given(matrix())
    loss = ntkdiag.losses.MSE(denominator=float(N))
    found = analysis.modes(of_matrix, given(Y), descent=0.1, loss=loss)
    return (
        found.time_constants,
        found.steps_to(0.5),
        found.reachable_power(10),
        analysis.modes(of_matrix, given(Y), centred=True).label_power,
        analysis.spectral_position(of_matrix, given(Y)),
    )


@call_of("ntkdiag.analysis.leave_one_out")
def leave_one_out(given):
    left_out = analysis.leave_one_out(given(matrix()), given(Y), 0.1)
    return left_out.residuals, left_out.mse


# The kernel that is never formed.


@call_of("ntkdiag.NTKOperator")
def products(given):
    K = ntkdiag.NTKOperator(f, params(), given(X), given(X2), batch_size=2)
    return K @ given(Y2), K.cotangent(given(Y)), K.tangent(params()), K.outputs()


@call_of("ntkdiag.matrix_free.least_squares", "ntkdiag.matrix_free.CG", "ntkdiag.matrix_free.LSMR")
def least_squares(given):
    fits = []
    for solver in (matrix_free.CG(), matrix_free.LSMR()):
        solution = matrix_free.least_squares(
            operator(), given(Y), ridge=0.1, f0=given(outputs()), solver=solver
        )
        fits.append(solution.outputs)
    return fits


# Predictions.


def squared():
    return ntkdiag.losses.MSE(denominator=float(N))


@call_of("ntkdiag.predict.gradient_flow")
def gradient_flow(given):
    cross = ntkdiag.ntk(f, params(), X2, X).array
    predicted = predict.gradient_flow(
        given(matrix()),
        given(Y),
        np.array([0.5, np.inf]),
        kernel_test=given(np.asarray(cross)),
        f0=given(outputs()),
        f0_test=given(outputs(X2)),
        ridge=0.1,
        loss=squared(),
    )
    return predicted.train, predicted.test


@call_of("ntkdiag.predict.gradient_descent")
def gradient_descent(given):
    momentum = ntkdiag.Descent(0.1, momentum=0.9)
    return predict.gradient_descent(given(matrix()), given(Y), momentum, 5, loss=squared()).train


@call_of("ntkdiag.predict.integrate_flow")
def integrate_flow(given):
    return predict.integrate_flow(
        kernel(), given(CLASSES), 0.5, loss="cross_entropy", f0=given(outputs())
    ).train


@call_of("ntkdiag.predict.iterate_descent")
def iterate_descent(given):
    return (
        predict.iterate_descent(
            kernel(), given(CLASSES), 0.1, 3, loss="cross_entropy", f0=given(outputs())
        ).train,
        predict.iterate_descent(operator(), given(CLASSES), 0.1, 3, loss="cross_entropy").train,
    )


# Linearization.


@call_of("ntkdiag.linearize", "ntkdiag.taylor_expand", "ntkdiag.linearized_model")
def taylor_models(given):
    moved = jax.tree.map(jnp.asarray, MOVED)
    return (
        ntkdiag.linearize(f, params())(moved, given(X)),
        ntkdiag.taylor_expand(f, params(), 2)(moved, given(X)),
        ntkdiag.linearized_model(f, params())(moved, given(X)),
    )


@call_of("ntkdiag.linearization_gap")
def linearization_gap(given):
    return ntkdiag.linearization_gap(f, PARAMS, MOVED, given(X)).to_dict()


@call_of("ntkdiag.linearization.last_layer")
def last_layer(given):
    assert ntkdiag.linearization.last_layer(f, params(), given(X)) == ["v"]


# Models.


@call_of(
    "ntkdiag.functionalize",
    "ntkdiag.models.register",
    "ntkdiag.models.labelled",
)
def functionalize(given):
    labels = {"w": "frozen", "b": "frozen", "v": "moving"}
    models.register("a_library_of_nobody", ntkdiag.functionalize)
    fn = ntkdiag.functionalize(f, params(), trainable=models.labelled(labels, "moving"))
    return fn(fn.with_params({"v": MOVED["v"]}).params, X)


@call_of("ntkdiag.selfcheck")
def selfcheck(given):
    assert ntkdiag.selfcheck(f, params(), given(X)).ok


# Training runs.


@call_of("ntkdiag.compare")
def compare(given):
    comparison = ntkdiag.compare(
        PARAMS,
        MOVED,
        model=f,
        train=(given(X), given(CLASSES)),
        held_out=(given(X2), given(CLASSES2)),
        loss="cross_entropy",
        descent=0.1,
    )
    return comparison.a["margin"], comparison.b["margin"], comparison["drift_distance"]


@call_of("ntkdiag.track")
def track(given):
    run = ntkdiag.track(
        enumerate([PARAMS, MOVED]),
        model=f,
        train=(given(X), given(CLASSES)),
        held_out=(given(X2), given(CLASSES2)),
        loss="cross_entropy",
        descent=0.1,
    )
    return run.matrix("distance"), run.matrix("e1"), run.series("margin")


@call_of("ntkdiag.baselines.linear_baseline")
def linear_baseline(given):
    data = (given(X), given(CLASSES), given(X2), given(CLASSES2))
    baseline = baselines.linear_baseline(
        f, data, optax.sgd(0.1), variables=params(), loss="cross_entropy", steps=2
    )
    return baseline.table.to_numpy(), baseline.gap.e1.values


@call_of("ntkdiag.baselines.gap_over_training", "ntkdiag.baselines.first_beyond")
def gap_over_training(given):
    data = (given(X), given(Y), given(X2), given(Y2))
    history = baselines.gap_over_training(f, params(), data, optax.sgd(0.1), loss="mse", steps=2)
    return history.e1.values, baselines.first_beyond(history, 0.1)


@call_of(
    "ntkdiag.watch",
    "ntkdiag.record",
    "ntkdiag.unwatch",
    "ntkdiag.rewatch",
)
def watch(given):
    probe = {"train": (given(X), given(CLASSES)), "loss": "cross_entropy"}
    tx = ntkdiag.watch(optax.sgd(0.1, momentum=0.9), f, every=1, top_k=2, **probe)
    state = tx.init(params())
    _, state = jax.jit(tx.update)(params(), state, params())
    numbers = ntkdiag.record(state)
    inner = ntkdiag.unwatch(state)
    again = ntkdiag.rewatch(tx, inner, params())
    return numbers["eigenvalues"], numbers["margin"], ntkdiag.unwatch(again)


@call_of("ntkdiag.monitor.measure")
def measure(given):
    measured = ntkdiag.monitor.measure(
        f, train=(given(X), given(CLASSES)), loss="mse", optimizer=optax.sgd(0.1)
    )
    updates, state = optax.sgd(0.1).update(params(), optax.sgd(0.1).init(params()), params())
    return jax.jit(measured)(params(), state, updates)


@call_of(
    "ntkdiag.Monitor",
    "ntkdiag.monitor.RunLog",
    "ntkdiag.monitor.InMemory",
    "ntkdiag.monitor.scalars_of",
    "ntkdiag.open_run",
    "ntkdiag.monitor.log_spaced",
)
def monitor(given):
    memory = ntkdiag.monitor.InMemory()
    with tempfile.TemporaryDirectory() as folder:
        for schedule in (
            2,
            ntkdiag.monitor.log_spaced,
        ):
            hook = ntkdiag.Monitor(
                f,
                train=(given(X), given(CLASSES)),
                held_out=(given(X2), given(CLASSES2)),
                every=schedule,
                instruments="kernel",
                top_k=2,
                loss="mse",
                writers=[memory, ntkdiag.monitor.RunLog(folder, name="log")],
            )
            hook(0, params())
            hook.close()
        rows = ntkdiag.open_run(folder).rows("log")
    traces = [ntkdiag.monitor.scalars_of(row)["trace"] for row in rows]
    return traces, memory.series("alignment")


@call_of("ntkdiag.load_params", "ntkdiag.checkpoints.new_steps")
def load_params(given):
    import orbax.checkpoint as ocp

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder).resolve() / "7"
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path, params())
        [(_, finished)] = ntkdiag.checkpoints.new_steps(path.parent, patience=0.01)
        return ntkdiag.load_params(finished)


# The calls of neural-tangents.


@call_of(
    "ntkdiag.neural_tangents.empirical_ntk_fn",
    "ntkdiag.neural_tangents.empirical_nngp_fn",
    "ntkdiag.neural_tangents.empirical_kernel_fn",
    "ntkdiag.neural_tangents.batch",
)
def empirical(given):
    ntk_fn = neural_tangents.empirical_ntk_fn(f)
    return (
        ntk_fn(given(X), given(X2), params()),
        neural_tangents.empirical_nngp_fn(f)(given(X), None, params()),
        neural_tangents.empirical_kernel_fn(f)(given(X), None, "ntk", params()),
        neural_tangents.batch(ntk_fn, 2)(given(X), None, params()),
    )


@call_of("ntkdiag.neural_tangents.PerInput", "ntkdiag.neural_tangents.Shared")
def per_input(given):
    scaled = lambda p, x, scale: f(p, x) * scale
    ntk_fn = neural_tangents.empirical_ntk_fn(scaled)
    half, one = jnp.float32(0.5), jnp.float32(1)
    return (
        ntk_fn(given(X), given(X2), params(), scale=neural_tangents.PerInput(half, one)),
        ntk_fn(given(X), given(X2), params(), scale=neural_tangents.Shared(half)),
    )


@call_of("ntkdiag.neural_tangents.empirical_ntk_vp_fn")
def vector_products(given):
    return neural_tangents.empirical_ntk_vp_fn(f, given(X), None, params())(given(Y))


@call_of("ntkdiag.neural_tangents.linearize", "ntkdiag.neural_tangents.taylor_expand")
def expansions(given):
    moved = jax.tree.map(jnp.asarray, MOVED)
    return (
        neural_tangents.linearize(f, params())(moved, given(X)),
        neural_tangents.taylor_expand(f, params(), 2)(moved, given(X)),
    )


@call_of(
    "ntkdiag.neural_tangents.predict.gradient_descent_mse",
    "ntkdiag.neural_tangents.predict.gradient_descent",
    "ntkdiag.neural_tangents.predict.max_learning_rate",
)
def dynamics(given):
    of_mse = neural_tangents.predict.gradient_descent_mse(given(matrix()), given(Y))
    flow = neural_tangents.predict.gradient_descent(
        lambda fx, y: 0.5 * jnp.square(fx - y).mean(), given(matrix()), given(Y)
    )
    return (
        of_mse(1.0, given(outputs())),
        flow(1.0, given(outputs())),
        neural_tangents.predict.max_learning_rate(given(matrix()), Y.size),
    )


def groups():
    """The calls, each once, under the first of its names."""
    names = collections.defaultdict(list)
    for name, call in CALLS.items():
        names[call].append(name)
    return {of_call[0]: call for call, of_call in names.items()}

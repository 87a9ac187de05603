"""Results print numbers as numbers: no array of no axes, no dtype, no name of a library."""

import dataclasses
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from internals import Cost
from public_names import documented, resolve

import ntkdiag
from ntkdiag import analysis, matrix_free, predict
from ntkdiag.linearization import linearization_gap
from ntkdiag.monitor import Estimate

# As a number prints that is an array: Array(1., dtype=float32), array(1.0), np.float64(1.0).
ARRAY = re.compile(r"Array\(|array\(|np\.\w+\(|dtype=")


def f(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]


def results():
    """One of each public result, in arrays of JAX where that is what the package returns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 3)).astype(np.float32)
    y = np.arange(6) % 2
    a, b = (
        {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        for shapes in [{"w": (3, 4), "v": (4, 2)}] * 2
    )
    kernel = ntkdiag.ntk(f, a, x)
    targets = np.eye(2, dtype=np.float32)[y]
    compared = ntkdiag.compare(a, b, model=f, train=(x, y), loss="mse", descent=0.1)
    operator = ntkdiag.NTKOperator(f, a, x)
    return [
        kernel,
        ntkdiag.spectrum(kernel),
        ntkdiag.plan(f, a, x),
        ntkdiag.top_spectrum(operator, 2),
        matrix_free.least_squares(operator, targets, ridge=0.1),
        analysis.drift(compared.a.kernel, compared.b.kernel),
        analysis.alignment(kernel, y),
        analysis.modes(kernel, y, descent=0.1),
        analysis.leave_one_out(kernel, targets, 0.1),
        analysis.noise_scale(np.eye(8) + 1),
        predict.gradient_flow(kernel, targets),
        linearization_gap(f, a, b, x),
        ntkdiag.Descent(jnp.float32(0.1)),
        ntkdiag.losses.MSE(jnp.float32(3.0)),
        ntkdiag.losses.CrossEntropy(np.float64(3.0)),
        ntkdiag.monitor.Measurement(
            jnp.int32(0),
            jnp.int32(1),
            {"eigenvalues": Estimate.exact(jnp.ones(3)), "trace": Estimate.exact(1.0)},
        ),
        Cost(np.float32(0.02), setup_seconds=1.5),
        compared,
        compared.a,
        compared.prediction,
        compared.verdict,
        compared.movement[0],
    ]


@pytest.mark.slow
def test_numbers_print_as_numbers():
    printed = {type(result).__name__: (repr(result), str(result)) for result in results()}
    wrong = {name: texts for name, texts in printed.items() if any(map(ARRAY.search, texts))}
    assert not wrong


def test_results_that_hold_arrays_write_their_own_line():
    """What the API pages describe and holds arrays: none is left to the default of dataclasses."""
    defaults = []
    for name in documented():
        value = resolve(name)
        if not (inspect.isclass(value) and dataclasses.is_dataclass(value)):
            continue
        holds_arrays = any(
            re.search("Array|ndarray|Scalar|Number", str(field.type))
            for field in dataclasses.fields(value)
        )
        # The default has no file; ours may be wrapped by a type checker.
        file = inspect.unwrap(value.__repr__).__code__.co_filename
        if holds_arrays and file == "<string>":
            defaults.append(name)
    assert defaults == []


def test_inside_a_trace_there_are_no_numbers_to_print():
    seen = []
    jax.jit(lambda rule: seen.append(repr(rule)))(ntkdiag.Descent(0.1))
    assert seen[0].startswith("Descent(learning_rate=traced, ")

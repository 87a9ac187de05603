"""How much code one cold kernel passes through: what a reader of the engine has to know."""

import pathlib
import sys

import jax
import jax.numpy as jnp

import ntkdiag

PACKAGE = pathlib.Path(ntkdiag.__file__).parent


def network(p, x):
    return jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def test_files_and_functions_of_a_cold_kernel():
    shapes = {"w1": (5, 8), "b1": (8,), "w2": (8, 3), "b2": (3,)}
    params = {name: jnp.ones(shape) for name, shape in shapes.items()}
    x = jnp.ones((16, 5))
    ntkdiag.ntk(lambda p, x: x @ p["w1"], params, x)  # imports, and what is found out once
    passed = set()

    def note(frame, event, _):
        code = frame.f_code
        is_ours = code.co_filename.startswith(str(PACKAGE))
        # Comprehensions and lambdas are parts of the function they stand in.
        if event == "call" and is_ours and not code.co_name.startswith("<"):
            passed.add((code.co_filename, code.co_qualname))

    sys.setprofile(note)
    try:
        jax.block_until_ready(ntkdiag.ntk(network, params, x).array)
    finally:
        sys.setprofile(None)
    assert len({file for file, _ in passed}) <= 29
    assert len(passed) <= 240

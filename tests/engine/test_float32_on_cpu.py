"""XLA on CPU miscompiles float32 backward passes of normalisation layers at some shapes; our kernels are right."""

import jax.numpy as jnp
import numpy as np
import pytest
import reference
from jax import lax
from reference import assert_close

import ntkdiag
from ntkdiag.jaxtools import cpu


def rms(h):
    return h * lax.rsqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-6)


def test_kernel_of_a_normalised_network():
    rng = np.random.default_rng(0)
    draw = lambda *s: jnp.asarray(rng.normal(size=s) / np.sqrt(s[0]), jnp.float32)
    params = {"w": draw(32, 32), "scale": 1 + draw(32), "v": draw(32, 10)}

    def f(p, x):
        h = rms(jnp.tanh(rms(x) * p["scale"]) @ p["w"])
        return jnp.tanh(h).mean(1) @ p["v"]

    x = draw(2, 256, 32)
    assert_close(
        ntkdiag.ntk(f, params, x, reduction="full"), reference.ntk(f, params, x), np.float32
    )


def test_the_chosen_options_pass_the_known_answer_test():
    for once in (False, True):
        options = cpu.trusted_cpu_options(once=once)
        assert options is not None, "no set of XLA options computes the known answer here"
        assert cpu.passes_known_answer_test(options, once=once)


@pytest.fixture
def forget():
    cpu.warn_untrusted.cache_clear()
    yield
    cpu.warn_untrusted.cache_clear()


@pytest.mark.parametrize(
    ("trusted", "message"),
    [
        ({"xla_cpu_x": ""}, "Set XLA_FLAGS=.* or measure outside your jit with ntkdiag.Monitor"),
        (None, "Use float64"),
    ],
)
def test_inside_a_users_jit_it_warns_once(trusted, message, forget, monkeypatch):
    monkeypatch.setattr(cpu, "trusted_cpu_options", lambda **_: trusted)
    with pytest.warns(RuntimeWarning, match=message):
        cpu.warn_if_untrusted_jit()
    cpu.warn_if_untrusted_jit()  # the second time nothing is said


def test_what_runs_once_has_a_test_of_its_own(forget, monkeypatch):
    monkeypatch.setattr(cpu, "trusted_cpu_options", lambda once=False: None if once else {})
    with pytest.warns(RuntimeWarning, match="Use float64"):
        cpu.compiler_options(reduces=True, once=True)

"""XLA on CPU miscompiles float32 backward passes of normalisation layers at some shapes; our kernels are right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from jax import lax
from tolerance import assert_close

import ntkdiag
from ntkdiag.jaxtools import cpu


def rms(h):
    return h * lax.rsqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-6)


def layer(h):
    return rms(h - h.mean(-1, keepdims=True))


@pytest.mark.parametrize(
    ("shape", "norm"),
    [
        ((2, 256, 32), rms),
        pytest.param((10, 32, 32, 3), layer, marks=pytest.mark.slow),
    ],
)
def test_kernel_of_a_normalised_network(shape, norm):
    rng = np.random.default_rng(0)
    draw = lambda *s: jnp.asarray(rng.normal(size=s) / np.sqrt(s[0]), jnp.float32)
    params = {
        "w": draw(shape[-1], shape[-1]),
        "scale": 1 + draw(shape[-1]),
        "v": draw(shape[-1], 10),
    }

    def f(p, x):
        h = norm(jnp.tanh(norm(x) * p["scale"]) @ p["w"])
        return jnp.tanh(h).mean(tuple(range(1, x.ndim - 1))) @ p["v"]

    x = draw(*shape)
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


def test_networks_without_normalisation_are_not_asked_about(monkeypatch):
    def known_answers():
        raise AssertionError("the known-answer test takes time")

    monkeypatch.setattr(cpu, "trusted_cpu_options", known_answers)
    cpu.warn_if_untrusted_jit(lambda: False)


def test_options_only_for_float32_programs_that_reduce(monkeypatch):
    monkeypatch.setattr(cpu, "trusted_cpu_options", lambda **_: {"xla_cpu_x": ""})
    level = {"xla_backend_optimization_level": "1"}
    assert cpu.compiler_options(reduces=True) == {**level, "xla_cpu_x": ""}
    assert cpu.compiler_options(reduces=False) == level
    assert jax.default_backend() == "cpu"


def test_how_hard_the_compiler_tries():
    assert cpu.compiler_options(reduces=False) == {"xla_backend_optimization_level": "1"}
    least = cpu.compiler_options(reduces=False, once=True)
    former_emitters = (
        {} if jax.__version_info__ >= (0, 11) else {"xla_cpu_use_fusion_emitters": False}
    )
    assert least == {"xla_backend_optimization_level": "0", **former_emitters}
    program = jax.jit(lambda x: (jnp.sin(x) ** 2).sum(), compiler_options=least)
    assert float(program(jnp.zeros(7))) == 0.0  # this XLA knows the options

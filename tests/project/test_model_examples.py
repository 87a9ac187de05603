"""The models people use, as examples: short, right by the self-check, of the published size when they are large."""

import importlib.util
import pathlib

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from test_examples import MODELS

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
# Arguments for a test, and what is printed beside the self-check.
TINY = {
    "resnet18_linen": ((2, 8), "train 0.000 from the last"),
    "gpt_nnx": ((16, 1, 16), "last token: Kernel(float32[6, 6]"),
    "equinox_transformer": ((16, 2, 16), "Spectrum(6 eigenvalues"),
}


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_model_is_run():
    assert TINY.keys() == MODELS


@pytest.mark.parametrize("name", TINY)
def test_models_are_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 80


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_models_are_right_by_the_selfcheck(name, capsys):
    arguments, printed = TINY[name]
    example(name).main(*arguments)
    out = capsys.readouterr().out
    assert ": nothing is wrong  (" in out, out
    assert printed in out, out


def count(tree):
    return sum(
        leaf.size
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(getattr(leaf, "dtype", int), jnp.floating)
    )


@pytest.mark.slow
def test_models_have_the_published_numbers_of_parameters():
    resnet = jax.eval_shape(lambda: example("resnet18_linen").case(64, 32)["variables"]["params"])
    assert count(resnet) == 11_173_962  # ResNet-18 for CIFAR-10
    gpt = nnx.eval_shape(lambda: example("gpt_nnx").GPT(768, 12, 50257, 1024, nnx.Rngs(0)))
    factors = count(nnx.state(gpt, nnx.LoRAParam))
    assert count(nnx.state(gpt, nnx.Param)) - factors == 124_439_808  # GPT-2 small
    transformer = eqx.filter_eval_shape(
        lambda: example("equinox_transformer").case(32, 2, 64)["model"]
    )
    assert count(transformer.tied) == 64 * 32  # once

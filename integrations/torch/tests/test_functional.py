"""What `functionalize` of a module holds, gives back and refuses."""

import copy
import importlib.metadata
import pathlib
import runpy

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from modules import MLP, ConvNet, Frozen, Tied, trained

import ntkdiag
from ntkdiag.errors import InvalidInputError, UnsupportedModelError

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
IMAGES = np.random.default_rng(1).normal(size=(6, 2, 4, 4)).astype(np.float32)


def outputs(module, x):
    return module(torch.as_tensor(x)).detach().numpy()


def close(a, b, tolerance=1e-5):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_entry_points():
    [adapter] = importlib.metadata.entry_points(group="ntkdiag.models", name="torch")
    assert adapter.value == "ntkdiag_torch:functionalize"
    suffixes = {
        entry.name for entry in importlib.metadata.entry_points(group="ntkdiag.checkpoints")
    }
    assert suffixes >= {"pt", "pth", "bin", "ckpt"}


def test_parameters_apart_from_buffers():
    module = trained(ConvNet())
    fn = ntkdiag.functionalize(module)
    assert (fn.library, fn.name, fn.mode, fn.joint) == ("torch", "ConvNet", "eval", False)
    assert set(fn.params) == {
        "body/0/weight",
        "body/1/weight",
        "body/1/bias",
        "head/weight",
        "head/bias",
    }
    assert set(fn.fixed) == {
        "body/1/running_mean",
        "body/1/running_var",
        "body/1/num_batches_tracked",
    }
    assert fn.fixed["body/1/num_batches_tracked"].dtype == np.int64
    assert "mode=eval, trainable: 5 leaves with 131 float32 parameters, fixed: 3 leaves" in repr(fn)


def test_the_module_is_not_touched_and_does_not_show_through():
    module = trained(ConvNet())
    before = copy.deepcopy(module)
    fn = ntkdiag.functionalize(module)
    expected = outputs(before.eval(), IMAGES)
    close(fn(fn.params, IMAGES), expected)
    assert module.training
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before.state_dict()[name])
    with torch.no_grad():  # training goes on, in place
        for tensor in module.parameters():
            tensor.add_(1.0)
    module(torch.randn(8, 2, 4, 4))
    close(fn(fn.params, IMAGES), expected)


def test_restore_and_extract():
    module = trained(ConvNet())
    fn = ntkdiag.functionalize(module)
    doubled = jax.tree.map(lambda leaf: 2 * leaf, fn.params)
    restored = fn.restore(doubled)
    assert isinstance(restored, ConvNet)
    assert restored.training
    close(outputs(restored.eval(), IMAGES), fn(doubled, IMAGES))
    for source in (restored, restored.state_dict()):
        extracted = fn.extract(source)
        jax.tree.map(np.testing.assert_array_equal, extracted, doubled)
    assert torch.equal(restored.body[1].running_mean, module.body[1].running_mean)


def test_what_is_trained():
    module = Frozen()
    fn = ntkdiag.functionalize(module)
    assert set(fn.params) == {"head/weight", "head/bias"}
    assert set(fn.fixed) == {"hidden/weight", "hidden/bias"}
    assert not fn.restore(fn.params).hidden.weight.requires_grad
    bias = ntkdiag.functionalize(module, trainable="*/bias")
    assert set(bias.params) == {"head/bias", "hidden/bias"}
    # No choice takes in buffers.
    everything = ntkdiag.functionalize(ConvNet(), trainable="**")
    assert set(everything.fixed) == set(ntkdiag.functionalize(ConvNet()).fixed)


def test_shared_weights_are_there_once():
    fn = ntkdiag.functionalize(Tied())
    assert list(fn.params) == ["embed/weight"]
    assert fn.aliases == {"read/weight": "embed/weight"}
    restored = fn.restore(jax.tree.map(lambda leaf: leaf + 1, fn.params))
    assert restored.read.weight is restored.embed.weight
    extracted = fn.extract(restored.state_dict())
    close(extracted["embed/weight"], fn.params["embed/weight"] + 1)


def test_inputs_output_and_arguments():
    class Two(MLP):
        def forward(self, x, scale=1.0, flip=False):
            y = super().forward(x) * scale
            return {"logits": -y if flip else y, "nothing": None, "rest": (x,)}

    module = Two()
    fn = ntkdiag.functionalize(
        module, inputs="x", output="logits", call_kwargs={"flip": True, "scale": 2.0}
    )
    expected = -2 * module(torch.tensor(X))["logits"].detach().numpy()
    close(fn(fn.params, {"x": X, "labels": np.arange(6)}), expected)


@pytest.mark.usefixtures("x64")
def test_dtypes_stay():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        module = MLP().to(dtype)
        fn = ntkdiag.functionalize(module)
        dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(fn.params)}
        assert dtypes == {str(dtype).removeprefix("torch.")}
        x = torch.tensor(X).to(dtype)
        expected = module(x).detach().float().numpy()
        for of_torch in (x, jnp.asarray(X, fn.params["head/bias"].dtype)):
            got = np.asarray(fn(fn.params, of_torch), np.float32)
            np.testing.assert_allclose(got, expected, atol=0.02)
        assert fn.restore(fn.params).head.weight.dtype == dtype
    assert fn.params["head/bias"].dtype == ml_dtypes.bfloat16


def test_what_a_compiled_module_wraps():
    module = MLP()
    fn = ntkdiag.functionalize(torch.compile(module, backend="eager"))
    close(fn(fn.params, X), outputs(module, X))


def with_nan():
    module = MLP()
    with torch.no_grad():
        module.head.bias[1] = float("nan")
    return module


REFUSED = {
    "frozen": (
        lambda: MLP().requires_grad_(False),
        {},
        InvalidInputError,
        ("at least one trainable floating parameter", "hidden/weight", "`trainable=`"),
    ),
    "float64": (
        lambda: MLP().double(),
        {},
        InvalidInputError,
        ("JAX to have float64", "float64 in hidden/weight", "jax.config.update"),
    ),
    "NaN": (with_nan, {}, InvalidInputError, ("NaN or infinity in head/bias", "check=False")),
    "scripted": (
        lambda: scripted(),
        {},
        UnsupportedModelError,
        ("a torch.nn.Module in Python", "that which it was made of"),
    ),
    "variables": (
        MLP,
        {"variables": {"a": 1}},
        InvalidInputError,
        ("the module alone", "a second argument, dict", "fn.with_params(fn.extract(...))"),
    ),
}


def scripted():
    with pytest.warns(DeprecationWarning, match="torch.jit.script"):
        return torch.jit.script(MLP())


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_names_the_fix(case):
    make, options, kind, parts = REFUSED[case]
    with pytest.raises(kind) as caught:
        ntkdiag.functionalize(make(), **options)
    for part in parts:
        assert part in str(caught.value)
    assert str(caught.value).startswith("functionalize(")


def test_a_module_on_another_device_comes_to_the_host(monkeypatch):
    """CUDA is not here: what stands in for it is a device that copies to the host by `cpu`."""
    moved = []
    original = torch.nn.Module.cpu
    monkeypatch.setattr(torch.nn.Module, "cpu", lambda self: moved.append(1) or original(self))
    fn = ntkdiag.functionalize(MLP())
    assert moved
    assert all(isinstance(leaf, jax.Array) for leaf in fn.params.values())


def test_the_example_runs(capsys):
    example = pathlib.Path(__file__).parents[1] / "examples" / "train_and_compare.py"
    runpy.run_path(str(example))
    printed = capsys.readouterr().out
    assert "Functional(torch Sequential, mode=eval, trainable: 6 leaves" in printed
    assert "step 40: trace" in printed

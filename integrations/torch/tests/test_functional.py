"""What `functionalize` of a module holds, gives back and refuses."""

import copy
import dataclasses
import importlib.metadata

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from modules import MLP, Attention, ConvNet, Frozen, Tied, kernel, trained
from torch import nn

import ntkdiag
from ntkdiag.errors import InvalidInputError, UnsupportedModelError
from ntkdiag.models.in_training import in_training, with_statistics_of

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
    assert fn.has_batch_statistics
    paths = ntkdiag.models.paths.leaves_by_path(fn.params)
    assert set(paths) == {
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


def test_frozen_parameters_are_held_fixed():
    module = Frozen()
    fn = ntkdiag.functionalize(module)
    assert set(fn.params) == {"head"}
    assert set(fn.fixed) == {"hidden/weight", "hidden/bias"}
    assert not fn.restore(fn.params).hidden.weight.requires_grad
    everything = ntkdiag.functionalize(module, trainable="**")
    assert set(everything.params) == {"head", "hidden"}
    module.hidden.requires_grad_(True)
    got = ntkdiag.ntk(*everything, X, reduction="full").array
    close(got, kernel(module, torch.tensor(X)), 1e-4)
    bias = ntkdiag.functionalize(module, trainable="*/bias")
    assert list(ntkdiag.models.paths.leaves_by_path(bias.params)) == ["head/bias", "hidden/bias"]


def test_shared_weights_are_there_once():
    fn = ntkdiag.functionalize(Tied())
    assert list(ntkdiag.models.paths.leaves_by_path(fn.params)) == ["embed/weight"]
    assert fn.aliases == {"read/weight": "embed/weight"}
    restored = fn.restore(jax.tree.map(lambda leaf: leaf + 1, fn.params))
    assert restored.read.weight is restored.embed.weight
    close(fn.extract(restored.state_dict())["embed"]["weight"], fn.params["embed"]["weight"] + 1)


@pytest.mark.parametrize("via", ["torchax", "torch.func"])
def test_other_running_statistics(via):
    module = trained(ConvNet())
    fn = ntkdiag.functionalize(module, via=via)
    mean = fn.fixed["body/1/running_mean"] + 1
    moved = fn.with_fixed({"body/1/running_mean": mean})
    module.body[1].running_mean += 1
    close(moved(moved.params, IMAGES), outputs(module.eval(), IMAGES))
    assert abs(moved(fn.params, IMAGES) - fn(fn.params, IMAGES)).max() > 0.01
    assert not np.allclose(fn.fixed["body/1/running_mean"], mean)


def test_frozen_values_are_among_the_fixed_arrays():
    fn = ntkdiag.functionalize(Frozen())
    moved = fn.with_fixed({"hidden/bias": fn.fixed["hidden/bias"] + 1})
    close(moved(fn.params, X), outputs(moved.restore(fn.params), X))
    assert abs(moved(fn.params, X) - fn(fn.params, X)).max() > 0.01


def without_dropout(module):
    module.drop.p = 0.0
    return module


@pytest.mark.parametrize("via", ["torchax", "torch.func"])
def test_train_mode_normalises_by_the_batch(via):
    module = without_dropout(trained(ConvNet()))
    expected = outputs(copy.deepcopy(module).train(), IMAGES)
    fn = ntkdiag.functionalize(module, mode="train", via=via)
    assert (fn.joint, fn.mode) == (True, "train")
    close(fn(fn.params, IMAGES), expected)
    module.drop.p = 0.5
    trained_fn = in_training(ntkdiag.functionalize(module, via=via))
    assert trained_fn.mode == "train, no dropout"
    close(trained_fn(trained_fn.params, IMAGES), expected)
    got = ntkdiag.ntk(*trained_fn, IMAGES[:3], reduction="full").array
    without_dropout(module).double().train()
    params = list(module.parameters())
    rows = []
    for output in module(torch.tensor(IMAGES[:3]).double()).flatten():
        grads = torch.autograd.grad(output, params, retain_graph=True)
        rows.append(torch.cat([grad.flatten() for grad in grads]))
    rows = torch.stack(rows)
    close(np.reshape(got, (9, 9)), (rows @ rows.T).numpy(), 1e-3)


@pytest.mark.parametrize("via", ["torchax", "torch.func"])
def test_statistics_of_a_batch(via):
    module = without_dropout(trained(ConvNet()))
    expected = outputs(copy.deepcopy(module).train(), IMAGES)
    fixed = ntkdiag.functionalize(module, mode="train", statistics=IMAGES, via=via)
    assert (fixed.joint, fixed.mode) == (False, "train, fixed statistics")
    close(fixed(fixed.params, IMAGES), expected)
    fn = ntkdiag.functionalize(module, via=via)
    close(jax.jit(with_statistics_of(fn, IMAGES))(fn.params, IMAGES), expected)


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
        for of_torch in (x, jnp.asarray(X, fn.params["head"]["bias"].dtype)):
            got = np.asarray(fn(fn.params, of_torch), np.float32)
            np.testing.assert_allclose(got, expected, atol=0.02)
        assert fn.restore(fn.params).head.weight.dtype == dtype
    assert fn.params["head"]["bias"].dtype == ml_dtypes.bfloat16


def test_what_a_compiled_module_wraps():
    module = MLP()
    fn = ntkdiag.functionalize(torch.compile(module, backend="eager"))
    close(fn(fn.params, X), outputs(module, X))


def test_half_precision_by_torch_func():
    module = MLP().to(torch.bfloat16)
    fn = ntkdiag.functionalize(module, via="torch.func")
    expected = module(torch.tensor(X).to(torch.bfloat16)).detach().float().numpy()
    got = np.asarray(fn(fn.params, jnp.asarray(X, jnp.bfloat16)), np.float32)
    np.testing.assert_allclose(got, expected, atol=0.02)


class BuffersOnly(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.ones(3))


def complex_module():
    module = MLP()
    module.head.weight = nn.Parameter(torch.zeros(3, 8, dtype=torch.complex64))
    return module


def with_nan():
    module = MLP()
    with torch.no_grad():
        module.head.bias[1] = float("nan")
    return module


def of_cuda(tensor):
    """What PyTorch says when a tensor on CUDA is asked for its numbers."""

    def refuse(*args, **kwargs):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the "
            "tensor to host memory first."
        )

    class OnCuda:
        shape = tensor.shape
        __array__ = refuse

    return OnCuda()


REFUSED = {
    "buffers only": (
        BuffersOnly,
        {},
        InvalidInputError,
        ("a module with parameters", "buffers only: table", "Make what is trained an nn.Parameter"),
    ),
    "frozen": (
        lambda: MLP().requires_grad_(False),
        {},
        InvalidInputError,
        ("parameters with requires_grad", "frozen ones only: hidden.weight", 'trainable="**"'),
    ),
    "lazy": (
        lambda: nn.LazyLinear(3),
        {},
        InvalidInputError,
        ("initialised parameters", "without a shape: weight, bias", "Call the module once"),
    ),
    "meta": (
        lambda: MLP().to("meta"),
        {},
        InvalidInputError,
        ("tensors with values", "hidden.weight on the device meta", 'to_empty(device="cpu")'),
    ),
    "float64": (
        lambda: MLP().double(),
        {},
        InvalidInputError,
        (
            "JAX to have float64, as the module does",
            "jax_enable_x64=False and float64 in hidden.weight",
            'jax.config.update("jax_enable_x64", True); or pass copy.deepcopy(module).float()',
        ),
    ),
    "complex": (
        complex_module,
        {},
        InvalidInputError,
        ("a real floating dtype", "head/weight: complex64[3, 8]", "real and imaginary parts"),
    ),
    "NaN": (
        with_nan,
        {},
        InvalidInputError,
        ("finite parameters", "NaN or infinity in head/bias", "check=False"),
    ),
    "scripted": (
        lambda: scripted(),
        {},
        UnsupportedModelError,
        ("a torch.nn.Module in Python", "a scripted module", "Pass the module that it was made of"),
    ),
    "tensor": (
        lambda: torch.ones(3),
        {},
        UnsupportedModelError,
        ("a torch.nn.Module", "got Tensor", "Pass an instance of a module"),
    ),
    "dropout mode": (
        ConvNet,
        {"mode": "dropout"},
        InvalidInputError,
        ('mode="eval", or mode="train" of a module without dropout', "mode='dropout' and drop"),
    ),
    "dropout in training": (
        Attention,
        {"mode": "train"},
        InvalidInputError,
        (
            "PyTorch draws masks from a generator",
            "mode='train' and block.",
            "set the probabilities",
        ),
    ),
    "no statistics": (
        MLP,
        {"mode": "train", "statistics": X},
        InvalidInputError,
        ("a model with the library's own BatchNorm",),
    ),
    "variables": (
        MLP,
        {"variables": {"a": 1}},
        InvalidInputError,
        ("the module alone", "a second argument, dict", "fn.with_params(fn.extract(...))"),
    ),
    "way": (MLP, {"via": "xla"}, InvalidInputError, ('via="auto" or via="torchax"', "via='xla'")),
    "option": (MLP, {"rng": 1}, InvalidInputError, ("no option of a single library", "rng=")),
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


@pytest.mark.parametrize(
    ("x", "parts"),
    [
        (torch.ones(3, 4, requires_grad=True), ("`x` as an array of numbers", "tensor.detach()")),
        (of_cuda(torch.ones(3, 4)), ("`x` as an array of numbers", "cuda:0", "Use Tensor.cpu()")),
        (torch.ones(3, 4).to_sparse(), ("a sparse Tensor", "Make it dense first")),
        ([object()], ("`x[0]` as an array of numbers", "Pass a NumPy or JAX array of numbers")),
    ],
)
def test_inputs_that_are_refused(x, parts):
    with pytest.raises(InvalidInputError) as caught:
        ntkdiag.ntk(*ntkdiag.functionalize(MLP()), x)
    for part in parts:
        assert part in str(caught.value)


class OfTensorFlow:
    """A tensor of another framework, as it shows itself: `__array__`, and no more."""

    shape = X.shape

    def __array__(self, dtype=None, copy=None):
        return X


@pytest.mark.parametrize("x", [X, jnp.asarray(X), torch.tensor(X), OfTensorFlow()])
def test_arrays_of_other_frameworks(x):
    fn = ntkdiag.functionalize(MLP())
    close(ntkdiag.ntk(*fn, x).array, ntkdiag.ntk(*fn, X).array)


def test_a_module_on_another_device_comes_to_the_host(monkeypatch):
    """CUDA is not here: what stands in for it is a device that copies to the host by `cpu`."""
    moved = []
    original = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: moved.append(1) or original(self))
    fn = ntkdiag.functionalize(MLP())
    assert len(moved) >= 4
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(fn.params))


@pytest.mark.slow
def test_selfcheck_and_monitor():
    module = trained(ConvNet())
    fn = ntkdiag.functionalize(module)
    assert ntkdiag.selfcheck(fn, IMAGES).ok
    y = np.arange(6) % 3
    with ntkdiag.Monitor(fn, train=(IMAGES, y), loss="cross_entropy", every=1) as monitor:
        measured = monitor(0, fn.params)
    assert measured is not None
    assert float(measured.trace) > 0


def test_the_convention_says_so():
    kernel = ntkdiag.ntk(*ntkdiag.functionalize(MLP(), via="torch.func"), X)
    assert dataclasses.asdict(kernel.convention)["backend"] == "torch.func"

"""state_dicts in files of PyTorch and of safetensors: read, and compared."""

import zipfile

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.torch
import torch
from modules import MLP, ConvNet, Tied, trained

import ntkdiag
from ntkdiag.checkpoints import load_params
from ntkdiag.errors import CheckpointError

X = np.random.default_rng(1).normal(size=(6, 2, 4, 4)).astype(np.float32)
LABELS = np.arange(6) % 3
# How a state_dict is written, by the suffix of the file.
SAVERS = {
    ".pt": torch.save,
    ".safetensors": lambda tree, path: safetensors.torch.save_file(dict(tree), path),
}


def two_modules():
    """A module, and the same after training went on: parameters and running statistics moved."""
    a = trained(ConvNet())
    b = trained(ConvNet())
    with torch.no_grad():
        for of_a, of_b in zip(a.parameters(), b.parameters(), strict=True):
            of_b.copy_(of_a + 0.05 * torch.randn_like(of_a))
    return a, b


def outputs(module, x=X):
    return module.eval()(torch.as_tensor(x)).detach().numpy()


@pytest.mark.parametrize("suffix", SAVERS)
def test_each_side_has_its_own_running_statistics(tmp_path, suffix):
    a, b = two_modules()
    paths = [str(tmp_path / f"{name}{suffix}") for name in "ab"]
    for module, path in zip((a, b), paths, strict=True):
        SAVERS[suffix](module.state_dict(), path)
    model = ConvNet() if suffix == ".pt" else ntkdiag.functionalize(ConvNet())
    found = ntkdiag.compare(*paths, model=model, train=(X, LABELS), loss="cross_entropy")
    np.testing.assert_allclose(found.a.outputs, outputs(a), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.b.outputs, outputs(b), rtol=1e-5, atol=1e-5)
    assert set(found.fixed_arrays) >= {"body/1/running_mean", "body/1/running_var"}
    assert set(found.dataset["leaf"].values) >= {"body/0/weight", "head/bias"}


def test_shared_weights(tmp_path):
    x = np.random.default_rng(0).integers(0, 7, size=(5, 5))
    a, b = Tied(), Tied()
    paths = []
    for name, module in (("a", a), ("b", b)):
        paths.append(tmp_path / f"{name}.safetensors")
        safetensors.torch.save_model(module, paths[-1])
    found = ntkdiag.compare(*paths, model=Tied(), train=(x, None))
    np.testing.assert_allclose(found.a.outputs, outputs(a, x), rtol=1e-5)
    np.testing.assert_allclose(found.b.outputs, outputs(b, x), rtol=1e-5)


def test_bfloat16(tmp_path):
    state = MLP().to(torch.bfloat16).state_dict()
    torch.save(state, tmp_path / "a.pt")
    safetensors.torch.save_file(state, tmp_path / "a.safetensors")
    read = load_params(tmp_path / "a.pt")
    assert read["head"]["bias"].dtype == ml_dtypes.bfloat16
    jax.tree.map(np.testing.assert_array_equal, read, load_params(tmp_path / "a.safetensors"))
    expected = state["head.bias"].float().numpy()
    np.testing.assert_array_equal(read["head"]["bias"].astype(np.float32), expected)


WRAPPED = {
    "model": lambda module: {
        "model": module.state_dict(),
        "optimizer": torch.optim.Adam(module.parameters()).state_dict(),
    },
    "ema": lambda module: {"step": 1, "ema": {"shadow": module.state_dict()}},
}


@pytest.mark.parametrize("form", WRAPPED)
def test_where_the_state_dict_is(tmp_path, form):
    module = MLP()
    path = tmp_path / "train.ckpt"
    torch.save(WRAPPED[form](module), path)
    params = load_params(path, at="ema/shadow" if form == "ema" else None)
    assert sorted(params) == ["head", "hidden"]
    np.testing.assert_array_equal(params["head"]["weight"], module.head.weight.detach())


def test_files_of_former_versions(tmp_path):
    state = trained(ConvNet()).state_dict()
    torch.save(state, tmp_path / "a.bin", _use_new_zipfile_serialization=False)
    read = load_params(tmp_path / "a.bin")
    np.testing.assert_array_equal(read["body"]["1"]["running_var"], state["body.1.running_var"])
    assert read["body"]["1"]["num_batches_tracked"].dtype == np.int64


def test_saved_on_cuda(tmp_path):
    """A file whose tensors say that they lie on CUDA, which is not here."""
    state = MLP().state_dict()
    path = tmp_path / "cuda.pt"
    torch.save(state, path)
    on_cuda = path.read_bytes()
    # The device is a text in the pickle; files of CUDA differ in nothing else.
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    [pickled] = [name for name in entries if name.endswith("data.pkl")]
    entries[pickled] = entries[pickled].replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    assert path.read_bytes() != on_cuda
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(path, weights_only=True)
    np.testing.assert_array_equal(load_params(path)["head"]["bias"], state["head.bias"])


class Made:
    """An object of the user's own."""


REFUSED = {
    "whole module": (
        lambda path: torch.save(MLP(), path),
        ("a pickle of objects that are no tensors", "Save module.state_dict() alone"),
    ),
    "objects": (
        lambda path: torch.save({"state_dict": MLP().state_dict(), "config": Made()}, path),
        ("which would run code to be made", "torch.serialization.add_safe_globals"),
    ),
    "no state_dict": (
        lambda path: torch.save({"a": {"b": 1}, "epoch": 2}, path),
        ("a dictionary of a, epoch, and no state_dict at the top", 'load_params(path, at="ema")'),
    ),
    "damaged": (
        lambda path: path.write_bytes(b"PK\x03\x04 and nothing else"),
        ("a file that ntkdiag_torch.state_dict_file cannot read", "save it again"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_are_refused(tmp_path, case):
    write, parts = REFUSED[case]
    path = tmp_path / "a.pt"
    write(path)
    with pytest.raises(CheckpointError) as caught:
        load_params(path)
    for part in (*parts, str(path)):
        assert part in str(caught.value)

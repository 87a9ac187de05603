"""Checkpoints of older Flax and Orbax: small ones, written once by these.

Flax 0.6.11 with Orbax 0.2.3 and JAX 0.4.13, 0.7.5 with 0.4.4 and 0.4.20, 0.8.5 with 0.5.23 and 0.4.30.
"""

import pathlib
import tarfile

import jax
import numpy as np
import optax
import pytest
from checkpoint_files import assert_same
from internals import read_contents, restored_state

from ntkdiag import load_params

DATA = pathlib.Path(__file__).with_name("data")
# Python 3.11.0 to 3.11.3 have no filters.
SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
# Items of linen without _METADATA, arrays in one file or as Zarr in folders; later with _METADATA and OCDBT.
OF_LINEN = {
    "guide": (False, True),
    "folders": (False, False),
    "mixed": (False, True),
    "manager": (True, True),
    "items": (True, True),
    "flax_with_orbax": (True, True),
    "flax": (True, True),
    "prefixes": (True, True),
}
# Archive -> layout -> whether it is a root of steps 0 and 100, and has the state of the optimizer.
LAYOUTS = {
    "flax-0.6.11": OF_LINEN,
    "flax-0.7.5": OF_LINEN,
    # NNX with a level raw_value, and the model inside the optimizer.
    "flax-0.8.5": {
        "manager": (True, True),
        "model": (False, False),
        "optimizer": (False, True),
        "pair": (False, True),
        "dictionary": (False, True),
    },
}


def params_at(step):
    """What was saved."""
    kernel = np.arange(6, dtype=np.float32).reshape(3, 2) / 10
    return {"bias": np.arange(2, dtype=np.float32) - step, "kernel": kernel + step}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder of all archives, unpacked."""
    folder = tmp_path_factory.mktemp("old")
    for archive in LAYOUTS:
        with tarfile.open(DATA / f"{archive}.tar.gz") as stream:
            stream.extractall(folder, **SAFELY)
    return folder


@pytest.mark.parametrize("archive", LAYOUTS)
def test_parameters_and_the_state_of_the_optimizer(unpacked, archive):
    for layout, (is_root, has_optimizer) in LAYOUTS[archive].items():
        path = unpacked / archive / layout
        for step in (None, 0, 100) if is_root else (None,):
            contents = read_contents(path, step, with_optimizer=True)
            expected = params_at(100 if step is None else step)
            assert_same(contents.params, expected)
            assert contents.collections == {}
            assert_same(load_params(path, step), expected)
            assert (contents.optimizer_state is not None) == has_optimizer
            if has_optimizer:
                restored = restored_state(
                    optax.adam(1e-3), expected, contents.optimizer_state, "it"
                )
                adam = restored.state[0]
                assert adam.count == 1
                gradient = jax.tree.map(lambda leaf: leaf / 10, expected)
                np.testing.assert_allclose(adam.mu["kernel"], 0.1 * gradient["kernel"], rtol=1e-5)
                np.testing.assert_allclose(
                    adam.nu["bias"], 0.001 * gradient["bias"] ** 2, rtol=1e-4
                )


@pytest.mark.parametrize("archive", ["flax-0.6.11", "flax-0.7.5"])
def test_the_folder_of_a_step_of_an_item_and_of_default(unpacked, archive):
    for path in ("manager/0", "manager/0/default", "items/0", "items/0/model"):
        assert_same(load_params(unpacked / archive / path), params_at(0))
    assert_same(load_params(unpacked / archive / "items", 0, at="model"), params_at(0))

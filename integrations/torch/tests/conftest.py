import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest
import torch


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield

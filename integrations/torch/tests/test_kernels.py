"""Kernels of modules against Jacobians by torch.autograd, row by row."""

import jax
import numpy as np
import pytest
import torch
from modules import CASES, MLP, Branching, called, kernel, trained
from torch import nn

import ntkdiag
from ntkdiag.errors import UnsupportedModelError


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("case", CASES)
def test_in_float64(case):
    make, inputs, options = CASES[case]
    module, x = trained(make().double()), inputs(4)
    fn = ntkdiag.functionalize(module, **options)
    outputs = called(module.eval(), x).detach().numpy()
    np.testing.assert_allclose(fn(fn.params, x), outputs, rtol=1e-10, atol=1e-12)
    got = ntkdiag.ntk(*fn, x, reduction="full")
    expected = kernel(module, x)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got.array, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


@pytest.mark.usefixtures("x64")
def test_linearization():
    module, x = MLP().double(), torch.randn(5, 4, dtype=torch.float64)
    fn = ntkdiag.functionalize(module)
    later = jax.tree.map(lambda leaf: 1.1 * leaf + 0.01, fn.params)
    names, values = zip(*module.named_parameters(), strict=True)
    moved = [torch.as_tensor(np.array(later[name.replace(".", "/")])) for name in names]
    tangents = tuple(b - a.detach() for a, b in zip(values, moved, strict=True))

    def f(*values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x,))

    outputs, change = torch.autograd.functional.jvp(f, values, tangents)
    got = ntkdiag.linearize(*fn)(later, x)
    np.testing.assert_allclose(got, (outputs + change).detach(), rtol=1e-10)


class WithoutLowering(MLP):
    def forward(self, x):
        return torch.special.airy_ai(super().forward(x))


@pytest.mark.parametrize(
    ("make", "operation"),
    [(Branching, "concrete value"), (WithoutLowering, "aten::special_airy_ai")],
)
def test_what_torchax_does_not_convert_names_the_operation(make, operation):
    with pytest.raises(UnsupportedModelError) as caught:
        ntkdiag.ntk(*ntkdiag.functionalize(make()), torch.randn(4, 4))
    message = str(caught.value)
    for part in (f"got {make.__name__}, with", operation, "docs.pytorch.org"):
        assert part in message


def test_an_error_of_the_module_is_its_own():
    fn = ntkdiag.functionalize(nn.Linear(4, 3))
    with pytest.raises(Exception, match="4") as caught:
        fn(fn.params, torch.randn(2, 5))
    assert not isinstance(caught.value, UnsupportedModelError)

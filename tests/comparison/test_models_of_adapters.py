"""compare(): models of registered adapters carry their parameters, and a state_dict has all by name."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import ntkdiag
from ntkdiag.errors import StructureError

X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


class Tower:
    """Weights, one of them under two names, and a mean that is none."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
        self.params = {"body": {"w": draw(3, 4)}, "head": {"w": draw(4, 2)}}
        self.mean = draw(4)

    def state_dict(self):
        """As other libraries save: everything by its dotted names."""
        body = self.params["body"]["w"]
        head = self.params["head"]["w"]
        return {"body.w": body, "body.mean": self.mean, "head.w": head, "tied.w": head}

    def __call__(self, x):
        return jnp.tanh(x @ self.params["body"]["w"] - self.mean) @ self.params["head"]["w"]


def functionalize(tower, variables=None, *, mean=None, **options):
    mean = tower.mean if mean is None else mean

    def f(params, x):
        return jnp.tanh(x @ params["body"]["w"] - mean) @ params["head"]["w"]

    plain = ntkdiag.functionalize(f, tower.params, **options)

    def rebuild(params, values):
        moved = functionalize(tower, mean=values["body/mean"], **options)
        return moved.with_params(params, check=False)

    return dataclasses.replace(
        plain,
        library="tower",
        fixed={"body/mean": mean},
        rebuild=rebuild,
        aliases={"tied/w": "head/w"},
    )


ntkdiag.models.register(__name__, functionalize)
A, B = Tower(1), Tower(2)
SIDES = {
    "models": lambda: ((A, B), {}),
    "state_dicts in a Functional": lambda: (
        (A.state_dict(), B.state_dict()),
        {"model": ntkdiag.functionalize(Tower(0))},
    ),
}


@pytest.mark.parametrize("sides", SIDES)
def test_each_side_has_what_it_brings(sides):
    (a, b), options = SIDES[sides]()
    found = ntkdiag.compare(a, b, train=(X, None), **options)
    np.testing.assert_allclose(found.a.outputs, A(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.b.outputs, B(X), rtol=1e-5, atol=1e-6)
    assert found.fixed_arrays.paths == ("body/mean",)
    assert {row.path for row in found.movement} == {"body/w", "head/w", "all"}


def test_a_state_dict_of_another_model():
    other = {**A.state_dict(), "more.w": np.ones(3)}
    with pytest.raises(StructureError, match="more/w: unexpected"):
        ntkdiag.compare(A.state_dict(), other, model=Tower(0), train=(X, None))

"""Which uses of parameters have structure, and what is kept of them."""

import cases
import jax
import jax.numpy as jnp
import pytest
from internals import REWRITES, Program, choose

import ntkdiag
from ntkdiag.engine.jacobian import views
from ntkdiag.engine.jacobian.rules import RULES
from ntkdiag.jaxtools import jaxprs

# Leaves with a use that has no structured form; every other leaf of every case must have one.
GENERAL = {
    "overlapping-slices": "w", "reshaped": "w", "scaled": "s w", "output-is-parameter": "w", "low-rank": "a b",
    "weight-norm": "g w", "layer-norm": "scale shift", "conv-batch-groups": "w", "scanned-layers": "layers/g",
    "scanned-and-shared-in-one-sum": "b", "nested-scans": "b layers/g", "in-the-carry": "w",
    "custom-jvp-of-parameter": "b w", "jitted-twice": "b", "embedding-of-one-row": "e v",
    "transformer": "layers/g layers/gb", "weight-times-itself": "w",
    "learned-queries": "layers/latent layers/w probe", "gradient-inside": "w", "empty-leaf": "z",
    "conv-with-the-weight-as-image": "w", "conv-shared": "w", "conv-and-dense-of-one-leaf": "w",
    "embedding-scaled": "e s", "embedding-of-columns": "e", "embedding-stacked": "e",
    "positional-embedding": "pos", "bias-and-scale-first": "b s", "scalar-parameters": "b s",
    "bias-at-positions": "b c", "bias-scaled": "b", "bias-of-heads": "c", "bias-shared-weights-stacked": "b",
    "biases-stacked-weight-shared": "b", "product-read-twice": "b", "symmetrised": "w",
    "flipped-and-padded": "w", "no-strides-describe-it": "w", "scanned-and-indexed": "w",
    "filters-side-by-side": "c d", "gates-side-by-side": "bi bo", "side-by-side-and-elsewhere": "c d",
    "custom-vjp": "v", "rule-that-closes-over-constants": "w", "rule-over-tokens": "u w",
    "rule-in-jit-and-checkpoint": "w", "rule-in-a-branch": "u", "rule-with-integers": "w",
    "rounded-in-steps-of-a-parameter": "s", "rounded-weights": "v", "latent-at-every-position": "positions",
    "tied-by-two-indices": "table", "state-in-mutable-arrays": "w", "by-platform": "w", "implicit-layer": "w",
    "complex-intermediates": "i k r",
}  # fmt: skip


def program(name):
    f, params, x = cases.CASES[name]()
    one = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape[1:], v.dtype), x)
    return Program(f, params, one, {}, joint=False)


@pytest.fixture(scope="module")
def programs():
    return {name: program(name) for name in cases.CASES}


@pytest.mark.slow
def test_general_leaves_are_the_ones_known(programs):
    found = {}
    for name, one in programs.items():
        general = {
            one.paths[p.leaves[0]] for p in one.parts("by leaf") if p.kind in ("dense", "assembled")
        }
        found |= {name: " ".join(sorted(general))} if general else {}
    assert found == GENERAL


@pytest.mark.slow
def test_every_rule_has_a_case(programs):
    used = {site.primitive for one in programs.values() for site in one.jacobian.sites.values()}
    assert used == {*RULES, "add"}
    traced = [one.jacobian.jaxpr for one in programs.values()]
    assert any(jaxprs.contains(jaxpr, name) for jaxpr in traced for name in REWRITES)
    sharding = {"sharding_constraint", "reshard"}  # they need a mesh: see test_kernels_sharded
    for name in views.LAYOUT_RULES.keys() - sharding:
        assert any(jaxprs.contains(jaxpr, name) for jaxpr in traced), name


def test_a_use_the_first_walk_did_not_find_cannot_run():
    """The completeness check: a parameter whose differentiable copy is missing raises instead of losing its part."""
    one = program("weight-norm")
    object.__setattr__(one.jacobian, "dense_leaves", frozenset())
    with pytest.raises(
        RuntimeError, match="a use of parameter leaf 0 was not found by the first walk"
    ):
        one.trace(choose(one.parts("fused"), 3, 0, 4, "full"), jnp.eye(4))


def test_every_product_is_of_full_precision_also_those_of_derivative_rules():
    f, params, x = cases.CASES["rule-over-tokens"]()
    kernel = jax.make_jaxpr(lambda p: ntkdiag.ntk(f, p, x, reduction="trace").array)(params)
    products = [
        eqn
        for eqn in _equations(jaxprs.open_jaxpr(kernel)[0])
        if eqn.primitive.name == "dot_general"
    ]
    assert len(products) > 2
    assert all(
        set(eqn.params["precision"] or ()) == {jax.lax.Precision.HIGHEST} for eqn in products
    )


def _equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jaxprs.sub_jaxprs(eqn):
            yield from _equations(inner)

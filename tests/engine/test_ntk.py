"""`ntk` and its options against the dense oracle."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import example, given, settings
from hypothesis import strategies as st
from internals import Sizes, blocks_within
from reference import assert_close, double, relative_error

import ntkdiag

F, PARAMS, X = cases.mlp()
MANY = cases.drawn(11, 5, seed=3)
C = 4


@pytest.fixture(scope="module")
def full():
    return reference.ntk(F, PARAMS, MANY)


REDUCTIONS = {
    "full": lambda k: k,
    "mean": lambda k: np.einsum("nomo->nm", k) / C,
    "trace": lambda k: np.einsum("nomo->nm", k),
    "diagonal": lambda k: np.einsum("nomo->nmo", k),
    "sum-of-logits": lambda k: np.einsum("nomp->nm", k) / C,
}


@pytest.mark.parametrize(
    ("outputs", "columns", "examples"),
    [
        pytest.param("full", None, "independent", marks=pytest.mark.smoke),
        ("full", slice(2, 6), "joint"),
        ("mean", None, "joint"),
        ("trace", slice(2, 6), "independent"),
        ("diagonal", slice(2, 6), "independent"),
        ("sum-of-logits", None, "independent"),
    ],
)
def test_reductions(outputs, columns, examples, full):
    with double(PARAMS, MANY) as (p, x):
        x2 = None if columns is None else x[columns]
        got = ntkdiag.ntk(F, p, x, x2, reduction=outputs, examples=examples)
        assert_close(got, REDUCTIONS[outputs](full[:, :, columns or slice(None)]))
        assert got.symmetric == (columns is None)
        assert got.convention.reduction == outputs
        assert got.convention.n_outputs == C


@pytest.mark.slow
def test_random_projections_are_unbiased_and_know_their_error(full):
    trace = REDUCTIONS["trace"](full)
    kernels = [
        ntkdiag.ntk(F, PARAMS, MANY, reduction=ntkdiag.kernel.RandomProjections(4, seed=s))
        for s in range(200)
    ]
    mean = np.mean([np.asarray(k) for k in kernels], axis=0)
    spread = np.std([np.asarray(k) for k in kernels], axis=0)
    claimed = np.sqrt(np.mean([np.asarray(k.standard_error) ** 2 for k in kernels], axis=0))
    assert np.all(np.abs(mean - trace) <= 5 * spread / np.sqrt(200) + 1e-4)
    assert np.median(claimed / spread) == pytest.approx(1, abs=0.15)


def test_leaf_groups_by_glob(full):
    with double(PARAMS, MANY) as (p, x):
        nested = lambda params, x: F({**params["in"], **params["out"]}, x)
        tree = {"in": {k: p[k] for k in "wb"}, "out": {k: p[k] for k in p if k not in "wb"}}
        kernel = ntkdiag.ntk(nested, tree, x, reduction="full", per_leaf=["in/*", "**/v"])
        assert list(kernel.leaves) == ["in/*", "**/v", "(rest)"]
        assert_close(kernel, full)
        assert_close(sum(np.asarray(k) for k in kernel.leaves.values()), full)
        leaf = ntkdiag.ntk(F, p, x, reduction="full", per_leaf=True)
        assert_close(
            np.asarray(leaf.leaves["w"]) + np.asarray(leaf.leaves["b"]),
            np.asarray(kernel.leaves["in/*"]),
        )


@pytest.mark.slow
@pytest.mark.parametrize(("axis", "order"), [(0, 1), (1, 1), (-1, -1)])
def test_scanned_layers_are_split_by_layer(axis, order):
    """Stacked on any axis, first or last layer first; of dense Jacobians too, which weights ask for."""
    f, params, x = cases.scanned_layers()
    jacobian = reference.jacobian(
        lambda layers, x: f({**params, "layers": layers}, x), params["layers"], x
    )
    size = {name: leaf[0].size for name, leaf in params["layers"].items()}

    def moved(p, x):
        stack = lambda leaf: jnp.moveaxis(leaf, axis, 0)[::order]
        return f({**p, "layers": jax.tree.map(stack, p["layers"])}, x)

    leaves = jax.tree.map(lambda leaf: np.moveaxis(leaf[::order], 0, axis), params["layers"])
    with double({**params, "layers": leaves}, x) as (p, z):
        kernels = [
            ntkdiag.ntk(moved, p, z, reduction="full", per_leaf=True, preconditioner=weights)
            for weights in (None, jax.tree.map(lambda leaf: np.full(leaf.shape, 2.0), p))
        ]
    start = 0
    for name in sorted(size):
        for layer in range(4)[::order]:
            j = jacobian[..., start : start + size[name]]
            start += size[name]
            want = np.einsum("noP,mpP->nomp", j, j)
            for kernel, weight in zip(kernels, (1, 2), strict=True):
                got = weight * np.asarray(kernel.leaves[f"layers/{name}[{layer}]"])
                assert relative_error(got, want) < 1e-10


def test_preconditioned_kernel():
    rng = np.random.default_rng(0)
    elementwise = {name: rng.uniform(0.5, 2, PARAMS[name].shape) for name in sorted(PARAMS)}
    flat = np.concatenate([value.ravel() for value in elementwise.values()])
    j = reference.jacobian(F, PARAMS, X)
    want = np.einsum("noP,P,mpP->nomp", j, 1 / flat, j)
    with double(PARAMS, X) as (p, x):
        got = ntkdiag.ntk(F, p, x, reduction="full", preconditioner=elementwise)
        assert_close(got, want)
        assert got.convention.preconditioner == "elementwise"
        assert_close(ntkdiag.ntk(F, p, x, preconditioner=2.5), ntkdiag.ntk(F, p, x).array / 2.5)


@pytest.mark.parametrize(
    ("outputs", "columns", "memory"), [("full", None, 14_000), ("mean", slice(0, 7), 30_000)]
)
def test_every_budget_gives_the_same_kernel(memory, columns, outputs, full):
    with double(PARAMS, MANY) as (p, x):
        x2 = None if columns is None else x[columns]
        extra = np.asarray(REDUCTIONS[outputs](full)).nbytes
        plan = ntkdiag.plan(F, p, x, x2, reduction=outputs, memory=memory + extra)
        got = ntkdiag.ntk(F, p, x, x2, reduction=outputs, memory=memory + extra)
        assert_close(got, REDUCTIONS[outputs](full[:, :, columns or slice(None)]))
        assert plan.peak_bytes <= memory + extra
        assert not plan.blocks.one_tile or memory > 14_000
        if columns is None:
            assert np.array_equal(got.matrix, got.matrix.T)


@pytest.mark.parametrize(("precision", "error"), [("highest", 1e-6), ("BF16_BF16_F32_X3", 1e-4)])
def test_precision_and_noise_floor(precision, error, full):
    kernel = ntkdiag.ntk(F, PARAMS, MANY, reduction="full", precision=precision)
    assert relative_error(kernel, full) < error
    assert kernel.convention.precision == precision
    assert kernel.dtype == np.float32
    assert kernel.noise_floor == pytest.approx(8 * float(np.finfo(np.float32).eps))


def test_a_coarser_precision_raises_the_noise_floor_of_an_accelerator(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    kernel = ntkdiag.ntk(F, PARAMS, MANY, examples="joint", precision="default")
    assert kernel.convention.unit_roundoff == 2**-10


def batch_norm(p, x):
    h = x @ p["w"]
    return (h - h.mean(0)) / (h.std(0) + 1e-3)


@pytest.mark.smoke
def test_interacting_examples_are_refused_and_joint_is_right():
    params = {"w": PARAMS["w"]}
    with pytest.raises(ntkdiag.errors.ExamplesInteractError, match='examples="joint"'):
        ntkdiag.ntk(batch_norm, params, X)
    with double(params, X) as (p, x):
        assert_close(
            ntkdiag.ntk(batch_norm, p, x, reduction="full", examples="joint"),
            reference.ntk(batch_norm, params, X),
        )


def _hidden_by_a_head(p, x):
    return jnp.tanh(batch_norm(p, x)) @ p["head"]


def _hidden_among_tokens(p, ids):
    h = p["w"][ids].mean(1)
    return (h - h.mean(0)) @ p["head"]


@pytest.mark.parametrize(
    ("f", "x"),
    [
        (_hidden_by_a_head, X),
        pytest.param(
            _hidden_among_tokens,
            np.arange(12, dtype=np.int32).reshape(4, 3) % 5,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_interaction_that_is_multiplied_by_zero_for_now(f, x):
    params = {"w": PARAMS["w"], "head": jnp.zeros((7, 2))}
    with pytest.raises(ntkdiag.errors.ExamplesInteractError):
        ntkdiag.ntk(f, params, x)
    with pytest.raises(ntkdiag.errors.ExamplesInteractError):
        ntkdiag.NTKOperator(f, params, x, batch_size=2)


@pytest.mark.slow
def test_layers_that_begin_as_zero_and_sums_over_the_batch_with_weight_zero_are_let_through():
    params = {"w": PARAMS["w"], "head": jnp.zeros((7, 2))}
    network = lambda p, x: jnp.tanh(x @ p["w"]) @ p["head"]
    assert ntkdiag.ntk(network, params, X).n_examples == len(X)
    dispatched = lambda p, x: jnp.einsum(
        "nm,md->nd", jnp.eye(len(x)), x @ p["w"]
    )  # NaN goes everywhere, values do not
    got = ntkdiag.ntk(dispatched, params, X, reduction="full")
    assert_close(got, reference.ntk(lambda p, x: x @ p["w"], params, X), np.float32)


@pytest.mark.slow
def test_outputs_that_are_nothing_but_rounding():
    """A centred network begins at zero: what is left of a batch need not be what is left of one example."""

    def centred(p, x):
        start = (x / 3) @ (3 * PARAMS["w"]) if len(x) > 1 else x @ PARAMS["w"]
        return jnp.tanh(x @ p["w"]) - jnp.tanh(start)

    params = {"w": PARAMS["w"]}
    assert 0 < jnp.abs(centred(params, X)).max() < 1e-6
    network = lambda p, x: jnp.tanh(x @ p["w"])
    want = reference.ntk(network, params, X)
    assert_close(ntkdiag.ntk(centred, params, X, reduction="full"), want, np.float32)
    normalised = lambda p, x: batch_norm(p, x) - batch_norm(params, x)
    with pytest.raises(ntkdiag.errors.ExamplesInteractError):
        ntkdiag.ntk(lambda p, x: normalised({"w": p["w"] + 1e-3}, x), params, X)


# Only blocks of one example fit.
@example(n=1, m=210, factors=17, working=1, pair=4, budget=1000)
@settings(deadline=None, max_examples=100)
@given(
    n=st.integers(1, 3000),
    m=st.integers(0, 3000),
    factors=st.integers(1, 10**6),
    working=st.integers(1, 10**6),
    pair=st.integers(4, 4000),
    budget=st.integers(10**3, 10**11),
)
def test_blocks_stay_within_any_feasible_budget(n, m, factors, working, pair, budget):
    sizes = Sizes(factors, max(working, factors), pair, pair * n * (m or n), max(n, m))
    try:
        blocks, peak = blocks_within(n, m, sizes, budget)
    except ntkdiag.errors.MemoryBudgetError:
        assert sizes.output + 3 * sizes.factors + sizes.working + 4 * pair > budget
        return
    assert peak <= budget
    assert blocks.size * blocks.n_rows >= n
    assert blocks.size * (blocks.n_columns or blocks.n_rows) >= m
    assert blocks.passes >= 1


def test_plan_says_how_and_prints_itself():
    plan = ntkdiag.plan(F, PARAMS, MANY, reduction="full", memory="1GB")
    assert {row.paths for row in plan.rows} == {("w", "b"), ("v", "c")}
    assert {row.factor for row in plan.rows} == {"outer"}
    # Per example: C backward passes through v (7 x 4) and one forward through both layers.
    assert plan.network_flops == pytest.approx(11 * 2 * (5 * 7 + 7 * 4 + C * 7 * 4), rel=0.01)
    text = str(plan)
    assert "dot_general" in text
    assert "each example differentiated 1 times" in text
    assert "of 1 GB allowed" in text


def test_kernel_prints_its_convention_and_acts_as_an_array():
    kernel = ntkdiag.ntk(F, PARAMS, X)
    assert repr(kernel).startswith(
        "Kernel(float32[3, 3], reduction=mean (C=4), examples=independent, mode=unspecified"
    )
    assert np.asarray(kernel).shape == (3, 3)
    assert jnp.linalg.eigvalsh(jnp.asarray(kernel)).shape == (3,)
    assert jax.tree.map(lambda a: 2 * a, kernel).convention == kernel.convention
    assert kernel.convention.probe == ntkdiag.ntk(F, PARAMS, X, reduction="full").convention.probe


def test_a_ragged_product_keeps_a_result_wider_than_its_operands():
    f, *wide = cases.ragged_experts()
    half = jax.tree.map(lambda v: v.astype(jnp.bfloat16), wide)
    want = reference.ntk(f.reference, *jax.tree.map(lambda v: v.astype(jnp.float32), half))
    assert_close(ntkdiag.ntk(f, *half, reduction="full"), want, np.float32)


def mixed(params, x):
    """The network in bfloat16, parameters and outputs in float32."""
    half = lambda tree: jax.tree.map(lambda a: a.astype(jnp.bfloat16), tree)
    return F(half(params), half(x)).astype(jnp.float32)


@pytest.mark.slow
def test_mixed_precision_is_not_taken_for_interaction_and_has_its_own_noise_floor():
    x = cases.normal(64, 5, seed=4)
    kernel = ntkdiag.ntk(mixed, PARAMS, x, reduction="full")
    assert kernel.dtype == jnp.float32
    oracle = reference.ntk(F, PARAMS, x)
    assert relative_error(kernel, oracle) < 0.05
    assert kernel.noise_floor == float(jnp.finfo(jnp.bfloat16).eps)
    found, true = (
        ntkdiag.spectrum(kernel),
        np.linalg.eigvalsh(np.asarray(oracle).reshape(64 * C, -1))[::-1],
    )
    assert found.rank > 20
    np.testing.assert_allclose(found.eigenvalues[: found.rank], true[: found.rank], rtol=0.1)
    with pytest.raises(ntkdiag.errors.ExamplesInteractError):
        ntkdiag.ntk(lambda p, x: mixed(p, x - x.mean(0)), PARAMS, x)

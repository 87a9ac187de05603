"""`ntk` and its options against the dense oracle."""

import json

import cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import Blocks, Sizes
from jax.experimental.ode import odeint
from tolerance import assert_close, double, relative_error

import ntkdiag
from ntkdiag import neural_tangents as nt

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


@pytest.mark.parametrize("examples", ["independent", "joint"])
@pytest.mark.parametrize("columns", [None, slice(2, 6)], ids=["x2=None", "x2"])
@pytest.mark.parametrize("outputs", REDUCTIONS)
def test_reductions(outputs, columns, examples, full):
    with double(PARAMS, MANY) as (p, x):
        x2 = None if columns is None else x[columns]
        got = ntkdiag.ntk(F, p, x, x2, reduction=outputs, examples=examples)
        assert_close(got, REDUCTIONS[outputs](full[:, :, columns or slice(None)]))
        assert got.symmetric == (columns is None)
        assert got.convention.reduction == outputs
        assert got.convention.n_outputs == C


@pytest.mark.smoke
def test_default_is_the_mean_over_outputs(full):
    assert_close(ntkdiag.ntk(F, PARAMS, MANY), REDUCTIONS["mean"](full), np.float32)


@pytest.mark.parametrize("examples", ["independent", "joint"])
def test_projection(examples, full):
    v = np.random.default_rng(0).normal(size=(C, 2))
    with double(PARAMS, MANY) as (p, x):
        got = ntkdiag.ntk(F, p, x, reduction=v, examples=examples)
        assert_close(got, np.einsum("ok,nomp,pl->nkml", v, full, v))


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


@pytest.mark.smoke
def test_leaf_groups_by_glob(full):
    with double(PARAMS, MANY) as (p, x):
        kernel = ntkdiag.ntk(F, p, x, reduction="full", per_leaf=["[wb]", "v"])
        assert list(kernel.leaves) == ["[wb]", "v", "(rest)"]
        assert_close(kernel, full)
        assert_close(sum(np.asarray(k) for k in kernel.leaves.values()), full)
        leaf = ntkdiag.ntk(F, p, x, reduction="full", per_leaf=True)
        assert_close(
            np.asarray(leaf.leaves["w"]) + np.asarray(leaf.leaves["b"]),
            np.asarray(kernel.leaves["[wb]"]),
        )


@pytest.mark.slow
def test_scanned_layers_are_split_by_layer():
    f, params, x = cases.scanned_layers()
    jacobian = reference.jacobian(
        lambda layers, x: f({**params, "layers": layers}, x), params["layers"], x
    )
    size = {name: leaf[0].size for name, leaf in params["layers"].items()}
    with double(params, x) as (p, z):
        kernel = ntkdiag.ntk(f, p, z, reduction="full", per_leaf=True)
    start = 0
    for name in sorted(size):
        for layer in range(4):
            j = jacobian[..., start : start + size[name]]
            start += size[name]
            got = kernel.leaves[f"layers/{name}[{layer}]"]
            assert relative_error(got, np.einsum("noP,mpP->nomp", j, j)) < 1e-10


@pytest.mark.parametrize("kind", ["scalar", "per leaf", "elementwise"])
def test_preconditioned_kernel(kind):
    rng = np.random.default_rng(0)
    draw = {
        "scalar": lambda a: 2.5,
        "per leaf": lambda a: rng.uniform(0.5, 2),
        "elementwise": lambda a: rng.uniform(0.5, 2, a.shape),
    }[kind]
    p_tree = 2.5 if kind == "scalar" else {name: draw(PARAMS[name]) for name in sorted(PARAMS)}
    flat = [
        np.broadcast_to(2.5 if kind == "scalar" else p_tree[k], PARAMS[k].shape).ravel()
        for k in sorted(PARAMS)
    ]
    j = reference.jacobian(F, PARAMS, X)
    want = np.einsum("noP,P,mpP->nomp", j, 1 / np.concatenate(flat), j)
    with double(PARAMS, X) as (p, x):
        got = ntkdiag.ntk(F, p, x, reduction="full", preconditioner=p_tree)
        assert_close(got, want)
        assert got.convention.preconditioner == kind
        assert_close(ntkdiag.ntk(F, p, x, preconditioner=1.0), np.asarray(ntkdiag.ntk(F, p, x)))


@pytest.mark.slow
def test_block_kernel_between_two_functions():
    g = lambda p, x: jnp.sin(x @ p["w"]) @ p["v"] + (p["b"] ** 2).sum()
    j, h = (reference.jacobian(fn, PARAMS, X) for fn in (F, g))
    with double(PARAMS, X) as (p, x):
        assert_close(ntkdiag.ntk(F, p, x, f2=g, reduction="full"), np.einsum("noP,mpP->nomp", j, h))
        assert_close(
            ntkdiag.ntk(F, p, x, x[:2], f2=g, reduction="full"),
            np.einsum("noP,mpP->nomp", j, h[:2]),
        )


@pytest.mark.parametrize("outputs", ["full", "mean", "diagonal"])
@pytest.mark.parametrize("columns", [None, slice(0, 7)], ids=["x2=None", "x2"])
@pytest.mark.parametrize("memory", [14_000, 30_000, 60_000])
def test_every_budget_gives_the_same_kernel(memory, columns, outputs, full):
    with double(PARAMS, MANY) as (p, x):
        x2 = None if columns is None else x[columns]
        extra = np.asarray(REDUCTIONS[outputs](full)).nbytes
        plan = ntkdiag.plan(F, p, x, x2, reduction=outputs, memory=memory + extra)
        got = ntkdiag.ntk(F, p, x, x2, reduction=outputs, memory=memory + extra)
        assert_close(got, REDUCTIONS[outputs](full[:, :, columns or slice(None)]))
        assert plan.peak_bytes <= memory + extra
        if columns is None and outputs != "diagonal":
            assert np.array_equal(got.matrix, got.matrix.T)


def test_small_budgets_really_cut_into_blocks():
    plans = [
        ntkdiag.plan(F, PARAMS, MANY, reduction="full", memory=m) for m in (14_000, 16_000, 10**9)
    ]
    assert [plan.blocks.one_tile for plan in plans] == [False, False, True]
    assert plans[0].passes >= plans[1].passes >= plans[2].passes == 1


def test_symmetric_to_the_bit():
    kernel = ntkdiag.ntk(F, PARAMS, cases.normal(70, 5, seed=9), reduction="full")
    assert np.array_equal(kernel.matrix, kernel.matrix.T)


@pytest.mark.smoke
@pytest.mark.slow
def test_inside_jit_grad_and_vmap(full):
    with double(PARAMS, MANY) as (p, x):
        kernel = lambda p, x: ntkdiag.ntk(F, p, x, reduction="full").array
        assert_close(jax.jit(kernel)(p, x), full)
        stacked = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), p)
        both = jax.vmap(kernel, (0, None))(stacked, x)
        assert_close(both[0], full)
        assert_close(both[1], reference.ntk(F, jax.tree.map(lambda a: 2 * a, PARAMS), MANY))

        def naive(p, x):
            j = jax.jacrev(lambda p: F(p, x))(p)
            j = jnp.concatenate(
                [leaf.reshape(x.shape[0] * C, -1) for leaf in jax.tree.leaves(j)], 1
            )
            return jnp.sum(jnp.sin(j @ j.T))

        ours = lambda p, x: jnp.sum(jnp.sin(ntkdiag.ntk(F, p, x, reduction="full").matrix))
        for got, want in zip(
            *(jax.tree.leaves(jax.grad(fn, (0, 1))(p, x)) for fn in (ours, naive)), strict=True
        ):
            assert relative_error(got, want) < 1e-9


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


def test_keyword_arguments_arrays_and_flags():
    def f(p, x, scale=1.0, flag=False):
        return jnp.tanh(x @ p["w"]) * scale if flag else x @ p["w"]

    params, scale = {"w": PARAMS["w"]}, jnp.array(3.0)
    with double(params, X, scale) as (p, x, s):
        got = ntkdiag.ntk(f, p, x, reduction="full", scale=s, flag=True)
        assert_close(got, reference.ntk(lambda p, x: 3 * jnp.tanh(x @ p["w"]), params, X))
        got = ntkdiag.ntk(f, p, x, reduction="full", scale=2 * s, flag=True)
        assert_close(got, reference.ntk(lambda p, x: 6 * jnp.tanh(x @ p["w"]), params, X))
        assert_close(
            ntkdiag.ntk(f, p, x, reduction="full"),
            reference.ntk(lambda p, x: x @ p["w"], params, X),
        )


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


def _hidden_by_a_gate(p, x):
    return x @ p["w"] + p["gate"] * jnp.tanh(batch_norm(p, x))


def _hidden_among_tokens(p, ids):
    h = p["w"][ids].mean(1)
    return (h - h.mean(0)) @ p["head"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("f", "x"),
    [
        (_hidden_by_a_head, X),
        (_hidden_by_a_gate, X),
        (_hidden_among_tokens, np.arange(12, dtype=np.int32).reshape(4, 3) % 5),
    ],
)
def test_interaction_that_is_multiplied_by_zero_for_now(f, x):
    params = {"w": PARAMS["w"], "head": jnp.zeros((7, 2)), "gate": jnp.zeros(())}
    with pytest.raises(ntkdiag.errors.ExamplesInteractError):
        ntkdiag.ntk(f, params, x)
    with pytest.raises(ntkdiag.errors.ExamplesInteractError):
        ntkdiag.NTKOperator(f, params, x, batch_size=2)


def test_interaction_while_the_inputs_are_all_the_same():
    params = {"w": PARAMS["w"], "head": jnp.ones((7, 2))}
    with pytest.raises(ntkdiag.errors.ExamplesInteractError):
        ntkdiag.ntk(lambda p, x: _hidden_by_a_head(p, x), params, jnp.zeros_like(X))


@pytest.mark.slow
def test_layers_that_begin_as_zero_and_sums_over_the_batch_with_weight_zero_are_let_through():
    params = {"w": PARAMS["w"], "head": jnp.zeros((7, 2))}
    network = lambda p, x: jnp.tanh(x @ p["w"]) @ p["head"]
    assert ntkdiag.ntk(network, params, X).n_examples == len(X)
    assert (
        ntkdiag.ntk(
            lambda p, ids: network(p, jax.nn.one_hot(ids, 5)), params, jnp.arange(4)
        ).n_examples
        == 4
    )
    dispatched = lambda p, x: jnp.einsum(
        "nm,md->nd", jnp.eye(len(x)), x @ p["w"]
    )  # NaN goes everywhere, values do not
    got = ntkdiag.ntk(dispatched, params, X, reduction="full")
    assert_close(got, reference.ntk(lambda p, x: x @ p["w"], params, X), np.float32)


@pytest.mark.slow
def test_adjoint_of_a_differential_equation():
    """Its rule indexes constants, and closes over some."""

    def f(w, x):
        rate = lambda y, t, w: jnp.tanh(y @ w) * t
        return jax.vmap(lambda y: odeint(rate, y, jnp.array([0.0, 1.0]), w)[-1])(x)

    w, x = PARAMS["w"][:, :5], X
    assert_close(ntkdiag.ntk(f, w, x, reduction="full"), reference.ntk(f, w, x), np.float32)


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
    compatible = nt.empirical_ntk_fn(centred, trace_axes=(), vmap_axes=0)(X, None, params)
    np.testing.assert_allclose(compatible, want.swapaxes(1, 2), rtol=1e-4, atol=1e-5)
    ntkdiag.watch(optax.sgd(0.1), centred, train=(X, None)).init(params)
    assert ntkdiag.selfcheck(centred, params, X)["examples"].status == "ok"
    normalised = lambda p, x: batch_norm(p, x) - batch_norm(params, x)
    with pytest.raises(ntkdiag.errors.ExamplesInteractError):
        ntkdiag.ntk(lambda p, x: normalised({"w": p["w"] + 1e-3}, x), params, X)


def test_linear_model_is_exact():
    """f = W x + b: K = (x x^T + 1) times the identity over outputs."""
    params = {"w": jnp.ones((5, 3)), "b": jnp.ones(3)}
    kernel = ntkdiag.ntk(lambda p, x: x @ p["w"] + p["b"], params, X, reduction="full")
    want = np.einsum("nm,op->nomp", np.asarray(X) @ np.asarray(X).T + 1, np.eye(3))
    assert_close(kernel, want, np.float32)


def test_one_hidden_relu_layer_matches_its_formula():
    """f = v^T relu(U x): K = sum_r s(u_r x) s(u_r x') + x x' sum_r v_r^2 1[u_r x > 0] 1[u_r x' > 0]."""
    u, v, x = cases.normal(5, 8), cases.normal(8, 1), np.asarray(X, np.float64)
    pre = x @ np.asarray(u, np.float64)
    on = (pre > 0) * np.asarray(v, np.float64)[:, 0]
    want = np.maximum(pre, 0) @ np.maximum(pre, 0).T + (x @ x.T) * (on @ on.T)
    with double({"u": u, "v": v}, X) as (p, z):
        assert_close(ntkdiag.ntk(lambda p, x: jax.nn.relu(x @ p["u"]) @ p["v"], p, z), want)


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(st.permutations(range(6)), st.floats(0.1, 10), st.integers(1, 5))
def test_identities(order, scale, cut):
    """Permutation equivariance, f -> c f gives c^2 K, concatenation over batches, and K is positive semi-definite."""
    with double(PARAMS, MANY[:6]) as (p, x):
        k = np.asarray(ntkdiag.ntk(F, p, x))
        permuted = np.asarray(ntkdiag.ntk(F, p, x[jnp.array(order)]))
        assert relative_error(permuted, k[np.ix_(order, order)]) < 1e-12
        f_scaled = lambda p, x: scale * F(p, x)
        assert relative_error(ntkdiag.ntk(f_scaled, p, x), scale**2 * k) < 1e-12
        assert relative_error(ntkdiag.ntk(F, p, x[:cut], x[cut:]), k[:cut, cut:]) < 1e-12
        assert np.linalg.eigvalsh(k).min() > -1e-12 * np.trace(k)


@settings(deadline=None, max_examples=200)
@given(
    n=st.integers(1, 3000),
    m=st.integers(0, 3000),
    factors=st.integers(1, 10**6),
    working=st.integers(1, 10**6),
    pair=st.integers(4, 4000),
    budget=st.integers(10**3, 10**11),
)
def test_blocks_stay_within_any_feasible_budget(n, m, factors, working, pair, budget):
    sizes = Sizes(factors, max(working, factors), pair, pair * n * (m or n))
    try:
        blocks = Blocks.largest(n, m, sizes, budget)
    except ntkdiag.errors.MemoryBudgetError:
        assert sizes.output + 3 * sizes.factors + sizes.working + 4 * pair > budget
        return
    assert blocks.peak <= budget or blocks.held == 1
    assert blocks.size * blocks.n_rows >= n
    assert blocks.size * (blocks.n_columns or blocks.n_rows) >= m
    assert blocks.passes >= 1


@pytest.mark.smoke
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


def test_plan_from_shapes_alone():
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (PARAMS, MANY))
    assert ntkdiag.plan(F, *shapes).flops == ntkdiag.plan(F, PARAMS, MANY).flops


def test_progress_bar_runs(capsys):
    with double(PARAMS, MANY) as (p, x):
        a = ntkdiag.ntk(F, p, x, memory=30_000, progress=True)
        assert_close(a, np.asarray(ntkdiag.ntk(F, p, x)))


@pytest.mark.smoke
def test_kernel_prints_its_convention_and_acts_as_an_array():
    kernel = ntkdiag.ntk(F, PARAMS, X)
    assert repr(kernel).startswith(
        "Kernel(float32[3, 3], reduction=mean (C=4), examples=independent, mode=unspecified"
    )
    assert np.asarray(kernel).shape == (3, 3)
    assert jnp.linalg.eigvalsh(jnp.asarray(kernel)).shape == (3,)
    assert jax.tree.map(lambda a: 2 * a, kernel).convention == kernel.convention
    assert kernel.convention.probe == ntkdiag.ntk(F, PARAMS, X, reduction="full").convention.probe


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
    successor = nt.empirical_ntk_fn(mixed, vmap_axes=0)(x, None, PARAMS)
    assert relative_error(successor, REDUCTIONS["mean"](oracle)) < 0.05
    with pytest.raises(ntkdiag.errors.ExamplesInteractError):
        ntkdiag.ntk(lambda p, x: mixed(p, x - x.mean(0)), PARAMS, x)


def test_coarse_values_without_a_derivative_leave_the_noise_floor_alone():
    f = lambda p, x: F(p, x) * (x.sum(1, keepdims=True).astype(jnp.bfloat16) > 0)
    assert ntkdiag.ntk(f, PARAMS, X).noise_floor == ntkdiag.ntk(F, PARAMS, X).noise_floor


@pytest.mark.parametrize("memory", [None, "6kB"])
def test_half_precision_kernels_are_float32_in_tiles_too(memory):
    params, x = jax.tree.map(lambda v: v.astype(jnp.bfloat16), (PARAMS, X))
    x = jnp.concatenate([x] * 8)
    kernel = ntkdiag.ntk(F, params, x, memory=memory)
    assert ntkdiag.plan(F, params, x, memory=memory).blocks.one_tile == (memory is None)
    assert kernel.dtype == jnp.float32
    np.testing.assert_allclose(kernel, ntkdiag.ntk(F, params, x), rtol=1e-6)


@pytest.mark.slow
def test_leaves_have_the_dtype_of_the_kernel_with_x64_on():
    with jax.enable_x64(True):
        params, x = jax.tree.map(lambda v: v.astype(jnp.float32), (PARAMS, X))
        other = lambda p, x: jnp.sin(F(p, x))
        for options in (
            {"f2": other},
            {"per_leaf": True},
            {"preconditioner": jax.tree.map(jnp.ones_like, params)},
        ):
            assert ntkdiag.ntk(F, params, x, **options).dtype == jnp.float32


def test_random_projections_by_leaf_know_the_error_of_the_sum():
    outputs = ntkdiag.kernel.RandomProjections(4)
    whole = ntkdiag.ntk(F, PARAMS, X, reduction=outputs)
    split = ntkdiag.ntk(F, PARAMS, X, reduction=outputs, per_leaf=True)
    np.testing.assert_allclose(split.standard_error, whole.standard_error, rtol=1e-4)
    np.testing.assert_allclose(split, whole, rtol=1e-4)


def test_probe_of_random_keys_and_numbers():
    def f(p, batch):
        noise = jax.vmap(lambda key: jax.random.normal(key, (5,)))(batch["key"])
        return jnp.tanh((batch["x"] + noise) @ p["w"])

    keys = lambda seed: jax.random.split(jax.random.key(seed), len(X))
    probes = {
        ntkdiag.ntk(f, {"w": PARAMS["w"]}, {"x": X, "key": keys(seed)}).convention.probe
        for seed in (0, 0, 1)
    }
    assert len(probes) == 2


def test_plan_takes_the_arguments_of_ntk():
    usual = ntkdiag.plan(F, PARAMS, X)
    ntkdiag.plan(F, PARAMS, X, precision="default", check=False, progress=True)
    assert ntkdiag.plan(F, PARAMS, X, per_leaf=True).peak_bytes > usual.peak_bytes
    with pytest.raises(
        ntkdiag.errors.InvalidInputError, match="A joint batch is differentiated as a whole"
    ):
        ntkdiag.plan(F, PARAMS, X, examples="joint")


def test_half_precision_accumulates_in_float32():
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), PARAMS)
    kernel = ntkdiag.ntk(F, half, X.astype(jnp.bfloat16), reduction="full")
    assert kernel.dtype == jnp.float32
    assert relative_error(kernel, reference.ntk(F, half, X)) < 0.05
    assert kernel.noise_floor == float(jnp.finfo(jnp.bfloat16).eps)


def test_names_in_a_plan_stay_text():
    params = {"w[/in]": jnp.ones((X.shape[1], 2)), "[red]b": jnp.ones(())}
    plan = ntkdiag.plan(lambda p, x: x @ p["w[/in]"] + p["[red]b"], params, X)
    assert "w[/in]" in str(plan)
    assert "[red]b" in str(plan)


def test_a_plan_as_plain_values():
    plan = ntkdiag.plan(F, PARAMS, X)
    contents = json.loads(json.dumps(plan.to_dict()))
    assert contents["flops"] == plan.flops
    assert contents["rows"][0]["paths"] == list(plan.rows[0].paths)

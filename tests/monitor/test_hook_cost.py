"""What `watch` costs beside training: its plan, and the operations that it really adds."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ntkdiag
from benchmarks.monitor_cost import shares
from benchmarks.monitor_cost.counting import flops_in, products_in, program_of
from benchmarks.monitor_cost.training import ECONOMY, LARGE, SMALL, SPECTRAL
from ntkdiag.monitor.instruments import top_curvatures

MATRIX = jax.ShapeDtypeStruct((50, 50), jnp.float32)
ONE_PRODUCT = 2 * 50**3


def names(trainings):
    return [training.name for training in trainings]


@pytest.mark.long
@pytest.mark.parametrize("training", LARGE, ids=names(LARGE))
def test_plan_for_large_networks(training):
    plan = shares.planned(training, SPECTRAL)
    assert plan.n_examples == training.batch_size // 8
    assert {cost.tier for cost in plan.instruments} == {"", "economy", "spectral"}
    economy = sum(cost.run_share for cost in plan.instruments if cost.tier != "spectral")
    assert 0.0025 < economy <= 0.005
    # The outputs of the language model are too large to be kept: it takes half a pass more.
    assert 0.005 < plan.run_share <= (0.0175 if training.is_language else 0.0165)


def test_plan_of_shapes_is_that_of_arrays():
    x, y = np.ones((16, 3), np.float32), np.arange(16) % 4
    params = jnp.ones((3, 4))
    options = {"loss": "cross_entropy", "instruments": ("economy", "spectral", "kernel")}
    of_arrays = ntkdiag.monitor.plan(jnp_product, params, train=(x, y), **options)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, x, y))
    of_shapes = ntkdiag.monitor.plan(jnp_product, shapes[0], train=shapes[1:], **options)
    assert of_shapes.to_dict() == of_arrays.to_dict()


def test_labels_of_a_wrong_shape_are_refused_as_shapes():
    x = jax.ShapeDtypeStruct((16, 3), jnp.float32)
    y = jax.ShapeDtypeStruct((15,), jnp.int32)
    with pytest.raises(ntkdiag.errors.InvalidInputError, match="Labels go row by row"):
        ntkdiag.monitor.plan(jnp_product, jnp.ones((3, 4)), train=(x, y), loss="cross_entropy")


def jnp_product(w, x):
    return x @ w


@pytest.mark.slow
@pytest.mark.parametrize("training", SMALL, ids=names(SMALL))
def test_count_is_that_of_the_plan(training):
    tiers = (ECONOMY, SPECTRAL)
    for instruments, count in zip(tiers, shares.counted(training, tiers), strict=True):
        planned = shares.planned(training, instruments).run_share
        # Small networks spend more between their products.
        assert 0.9 * planned < count.run_share_of_products < 1.1 * planned
        assert count.run_share < 1.4 * planned


@pytest.mark.slow
def test_passes_of_the_margin(monkeypatch):
    """The loop runs as often as the count has it, over a cycle of restarts."""
    made = []

    def iterate(*arguments):
        found = iterated(*arguments)
        jax.debug.callback(lambda n: made.append(int(n)), found.n_passes)
        return found

    iterated = top_curvatures.iterate
    monkeypatch.setattr(top_curvatures, "iterate", iterate)

    x, y = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32), np.arange(16) % 4
    tx = ntkdiag.watch(
        optax.sgd(0.1),
        jnp_product,
        train=(x, y),
        loss="cross_entropy",
        every=1,
        instruments="margin",
    )

    def step(carried, _):
        params, state = carried
        gradient = jax.grad(
            lambda w: optax.softmax_cross_entropy_with_integer_labels(x @ w, y).mean()
        )(params)
        updates, state = tx.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), None

    params = jnp.ones((3, 4))
    n_measured = top_curvatures.TopCurvatures.restart_every
    state = tx.init(params)
    made.clear()
    jax.block_until_ready(jax.lax.scan(step, (params, state), None, length=n_measured))
    jax.effects_barrier()
    assert len(made) == n_measured
    assert np.mean(made) == pytest.approx(shares.average_passes(state), rel=0.25)


def in_scan(a):
    return jax.lax.scan(lambda c, _: (c @ c, None), a, None, length=7)[0]


def in_while(a):
    return jax.lax.while_loop(lambda c: c[0, 0] < 1.0, lambda c: c @ c, a)


def in_conditional(a):
    return jax.lax.cond(a[0, 0] > 0.0, lambda a: a @ a, in_scan, a)


def in_scan_of_scans(a):
    return jax.lax.scan(lambda c, _: (in_scan(c) @ c, None), a, None, length=3)[0]


@pytest.mark.parametrize(
    ("function", "n_products"),
    [
        (in_scan, 7),
        (in_while, 2.5),
        (in_conditional, 7),
        (in_scan_of_scans, 24),
        (jax.jit(in_scan), 7),
    ],
)
def test_counted_loops(function, n_products):
    program = program_of(function, MATRIX)
    assert products_in(program, 2.5) == n_products * ONE_PRODUCT
    # XLA counts counters and comparisons, too.
    assert flops_in(program, 2.5) == pytest.approx(n_products * ONE_PRODUCT, rel=1e-3)


@pytest.mark.parametrize(
    "options", [{}, {"lhs_dilation": (2, 1)}, {"rhs_dilation": (1, 2)}, {"feature_group_count": 2}]
)
@pytest.mark.parametrize("derivative", [False, True])
def test_counted_convolutions(options, derivative):
    image = jax.ShapeDtypeStruct((3, 9, 8, 4), jnp.float32)
    kernel = jax.ShapeDtypeStruct(
        (3, 2, 4 // options.get("feature_group_count", 1), 6), jnp.float32
    )

    def convolution(image, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            image, kernel, (2, 1), [(1, 2), (0, 1)], dimension_numbers=numbers, **options
        )

    def with_gradients(image, kernel):
        outputs, pull = jax.vjp(convolution, image, kernel)
        return outputs, pull(outputs)

    program = program_of(with_gradients if derivative else convolution, image, kernel)
    assert products_in(program, 1.0) == pytest.approx(flops_in(program, 1.0), rel=1e-3)

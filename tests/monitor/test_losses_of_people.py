"""Losses as people train them, in every monitor: one margin, that of the dense Gauss-Newton matrix in float64."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from losses_of_people import CASES, N, curvature_of

import ntkdiag
from ntkdiag import errors
from ntkdiag.losses import CrossEntropy, Weighted
from ntkdiag.monitor import InMemory, Monitor, TopCurvatures

get = optax.tree_utils.tree_get


@functools.cache
def half_of_curvature(name):
    """The margin of gradient descent at rate 1."""
    return 0.5 * curvature_of(CASES[name]())


def watched(case, **options):
    options = {"every": 1, "instruments": TopCurvatures(rounds=12), "time_share": None} | options
    return ntkdiag.watch(optax.sgd(1.0), case.f, train=case.train, loss=case.loss, **options)


def one_step(tx, case):
    """The state after a step with the gradient of the loss."""
    gradient = jax.grad(lambda params: case.of_outputs(case.f(params, case.train[0])))(case.params)
    _, state = jax.jit(tx.update)(gradient, tx.init(case.params), case.params)
    return state


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_the_margin_of_watch(name):
    case = CASES[name]()
    state = one_step(watched(case), case)
    np.testing.assert_allclose(get(state, "ntk_margin"), half_of_curvature(name), rtol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_the_margin_of_the_kernel(name):
    """The kernel tier of a Monitor, and the kernel and the operator by themselves."""
    case = CASES[name]()
    memory, want = InMemory(), half_of_curvature(name)
    options = {"loss": case.loss, "top_k": 1, "instruments": "kernel"}
    with Monitor(case.f, train=case.train, every=1, writers=memory, **options) as monitor:
        monitor(0, case.params)
    np.testing.assert_allclose(1 / memory.rows[0]["critical_learning_rate"], want, rtol=1e-4)
    x, *labels = case.train
    y = Weighted(*labels) if len(labels) == 2 else labels[0]
    kernel = ntkdiag.ntk(case.f, case.params, x, reduction="full")
    operator = ntkdiag.NTKOperator(case.f, case.params, x)
    outputs = case.f(case.params, x)
    margin = functools.partial(ntkdiag.analysis.stability_margin, loss=case.loss, y=y)
    np.testing.assert_allclose(margin(kernel, 1.0, outputs=outputs), want, rtol=1e-4)
    np.testing.assert_allclose(margin(operator, 1.0), want, rtol=1e-4)


def test_weights_of_squared_error_need_no_outputs():
    case = CASES["weighted_regression"]()
    x, *labels = case.train
    kernel = ntkdiag.ntk(case.f, case.params, x, reduction="full")
    margin = ntkdiag.analysis.stability_margin(kernel, 1.0, loss=case.loss, y=Weighted(*labels))
    np.testing.assert_allclose(margin, half_of_curvature("weighted_regression"), rtol=1e-4)


@pytest.mark.slow
def test_what_has_no_weight_has_no_share_in_the_margin():
    """Examples of weight 0 might as well not be there."""
    case = CASES["weighted_examples"]()
    x, y, weights = case.train
    kept = weights > 0
    assert 0 < kept.sum() < N
    outputs = case.f(case.params, x)
    kernel = ntkdiag.ntk(case.f, case.params, x, reduction="full")
    few = ntkdiag.ntk(case.f, case.params, x[kept], reduction="full")
    margin = functools.partial(ntkdiag.analysis.stability_margin, loss="cross_entropy")
    of_all = margin(kernel, 1.0, outputs=outputs, y=Weighted(y, weights))
    of_few = margin(few, 1.0, outputs=outputs[kept], y=Weighted(y[kept], weights[kept]))
    np.testing.assert_allclose(of_all, of_few, rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "denominator", "note"),
    [
        (
            "masked_tokens",
            "its own",
            "The labels are a dict, and nobody says which arrays are targets",
        ),
        ("weighted_tokens", "sum of the weights", "Not all labels have weight"),
        ("ignored_tokens", "labels other than -100", "Some labels are ignored"),
        (
            "vae",
            "its own",
            "Labels of shape (8, 6) beside outputs of (8, 10) are not a target for each output",
        ),
        ("contrastive", "its own", "No labels were given"),
    ],
)
def test_the_record_says_what_is_left_out(name, denominator, note):
    case = CASES[name]()
    memory = InMemory()
    tx = watched(case, instruments=("layer_norms", "kernel"), writers=memory, top_k=1)
    one_step(tx, case)
    jax.effects_barrier()
    assert memory.record["denominator"] == denominator
    assert f"{note}: the alignment is NaN." in memory.record["notes"]
    assert np.isnan(memory.rows[0]["alignment"])
    want = case.of_outputs(case.f(case.params, case.train[0]))
    np.testing.assert_allclose(memory.rows[0]["loss"], want, rtol=1e-5)
    assert memory.record["labels_sha256"] is not None or name == "contrastive"


@pytest.mark.slow
def test_another_run_in_the_folder_of_one_with_weights_is_refused(tmp_path):
    case = CASES["weighted_tokens"]()
    x, y, weights = case.train
    options = {"loss": case.loss, "every": 1, "instruments": "margin", "time_share": None}
    tx = ntkdiag.watch(optax.sgd(1.0), case.f, train=case.train, out=tmp_path, **options)
    one_step(tx, case)
    jax.effects_barrier()
    del tx
    with pytest.raises(errors.InvalidInputError, match="labels_sha256"):
        ntkdiag.watch(optax.sgd(1.0), case.f, train=(x, y, weights + 1), out=tmp_path, **options)


def refused(call, *parts):
    with pytest.raises(errors.InvalidInputError) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)


def test_what_does_not_fit_is_refused_before_training():
    case = CASES["masked_tokens"]()
    x, y = case.train

    def watch(train, loss=case.loss):
        return lambda: ntkdiag.watch(optax.sgd(1.0), case.f, train=train, loss=loss).init(
            case.params
        )

    few = {**y, "weights": y["weights"][:3]}
    refused(
        watch((x, few)),
        "watch(optimizer, f, train=(x, y)): expected the 8 examples of x on the leading axis of every array of y; "
        "got y['weights'] of shape (3, 3). x, y and weights are of the same examples in the same order; numbers that "
        "all examples share belong into the loss.",
    )
    refused(watch((x, {})), "got a dict without arrays")
    refused(watch((x, {"temperature": 0.5})), "got y['temperature'] of shape ()")
    refused(
        watch((x, y["tokens"], y["weights"][:3]), "cross_entropy"),
        "train=(x, y, weights)): expected the 8 examples of x on the leading axis of every array of weights",
    )
    refused(
        watch((x, y, y["weights"]), "cross_entropy"),
        "train=(x, y, weights)): expected labels as one array beside weights; got a dict. A loss of your own takes "
        'weights with the labels: y={"labels": ..., "weights": ...}.',
    )
    refused(
        watch((x, None, y["weights"]), "cross_entropy"),
        "expected labels as one array beside weights; got None",
    )
    refused(
        watch((x, y["tokens"], y["weights"])), "expected weights inside y beside a loss of your own"
    )
    refused(
        watch((x, y), "cross_entropy"),
        'expected labels `y` as one array beside loss="cross_entropy"',
    )
    refused(
        watch((x, [y["tokens"], y["weights"]])),
        "expected one label for each of the 8 examples of x; got shape (2, 8, 3)",
        "a list is one array, and several arrays of labels are a tuple or a dictionary",
    )
    refused(
        watch((x, y["tokens"])),
        "expected loss(outputs, y) to run on outputs of shape (8, 3, 4) and y (8, 3)",
    )
    refused(
        watch((x, (y["tokens"], np.array(["a"] * 8)))), "expected `y[1]` as an array of numbers"
    )
    refused(watch((x, y["tokens"] - 1), "cross_entropy"), "CrossEntropy(ignore=-1)")


def test_trees_of_any_kind_come_to_the_loss_as_they_are():
    """Tuples, nested dictionaries with None, and random keys."""
    case = CASES["masked_tokens"]()
    x, y = case.train
    keys = jax.random.split(jax.random.key(0), N)
    seen = []

    def loss(outputs, y):
        (tokens, weights), rest = y
        assert rest["nothing"] is None
        seen.append(jax.tree.structure(y))
        noise = jax.vmap(lambda key: jax.random.normal(key, (), jnp.float32))(rest["key"])
        each = optax.softmax_cross_entropy_with_integer_labels(outputs, tokens)
        return jnp.sum(each * weights) / jnp.sum(weights) + 0.0 * jnp.sum(noise)

    tree = ((y["tokens"], y["weights"]), {"key": keys, "nothing": None})
    tx = ntkdiag.watch(
        optax.sgd(1.0),
        case.f,
        train=(x, tree),
        loss=loss,
        every=1,
        instruments=TopCurvatures(rounds=12),
    )
    state = one_step(tx, case)
    assert set(seen) == {jax.tree.structure(tree)}
    np.testing.assert_allclose(
        get(state, "ntk_margin"), half_of_curvature("masked_tokens"), rtol=1e-4
    )


@pytest.mark.slow
def test_padded_tokens_and_rows_that_do_not_occur_have_no_share():
    """A batch as dictionary of ids and a mask: rows of the embedding that no counted token has do not learn."""
    rng = np.random.default_rng(0)
    vocabulary = 50
    ids = rng.integers(1, 20, (N, 6))
    mask = np.arange(6) < rng.integers(2, 6, (N, 1))
    x = {"input_ids": np.where(mask, ids, 0), "attention_mask": mask.astype(np.int32)}
    params = {
        "embedding": jnp.asarray(rng.normal(size=(vocabulary, 8)), jnp.float32),
        "out": jnp.asarray(rng.normal(size=(8, vocabulary)), jnp.float32),
    }

    def f(params, x):
        hidden = params["embedding"][x["input_ids"]] * x["attention_mask"][..., None]
        return jnp.tanh(jnp.cumsum(hidden, axis=1)) @ params["out"]

    labels = np.where(mask, np.roll(ids, -1, axis=1), -100)
    loss = CrossEntropy(ignore=-100)
    tx = ntkdiag.watch(
        optax.sgd(1.0),
        f,
        train=(x, labels),
        loss=loss,
        every=1,
        instruments=TopCurvatures(rounds=12),
    )

    def by_hand(params):
        each = optax.softmax_cross_entropy_with_integer_labels(
            f(params, x), np.where(mask, labels, 0)
        )
        return jnp.sum(each * mask) / mask.sum()

    gradient = jax.grad(by_hand)(params)
    _, state = jax.jit(tx.update)(gradient, tx.init(params), params)
    flat, whole = jax.flatten_util.ravel_pytree(params)
    outputs = f(params, x)
    jacobian = np.asarray(
        jax.jacobian(lambda flat: f(whole(flat), x).reshape(-1))(flat), np.float64
    )
    p = np.asarray(jax.nn.softmax(outputs, axis=-1), np.float64)
    blocks = (
        (np.eye(vocabulary) * p[..., None] - p[..., None] * p[..., None, :])
        * mask[..., None, None]
        / mask.sum()
    )
    rows = jacobian.reshape(N, 6, vocabulary, -1)
    matrix = np.einsum("ntap,ntab,ntbq->pq", rows, blocks, rows, optimize=True)
    want = 0.5 * np.linalg.eigvalsh(matrix).max()
    np.testing.assert_allclose(get(state, "ntk_margin"), want, rtol=1e-3)
    unseen = np.setdiff1d(np.arange(vocabulary), x["input_ids"])
    assert not np.asarray(gradient["embedding"])[unseen].any()

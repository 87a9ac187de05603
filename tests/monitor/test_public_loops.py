"""Training loops laid out as in public repositories take `watch` in one line, and train the same to the last bit.

Each loop is a function of `watch`, and is run twice: with a stand-in that gives the optimizer back as it is, and with
the real one.
"""

import functools
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from devices import on_devices
from flax import jax_utils, nnx
from flax.training.train_state import TrainState
from internals import OptimizerStatus, Status
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from networks_in_training import dense_margin_of

import ntkdiag
from ntkdiag.monitor import InMemory


def unwatched(optimizer, fn, **options):
    """In the place of `ntkdiag.watch`."""
    return optimizer


def watched_run(loop, due, *, rtol=0.0):
    """Run a loop with and without `watch`; the rows that were written, and the result with `watch`.

    A loop returns parameters first; they have to be the same.
    """
    memory = InMemory()
    watch = functools.partial(ntkdiag.watch, every=3, instruments="margin", writers=memory)
    result = loop(watch)
    jax.effects_barrier()
    plain = loop(unwatched)
    assert jax.tree.leaves(result[0])
    same = functools.partial(np.testing.assert_allclose, rtol=rtol, atol=rtol)
    jax.tree.map(same, result[0], plain[0])
    assert memory.steps == due
    for row in memory.rows:
        assert row["status"] == Status.MEASURED
        assert row["optimizer_status"] in (OptimizerStatus.RECOGNIZED, OptimizerStatus.YOUNG)
        assert row.pop("not_finite_steps") == 0
        assert np.isnan(row.pop("not_finite_step"))
        assert all(np.isfinite(value).all() for value in row.values()), row
        assert row["margin"] > 0
    return memory.rows, result


def margin_of(f, loss, params, x, response):
    """From the dense matrix in float64, of an optimizer that takes the same share of every gradient."""
    responses = jax.tree.map(lambda leaf: np.full(leaf.shape, response), params)
    return dense_margin_of(f, loss)(params, x, responses)


def check_largest_eigenvalue(row, jacobian):
    """Of the full kernel, from the dense Jacobian of outputs `[N C]`."""
    rows = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(jacobian)]
    rows = np.concatenate(
        [leaf.reshape(leaf.shape[0] * leaf.shape[1], -1) for leaf in rows], axis=1
    )
    expected = np.linalg.eigvalsh(rows @ rows.T)[-1]
    np.testing.assert_allclose(row["eigenvalues"][0], expected, rtol=0.01)


# flax/examples/imagenet: a TrainState with batch_stats, pmap, gradients averaged among devices


class ResidualNet(nn.Module):
    """Images `[N 4 4 1]`."""

    @nn.compact
    def __call__(self, x, train: bool = True):
        norm = functools.partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        x = nn.relu(norm(name="bn_init")(nn.Conv(4, (3, 3), use_bias=False, name="conv_init")(x)))
        residual = x
        x = norm()(nn.Conv(4, (3, 3), use_bias=False)(x))
        return nn.Dense(3)(nn.relu(residual + x).mean(axis=(1, 2)))


class ImageState(TrainState):
    batch_stats: Any


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def images(n):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 4, 4, 1)).astype(np.float32), rng.integers(0, 3, n)


def imagenet(watch):
    """Eight steps with 12 examples on each device."""
    n_devices = jax.local_device_count()
    x, y = images(12 * n_devices)
    model = ResidualNet()
    variables = model.init(jax.random.key(0), x)
    fn = ntkdiag.functionalize(model, variables)
    rate = optax.warmup_cosine_decay_schedule(0.01, 0.1, 2, 8)
    tx = watch(
        optax.sgd(rate, momentum=0.9, nesterov=True),
        fn,
        train=(x[:12], y[:12]),
        loss="cross_entropy",
    )
    state = ImageState.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=tx,
        batch_stats=variables["batch_stats"],
    )

    def train_step(state, batch):
        def loss_fn(params):
            logits, moved = state.apply_fn(
                {"params": params, "batch_stats": state.batch_stats},
                batch["image"],
                mutable=["batch_stats"],
            )
            return cross_entropy(logits, batch["label"]), moved

        grads, moved = jax.grad(loss_fn, has_aux=True)(state.params)
        grads = jax.lax.pmean(grads, axis_name="batch")
        return state.apply_gradients(grads=grads, batch_stats=moved["batch_stats"])

    p_train_step = jax.pmap(train_step, axis_name="batch")
    average = jax.pmap(lambda leaf: jax.lax.pmean(leaf, "batch"), "batch")
    batch = {"image": x.reshape(n_devices, 12, *x.shape[1:]), "label": y.reshape(n_devices, 12)}
    state = jax_utils.replicate(state)
    trajectory = []
    for _ in range(8):
        trajectory.append(jax_utils.unreplicate(state).params)
        state = p_train_step(state, batch)
    state = state.replace(batch_stats=average(state.batch_stats))
    state = jax_utils.unreplicate(state)
    return (state.params, state.batch_stats), state.opt_state, trajectory


def imagenet_holds():
    """What a run with batch statistics on every device has to show."""
    # Sums over a batch are added in another order with `watch`.
    rows, (_, opt_state, trajectory) = watched_run(imagenet, [1, 3, 6], rtol=1e-5)
    assert ntkdiag.record(opt_state)["step"] == 6
    x, y = images(12 * jax.local_device_count())
    rates = optax.warmup_cosine_decay_schedule(0.01, 0.1, 2, 8)
    statistics = ResidualNet().init(jax.random.key(0), x)["batch_stats"]

    def normalised_by_the_batch(params, x):
        variables = {"params": params, "batch_stats": statistics}
        return ResidualNet().apply(variables, x, mutable=["batch_stats"])[0]

    for row in rows:
        # What Nesterov momentum does with a gradient that alternates: (1 + 2 beta) / (1 + beta).
        response = float(rates(row["step"])) / 2 * (1 + 2 * 0.9) / (1 + 0.9)
        loss = lambda logits: cross_entropy(logits, y[:12])
        params = trajectory[row["step"]]
        expected = margin_of(normalised_by_the_batch, loss, params, x[:12], response)
        np.testing.assert_allclose(row["margin"], expected, rtol=0.02)


@pytest.mark.slow
def test_batch_statistics_under_pmap_on_two_devices():
    on_devices(2, __file__, "imagenet_holds()")


# flax/examples/lm1b, MaxText: AdamW, dropout, logical partitioning over a mesh

VOCABULARY, LENGTH = 12, 6
RULES = (("batch", "data"), ("vocab", "model"), ("mlp", "model"), ("embed", None))


class LanguageModel(nn.Module):
    @nn.compact
    def __call__(self, tokens, deterministic: bool):
        def dense(features, axes, name):
            init = nn.with_logical_partitioning(nn.initializers.xavier_uniform(), axes)
            return nn.Dense(features, kernel_init=init, name=name)

        embedding = nn.with_logical_partitioning(nn.initializers.normal(1.0), ("vocab", "embed"))
        x = nn.Embed(VOCABULARY, 8, embedding_init=embedding, name="embed")(tokens)
        x = nn.with_logical_constraint(x, ("batch", None, "embed"))
        # Attention to what came before: the mean over the positions so far.
        seen = jnp.cumsum(x, axis=1) / jnp.arange(1.0, LENGTH + 1)[:, None]
        y = nn.LayerNorm(name="norm")(x + seen)
        y = nn.relu(dense(16, ("embed", "mlp"), "wi")(y))
        y = nn.Dropout(0.2)(y, deterministic=deterministic)
        x = x + dense(8, ("mlp", "embed"), "wo")(y)
        return dense(VOCABULARY, ("embed", "vocab"), "logits")(x)


def tokens(n):
    text = np.random.default_rng(1).integers(0, VOCABULARY, (n, LENGTH + 1))
    return text[:, :-1], text[:, 1:]


def language_model(watch):
    """Seven steps of AdamW with warm-up and clipping."""
    mesh = Mesh(np.array(jax.devices()).reshape(-1, 2), ("data", "model"))
    x, y = tokens(8)
    model = LanguageModel()
    fn = ntkdiag.functionalize(model, model.init(jax.random.key(0), x, True))
    adamw = optax.adamw(optax.linear_schedule(1e-4, 1e-2, 4), b2=0.98, weight_decay=0.1)
    tx = watch(
        optax.chain(optax.clip_by_global_norm(1.0), adamw),
        fn,
        train=(x, y),
        loss="cross_entropy",
    )

    def init_state(rng):
        variables = model.init({"params": rng}, x, deterministic=True)
        return TrainState.create(apply_fn=model.apply, params=variables["params"], tx=tx)

    def train_step(state, batch, dropout_rng):
        dropout_rng = jax.random.fold_in(dropout_rng, state.step)

        def loss_fn(params):
            logits = state.apply_fn(
                {"params": params}, batch["inputs"], False, rngs={"dropout": dropout_rng}
            )
            return cross_entropy(logits, batch["targets"])

        return state.apply_gradients(grads=jax.grad(loss_fn)(state.params))

    with jax.set_mesh(mesh), nn.logical_axis_rules(RULES):
        abstract = jax.eval_shape(init_state, jax.random.key(0))
        specs = nn.get_partition_spec(abstract)
        shardings = nn.logical_to_mesh_sharding(specs, mesh, RULES)
        state = jax.jit(init_state, out_shardings=shardings)(jax.random.key(0))
        state = nn.meta.unbox(state)
        by_batch = NamedSharding(mesh, PartitionSpec("data"))
        p_train_step = jax.jit(
            train_step,
            in_shardings=(shardings, by_batch, None),
            out_shardings=shardings,
            donate_argnums=0,
        )
        for _ in range(7):
            batch = {"inputs": x, "targets": y}
            state = p_train_step(state, batch, jax.random.key(1))
        layouts = jax.tree.map(lambda leaf: leaf.sharding.spec, state.params)
    return state.params, layouts


def language_model_holds():
    """What a run with logical partitioning has to show."""
    # XLA divides a program among devices as a whole, and sums in another order with more in it.
    _, (_, layouts) = watched_run(language_model, [1, 3, 6], rtol=1e-6)
    assert layouts["wi"]["kernel"] == PartitionSpec(None, "model")


@pytest.mark.slow
def test_logical_partitioning_on_four_devices():
    on_devices(4, __file__, "language_model_holds()")


# guides of NNX: nnx.Optimizer, streams of random numbers as an argument, LoRA


class Regressor(nnx.Module):
    def __init__(self, rngs):
        self.linear1 = nnx.Linear(3, 8, rngs=rngs)
        self.bn = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.2)
        self.linear2 = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, x, rngs=None):
        x = nnx.relu(self.bn(self.linear1(x)))
        return self.linear2(self.dropout(x, rngs=rngs))


def points(n=10):
    rng = np.random.default_rng(2)
    return rng.normal(size=(n, 3)).astype(np.float32), rng.normal(size=(n, 2)).astype(np.float32)


def half_mean_square(outputs, y):
    """The loss "mse", as a loop writes it."""
    return 0.5 * jnp.sum((outputs - y) ** 2, axis=-1).mean()


def nnx_with_rngs(watch):
    """Seven steps."""
    x, y = points()
    model = Regressor(nnx.Rngs(0))
    tx = watch(optax.adam(1e-2), ntkdiag.functionalize(model), train=(x, y), loss="mse")
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def train_step(model, optimizer, rngs, x, y):
        def loss_fn(model, rngs):
            return half_mean_square(model(x, rngs=rngs), y)

        grads = nnx.grad(loss_fn)(model, rngs)
        optimizer.update(model, grads)

    rngs = nnx.Rngs(dropout=1)
    trajectory = []
    for _ in range(7):
        trajectory.append(jax.tree.map(jnp.array, nnx.to_pure_dict(nnx.state(model, nnx.Param))))
        train_step(model, optimizer, rngs, x, y)
    return nnx.as_pure(nnx.state(model, nnx.Param)), trajectory


@pytest.mark.slow
def test_an_nnx_optimizer_with_rngs_as_an_argument():
    watched_run(nnx_with_rngs, [1, 3, 6])


class LowRank(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(3, 8, rngs=rngs)
        self.head = nnx.LoRALinear(8, 2, lora_rank=2, rngs=rngs)

    def __call__(self, x):
        return self.head(jnp.tanh(self.hidden(x)))


def low_rank(watch):
    """Seven steps of what LoRA adds, and the parameters before each."""
    x, y = points()
    model = LowRank(nnx.Rngs(0))
    fn = ntkdiag.functionalize(model, trainable=nnx.LoRAParam)
    tx = watch(optax.sgd(0.1), fn, train=(x, y), loss="mse")
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.LoRAParam)

    @nnx.jit
    def train_step(model, optimizer, x, y):
        def loss_fn(model):
            return half_mean_square(model(x), y)

        grads = nnx.grad(loss_fn, argnums=nnx.DiffState(0, nnx.LoRAParam))(model)
        optimizer.update(model, grads)

    trajectory = []
    for _ in range(7):
        trajectory.append(jax.tree.map(jnp.array, nnx.as_pure(nnx.state(model, nnx.LoRAParam))))
        train_step(model, optimizer, x, y)
    return nnx.as_pure(nnx.state(model)), trajectory


@pytest.mark.slow
def test_an_nnx_optimizer_of_lora_parameters_alone():
    rows, (_, trajectory) = watched_run(low_rank, [1, 3, 6])
    x, y = points()
    hidden = LowRank(nnx.Rngs(0)).hidden
    features = jnp.tanh(hidden(x))

    def added(params, features):
        return features @ params["head"]["lora"]["lora_a"] @ params["head"]["lora"]["lora_b"]

    for row in rows:
        loss = lambda outputs: half_mean_square(outputs, y)
        expected = margin_of(added, loss, trajectory[row["step"]], features, 0.1 / 2)
        np.testing.assert_allclose(row["margin"], expected, rtol=0.02)


# physics-informed networks: a residual with second derivatives, MultiSteps round the optimizer


def solution(params, point):
    """u(x) at one point."""
    hidden = jnp.tanh(point * params["a"] + params["b"])
    return hidden @ params["c"]


def residual(params, x):
    """u_xx + sin(pi x), which is to be 0: `[N 1] -> [N]`."""

    def at_point(point):
        def slope(point):
            return jax.jvp(lambda p: solution(params, p), (point,), (1.0,))[1]

        u_xx = jax.jvp(slope, (point,), (1.0,))[1]
        return u_xx + jnp.sin(jnp.pi * point)

    return jax.vmap(at_point)(x[:, 0])


def physics_informed(watch):
    """Twelve micro-steps, two to each update, and the parameters at each."""
    rng = np.random.default_rng(3)
    params = {name: jnp.asarray(rng.normal(size=6), jnp.float32) for name in "abc"}
    x = np.linspace(-1, 1, 16, dtype=np.float32)[:, None]
    optimizer = optax.MultiSteps(optax.sgd(1e-3), every_k_schedule=2)
    tx = watch(optimizer, residual, train=(x, np.zeros(16, np.float32)), loss="mse")
    opt_state = tx.init(params)

    @jax.jit
    def train_step(params, opt_state, x):
        def loss_fn(params):
            return 0.5 * jnp.mean(residual(params, x) ** 2)

        updates, opt_state = tx.update(jax.grad(loss_fn)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    trajectory = []
    for step in range(12):
        trajectory.append(params)
        params, opt_state = train_step(params, opt_state, x[step % 2 :: 2])
    trajectory.append(params)
    return params, trajectory, x


@pytest.mark.slow
def test_multi_steps_round_a_residual_of_a_differential_equation():
    rows, (_, trajectory, x) = watched_run(physics_informed, [1, 3, 6])
    for row in rows:
        params = trajectory[2 * row["step"]]  # two micro-steps are an update
        expected = margin_of(residual, lambda r: 0.5 * jnp.mean(r**2), params, x, 1e-3 / 2)
        np.testing.assert_allclose(row["margin"], expected, rtol=0.02)


# Equinox: filter_jit, the filtered parameters, a state


class Normalised(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, key):
        first, last = jax.random.split(key)
        self.first = eqx.nn.Linear(3, 8, key=first)
        self.norm = eqx.nn.BatchNorm(8, axis_name="batch", mode="batch")
        self.last = eqx.nn.Linear(8, 2, key=last)

    def __call__(self, x, state):
        x, state = self.norm(self.first(x), state)
        return self.last(jnp.tanh(x)), state


def equinox_with_state(watch):
    """Seven steps with running statistics in an `eqx.nn.State`."""
    x, y = points()
    model, state = eqx.nn.make_with_state(Normalised)(jax.random.key(0))
    fn = ntkdiag.functionalize(model, state=state)
    optim = watch(optax.sgd(0.1, momentum=0.9), fn, train=(x, y), loss="mse")
    opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def make_step(model, state, opt_state, x, y):
        def loss_fn(model, state):
            batched = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
            outputs, state = batched(x, state)
            return half_mean_square(outputs, y), state

        grads, moved = eqx.filter_grad(loss_fn, has_aux=True)(model, state)
        params = eqx.filter(model, eqx.is_inexact_array)
        updates, opt_state = optim.update(grads, opt_state, params)
        return eqx.apply_updates(model, updates), moved, opt_state

    trajectory = []
    for _ in range(7):
        trajectory.append((model, state))
        model, state, opt_state = make_step(model, state, opt_state, x, y)
    return eqx.filter(model, eqx.is_array), trajectory


@pytest.mark.slow
def test_an_equinox_model_with_a_state():
    memory = InMemory()
    watch = functools.partial(ntkdiag.watch, every=6, instruments="kernel", writers=memory)
    _, trajectory = equinox_with_state(watch)
    jax.effects_barrier()
    assert memory.steps == [1, 6]
    model, state = trajectory[6]
    params, rest = eqx.partition(model, eqx.is_inexact_array)
    x, _ = points()

    def trained(params):
        whole = eqx.combine(params, rest)
        return jax.vmap(lambda one: whole(one, state)[0], axis_name="batch")(x)

    check_largest_eigenvalue(memory.rows[-1], jax.jacobian(trained)(params))

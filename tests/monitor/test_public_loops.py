"""Training loops laid out as in public repositories take `watch` in one line, and train the same to the last bit.

Each loop is a function of `watch`, and is run twice: with a stand-in that gives the optimizer back as it is, and with
the real one.
"""

import functools
import os
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import jax_utils, nnx
from flax.training.train_state import TrainState
from internals import Reading, Status
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import ntkdiag
from ntkdiag.monitor import InMemory, TopCurvatures

get = optax.tree_utils.tree_get
READ = (Reading.RECOGNISED, Reading.YOUNG)
# As good as converged, for models as small as these.
CONVERGED = TopCurvatures(rounds=60)
# Compiling is most of the time that these loops take.


def unwatched(optimizer, fn, **options):
    """In the place of `ntkdiag.watch`."""
    return optimizer


def watched_run(loop, due, *, status=READ, instruments="margin", **options):
    """Run a loop with and without `watch`; the rows that were written, and the result with `watch`.

    A loop returns parameters first; they have to be the same.
    """
    memory = InMemory()
    watch = functools.partial(
        ntkdiag.watch, every=3, instruments=instruments, writers=memory, **options
    )
    result = loop(watch)
    jax.effects_barrier()
    plain = loop(unwatched)
    params, plain_params = result[0], plain[0]
    assert jax.tree.leaves(params)
    jax.tree.map(np.testing.assert_array_equal, params, plain_params)
    assert memory.steps == due
    for row in memory.rows:
        check_row(row, status)
    return memory.rows, result


def check_row(row, status=READ):
    """A measurement that was made, with numbers."""
    assert row["status"] == Status.MEASURED
    # The first step of a sum of gradients does not tell how much of it is kept.
    if row.get("optimizer_status") == Reading.FIRST_STEP:
        assert row["step"] == 0
        assert np.isnan(row["margin"])
        return
    for name, value in row.items():
        assert np.isfinite(value).all(), (name, value)
    if "optimizer_status" in row:
        assert row["optimizer_status"] in status
    if "margin" in row:
        assert row["margin"] > 0


def top_curvature(f, params, x, hessian):
    """The largest eigenvalue of J^T (d^2 L / df^2) J, in float64; `hessian` has the size of all outputs."""
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), (params, x))
        jacobian = jax.jacobian(lambda params: f(params, wide[1]))(wide[0])
        n_outputs = hessian.shape[0]
        columns = [np.asarray(leaf).reshape(n_outputs, -1) for leaf in jax.tree.leaves(jacobian)]
        rows = np.concatenate(columns, axis=1)  # [n_outputs n_parameters]
        return np.linalg.eigvals(hessian @ rows @ rows.T).real.max()


def softmax_hessian(logits):
    """Second derivative of the mean cross-entropy in the logits `[N C]`, as a matrix."""
    probabilities = np.asarray(jax.nn.softmax(jnp.asarray(logits, jnp.float32)), np.float64)
    n, c = probabilities.shape
    hessian = np.zeros((n, c, n, c))
    for i, p in enumerate(probabilities):
        hessian[i, :, i] = (np.diag(p) - np.outer(p, p)) / n
    return hessian.reshape(n * c, n * c)


def on_devices(count, call):
    """Call a function of this file in a process with so many devices."""
    here = pathlib.Path(__file__)
    # XLA's fusions for CPU get backward passes of normalisation wrong, of which `watch` warns.
    right = "--xla_cpu_experimental_ynn_fusion_type="
    flags = (
        f"{os.environ.get('XLA_FLAGS', '')} {right} --xla_force_host_platform_device_count={count}"
    )
    path = os.pathsep.join([str(here.parent), str(here.parents[1] / "support")])
    script = f"import {here.stem} as loops; loops.{call}; print('all held')"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=here.parents[2],
        env={
            **os.environ,
            "XLA_FLAGS": flags,
            "PYTHONPATH": path,
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("all held\n")


# flax/examples/imagenet: a TrainState with batch_stats, pmap, gradients averaged among devices


class ResidualNet(nn.Module):
    """Images `[N 4 4 1]`."""

    n_classes: int = 3
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x, train: bool = True):
        norm = functools.partial(
            nn.BatchNorm, use_running_average=not train, momentum=0.9, dtype=self.dtype
        )
        x = nn.relu(norm(name="bn_init")(nn.Conv(4, (3, 3), use_bias=False, name="conv_init")(x)))
        residual = x
        x = norm()(nn.Conv(4, (3, 3), use_bias=False)(x))
        x = nn.relu(residual + x).mean(axis=(1, 2))
        return jnp.asarray(nn.Dense(self.n_classes, dtype=self.dtype)(x), jnp.float32)


class ImageState(TrainState):
    batch_stats: Any


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
            one_hot = jax.nn.one_hot(batch["label"], 3)
            return optax.softmax_cross_entropy(logits, one_hot).mean(), moved

        (loss, moved), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        grads = jax.lax.pmean(grads, axis_name="batch")
        new_state = state.apply_gradients(grads=grads, batch_stats=moved["batch_stats"])
        return new_state, {"loss": jax.lax.pmean(loss, axis_name="batch")}

    p_train_step = jax.pmap(train_step, axis_name="batch")
    average = jax.pmap(lambda leaf: jax.lax.pmean(leaf, "batch"), "batch")
    batch = {
        "image": x.reshape(n_devices, 12, *x.shape[1:]),
        "label": y.reshape(n_devices, 12),
    }
    state = jax_utils.replicate(state)
    trajectory = []
    for _ in range(8):
        trajectory.append(jax_utils.unreplicate(state).params)
        state, _ = p_train_step(state, batch)
    state = state.replace(batch_stats=average(state.batch_stats))
    state = jax_utils.unreplicate(state)
    return (state.params, state.batch_stats), state.opt_state, trajectory


def imagenet_holds():
    """What a run with batch statistics on every device has to show."""
    rows, (_, opt_state, trajectory) = watched_run(imagenet, [0, 3, 6], instruments=CONVERGED)
    assert int(get(opt_state, "ntk_measurements")) == 3
    x, _ = images(12)
    rates = optax.warmup_cosine_decay_schedule(0.01, 0.1, 2, 8)

    def normalised_by_the_batch(params, x):
        batch_stats = ResidualNet().init(jax.random.key(0), x)["batch_stats"]
        variables = {"params": params, "batch_stats": batch_stats}
        model = ResidualNet(dtype=x.dtype)
        return model.apply(variables, x, mutable=["batch_stats"])[0]

    for row in rows[1:]:
        params = trajectory[row["step"]]
        hessian = softmax_hessian(normalised_by_the_batch(params, x))
        curvature = top_curvature(normalised_by_the_batch, params, x, hessian)
        # What Nesterov momentum does with a gradient that alternates: (1 + 2 beta) / (1 + beta).
        response = float(rates(row["step"])) / 2 * (1 + 2 * 0.9) / (1 + 0.9)
        np.testing.assert_allclose(row["margin"], response * curvature, rtol=2e-3)


@pytest.mark.slow
def test_a_linen_train_state_with_batch_statistics_under_pmap():
    imagenet_holds()


@pytest.mark.slow
def test_batch_statistics_under_pmap_on_two_devices():
    on_devices(2, "imagenet_holds()")


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
    n_devices = jax.device_count()
    devices = np.array(jax.devices()).reshape(-1, 2 if n_devices > 1 else 1)
    mesh = Mesh(devices, ("data", "model"))
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
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
            return losses.mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

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
            out_shardings=(shardings, None),
            donate_argnums=0,
        )
        for _ in range(7):
            batch = {"inputs": x, "targets": y}
            state, _ = p_train_step(state, batch, jax.random.key(1))
        layouts = jax.tree.map(lambda leaf: leaf.sharding.spec, state.params)
    return state.params, layouts


def language_model_holds():
    """What a run with logical partitioning has to show."""
    _, (_, layouts) = watched_run(language_model, [0, 3, 6])
    if jax.device_count() > 1:
        assert layouts["wi"]["kernel"] == PartitionSpec(None, "model")


@pytest.mark.slow
def test_adamw_with_dropout_and_logical_partitioning():
    language_model_holds()


@pytest.mark.slow
def test_logical_partitioning_on_four_devices():
    on_devices(4, "language_model_holds()")


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


def nnx_with_rngs(watch, hands_in_statistics=False):
    """Seven steps; running statistics are handed in as the extra argument where that is asked for."""
    x, y = points()
    model = Regressor(nnx.Rngs(0))
    tx = watch(optax.adam(1e-2), ntkdiag.functionalize(model), train=(x, y), loss="mse")
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def train_step(model, optimizer, rngs, x, y):
        def loss_fn(model, rngs):
            return half_mean_square(model(x, rngs=rngs), y)

        grads = nnx.grad(loss_fn)(model, rngs)
        if hands_in_statistics:
            optimizer.update(model, grads, model_state=nnx.state(model, nnx.BatchStat))
        else:
            optimizer.update(model, grads)

    rngs = nnx.Rngs(dropout=1)
    trajectory = []
    for _ in range(7):
        trajectory.append(jax.tree.map(jnp.array, nnx.to_pure_dict(nnx.state(model, nnx.Param))))
        train_step(model, optimizer, rngs, x, y)
    statistics = nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))
    return nnx.as_pure(nnx.state(model, nnx.Param)), trajectory, statistics


@pytest.mark.slow
def test_an_nnx_optimizer_with_rngs_as_an_argument():
    watched_run(nnx_with_rngs, [0, 3, 6])


@pytest.mark.slow
def test_running_statistics_of_nnx_as_an_argument_of_update():
    memory = InMemory()
    watch = functools.partial(ntkdiag.watch, every=6, instruments="kernel", writers=memory)
    _, trajectory, statistics = nnx_with_rngs(watch, hands_in_statistics=True)
    jax.effects_barrier()
    assert memory.steps == [0, 6]
    x, _ = points()

    def evaluated(params, x):
        hidden = x @ params["linear1"]["kernel"] + params["linear1"]["bias"]
        hidden = (hidden - statistics["bn"]["mean"]) / jnp.sqrt(statistics["bn"]["var"] + 1e-5)
        hidden = jax.nn.relu(hidden * params["bn"]["scale"] + params["bn"]["bias"])
        return hidden @ params["linear2"]["kernel"] + params["linear2"]["bias"]

    # What the last step handed in are the statistics that the run ended with.
    jacobian = jax.jacobian(lambda params: evaluated(params, x))(trajectory[6])
    trace = sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(jacobian))
    np.testing.assert_allclose(memory.rows[-1]["trace"], trace, rtol=1e-4)


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
    rows, (_, trajectory) = watched_run(low_rank, [0, 3, 6], instruments=CONVERGED)
    x, _ = points()
    hidden = LowRank(nnx.Rngs(0)).hidden
    features = jnp.tanh(hidden(x))

    def added(params, features):
        return features @ params["head"]["lora"]["lora_a"] @ params["head"]["lora"]["lora_b"]

    for row in rows:
        curvature = top_curvature(added, trajectory[row["step"]], features, np.eye(20) / 10)
        np.testing.assert_allclose(row["margin"], 0.1 / 2 * curvature, rtol=1e-3)


# purejaxrl: a whole PPO training in one program, its optimizer made inside


class ActorCritic(nn.Module):
    n_actions: int

    @nn.compact
    def __call__(self, x):
        orthogonal = nn.initializers.orthogonal
        actor = nn.tanh(nn.Dense(8, kernel_init=orthogonal(np.sqrt(2)))(x))
        logits = nn.Dense(self.n_actions, kernel_init=orthogonal(0.01))(actor)
        critic = nn.tanh(nn.Dense(8, kernel_init=orthogonal(np.sqrt(2)))(x))
        value = nn.Dense(1, kernel_init=orthogonal(1.0))(critic)
        return logits, jnp.squeeze(value, axis=-1)


class Transition(NamedTuple):
    action: jax.Array
    value: jax.Array
    reward: jax.Array
    log_prob: jax.Array
    obs: jax.Array


CONFIG = {
    "LR": 1e-2,
    "NUM_ENVS": 4,
    "NUM_STEPS": 6,
    "NUM_UPDATES": 2,
    "UPDATE_EPOCHS": 2,
    "NUM_MINIBATCHES": 2,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
}


def env_step(position, action, key):
    """A point that is pushed to the left or the right, and should stay at 0: `[2]` position and velocity."""
    velocity = 0.9 * position[1] + 0.2 * (2 * action - 1) + 0.05 * jax.random.normal(key)
    moved = jnp.stack([position[0] + 0.1 * velocity, velocity])
    return moved, -(moved[0] ** 2)


def chosen(logits, action):
    """Log-probability of the actions that were taken."""
    log_probs = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]


def make_train(config, watch):
    """Eight updates of the network: 2 updates of 2 epochs with 2 minibatches."""

    def linear_schedule(count):
        per_update = config["NUM_MINIBATCHES"] * config["UPDATE_EPOCHS"]
        return config["LR"] * (1.0 - (count // per_update) / config["NUM_UPDATES"])

    def train(rng):
        network = ActorCritic(2)
        rng, key_params, key_probe, key_env = jax.random.split(rng, 4)
        params = network.init(key_params, jnp.zeros(2))
        probe = jax.random.normal(key_probe, (16, 2))
        tx = watch(
            optax.chain(
                optax.clip_by_global_norm(config["MAX_GRAD_NORM"]),
                optax.adam(learning_rate=linear_schedule, eps=1e-5),
            ),
            lambda params, obs: network.apply(params, obs)[1],
            train=(probe, -(probe[:, 0] ** 2)),
            loss="mse",
        )
        train_state = TrainState.create(apply_fn=network.apply, params=params, tx=tx)
        obs = jax.random.normal(key_env, (config["NUM_ENVS"], 2))

        def _env_step(runner_state, _):
            train_state, last_obs, rng = runner_state
            rng, key_action, key_step = jax.random.split(rng, 3)
            logits, value = network.apply(train_state.params, last_obs)
            action = jax.random.categorical(key_action, logits)
            keys = jax.random.split(key_step, config["NUM_ENVS"])
            obs, reward = jax.vmap(env_step)(last_obs, action, keys)
            transition = Transition(action, value, reward, chosen(logits, action), last_obs)
            return (train_state, obs, rng), transition

        def _loss_fn(params, batch, gae, targets):
            logits, value = network.apply(params, batch.obs)
            clipped = batch.value + (value - batch.value).clip(
                -config["CLIP_EPS"], config["CLIP_EPS"]
            )
            value_loss = 0.5 * jnp.maximum((value - targets) ** 2, (clipped - targets) ** 2).mean()
            ratio = jnp.exp(chosen(logits, batch.action) - batch.log_prob)
            gae = (gae - gae.mean()) / (gae.std() + 1e-8)
            bounded = jnp.clip(ratio, 1.0 - config["CLIP_EPS"], 1.0 + config["CLIP_EPS"])
            actor_loss = -jnp.minimum(ratio * gae, bounded * gae).mean()
            entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean()
            return actor_loss + config["VF_COEF"] * value_loss - config["ENT_COEF"] * entropy

        def _update_minibatch(train_state, minibatch):
            loss, grads = jax.value_and_grad(_loss_fn)(train_state.params, *minibatch)
            return train_state.apply_gradients(grads=grads), loss

        def _update_epoch(update_state, _):
            train_state, batch, rng = update_state
            rng, key = jax.random.split(rng)
            permutation = jax.random.permutation(key, config["NUM_ENVS"] * config["NUM_STEPS"])

            def minibatches(leaf):
                flat = leaf.reshape(-1, *leaf.shape[2:])[permutation]
                return flat.reshape(config["NUM_MINIBATCHES"], -1, *leaf.shape[2:])

            train_state, losses = jax.lax.scan(
                _update_minibatch, train_state, jax.tree.map(minibatches, batch)
            )
            return (train_state, batch, rng), losses

        def _update_step(runner_state, _):
            runner_state, batch = jax.lax.scan(_env_step, runner_state, None, config["NUM_STEPS"])
            train_state, last_obs, rng = runner_state
            _, last_value = network.apply(train_state.params, last_obs)

            def _advantage(carry, transition):
                gae, next_value = carry
                delta = transition.reward + config["GAMMA"] * next_value - transition.value
                gae = delta + config["GAMMA"] * config["GAE_LAMBDA"] * gae
                return (gae, transition.value), gae

            start = (jnp.zeros_like(last_value), last_value)
            _, advantages = jax.lax.scan(_advantage, start, batch, reverse=True)
            update_state = (train_state, (batch, advantages, advantages + batch.value), rng)
            update_state, losses = jax.lax.scan(
                _update_epoch, update_state, None, config["UPDATE_EPOCHS"]
            )
            train_state, _, rng = update_state
            return (train_state, last_obs, rng), losses

        runner_state, losses = jax.lax.scan(
            _update_step, (train_state, obs, rng), None, config["NUM_UPDATES"]
        )
        train_state = runner_state[0]
        return train_state.params, train_state.opt_state, losses

    return train


@pytest.mark.slow
def test_a_whole_ppo_training_in_one_program():
    rows, (_, opt_state, _) = watched_run(
        lambda watch: jax.jit(make_train(CONFIG, watch))(jax.random.key(0)), [0, 3, 6]
    )
    assert int(get(opt_state, "ntk_count")) == 8
    assert float(get(opt_state, "ntk_margin")) == rows[-1]["margin"]


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

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    trajectory = []
    for step in range(12):
        trajectory.append(params)
        params, opt_state, _ = train_step(params, opt_state, x[step % 2 :: 2])
    return params, trajectory, x


@pytest.mark.slow
def test_multi_steps_round_a_residual_of_a_differential_equation():
    rows, (_, trajectory, x) = watched_run(physics_informed, [0, 3], instruments=CONVERGED)
    for row in rows:
        # Update k is made at micro-step 2 k + 1.
        params = trajectory[2 * row["step"] + 1]
        curvature = top_curvature(residual, params, x, np.eye(16) / 16)
        np.testing.assert_allclose(row["margin"], 1e-3 / 2 * curvature, rtol=1e-3)


# Equinox: filter_jit, the filtered parameters or the whole module


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


def equinox_loop(watch, passes_whole_module=False):
    """Seven steps; the optimizer gets the filtered parameters, or the whole module."""
    x, y = points()
    model = eqx.nn.MLP(3, 2, 8, 1, activation=jnp.tanh, key=jax.random.key(0))
    fn = ntkdiag.functionalize(model)
    optim = watch(optax.adamw(1e-2), fn, train=(x, y), loss="mse")
    opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_jit
    def make_step(model, opt_state, x, y):
        @eqx.filter_value_and_grad
        def loss_fn(model):
            return half_mean_square(jax.vmap(model)(x), y)

        loss, grads = loss_fn(model)
        params = model if passes_whole_module else eqx.filter(model, eqx.is_inexact_array)
        updates, opt_state = optim.update(grads, opt_state, params)
        return eqx.apply_updates(model, updates), opt_state, loss

    for _ in range(7):
        model, opt_state, _ = make_step(model, opt_state, x, y)
    return eqx.filter(model, eqx.is_array), opt_state


@pytest.mark.slow
def test_equinox_with_filtered_parameters():
    watched_run(equinox_loop, [0, 3, 6])


@pytest.mark.slow
def test_equinox_with_the_whole_module():
    loop = functools.partial(equinox_loop, passes_whole_module=True)
    watched_run(loop, [0, 3, 6])


def equinox_with_state(watch, hands_in_state=False):
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
        extra_args = {"model_state": state} if hands_in_state else {}
        params = eqx.filter(model, eqx.is_inexact_array)
        updates, opt_state = optim.update(grads, opt_state, params, **extra_args)
        return eqx.apply_updates(model, updates), moved, opt_state

    trajectory = []
    for _ in range(7):
        trajectory.append((model, state))
        model, state, opt_state = make_step(model, state, opt_state, x, y)
    return eqx.filter(model, eqx.is_array), trajectory


@pytest.mark.slow
def test_equinox_with_batch_normalisation():
    watched_run(equinox_with_state, [0, 3, 6])


@pytest.mark.slow
def test_a_state_of_equinox_as_an_argument_of_update():
    memory = InMemory()
    watch = functools.partial(ntkdiag.watch, every=6, instruments="kernel", writers=memory)
    _, trajectory = equinox_with_state(watch, hands_in_state=True)
    jax.effects_barrier()
    assert memory.steps == [0, 6]
    model, state = eqx.nn.inference_mode(trajectory[6][0]), trajectory[6][1]
    params, rest = eqx.partition(model, eqx.is_inexact_array)
    x, _ = points()

    def evaluated(params):
        whole = eqx.combine(params, rest)
        return jax.vmap(lambda one: whole(one, state)[0])(x)

    jacobian = jax.jacobian(evaluated)(params)
    trace = sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(jacobian))
    np.testing.assert_allclose(memory.rows[-1]["trace"], trace, rtol=1e-4)

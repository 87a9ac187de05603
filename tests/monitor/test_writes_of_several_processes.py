"""Several processes of one JAX program with a monitor: the first one writes, and all go on."""

import pytest
from several_processes import said_by

import ntkdiag

pytestmark = pytest.mark.slow  # each process begins with JAX, which takes seconds

MONITORED = """
import jax.numpy as jnp, optax
from ntkdiag.monitor import InMemory, Monitor, watch

rng = np.random.default_rng(0)
x, y = rng.normal(size=(8, 4)).astype(np.float32), np.arange(8) % 2
params = {"w": jnp.asarray(rng.normal(size=(4, 2)), jnp.float32)}
f = lambda p, x: jnp.tanh(x @ p["w"])

def loss(p):
    return 0.5 * jnp.mean((f(p, x) - jax.nn.one_hot(y, 2)) ** 2)

memory = InMemory()
options = dict(train=(x, y), loss="mse", every=2, instruments="kernel", writers=[memory],
               out=arguments[0])
"""
WATCH = (
    MONITORED
    + """
tx = watch(optax.sgd(0.1), f, **options)

@jax.jit
def step(params, state):
    updates, state = tx.update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state

state = tx.init(params)
for _ in range(6):
    params, state = step(params, state)
jax.block_until_ready(params)
jax.effects_barrier()
say(memory.steps, [row["trace"] for row in memory.rows], np.asarray(params["w"]).tolist())
"""
)
MONITOR = (
    MONITORED
    + """
import jax.experimental.multihost_utils
with Monitor(f, **options) as monitor:
    for t in range(6):
        monitor(t, params)
        params = jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))
say(memory.steps, [row["trace"] for row in memory.rows], np.asarray(params["w"]).tolist())
"""
)


@pytest.mark.parametrize(
    ("script", "steps"),
    [(WATCH, [1, 2, 4, 6]), (MONITOR, [0, 2, 4])],
    ids=["watch", "Monitor"],
)
def test_a_monitor_writes_once(script, steps, tmp_path):
    first, *others = said_by(script, 2, tmp_path / "run")
    assert first[0].startswith(f"{steps} [")
    assert all(said == first for said in others)
    run = ntkdiag.open_run(tmp_path / "run")
    assert run.steps() == steps
    assert run.passed_over() == 0
    assert (tmp_path / "run" / "watch.jsonl").read_text().count('"record"') == 1

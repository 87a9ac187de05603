"""The compiled step: nothing of the size of a parameter is copied for `watch` at steps that are not measured, and what
is measured in it is right.

Counted outside of all conditionals, against the step without `watch`: copies, and collectives over devices.
"""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from devices import on_devices
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import ntkdiag

N_PROBE, D, WIDTH, N_CLASSES = 16, 64, 128, 8
# Numbers in a parameter, or in the part of one on a device.
_SIZES = (D * WIDTH, WIDTH * N_CLASSES, D * WIDTH // 8)
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")


def clipped_adamw():
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def f(params, x):
    if AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types:
        params = jax.tree.map(lambda leaf: jax.sharding.reshard(leaf, PartitionSpec()), params)
    return jax.nn.relu(x @ params["a"] + params["c"]) @ params["b"]


def loss(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(f(params, x), y).mean()


def start():
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.normal(size=(D, WIDTH)) / 8,
        "b": rng.normal(size=(WIDTH, N_CLASSES)) / 11,
        "c": np.zeros(WIDTH),
    }
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), arrays)


def examples(n=64):
    rng = np.random.default_rng(1)
    return rng.normal(size=(n, D)).astype(np.float32), rng.integers(0, N_CLASSES, n)


def watched(optimizer, instruments="margin", **options):
    x, y = examples(N_PROBE)
    options = {"loss": "cross_entropy", "every": 100, **options}
    return ntkdiag.watch(optimizer, f, train=(x, y), instruments=instruments, **options)


def step_of(tx):
    def step(params, state, x, y):
        updates, state = tx.update(jax.grad(loss)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    return step


def scanned(tx):
    def run(params, state, x, y):
        def step(carry, _):
            return step_of(tx)(*carry, x, y), None

        return jax.lax.scan(step, (params, state), length=50)[0]

    return run


def text_of(make, tx, params, *, x_y=None):
    """The compiled program of a step with donated buffers, as text."""
    x, y = examples() if x_y is None else x_y
    lowered = jax.jit(make(tx), donate_argnums=(0, 1)).lower(params, jax.jit(tx.init)(params), x, y)
    return lowered.compile().as_text()


def computations(text):
    """Name -> lines, of each computation of a program; the first one is the name of the entry."""
    found, entry, name = {}, None, None
    for line in text.splitlines():
        begins = re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        if begins:
            name = begins.group(2)
            found[name] = []
            entry = name if begins.group(1) else entry
        elif name is not None:
            found[name].append(line)
    return entry, found


def outside_of_conditionals(text):
    """The lines that run at every step: all that the entry calls but branches."""
    entry, found = computations(text)
    assert entry is not None
    ahead, seen, lines = [entry], set(), []
    while ahead:
        name = ahead.pop()
        if name in seen:
            continue
        seen.add(name)
        for line in found[name]:
            lines.append(line)
            if " conditional(" not in line:
                ahead += [word for word in re.findall(r"%([\w.\-]+)", line) if word in found]
    return lines


def large_copies(lines):
    """Shape -> how many copies, fused ones and those to be awaited among them."""
    count = collections.Counter()
    for line in lines:
        made = re.search(r"= \(?\w+\[([\d,]*)\]\S* (copy|copy-start)\(", line)
        if made and np.prod([int(n) for n in made.group(1).split(",") if n]) in _SIZES:
            count[made.group(1)] += 1
    return count


def collectives(lines):
    """Kind -> how many."""
    kinds = "|".join(_COLLECTIVES)
    found = (re.search(rf"= .*? ({kinds})(-start)?\(", line) for line in lines)
    return collections.Counter(each.group(1) for each in found if each)


def check(plain, text):
    """No copies and collectives beyond those of the step without `watch`."""
    assert " conditional(" in text
    lines, plain_lines = outside_of_conditionals(text), outside_of_conditionals(plain)
    assert len(plain_lines) > 10
    assert not large_copies(lines) - large_copies(plain_lines)
    # One number, whether the gradient is finite, is asked of all devices.
    assert collectives(lines) - collectives(plain_lines) <= collections.Counter({"all-reduce": 1})


@pytest.mark.parametrize(
    ("make", "instruments"),
    [(step_of, "norms"), pytest.param(scanned, "auto", marks=pytest.mark.slow)],
    ids=["norms", "all in scan"],
)
def test_nothing_large_is_copied(make, instruments):
    optimizer = clipped_adamw()
    plain = text_of(make, optimizer, start())
    tx = watched(optimizer, instruments, writers=ntkdiag.monitor.InMemory())
    check(plain, text_of(make, tx, start()))


def fsdp_holds():
    """Parameters and examples lie on all devices in parts."""
    mesh = Mesh(np.array(jax.devices()), ("d",))
    assert mesh.size == 8
    part = NamedSharding(mesh, PartitionSpec("d"))
    params = jax.device_put(start(), part)
    x_y = jax.device_put(examples(), part)
    optimizer = clipped_adamw()
    plain = text_of(step_of, optimizer, params, x_y=x_y)
    assert collectives(outside_of_conditionals(plain))
    check(plain, text_of(step_of, watched(optimizer), params, x_y=x_y))


@pytest.mark.slow
def test_parameters_in_parts_on_eight_devices():
    on_devices(8, __file__, "fsdp_holds()")


def fsdp_is_measured(axes):
    """`Monitor` and `watch` measure parameters in parts at every step: no collective meets another."""
    mesh = jax.make_mesh((8,), ("d",), axis_types=(getattr(AxisType, axes),))
    specs = {"a": (None, "d"), "b": ("d", None), "c": ("d",)}
    adam = optax.adam(1e-2)
    probe = {
        "train": examples(N_PROBE),
        "loss": "cross_entropy",
        "instruments": ("margin", "kernel"),
    }
    monitor = ntkdiag.Monitor(f, every=1, optimizer=adam, **probe)
    watched = ntkdiag.watch(adam, f, every=1, **probe)
    hooks = (
        (adam, monitor.around(jax.jit(step_of(adam))), 20),
        (watched, jax.jit(step_of(watched)), 19),  # measures after the step
    )
    with jax.set_mesh(mesh):
        for tx, step, n_steps in hooks:
            params = {
                name: jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*specs[name])))
                for name, leaf in start().items()
            }
            state = jax.jit(tx.init)(params)
            for _ in range(n_steps):
                params, state = step(params, state, *examples(N_PROBE))
    assert monitor.cost.measurements == 20
    assert abs(ntkdiag.record(state)["margin"] / monitor.last.margin - 1) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("axes", ["Auto", "Explicit"])
def test_parameters_in_parts_are_measured_on_eight_devices(axes):
    on_devices(8, __file__, f"fsdp_is_measured({axes!r})")

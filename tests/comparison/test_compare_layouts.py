"""Checkpoints in the layouts that people have: compare, track and the margin of the saved optimizer, as in memory."""

import flax
import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import traverse_util
from internals import Template, classified, read_side

import ntkdiag
from ntkdiag.errors import StructureError

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(8, 4)).astype("f"), np.arange(8) % 3
NET = nn.Dense(3)
TX = optax.adam(1e-2)
OPTIONS = {"train": (X, Y), "loss": "cross_entropy"}


def params_of(seed, net=NET):
    return net.init(jax.random.key(seed), X)["params"]


def stepped(params, tx=TX):
    gradient = jax.tree.map(lambda leaf: 0.1 * leaf + 0.01, params)
    return tx.update(gradient, tx.init(params), params)[1]


@pytest.fixture(scope="module")
def in_memory():
    """The comparison of two pairs (parameters, state of the optimizer)."""
    pairs = [(params_of(seed), stepped(params_of(seed))) for seed in (0, 1)]
    return ntkdiag.compare(*pairs, model=NET, optimizer=TX, **OPTIONS)


def assert_close(got, want):
    """Numbers of two comparisons up to rounding of another program."""
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=1e-4)


def save_manager(root, layout):
    with ocp.CheckpointManager(root) as manager:
        for step in (0, 1):
            params = params_of(step)
            manager.save(step, args=layout(params, stepped(params)))


def items(**names):
    def layout(params, state):
        trees = {"params": params, "state": state}
        saves = {name: ocp.args.StandardSave(trees[of]) for name, of in names.items()}
        return ocp.args.Composite(**saves)

    return layout


def write_files(root, names):
    """Files by `serialization.to_bytes`; a name has a place for the step."""
    root.mkdir()
    for step in (0, 1):
        params = params_of(step)
        trees = {
            "params": params,
            "state": stepped(params),
            "both": {"model": params, "opt_state": stepped(params)},
        }
        for name, of in names.items():
            (root / name.format(step)).write_bytes(flax.serialization.to_bytes(trees[of]))


LAYOUTS = {
    "items model and optimizer": items(model="params", optimizer="state"),
    "files model-0, optimizer-0": {"model-{}": "params", "optimizer-{}": "state"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_compare_track_and_margin_of_model_and_optimizer(tmp_path, in_memory, name):
    layout = LAYOUTS[name]
    root = tmp_path / "run"
    write_files(root, layout) if isinstance(layout, dict) else save_manager(root, layout)
    got = ntkdiag.compare(f"{root}@0", f"{root}@1", model=NET, optimizer=TX, **OPTIONS)
    assert_close(got["drift"], in_memory["drift"])
    assert got.sides[0].params_sha256 == in_memory.sides[0].params_sha256
    for of_file, expected in zip(got.sides, in_memory.sides, strict=True):
        assert of_file.margin_status == expected.margin_status
        assert_close(of_file.numbers["margin"], expected.numbers["margin"])
    tracked = ntkdiag.track(root, model=NET, optimizer=TX, **OPTIONS)
    assert tracked.steps == [0, 1]
    margins = [in_memory.a["margin"], in_memory.b["margin"]]
    assert_close(tracked.series("margin"), margins)


def test_an_error_names_the_place_at_which_parameters_are_read(tmp_path):
    actor, critic = params_of(0), params_of(1, nn.Dense(1))
    tree = {"learner": {"params": {"actor": actor, "critic": critic}, "timestep": jnp.zeros(4)}}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", tree)
    with pytest.raises(StructureError, match=r"load_params\(path, at=key\)"):
        outputs_of(tmp_path / "saved", NET)
    got = ntkdiag.load_params(tmp_path / "saved", at="learner/params/actor")
    np.testing.assert_array_equal(got["kernel"], actor["kernel"])


# Another model.


class Deep(nn.Module):
    depth: int = 1

    @nn.compact
    def __call__(self, x):
        for _ in range(self.depth):
            x = nn.tanh(nn.Dense(4)(x))
        return nn.Dense(3)(x)


def test_parameters_of_another_model_are_told_as_that():
    sides = [params_of(seed, Deep(3)) for seed in (0, 1)]
    with pytest.raises(StructureError) as caught:
        ntkdiag.compare(*sides, model=Deep(2), **OPTIONS)
    assert "those that Deep.init makes on the examples" in str(caught.value)
    assert "Dense_3/kernel: unexpected float32[4, 3]" in str(caught.value)
    assert "They are of another model: pass the one that was saved." in str(caught.value)


# Names that scripts give to other things.


def outputs_of(source, model):
    """The outputs of a model with the values of a side in it, and the side."""
    template = Template.of(model, None, X)
    side = read_side(classified(source), template, name="A", label=None)
    f, params = side.functional
    return np.asarray(f(params, X)), side


def saved_in_every_form(root, tree):
    """A tree in memory, and by Orbax, in msgpack and in an archive of NumPy."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(root / "orbax", tree)
    plain = jax.tree.map(np.asarray, tree)
    (root / "tree.msgpack").write_bytes(flax.serialization.to_bytes(plain))
    np.savez(root / "tree.npz", **traverse_util.flatten_dict(plain, sep="/"))
    return tree, root / "orbax", root / "tree.msgpack", root / "tree.npz"


class Shifted(nn.Module):
    """A model that reads a collection of any name."""

    collection: str
    is_made_by_init: bool = True

    @nn.compact
    def __call__(self, x):
        outputs = nn.Dense(3)(x)
        if self.is_made_by_init or self.has_variable(self.collection, "shift"):
            outputs += self.variable(self.collection, "shift", lambda: jnp.zeros(3)).value
        return outputs


@pytest.mark.parametrize("name", ["ema", "opt_state"])
def test_a_collection_that_the_model_reads_is_its_own_whatever_its_name(tmp_path, name):
    net = Shifted(name)
    variables = {"params": params_of(3), name: {"shift": jnp.array([1.0, -2.0, 3.0])}}
    variables["params"] = {"Dense_0": variables["params"]}
    right = net.apply(variables, X)
    other = jax.tree.map(lambda leaf: 0.5 * leaf, variables)
    for source in saved_in_every_form(tmp_path, variables):
        for model in (net, ntkdiag.functionalize(net, other)):
            got, side = outputs_of(source, model)
            np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-6)
            assert side.lacking == ()


def test_a_copy_of_the_parameters_is_no_collection(tmp_path):
    params, copy = params_of(0), params_of(1)
    tree = {"params": params, "ema": copy, "ema_params": copy, "metrics": {"loss": np.ones(2)}}
    right = NET.apply({"params": params}, X)
    for source in saved_in_every_form(tmp_path, tree):
        for model in (NET, ntkdiag.functionalize(NET, {"params": copy})):
            got, side = outputs_of(source, model)
            np.testing.assert_allclose(got, right, rtol=1e-5)
            assert side.left_out == ()

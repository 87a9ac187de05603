"""Writes checkpoints as older Flax and Orbax wrote them: run once in an environment of each, kept as archives here.

    python3.9  -m venv old && old/bin/pip install flax==0.6.11 orbax-checkpoint==0.2.3 jax==0.4.13 jaxlib==0.4.13 \
        optax==0.1.5 chex==0.1.7 tensorstore==0.1.36 "numpy<1.25" "scipy<1.11"
    python3.10 -m venv old && old/bin/pip install flax==0.7.5 orbax-checkpoint==0.4.4 jax==0.4.20 jaxlib==0.4.20 \
        optax==0.1.7 chex==0.1.85 tensorstore==0.1.52 "numpy<1.27" "scipy<1.12"
    python3.11 -m venv old && old/bin/pip install flax==0.8.5 orbax-checkpoint==0.5.23 jax==0.4.30 jaxlib==0.4.30 \
        optax==0.2.3 tensorstore==0.1.63 "numpy<2" "scipy<1.14"
    old/bin/python make_old_checkpoints.py

Parameters are those of `params(step)`; the optimizer is Adam after one step with a tenth of them as its gradient.
"""

import functools
import pathlib
import tarfile
import tempfile

import flax
import jax
import numpy as np
import optax
import orbax.checkpoint as ocp

STEPS = (0, 100)


def params(step):
    kernel = np.arange(6, dtype=np.float32).reshape(3, 2) / 10
    return {"kernel": kernel + step, "bias": np.arange(2, dtype=np.float32) - step}


def after_one_step(tx, tree):
    gradient = jax.tree_util.tree_map(lambda leaf: leaf / 10, tree)
    return tx.update(gradient, tx.init(tree), tree)[1]


def write_linen(root):
    """Layouts of 2023: the aggregate file of the Flax guide, arrays in folders, and files of Flax itself."""
    from flax.training import checkpoints, orbax_utils
    from flax.training.train_state import TrainState

    aggregated = orbax_utils.save_args_from_target
    checkpointer = ocp.PyTreeCheckpointer()
    options = functools.partial(ocp.CheckpointManagerOptions, create=True)
    tx = optax.adam(1e-3)
    states = {}
    for step in STEPS:
        tree = jax.tree_util.tree_map(jax.numpy.asarray, params(step))
        state = TrainState.create(apply_fn=None, params=tree, tx=tx)
        states[step] = state.replace(step=step, opt_state=after_one_step(tx, tree))

    # The guide of Flax: a dictionary of a train state and other things, in one file.
    guide = {
        "model": states[100],
        "config": {"widths": np.array([4, 2])},
        "data": [np.ones((2, 3), np.float32)],
    }
    checkpointer.save(root / "guide", guide, save_args=aggregated(guide))
    # Without save_args: a folder for each array, or the database of OCDBT.
    checkpointer.save(root / "folders", {"params": states[100].params, "step": 100})
    # Some arrays in the file and some in folders, as of a job with several hosts.
    mixed = {"params": states[100].params, "opt_state": states[100].opt_state}
    save_args = aggregated(mixed)
    save_args["params"]["kernel"] = ocp.SaveArgs(aggregate=False)
    checkpointer.save(root / "mixed", mixed, save_args=save_args)
    manager = ocp.CheckpointManager(root / "manager", checkpointer, options())
    for step, state in states.items():
        manager.save(step, state, save_kwargs={"save_args": aggregated(state)})
    items = {"model": ocp.PyTreeCheckpointer(), "optimizer": ocp.PyTreeCheckpointer()}
    manager = ocp.CheckpointManager(root / "items", items, options())
    for step, state in states.items():
        manager.save(step, {"model": state.params, "optimizer": state.opt_state})
    for step, state in states.items():
        checkpoints.save_checkpoint(root / "flax_with_orbax", state, step, keep=9)
    flax.config.update("flax_use_orbax_checkpointing", False)
    for step, state in states.items():
        checkpoints.save_checkpoint(root / "flax", state, step, keep=9)
        checkpoints.save_checkpoint(root / "prefixes", state.params, step, prefix="model_", keep=9)
        checkpoints.save_checkpoint(
            root / "prefixes", state.opt_state, step, prefix="optimizer_", keep=9
        )


def write_nnx(root):
    """Layouts of NNX in 2024: `raw_value` under every variable, and an optimizer that holds its model."""
    from flax import nnx

    with ocp.CheckpointManager(root / "manager", item_names=("model", "optimizer")) as manager:
        for step in STEPS:
            model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
            optimizer = nnx.Optimizer(model, optax.adam(1e-3))
            model.kernel.value = jax.numpy.asarray(params(step)["kernel"])
            model.bias.value = jax.numpy.asarray(params(step)["bias"])
            optimizer.opt_state = after_one_step(optimizer.tx, nnx.state(model, nnx.Param))
            items = {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}
            saves = {name: ocp.args.StandardSave(item) for name, item in items.items()}
            manager.save(step, args=ocp.args.Composite(**saves))
    checkpointer = ocp.StandardCheckpointer()
    for name, tree in {
        "model": nnx.state(model),
        "optimizer": nnx.state(optimizer),
        "pair": nnx.state((model, optimizer)),
        "dictionary": {"model": nnx.state(model), "optimizer": nnx.state(optimizer)},
    }.items():
        checkpointer.save(root / name, tree)
    checkpointer.close()


if __name__ == "__main__":
    folder = pathlib.Path(tempfile.mkdtemp()) / f"flax-{flax.__version__}"
    folder.mkdir()
    write = write_nnx if flax.__version__ == "0.8.5" else write_linen
    write(folder)
    archive = pathlib.Path(__file__).with_name(f"{folder.name}.tar.gz")
    with tarfile.open(archive, "w:gz") as stream:
        stream.add(folder, folder.name)
    print(archive.name, archive.stat().st_size)

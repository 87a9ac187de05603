"""Kernel diagnostics in a training run of Levanter, by its hooks. Copy `watch_kernel`.

    python levanter_hook.py

A small network of Haliax is trained by Levanter's `Trainer`. What ntkdiag measures goes to
Levanter's tracker, beside its loss, and into the run directory `runs/levanter`.
"""

import pathlib

import haliax as hax
import jax
import optax
from levanter.callbacks import JitCallback
from levanter.checkpoint import CheckpointerConfig
from levanter.tracker.json_logger import JsonLoggerConfig
from levanter.trainer import Trainer, TrainerConfig

import ntkdiag

Batch, In, Out = hax.Axis("batch", 32), hax.Axis("in", 6), hax.Axis("out", 3)


def watch_kernel(trainer, state, f, *, every, **options):
    """Measure at initialization, and after every so many updates.

    Levanter counts a step from 0 and calls its hooks after the update: the parameters are those
    after `next_step` updates.
    """
    monitor = ntkdiag.Monitor(f, every=every, writers=trainer.tracker, **options)
    monitor(0, state.trainable_model, state.opt_state)

    def hook(info):
        monitor(info.next_step, info.state.trainable_model, info.opt_state)

    trainer.add_hook(hook, every=every)
    return monitor


class KernelCallback(JitCallback):
    """The same inside the compiled step, where Levanter has the gradient at hand.

    `measured` is made by `ntkdiag.monitor.measure`, a pure function that remembers nothing from
    one step to the next.
    """

    def __init__(self, measured, tracker):
        self.measured = measured
        self.tracker = tracker

    def inside_step(self, state, inside_info):
        """Called while the step is traced."""
        # Parameters and optimizer state are those before the update.
        return self.measured(state.trainable_model, state.opt_state, inside_info.grads)

    def on_step(self, step_info, cb_info):
        """Called after the step, with what `inside_step` returned."""
        numbers = {f"ntkdiag/{name}": float(value) for name, value in cb_info.items()}
        self.tracker.log(numbers, step=step_info.step)


def functional(model):
    """A model of named arrays as ntkdiag takes it: arrays in, arrays out, all examples at once."""

    def named(x):
        return hax.named(x, (Batch.resize(x.shape[0]), In))

    return ntkdiag.functionalize(
        model, inputs=named, output=lambda logits: logits.array, batched=True
    )


def loss(model, x, y, key=None):
    """Cross-entropy, averaged over the batch."""
    del key  # for dropout
    targets = hax.nn.one_hot(y, Out)
    return hax.nn.cross_entropy_loss(model(x), Out, targets, reduction=hax.mean)


def trainer_of(optimizer, folder, steps, tracker):
    """A trainer that needs neither an account nor an accelerator."""
    config = TrainerConfig(
        id="tiny",
        log_dir=pathlib.Path(folder),
        tracker=tracker,
        num_train_steps=steps,
        train_batch_size=Batch.size,
        require_accelerator=False,
        log_jaxprs=False,
        log_xla_hlo=False,
        checkpointer=CheckpointerConfig(base_path=str(folder)),
        load_checkpoint=False,
    )
    return Trainer(config, optimizer, loss, add_default_hooks=False)


def network():
    """A network of named arrays."""
    return hax.nn.MLP.init(In, Out, 8, 2, key=jax.random.key(0), activation=hax.nn.gelu)


def data():
    """Inputs and classes, at random."""
    x = jax.random.normal(jax.random.key(1), (Batch.size, In.size))
    return x, jax.random.randint(jax.random.key(2), (Batch.size,), 0, Out.size)


def main(out="runs/levanter", steps=12):
    """Train and measure."""
    x, y = data()
    named_x, named_y = hax.named(x, (Batch, In)), hax.named(y, (Batch,))
    optimizer = optax.adamw(1e-2)
    with trainer_of(optimizer, f"{out}/levanter", steps, JsonLoggerConfig()) as trainer:
        model = network()
        state = trainer.initial_state(jax.random.key(3), model=model)
        with watch_kernel(
            trainer,
            state,
            functional(model),
            every=4,
            train=(x[:8], y[:8]),
            loss="cross_entropy",
            optimizer=optimizer,
            out=out,
        ):
            for _ in range(steps):
                state = trainer.train_step(state, named_x, named_y).state
    print(ntkdiag.open_run(out))


if __name__ == "__main__":
    main()

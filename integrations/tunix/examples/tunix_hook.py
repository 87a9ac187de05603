"""Kernel diagnostics in a fine-tuning run of Tunix, by its training hooks. Copy `NtkHooks`.

    python tunix_hook.py

A small network is fine-tuned by LoRA with `PeftTrainer`. What ntkdiag measures goes to the metrics
logger of Tunix, beside its loss, and into the run directory `runs/tunix`.
"""

import jax
import optax
import qwix
from flax import nnx
from tunix.sft.hooks import TrainingHooks
from tunix.sft.metrics_logger import MetricsLoggerOptions
from tunix.sft.peft_trainer import PeftTrainer, TrainingConfig

import ntkdiag


class NtkHooks(TrainingHooks):
    """Calls a `Monitor` at the beginning of every step of a `PeftTrainer`.

    The beginning, as there the parameters are those after `train_steps` updates: Tunix calls
    `on_train_step_end(..., train_step, ...)` when the update after `train_step` has been made, too.
    """

    def __init__(self, monitor):
        self.monitor = monitor

    def on_train_step_start(self, train_ctx):
        """Measure before the update."""
        # Of the batches that an update is accumulated from, the first.
        batches = train_ctx.config.get_with_default("gradient_accumulation_steps", 1)
        if train_ctx.iter_steps % batches == 0:
            self.monitor(train_ctx.train_steps, train_ctx.model, train_ctx.optimizer)

    def on_train_end(self, train_ctx):
        """Measure the end, and wait for what is still to be written."""
        self.monitor(train_ctx.train_steps, train_ctx.model, train_ctx.optimizer)
        # Tunix closes its metrics logger after this call.
        self.monitor.close()

    def on_train_start(self, train_ctx):
        """Nothing."""

    def on_train_step_end(self, train_ctx, train_step, train_loss, *seconds):
        """Nothing."""

    def on_eval_step_start(self, train_ctx):
        """Nothing."""

    def on_eval_step_end(self, train_ctx, eval_loss):
        """Nothing."""


class Network(nnx.Module):
    """Next-token logits from one token at a time."""

    def __init__(self, vocabulary, width, rngs):
        self.embed = nnx.Embed(vocabulary, width, rngs=rngs)
        self.hidden = nnx.Linear(width, 2 * width, rngs=rngs)
        self.head = nnx.Linear(2 * width, vocabulary, rngs=rngs)

    def __call__(self, tokens):
        """Tokens [n t] -> logits [n t v]."""
        return self.head(jax.nn.gelu(self.hidden(self.embed(tokens))))


def network_with_lora(tokens):
    """A network whose linear layers have LoRA matrices of rank 2 beside their weights."""
    provider = qwix.LoraProvider(module_path="hidden|head", rank=2, alpha=2.0)
    network = Network(vocabulary=11, width=8, rngs=nnx.Rngs(0))
    return qwix.apply_lora_to_model(network, provider, tokens, rngs=nnx.Rngs(1))


def next_token_loss(model, tokens):
    """Cross-entropy of every token, from the one before it."""
    logits = model(tokens)[:, :-1]
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def fine_tune(model, optimizer, batches, hooks=None, **config):
    """Train with Tunix, one step a batch."""
    config = TrainingConfig(eval_every_n_steps=1000, pbar_description=None, **config)
    trainer = PeftTrainer(model, optimizer, config)
    trainer.with_loss_fn(next_token_loss)
    trainer.with_gen_model_input_fn(lambda tokens: {"tokens": tokens})
    trainer.with_training_hooks(hooks)
    trainer.train(batches)


def main(out="runs/tunix", steps=20):
    """Fine-tune and measure."""
    tokens = jax.random.randint(jax.random.key(0), (32, 6), 0, 11)
    model = network_with_lora(tokens)
    optimizer = optax.adamw(1e-2)
    probe = tokens[:8]
    monitor = ntkdiag.Monitor(
        # The parameters that Tunix trains, and the outputs that its loss is of
        ntkdiag.functionalize(model, trainable=nnx.LoRAParam, output=lambda logits: logits[:, :-1]),
        train=(probe, probe[:, 1:]),
        loss="cross_entropy",
        optimizer=optimizer,
        every=5,
        out=out,
        writers="jax_monitoring",
    )
    logger = MetricsLoggerOptions(log_dir=f"{out}/tensorboard")
    fine_tune(model, optimizer, [tokens] * steps, NtkHooks(monitor), metrics_logging_options=logger)
    run = ntkdiag.open_run(out)
    print(run)


if __name__ == "__main__":
    main()

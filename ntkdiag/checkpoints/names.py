"""Names in checkpoints: keys of leaves, parts of what is saved, and the step in `model-100`.

The name of a checkpoint is a prefix and a number. Other files under the same numbers, such as the
states of the optimizer in `optimizer-100`, differ in the prefix.
"""

import re
from typing import NamedTuple, TypeAlias

import jax
from jaxtyping import PyTree

Keys: TypeAlias = tuple[str, ...]

# The tree that a model was saved as, best first.
PARAMETERS = ("params", "model")
# The state of an optimizer.
OPTIMIZER_STATES = (
    "opt_state",
    "optimizer",
    "optimizer_state",
    "optim",
    "opt",
    "optim_state",
    "opt_states",
    "optimizer_states",
)
# What train states hold beside the parameters and the collections of a model.
NOT_COLLECTIONS = (
    *OPTIMIZER_STATES,
    "ema",
    "ema_params",
    "avg_params",
    "target_params",
    "grads",
    "metrics",
    "dynamic_scale",
    "loss_scale",
    "rngs",
)
# How far training is: numbers, which stand beside a tree and are no part of it.
PROGRESS = ("step", "epoch", "iteration", "global_step", "rng", "key", "seed")
# Names that are rarely a collection of the model: they are one if the model has such arrays.
SELDOM_COLLECTIONS = (*NOT_COLLECTIONS, *PROGRESS)
# Fields of the states of Optax that no layer calls a parameter: every state with arrays has one.
FIELDS_OF_OPTAX = ("opt_state", "count", "mu", "nu", "trace", "ema", "hyperparams", "rng_key")
FIELDS_OF_OPTAX += ("inner_state", "inner_states", "mini_step", "fast_state", "steps_since_sync")
FIELDS_OF_OPTAX += ("e_g", "e_x", "sum_of_squares", "step_sizes", "prev_updates", "found_nan")
FIELDS_OF_OPTAX += ("v_row", "v_col", "nu_max", "acc_grads", "grad_acc", "exp_avg", "exp_avg_sq")
FIELDS_OF_OPTAX += ("diff_params_memory", "diff_updates_memory", "weights_memory", "ntk_inner")

# A number of no more digits than a step may have.
NUMBER = r"\d{1,19}"
# A number alone, behind a separator, or behind a word that says what it counts.
_NAME = re.compile(
    r"(?:(?P<prefix>.*[^-_=])(?P<separator>[-_=])|(?P<word>checkpoint|ckpt|step|epoch|iter))?"
    rf"(?P<number>{NUMBER})"
)
# "model-00001-of-00002" is a shard, "2024-05-01" a day, "checkpoint_1e-05" a fraction.
_NO_STEP = re.compile(r".*-of-\d+|.*\de[-+]\d\d|(?:.*\D)?\d{4}-\d\d-\d\d")


class StepName(NamedTuple):
    """The parts of a name that ends with a step."""

    prefix: str
    separator: str
    number: str

    @property
    def step(self) -> int:
        """The number that the name ends with."""
        return int(self.number)

    def beside(self, prefix: str) -> str:
        """What is called otherwise and has the same number."""
        return f"{prefix}{self.separator}{self.number}"


def read_step_name(name: str) -> StepName | None:
    """The parts of a name without its suffix; None where it ends with no step."""
    match = _NAME.fullmatch(name)
    if match is None or _NO_STEP.fullmatch(name):
        return None
    prefix = match["prefix"] or match["word"] or ""
    return StepName(prefix, match["separator"] or "", match["number"])


def keyed_leaves(tree: PyTree) -> list[tuple[Keys, PyTree]]:
    """Leaves with their keys as strings, list positions included."""
    keyed = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        keyed.append((tuple(_key_string(entry) for entry in path), leaf))
    return keyed


def _key_string(entry: object) -> str:
    """The key, position or name inside one of JAX's key objects."""
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return str(getattr(entry, attribute))
    return str(entry)

"""Trains one run, and keeps what was seen of every step.

Runs of one network and optimizer share a compiled program: rates and batches come in as arrays.

A run directory has `run.json`, what it is, and `steps.jsonl`, a line a step: loss, gradient norm,
update norm and kurtosis of the activations of every step; at every fifth, beside them, what
`ntkdiag.watch` measures on a fixed probe of 64 examples.
"""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

import ntkdiag
from benchmarks.alarms.along_the_gradient import AlongTheGradient
from benchmarks.alarms.networks import NETWORKS
from benchmarks.alarms.runs import EVERY, FULL_BATCH, STEPS, Run
from ntkdiag.monitor.instruments.units import kurtosis

BATCH = 32
PROBE = 64
# Distinct examples of a batch whose loss is to be noisy.
NOISY = 2
MEASURED = (
    "margin",
    "margin_lower",
    "margin_upper",
    "step_error",
    "step_error_upper",
    "critical_multiple",
    "curvature_of_gradient",
    "curvature_of_update",
    "optimizer_status",
)


def train(run: Run, folder: pathlib.Path) -> None:
    """Make a run directory, whole or not at all."""
    rows = rows_of(run, run.rates)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(dataclasses.asdict(run), indent=1) + "\n")
    text = "".join(json.dumps(row) + "\n" for row in rows)
    unfinished = folder / "steps.unfinished"
    unfinished.write_text(text)
    unfinished.rename(folder / "steps.jsonl")


def rows_of(run: Run, rates: np.ndarray) -> list[dict[str, float | None]]:
    """A row of each step with these learning rates, until the loss is not finite."""
    size = NETWORKS[run.network].n_full if run.cause in FULL_BATCH else BATCH
    program = _program(run.network, run.optimizer, run.dtype, size)
    params, others, state = program.begin(run)
    rows: list[dict[str, float | None]] = []
    batches = _Batches(run, size)
    for begun in range(0, STEPS, EVERY):
        xs, ys = batches.of_steps(range(begun, begun + EVERY))
        taken = jnp.asarray(rates[begun : begun + EVERY], jnp.float32)
        params, others, state, seen = program.steps(params, others, state, (xs, ys, taken))
        measured = ntkdiag.record(state)
        columns = jax.device_get(seen)
        for k in range(EVERY):
            row = {"step": begun + k} | {name: column[k] for name, column in columns.items()}
            if k == 0 and int(measured["step"]) == begun:
                row |= {name: measured.get(name, math.nan) for name in MEASURED}
            rows.append({name: _plain(value) for name, value in row.items()})
        if not np.isfinite(columns["loss"]).all():
            break
    return rows


def _plain(value: Any) -> float | None:
    """A number as JSON has it, None where it is not finite."""
    number = float(np.asarray(value))
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() else float(f"{number:.6g}")


class _Batches:
    """The batches of a run, with what is done to them."""

    def __init__(self, run: Run, size: int) -> None:
        self._run = run
        self._size = size
        self._x, self._y = NETWORKS[run.network].examples()

    def of_steps(self, steps: range) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and labels of some steps, stacked."""
        pairs = [self._of_step(step) for step in steps]
        return np.stack([x for x, _ in pairs]), np.stack([y for _, y in pairs])

    def _of_step(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        run = self._run
        rng = np.random.default_rng((run.seed, step))
        if run.cause in FULL_BATCH:
            return self._x[: self._size], self._y[: self._size]
        chosen = rng.integers(0, len(self._x), self._size)
        if run.cause == "noisy loss":
            chosen = np.resize(chosen[:NOISY], self._size)
        x, y = self._x[chosen], self._y[chosen]
        if run.cause == "broken inputs" and run.begins <= step < run.begins + 3:
            # Pixels that were not scaled; of text, one letter over and over.
            x = np.zeros_like(x) if run.network == "GPT" else run.factor * x
        if run.cause == "flipped labels" and run.begins <= step < run.begins + run.factor:
            y = rng.permutation(y.reshape(-1)).reshape(y.shape)
        return x, y


@dataclasses.dataclass(frozen=True)
class _Program:
    """A compiled training.

    Attributes:
        begin: Makes parameters, other variables and the optimizer's state.
        steps: Takes some steps.
    """

    begin: Callable[[Run], tuple[PyTree, PyTree, PyTree]]
    steps: Callable[..., tuple[PyTree, PyTree, PyTree, dict[str, Array]]]


@functools.lru_cache(maxsize=2)
def _program(network: str, optimizer: str, dtype: str, size: int) -> _Program:
    """The program that all runs of one kind share."""
    of = NETWORKS[network]
    module = of.make()
    x, y = of.examples()
    switch = {"train": True} if of.has_batch_norm else {}
    init = functools.partial(module.init, **switch)
    variables = _cast(init(jax.random.key(0), x[:2]), dtype)
    fn = ntkdiag.functionalize(
        module, variables, call_kwargs={"train": False} if of.has_batch_norm else {}
    )
    tx = ntkdiag.watch(
        _optimizer(optimizer),
        fn,
        train=(_cast(x[:PROBE], dtype), y[:PROBE]),
        loss="cross_entropy",
        every=EVERY,
        instruments=("margin", "step_error", "critical_multiple", AlongTheGradient()),
    )

    def begin(run: Run) -> tuple[PyTree, PyTree, PyTree]:
        variables = init(jax.random.key(run.seed), x[:2])
        others = {name: tree for name, tree in variables.items() if name != "params"}
        params = _cast(variables["params"], dtype)
        if run.cause == "growing logits":
            params = _with_large_logits(params, min(run.factor, 8.0))
        return params, others, tx.init(params)

    def step(carry: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
        params, others, state = carry
        x, y, rate = inputs

        def loss_of(params: PyTree) -> tuple[Array, PyTree]:
            outputs, written = module.apply(
                {"params": params, **others},
                _cast(x, dtype),
                **switch,
                mutable=[*others, "intermediates"],
                capture_intermediates=True,
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(outputs.astype(jnp.float32), y)
            return losses.mean(), written

        (loss, written), gradient = jax.value_and_grad(loss_of, has_aux=True)(params)
        largest = _largest_kurtosis(written.pop("intermediates"))
        state = _with_rate(state, rate)
        updates, state = tx.update(gradient, state, params)
        seen = {
            "loss": loss,
            "learning_rate": rate,
            "gradient_norm": _norm(gradient),
            "update_norm": _norm(updates),
            "kurtosis": largest,
        }
        return (optax.apply_updates(params, updates), written, state), seen

    @jax.jit
    def steps(params: PyTree, others: PyTree, state: PyTree, inputs: PyTree) -> PyTree:
        (params, others, state), seen = jax.lax.scan(step, (params, others, state), inputs)
        return params, others, state, seen

    return _Program(begin, steps)


def _optimizer(name: str) -> optax.GradientTransformation:
    """An optimizer whose learning rate is in its state."""
    makers: dict[str, tuple[Any, dict[str, Any]]] = {
        "sgd": (optax.sgd, {}),
        "momentum": (optax.sgd, {"momentum": 0.9}),
        "adamw": (optax.adamw, {"b2": 0.95, "weight_decay": 1e-2}),
        "adam": (optax.adam, {"b2": 0.999}),
        "lion": (optax.lion, {}),
        "muon": (optax.contrib.muon, {}),
    }
    make, options = makers[name]

    def of_rate(learning_rate: float) -> optax.GradientTransformation:
        return make(learning_rate, **options)

    return optax.inject_hyperparams(of_rate)(learning_rate=1e-3)


def _with_rate(state: Any, rate: Array) -> Any:
    """The state with the learning rate of this step."""
    inner = state.ntk_inner
    dtype = inner.hyperparams["learning_rate"].dtype  # that of the parameters
    hyperparams = inner.hyperparams | {"learning_rate": rate.astype(dtype)}
    return state._replace(ntk_inner=inner._replace(hyperparams=hyperparams))


def _with_large_logits(params: PyTree, factor: float) -> PyTree:
    """Queries, keys and values of attention so many times larger; elsewhere the last layer."""
    last = "Dense_2" if "Dense_2" in params else "Dense_0"

    def grown(path: tuple, leaf: Array) -> Array:
        names = [str(getattr(entry, "key", entry)) for entry in path]
        is_attention = names[0].startswith("TransformerBlock") and names[1] == "Dense_0"
        return leaf * factor if is_attention or names[0] == last else leaf

    return jax.tree_util.tree_map_with_path(grown, params)


def _largest_kurtosis(intermediates: PyTree) -> Array:
    """The largest kurtosis of what a layer gives: E (a - mean)^4 / var^2, over all its numbers."""
    return jnp.max(
        jnp.stack([kurtosis(leaf) for leaf in jax.tree.leaves(_cast(intermediates, "float32"))])
    )


def _norm(tree: PyTree) -> Array:
    """In float32: squares of bfloat16 have three digits."""
    return optax.global_norm(_cast(tree, "float32"))


def _cast(tree: PyTree, dtype: str) -> PyTree:
    """Floating-point numbers in another dtype."""

    def cast(leaf: Any) -> Any:
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(leaf, dtype) if is_float else leaf

    return jax.tree.map(cast, tree)

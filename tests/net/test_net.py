"""What the public calls return, on twelve small trainings, as recorded in the JSON files of this folder.

    python tests/net/test_net.py                    # record all cases anew
    python tests/net/test_net.py linen tokens       # record two of them

A number that changes on purpose is recorded anew in a commit that says which one and why. Numbers are compared on
the scale of the array that they are in: to 1e-12 in float64, to 1e-5 in float32; those of training to 1e-7.
"""

import json
import math
import pathlib
import sys
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import ntkdiag

FOLDER = pathlib.Path(__file__).parent
N, FEATURES, CLASSES, TOKENS = 12, 5, 3, 4
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
# Products of vectors that follow from each other amplify rounding.
OF_PRODUCTS = 1e-7
# What is not a number: digests, times, codes.
LEFT_OUT = ("sha256", "seconds", "convention", "status", "label_doubts")

# Numbers of the change in a comparison, by what they are called here.
BETWEEN = {
    "drift": {
        "relative": "drift",
        "scale": "drift_scale",
        "rotation": "drift_rotation",
        "distance": "drift_distance",
        "distance_centred": "drift_distance_centred",
    },
    "linearization": {
        "e1": "e1",
        "e2": "e2",
        "agreement": "agreement",
    },
}


class Case(NamedTuple):
    """A model at three steps of a training, and how it is looked at.

    Attributes:
        model: What `compare` and `track` take as `model=`.
        checkpoints: The model, or its variables, at three steps; beside a state of Adam in one case.
        settings: Keyword arguments of `compare` and `track`.
    """

    model: Any
    checkpoints: list[Any]
    settings: Mapping[str, Any]


class Dense(nn.Module):
    """Two layers, with batch normalisation between them where asked."""

    normalised: bool = False
    has_bias: bool = True

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dense(8, use_bias=self.has_bias)(x)
        if self.normalised:
            x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.Dense(CLASSES)(nn.tanh(x))


class OneLeaf(nn.Module):
    """One matrix."""

    @nn.compact
    def __call__(self, x):
        return jnp.tanh(nn.Dense(CLASSES, use_bias=False)(x))


class ManyLeaves(nn.Module):
    """150 layers side by side, each with a kernel and a bias."""

    @nn.compact
    def __call__(self, x):
        return sum(jnp.tanh(nn.Dense(CLASSES)(x)) for _ in range(150)) / 12


class OfTokens(nn.Module):
    """Logits of every position."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(nn.tanh(nn.Embed(7, 8)(x)))


def examples(seed: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """N examples with class numbers."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N, FEATURES)).astype(dtype), rng.permutation(np.arange(N) % CLASSES)


def padded_tokens(seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """N sequences, the later ones padded, with a class number and a mask for every position."""
    rng = np.random.default_rng(seed)
    mask = np.arange(TOKENS) < np.where(np.arange(N) < N // 2, TOKENS, TOKENS - 2)[:, None]
    labels = rng.integers(0, CLASSES, (N, TOKENS))
    return rng.integers(0, 7, (N, TOKENS)), {"labels": labels, "mask": mask}


def masked_loss(logits: jax.Array, y: Mapping[str, jax.Array]) -> jax.Array:
    """Cross-entropy of the positions that are not padded."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, y["labels"])
    return jnp.sum(losses * y["mask"]) / jnp.sum(y["mask"])


def filled(arrays: Any, dtype: str) -> Any:
    """The same arrays with numbers of NumPy's: matrices of scale 1 / sqrt(rows), the rest near what they were."""
    rng = np.random.default_rng(0)

    def fill(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        drawn = rng.normal(size=leaf.shape)
        values = (
            drawn / math.sqrt(leaf.shape[0]) if leaf.ndim > 1 else np.asarray(leaf) + 0.1 * drawn
        )
        return jnp.asarray(values, dtype)

    return jax.tree.map(fill, arrays)


def moved(params: Any, steps: int, size: float = 0.05) -> Any:
    """Parameters as if they had been trained for so many steps."""

    def away(leaf: Any) -> Any:
        wave = np.cos(np.arange(leaf.size) + steps).reshape(leaf.shape)
        return leaf + jnp.asarray(size * steps * wave, leaf.dtype)

    return jax.tree.map(away, params)


def of_linen(
    model: nn.Module, dtype: str, *, x: Any = None, size: float = 0.05, **changed: Any
) -> Case:
    """A linen module, its variables at three steps, and the settings of most cases but for those that are changed."""
    x = examples(1, dtype)[0] if x is None else x
    variables = filled(model.init(jax.random.key(0), x), dtype)
    held = {name: value for name, value in variables.items() if name != "params"}
    checkpoints = []
    for step in range(3):
        statistics = jax.tree.map(lambda leaf, step=step: abs(leaf) + 0.1 * step, held)
        checkpoints.append({"params": moved(variables["params"], step, size), **statistics})
    return Case(model, checkpoints, settings(dtype, **changed))


def settings(dtype: str, **changed: Any) -> dict[str, Any]:
    """The settings of most cases; a value of None takes one away."""
    usual = {"train": examples(1, dtype), "loss": "cross_entropy", "descent": 0.1}
    return {name: value for name, value in (usual | changed).items() if value is not None}


def of_nnx(dtype: str) -> Case:
    """An NNX module."""
    graph, params = nnx.split(nnx.Linear(FEATURES, CLASSES, rngs=nnx.Rngs(0)))
    start = filled(params, dtype)
    models = [nnx.merge(graph, moved(start, step)) for step in range(3)]
    return Case(models[0], models, settings(dtype))


def of_equinox(dtype: str) -> Case:
    """An Equinox module."""
    model = eqx.nn.MLP(FEATURES, CLASSES, 8, 1, key=jax.random.key(0))
    arrays, rest = eqx.partition(model, eqx.is_array)
    start = filled(arrays, dtype)
    models = [eqx.combine(moved(start, step), rest) for step in range(3)]
    return Case(models[0], models, settings(dtype))


def of_adam(dtype: str) -> Case:
    """Variables beside the states of Adam."""
    case = of_linen(Dense(), dtype)
    optimizer = optax.adam(1e-2)
    checkpoints = []
    for variables in case.checkpoints:
        gradient = jax.tree.map(lambda leaf: 0.1 + 0.01 * jnp.sin(leaf), variables["params"])
        _, state = optimizer.update(
            gradient, optimizer.init(variables["params"]), variables["params"]
        )
        checkpoints.append((variables, state))
    return Case(case.model, checkpoints, settings(dtype, descent=None, optimizer=optimizer))


def of_tokens(dtype: str) -> Case:
    """Padded sequences."""
    train = padded_tokens(1)
    return of_linen(OfTokens(), dtype, x=train[0], train=train, loss=masked_loss, n_train=N)


CASES: dict[str, Callable[[str], Case]] = {
    "linen": lambda dtype: of_linen(Dense(), dtype, held_out=examples(2, dtype)),
    "nnx": of_nnx,
    "equinox": of_equinox,
    "batch_norm": lambda dtype: of_linen(Dense(normalised=True), dtype),
    "tokens": of_tokens,
    "held_out_only": lambda dtype: of_linen(
        Dense(), dtype, train=None, held_out=examples(2, dtype), descent=None
    ),
    "reduced": lambda dtype: of_linen(
        Dense(), dtype, held_out=examples(2, dtype), reduction="mean"
    ),
    "no_labels": lambda dtype: of_linen(
        Dense(), dtype, train=(examples(1, dtype)[0], None), loss=None, descent=None
    ),
    "diverged": lambda dtype: of_linen(Dense(), dtype, size=1e4),
    "adam": of_adam,
    "one_leaf": lambda dtype: of_linen(OneLeaf(), dtype),
    "many_leaves": lambda dtype: of_linen(ManyLeaves(), dtype),
}


def of_kernel(case: Case) -> dict[str, Any]:
    """`ntk`, `spectrum`, `linearize` and `gradient_flow`."""
    side = case.checkpoints[0][0] if "optimizer" in case.settings else case.checkpoints[0]
    fn = (
        ntkdiag.functionalize(case.model, side)
        if isinstance(case.model, nn.Module)
        else ntkdiag.functionalize(side)
    )
    f, params = fn
    x, y = case.settings.get("train") or case.settings["held_out"]
    reduction = case.settings.get("reduction", "full")
    kernel = ntkdiag.ntk(f, params, x, reduction=reduction)
    rows = x[: N // 2]
    square = np.asarray(kernel.array).reshape(int(math.sqrt(kernel.array.size)), -1)
    found = {
        "ntk diagonal": np.diagonal(square),
        "ntk times cosines": square @ np.cos(np.arange(len(square))),
        "ntk of two batches": ntkdiag.ntk(f, params, rows, x[N // 2 :], reduction=reduction).array[
            0
        ],
        "spectrum": ntkdiag.spectrum(kernel).eigenvalues,
        "linearize": ntkdiag.linearize(f, params)(moved(params, 1), x),
    }
    if isinstance(y, np.ndarray) and reduction == "full":
        targets = np.eye(CLASSES)[y].astype(x.dtype)
        f0 = f(params, x)
        flow = ntkdiag.predict.gradient_flow(kernel, targets, jnp.array([0.1, 1.0, 10.0]), f0=f0)
        found["gradient_flow"] = flow.train
    return found


def of_checkpoints(case: Case) -> dict[str, Any]:
    """`compare` and `track`."""
    of_model = {} if case.model is case.checkpoints[0] else {"model": case.model}
    options = {**case.settings, **of_model, "progress": False}
    comparison = ntkdiag.compare(case.checkpoints[0], case.checkpoints[-1], **options)
    found: dict[str, Any] = {
        f"compare {name}": side.numbers for name, side in zip("ab", comparison.sides, strict=True)
    }
    for part, names in BETWEEN.items():
        found[f"compare {part}"] = {field: comparison[name] for field, name in names.items()}
    with tempfile.TemporaryDirectory() as folder:
        run = ntkdiag.track(
            dict(enumerate(case.checkpoints)), out=pathlib.Path(folder) / "run", **options
        )
        found["track"] = [dict(row) for row in run.rows]
        found["track pairs"] = {name: np.asarray(matrix) for name, matrix in run.matrices.items()}
    return found


def of_training(case: Case) -> dict[str, Any]:
    """`Monitor` at the checkpoints, and `watch` in three steps of AdamW."""
    of_checkpoints_alone = ("descent", "reduction")
    options = {name: v for name, v in case.settings.items() if name not in of_checkpoints_alone}
    optimizer = options.pop("optimizer", None)
    found: dict[str, Any] = {"Monitor": []}
    with_states = case.checkpoints
    if optimizer is None:
        optimizer = optax.sgd(0.1)
        with_states = [(checkpoint, optimizer.init(())) for checkpoint in case.checkpoints]
    first = with_states[0][0]
    is_linen = isinstance(case.model, nn.Module)
    fn = ntkdiag.functionalize(case.model, first) if is_linen else ntkdiag.functionalize(first)
    monitor = ntkdiag.Monitor(fn, every=1, optimizer=optimizer, **options)
    for step, (checkpoint, state) in enumerate(with_states):
        held = (
            {name: value for name, value in checkpoint.items() if name != "params"}
            if is_linen
            else {}
        )
        params = checkpoint["params"] if is_linen else ntkdiag.functionalize(checkpoint).params
        measurement = monitor(step, params, state, **({"model_state": held} if held else {}))
        found["Monitor"].append(measurement.values())
    monitor.close()
    if len(jax.tree.leaves(fn.params)) < 100:  # `watch` compiles for minutes with 300 leaves
        found["watch"] = watched(fn, options)
    return found


def watched(fn: Any, options: Mapping[str, Any]) -> list[Any]:
    """What the state of `watch` says after each of three steps."""
    f, params = fn
    x, y = options.get("train") or options["held_out"]
    objective = masked_loss if isinstance(y, Mapping) else cross_entropy
    tx = ntkdiag.watch(optax.adamw(1e-2), fn, every=1, **options)

    @jax.jit
    def step(params, state):
        gradient = jax.grad(lambda params: objective(f(params, x), y))(params)
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    rows = []
    for _ in range(3):
        params, state = step(params, state)
        rows.append(ntkdiag.record(state))
    return rows


def cross_entropy(logits: jax.Array, y: np.ndarray | None) -> jax.Array:
    """The mean loss; where there are no labels, of the first class."""
    labels = np.zeros(N, int) if y is None else y
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


PARTS: dict[str, Callable[[Case], dict[str, Any]]] = {
    "kernel": of_kernel,
    "checkpoints": of_checkpoints,
    "training": of_training,
}


def numbers_of(name: str, dtype: str, part: str) -> dict[str, Any]:
    """Flat names -> a number or a list of numbers."""
    found: dict[str, Any] = {}
    collect(PARTS[part](CASES[name](dtype)), "", found)
    return found


def collect(value: Any, name: str, found: dict[str, Any]) -> None:
    """Go through dictionaries and lists of dictionaries; keep what is a number or an array."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if not any(word in str(key) for word in LEFT_OUT):
                collect(entry, f"{name}/{key}" if name else str(key), found)
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
        for place, entry in enumerate(value):
            collect(entry, f"{name}/{place}", found)
    elif value is not None and not isinstance(value, str | bool):
        array = np.asarray(value)
        if np.issubdtype(array.dtype, np.number) and array.size:
            found[name] = array.astype(np.float64).tolist()


def differences(before: Mapping[str, Any], after: Mapping[str, Any], tolerance: float) -> list[str]:
    """The names whose numbers are not the same, on the scale of the larger of the two arrays and of 1e-3.

    A number that is not known is NaN, or left out.
    """
    before, after = ({n: v for n, v in of.items() if not is_nan(v)} for of in (before, after))
    said = [f"{name}: gone" for name in before.keys() - after.keys()]
    said += [f"{name}: new" for name in after.keys() - before.keys()]
    for name in before.keys() & after.keys():
        one, other = np.asarray(before[name], float), np.asarray(after[name], float)
        if one.shape != other.shape:
            said.append(f"{name}: shape {one.shape} -> {other.shape}")
            continue
        finite = np.abs(np.concatenate([one.ravel(), other.ravel()]))
        scale = max([1e-3, *finite[np.isfinite(finite)]])
        if not np.allclose(one, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            said.append(f"{name}: {before[name]} -> {after[name]}"[:300])
    return sorted(said)


def is_nan(value: Any) -> bool:
    """Whether a value is one number that is not known."""
    return isinstance(value, float) and math.isnan(value)


def text_of(recorded: Mapping[str, Mapping[str, Any]]) -> str:
    """JSON with one line for each name."""
    parts = []
    for part, numbers in recorded.items():
        lines = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(number)}" for name, number in numbers.items()
        )
        parts.append(f"{json.dumps(part)}: {{\n{lines}\n}}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def path_of(name: str, dtype: str) -> pathlib.Path:
    return FOLDER / f"{name}_{dtype}.json"


# All of a case in float64, kernels and checkpoints in float32, too, but for the dearest.
WHOLE = [(name, "float64", part) for name in CASES for part in PARTS]
HALF = [
    (name, "float32", part)
    for name in CASES
    for part in ("kernel", "checkpoints")
    if (name, part) != ("many_leaves", "checkpoints")
]
# Vectors of one of several equal eigenvalues, or of none above rounding, are another on another CPU.
UNDETERMINED = {
    ("nnx", "training"): ("eigenvalues_upper", "trace", "participation_ratio", "alignment"),
    ("diverged", "checkpoints"): ("overlap",),
}
# The fast suite has some kernels in float64.
FAST = [(name, "float64", "kernel") for name in ("linen", "batch_norm", "tokens", "adam")]
SLOW = [entry for entry in WHOLE + HALF if entry not in FAST]


@pytest.fixture
def width(request):
    """Set float64 for all threads, as a user who asks for it does."""
    jax.config.update("jax_enable_x64", request.param == "float64")
    yield request.param
    jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize(
    ("name", "width", "part"),
    [*FAST, *(pytest.param(*entry, marks=pytest.mark.slow) for entry in SLOW)],
    indirect=["width"],
)
def test_numbers_are_as_recorded(name, width, part):
    recorded = json.loads(path_of(name, width).read_text())[part]
    tolerance = OF_PRODUCTS if part == "training" else TOLERANCE[width]
    left_out = UNDETERMINED.get((name, part), ())
    recorded, found = (
        {key: number for key, number in numbers.items() if not any(w in key for w in left_out)}
        for numbers in (recorded, numbers_of(name, width, part))
    )
    found = differences(recorded, found, tolerance)
    assert not found, "\n".join(found)


def main(names: list[str]) -> None:
    """Record cases."""
    for name in names or CASES:
        for dtype in TOLERANCE:
            jax.config.update("jax_enable_x64", dtype == "float64")
            entries = [entry for entry in WHOLE + HALF if entry[:2] == (name, dtype)]
            recorded = {part: numbers_of(name, dtype, part) for _, _, part in entries}
            path_of(name, dtype).write_text(text_of(recorded))
            print(
                name, dtype, {part: len(numbers) for part, numbers in recorded.items()}, flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1:])

"""`python -m benchmarks.net`: whether a change of the package changed what it says.

    python -m benchmarks.net record before.json         # on the commit before
    python -m benchmarks.net compare before.json        # on the commit after

Twelve small cases, each with everything that `compare`, `track` and `Monitor` return of it as
numbers, and the text of both pages. Numbers of one machine and one JAX are equal to 1e-12; what
differs is listed by its path, and the second command ends with 1.
"""

import argparse
import json
import math
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx

import ntkdiag

N, FEATURES, CLASSES, TOKENS = 12, 5, 3, 4
RATE = 0.1
# Differences of less than this, relative to the larger of both.
TOLERANCE = 1e-12
# What is another one each time: paths of temporary folders, times, hashes of files.
_OF_ONE_RUN = re.compile(r"/tmp/\S+|\d+(\.\d+)? m?s\b|\d{4}-\d\d-\d\d[T \d:.+]*")


class Case(NamedTuple):
    """A model at steps of its training, and how they are looked at."""

    model: Any
    checkpoints: Sequence[Any]
    settings: Mapping[str, Any]
    is_watched: bool = True


class Dense(nn.Module):
    """Two layers, with batch normalisation between them where asked."""

    normalised: bool = False

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Dense(8)(x)
        if self.normalised:
            x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.Dense(CLASSES)(nn.tanh(x))


class OfTokens(nn.Module):
    """Logits of every position."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(nn.tanh(nn.Embed(7, 8)(x)))


def examples(seed: int, *, tokens: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """N examples with class numbers."""
    rng = np.random.default_rng(seed)
    if tokens:
        return rng.integers(0, 7, (N, TOKENS)), rng.integers(0, CLASSES, (N, TOKENS))
    return rng.normal(size=(N, FEATURES)).astype(np.float32), rng.permutation(
        np.arange(N) % CLASSES
    )


def stated(**changed: Any) -> dict[str, Any]:
    """The settings of most cases."""
    usual = {"train": examples(1), "loss": "cross_entropy", "descent": RATE}
    return {name: value for name, value in (usual | changed).items() if value is not None}


def moved(params: Any, steps: int, size: float = 0.05) -> Any:
    """Parameters as if they had been trained for so many steps."""

    def away(leaf: Any) -> Any:
        wave = jnp.cos(jnp.arange(leaf.size, dtype=jnp.float32) + steps).reshape(leaf.shape)
        return leaf + size * steps * wave.astype(leaf.dtype)

    return jax.tree.map(away, params)


def of_linen(model: nn.Module, x: np.ndarray, size: float = 0.05) -> list[Any]:
    """Variables at three steps."""
    variables = model.init(jax.random.key(0), x)
    held = {name: value for name, value in variables.items() if name != "params"}
    return [{"params": moved(variables["params"], step, size), **held} for step in range(3)]


def linen(**changed: Any) -> Case:
    model = Dense()
    return Case(model, of_linen(model, examples(1)[0]), stated(**changed))


def nnx_model() -> Case:
    graph, params = nnx.split(nnx.Linear(FEATURES, CLASSES, rngs=nnx.Rngs(0)))
    steps = [nnx.merge(graph, moved(params, step)) for step in range(3)]
    return Case(steps[0], steps, stated(), is_watched=False)


def equinox() -> Case:
    model = eqx.nn.MLP(FEATURES, CLASSES, 8, 1, key=jax.random.key(0))
    arrays, rest = eqx.partition(model, eqx.is_array)
    steps = [eqx.combine(moved(arrays, step), rest) for step in range(3)]
    return Case(steps[0], steps, stated(), is_watched=False)


def batch_norm() -> Case:
    model = Dense(normalised=True)
    checkpoints = of_linen(model, examples(1)[0])
    for step, variables in enumerate(checkpoints):
        variables["batch_stats"] = jax.tree.map(
            lambda leaf, step=step: leaf + 0.1 * step, variables["batch_stats"]
        )
    return Case(model, checkpoints, stated())


def tokens() -> Case:
    model = OfTokens()
    train = examples(1, tokens=True)
    return Case(model, of_linen(model, train[0]), stated(train=train))


def diverged() -> Case:
    model = Dense()
    return Case(model, of_linen(model, examples(1)[0], size=1e4), stated())


def adam() -> Case:
    model = Dense()
    optimizer = optax.adam(1e-2)
    checkpoints = []
    for variables in of_linen(model, examples(1)[0]):
        params = variables["params"]
        state = optimizer.init(params)
        gradient = jax.tree.map(lambda leaf: 0.1 + 0.01 * jnp.sin(leaf), params)
        _, state = optimizer.update(gradient, state, params)
        checkpoints.append((variables, state))
    return Case(model, checkpoints, stated(descent=None, optimizer=optimizer))


def function() -> Case:
    """A function without a library."""
    rng = np.random.default_rng(0)
    start = {"w": rng.normal(size=(FEATURES, 6)), "v": rng.normal(size=(6, CLASSES))}
    start = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), start)
    model = lambda params, x: jnp.tanh(x @ params["w"]) @ params["v"]
    return Case(model, [moved(start, step) for step in range(3)], stated(held_out=examples(2)))


CASES: dict[str, Callable[[], Case]] = {
    "linen": lambda: linen(held_out=examples(2)),
    "nnx": nnx_model,
    "equinox": equinox,
    "batch norm": batch_norm,
    "tokens": tokens,
    "held out only": lambda: linen(train=None, held_out=examples(2), descent=None),
    "reduced": lambda: linen(held_out=examples(2), reduction="mean"),
    "projected": lambda: linen(reduction=ntkdiag.kernel.RandomProjections(2)),
    "no labels": lambda: linen(train=(examples(1)[0], None), loss=None, descent=None),
    "diverged": diverged,
    "adam": adam,
    "function": function,
}


def recorded(case: Case, folder: pathlib.Path) -> dict[str, Any]:
    """Everything that is said of one case."""
    # Models bring their own function, and everything else needs that of the case.
    of_model = {} if case.model is case.checkpoints[0] else {"model": case.model}
    settings = {**case.settings, **of_model, "progress": False}
    said: dict[str, Any] = {}

    comparison = ntkdiag.compare(case.checkpoints[0], case.checkpoints[-1], **settings)
    said["compare"] = comparison.to_dict()
    said["compare numbers"] = [comparison.a.numbers, comparison.b.numbers]
    said["compare findings"] = [finding.to_dict() for finding in comparison.findings]
    said["compare page"] = _page(comparison, folder / "compare.html")

    run = ntkdiag.track(dict(enumerate(case.checkpoints)), out=folder / "run", **settings)
    said["track"] = list(run.rows)
    said["track matrices"] = dict(run.matrices)
    said["track page"] = _page(run, folder / "track.html")

    if case.is_watched:
        said["monitor"] = _watched(case)
    return _plain(said)


def _watched(case: Case) -> list[Any]:
    """The numbers of a Monitor at each checkpoint."""
    optimizer = case.settings.get("optimizer")
    first = case.checkpoints[0]
    model = case.model
    if isinstance(model, nn.Module):
        model = ntkdiag.functionalize(model, first if optimizer is None else first[0])
    monitor = ntkdiag.Monitor(model, every=1, findings=None, **case.settings)
    rows = []
    for step, checkpoint in enumerate(case.checkpoints):
        values, state = checkpoint if optimizer is not None else (checkpoint, None)
        held = {}
        if isinstance(case.model, nn.Module):
            held = {name: value for name, value in values.items() if name != "params"}
            values = values["params"]
        measurement = monitor(step, values, state, **({"model_state": held} if held else {}))
        rows.append(None if measurement is None else measurement.values())
    return rows


def _page(result: Any, path: pathlib.Path) -> list[str]:
    """The lines of text of a page, without its pictures."""
    result.save(path)
    text = re.sub(r"<(svg|style|script)\b.*?</\1>", "", path.read_text(), flags=re.DOTALL)
    lines = (" ".join(line.split()) for line in re.sub(r"<[^>]+>", "\n", text).splitlines())
    return [_OF_ONE_RUN.sub("...", line) for line in lines if line]


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.ndarray | jax.Array):
        return _plain(np.asarray(value, np.float64).tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, str):
        return _OF_ONE_RUN.sub("...", value)
    return value if value is None or isinstance(value, bool | int | float) else repr(value)


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Where two records are not the same."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            if name not in after or name not in before:
                yield f"{path}/{name}: {'gone' if name in before else 'new'}"
            else:
                yield from differences(before[name], after[name], f"{path}/{name}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{path}/{place}")
    elif not _are_same(before, after):
        yield f"{path}: {str(before)[:300]} -> {str(after)[:300]}"


def _are_same(before: Any, after: Any) -> bool:
    are_numbers = all(isinstance(value, int | float) for value in (before, after))
    if not are_numbers:
        return before == after
    if math.isnan(before) or math.isnan(after):
        return math.isnan(before) and math.isnan(after)
    return math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=TOLERANCE * 1e-6)


def record(names: Sequence[str]) -> dict[str, Any]:
    """The records of some cases."""
    found = {}
    for name in names:
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            found[name] = recorded(CASES[name](), pathlib.Path(folder))
    return found


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.net", description=__doc__)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("path", type=pathlib.Path)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    given = parser.parse_args()
    now = json.loads(json.dumps(record(given.cases)))
    if given.action == "record":
        given.path.write_text(json.dumps(now, indent=1))
        return 0
    before = json.loads(given.path.read_text())
    found = list(differences({name: before[name] for name in given.cases}, now))
    print("\n".join(found) or "the same")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

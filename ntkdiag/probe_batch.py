"""The probes of comparisons and monitors, by name: `train=(x, y)` and `held_out=(x, y)`.

A third part has weights, `train=(x, y, weights)`: the labels of the probe are `Weighted` then.

Which number is of which probe:

- spectrum, drift, linearization error and stability are of `train`: the curvature of a loss
  vanishes where predictions become certain, and stays large on held-out examples, whose margins
  are 1.7 to 2.5 times too high late in training;
- alignment, label power and leave-one-out are of `held_out`: a kernel after training knows the
  labels it was trained on.

With one probe alone everything is measured on it; numbers that need the other are left out, or a
note says so.
"""

import dataclasses
import hashlib
from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.arrays import as_examples, as_labels, is_one_array
from ntkdiag.jaxtools.arguments import check_no_nan, has_shapes_alone
from ntkdiag.jaxtools.tracing import is_traced
from ntkdiag.kernel.kernel import digest, host_numbers
from ntkdiag.losses.targets import Weighted, require_weights
from ntkdiag.models.paths import shown

# What users write: (x, y), (x, None) without labels, (x, y, weights) with weights.
Pair: TypeAlias = tuple[PyTree, PyTree] | tuple[PyTree, PyTree, PyTree]


@dataclasses.dataclass(frozen=True, eq=False)
class ProbeBatch:
    """Examples with their labels, and the name they were passed by."""

    name: str  # "train" or "held_out"
    x: PyTree  # examples, N on the leading axis of every leaf
    # Their labels as they came, one array or a tree of arrays with N on the leading axis; a
    # `Weighted` with weights; None without.
    y: PyTree

    @property
    def n_examples(self) -> int:
        """Number of examples, N."""
        return np.shape(jax.tree.leaves(self.x)[0])[0]

    @property
    def digest(self) -> str | None:
        """SHA-256 of the examples, as kernels name them; None without values, as of traced ones."""
        if is_traced(self.x) or has_shapes_alone(self.x):
            return None
        # A chain may be built inside a trace, as inject_hyperparams does.
        with jax.ensure_compile_time_eval():
            return digest(self.x)


@dataclasses.dataclass(frozen=True, eq=False)
class Probes:
    """The probes of a comparison or a monitor: one of them, or both."""

    train: ProbeBatch | None  # examples that are trained on, or None
    held_out: ProbeBatch | None  # examples that are not, or None

    @property
    def of_kernel(self) -> ProbeBatch:
        """The probe of the kernels, their drift and all that follows: `train` where it is given."""
        probe = self.held_out if self.train is None else self.train
        assert probe is not None  # `read_probes` refuses neither
        return probe

    @property
    def of_labels(self) -> ProbeBatch:
        """The probe of alignment, label power and leave-one-out: `held_out` where it is given."""
        return self.of_kernel if self.held_out is None else self.held_out


def read_probes(train: Pair | None, held_out: Pair | None) -> Probes:
    """Read `train=(x, y)` and `held_out=(x, y)`, or (x, y, weights); at least one is given."""
    if train is None and held_out is None:
        raise errors.InvalidInputError(
            expected="examples to measure on: train=(x, y), held_out=(x, y), or both",
            got="neither",
            do="Pass a part of the training set as train=(x, y); (x, None) without labels.",
        )
    probes = Probes(_read_pair(train, "train"), _read_pair(held_out, "held_out"))
    if probes.train is not None and probes.held_out is not None:
        _require_fit(probes.train, probes.held_out)
    return probes


def read_n_train(n_train: int | np.integer | None, probes: Probes) -> int | None:
    """The number of examples of the whole training set, that the probe is a part of."""
    if n_train is None:
        return None
    n_probe = 0 if probes.train is None else probes.train.n_examples
    if probes.train is None or n_train < n_probe:
        raise errors.InvalidInputError(
            argument=f"n_train={n_train!r}",
            expected="the number of examples of the whole training set, of which train=(x, y) are "
            "some",
            got=f"{n_train!r} with a probe of {n_probe}",
            do="Leave it out where it is not known.",
        )
    return int(n_train)


def _read_pair(pair: Any, name: str) -> ProbeBatch | None:
    """One probe from the pair it is passed as; `pair` is anything until it is checked."""
    if pair is None:
        return None
    if not isinstance(pair, tuple) or len(pair) not in (2, 3):
        of = f" of {len(pair)}" if isinstance(pair, tuple) else ""
        raise errors.InvalidInputError(
            argument=f"{name}=...",
            expected="a pair (x, y) of examples and labels, or (x, y, weights)",
            got=f"a {type(pair).__name__}{of}",
            do=f"Write {name}=(x, y), {name}=(x, None) for examples without labels, or "
            f"{name}=(x, y, weights).",
        )
    x, y = as_examples(pair[0]), pair[1]
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(x)]
    n_examples = {shape[:1] for shape in shapes}
    # Without axes, or with none on the first one.
    lacks_examples = () in n_examples or (0,) in n_examples
    if len(n_examples) != 1 or lacks_examples:
        raise errors.InvalidInputError(
            argument=f"{name}=(x, y)",
            expected="x with the same number of examples, at least one, on the leading axis of "
            "every leaf",
            got=f"shapes {shown([str(shape) for shape in shapes])}",
            do="x and y have the examples first.",
        )
    check_no_nan(x, "x")
    y = as_labels(y)
    if len(pair) == 3 and pair[2] is not None:
        y = Weighted(y, require_weights(pair[2]))
    probe = ProbeBatch(name, x, y)
    # One array of labels is looked at beside the outputs, which tell what it has to be.
    if not is_one_array(y):
        _require_as_many(probe, y)
    return probe


def require_label_of_each(probe: ProbeBatch) -> None:
    """Refuse labels of one array that are more or fewer than the examples."""
    labels = probe.y.y if isinstance(probe.y, Weighted) else probe.y
    if is_one_array(labels):
        _require_as_many(probe, labels)


def _require_as_many(probe: ProbeBatch, labels: PyTree) -> None:
    """Refuse labels, or weights, that are more or fewer than the examples."""
    got = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(labels):
        shape = np.shape(leaf)
        if shape[:1] != (probe.n_examples,):
            got.append(f"y{jax.tree_util.keystr(path)} of shape {shape}")
    if labels is not None and not jax.tree.leaves(labels):
        got.append(f"a {type(labels).__name__} without arrays")
    if got:
        raise errors.InvalidInputError(
            argument=f"{probe.name}=(x, y)",
            expected=f"the {probe.n_examples} examples of x on the leading axis of every array of "
            "labels and weights",
            got=shown(got),
            do="x, y and weights are of the same examples in the same order; a list is one array, "
            "and several arrays of labels are a tuple or a dictionary.",
        )


def _require_fit(train: ProbeBatch, held_out: ProbeBatch) -> None:
    """Refuse two probes that the same model cannot take, or that are one probe twice."""
    form_of_train = _form(train.x)
    form_of_held_out = _form(held_out.x)
    if form_of_train != form_of_held_out:
        raise errors.InvalidInputError(
            argument="train=(x, y), held_out=(x2, y2)",
            expected=f"examples of one form in both; train has {form_of_train}",
            got=form_of_held_out,
            do="Only the number of examples may differ.",
        )
    if held_out.y is None:
        raise errors.InvalidInputError(
            argument="held_out=(x, None)",
            expected="labels of the held-out examples, which alignment, label power and "
            "leave-one-out need",
            got="None",
            do="Pass the labels, or leave held_out out.",
        )
    if train.digest is not None and train.digest == held_out.digest:
        raise errors.InvalidInputError(
            argument="train=(x, y), held_out=(x, y)",
            expected="held-out examples that are not trained on",
            got="the same examples for both",
            do="Pass them as one of the two only.",
        )


def shared_examples(probes: Probes) -> int:
    """How many of the held-out examples are among those of `train`, equal to the last bit."""
    if probes.train is None or probes.held_out is None:
        return 0
    if is_traced(probes.train.x, probes.held_out.x):
        return 0
    trained_on = set(_row_digests(probes.train))
    return sum(row in trained_on for row in _row_digests(probes.held_out))


def _row_digests(probe: ProbeBatch) -> list[bytes]:
    """A hash of every example, over the leaves of x."""
    states = [hashlib.sha256() for _ in range(probe.n_examples)]
    for leaf in jax.tree.leaves(probe.x):
        rows = host_numbers(leaf)
        for state, row in zip(states, rows, strict=True):
            state.update(row.tobytes())
    return [state.digest() for state in states]


def _form(x: PyTree) -> str:
    """Structure, shape and dtype of one example, in words."""
    # As JAX sees them: it narrows the float64 of NumPy.
    leaves, structure = jax.tree.flatten(jax.eval_shape(lambda x: x, x))
    forms = ", ".join(f"{leaf.dtype}{list(leaf.shape[1:])}" for leaf in leaves)
    return forms if jax.tree_util.treedef_is_leaf(structure) else f"{forms} in {structure}"

"""The variables of a Keras model by path, such as `encoder/dense_1/kernel`.

The paths of Keras itself (`variable.path`) will not do: the same network built a second time in one
process has a `dense_7` where the first has a `dense`, layers of models inside a functional model
are not told apart by the model they are in, and the name of the model comes first in some and not
in others. So the layers are walked, from the model down:

1. a path has the names of the layers that lead to a variable, without that of the model itself;
2. a name that Keras made up (`dense_7`) is numbered anew among the layers beside it, as it would be
   in a new process; a name that the user gave stays;
3. what is shared has the path where it is met first.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
from jaxtyping import PyTree


class Variables(NamedTuple):
    """The variables of a model.

    Attributes:
        weights: Path -> variable, of those that layers train unless they are frozen.
        state: Path -> variable, of all others: running statistics, seeds.
    """

    weights: dict[str, keras.Variable]
    state: dict[str, keras.Variable]


def variables_of(model: keras.Layer) -> Variables:
    """Find the variables of a model, or of any layer."""
    variables = Variables({}, {})
    _walk(model, "", variables, seen=set())
    return variables


def nested(leaves: Mapping[str, Any]) -> dict[str, PyTree]:
    """Path -> leaf as nested dictionaries."""
    tree: dict[str, PyTree] = {}
    for path, leaf in leaves.items():
        *parents, last = path.split("/")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = leaf
    return tree


def flat(tree: Mapping[str, PyTree], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as path -> leaf."""
    leaves = {}
    for name, branch in tree.items():
        if isinstance(branch, Mapping):
            leaves |= flat(branch, f"{prefix}{name}/")
        else:
            leaves[prefix + name] = branch
    return leaves


def _walk(layer: keras.Layer, prefix: str, variables: Variables, seen: set[int]) -> None:
    """Add what a layer holds, and what the layers inside it do, unless that was seen before."""
    if id(layer) in seen:
        return
    seen.add(id(layer))
    names = _Names()
    # Of the variables of its own Keras has no public list.
    for variable in layer._trainable_variables:
        _add(variable, prefix, variables.weights, names, seen)
    for variable in layer._non_trainable_variables:
        _add(variable, prefix, variables.state, names, seen)
    for generator in layer._seed_generators:
        _add(generator.state, prefix, variables.state, names, seen)
    for inner in layer._flatten_layers(include_self=False, recursive=False):
        _walk(inner, f"{prefix}{names.take(_own_name(inner))}/", variables, seen)


def _add(
    variable: keras.Variable,
    prefix: str,
    place: dict[str, keras.Variable],
    names: "_Names",
    seen: set[int],
) -> None:
    """Add a variable, unless it was seen before."""
    if id(variable) not in seen:
        seen.add(id(variable))
        place[prefix + names.take(variable.name)] = variable


def _own_name(layer: keras.Layer) -> str:
    """The name of a layer, without the number that Keras has put behind a name it made up."""
    without_number = re.sub(r"_\d+$", "", layer.name)
    name_of_class = type(layer).__name__.replace("_", "").lower()
    if without_number.replace("_", "").lower() == name_of_class:
        return without_number
    return layer.name


class _Names:
    """Gives each of the layers beside each other a name of its own."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, name: str) -> str:
        """The name, with a number behind it where it is taken."""
        free = name
        number = 0
        while free in self._taken:
            number += 1
            free = f"{name}_{number}"
        self._taken.add(free)
        return free

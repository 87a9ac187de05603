"""The variables of a Keras model by path, such as `encoder/dense_1/kernel`.

The paths of Keras itself (`variable.path`) will not do: the same network built a second time in
one process has a `dense_7` where the first has a `dense`, and layers of models inside a functional
model are not told apart by the model they are in. So the layers are walked, from the model down:

1. a path has the names of the layers that lead to a variable, without that of the model itself;
2. a name that Keras made up (`dense_7`) is numbered anew among the layers beside it, as it would be
   in a new process; a name that the user gave stays;
3. what is shared has the path where it is met first.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

import keras


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


def _walk(layer: keras.Layer, prefix: str, variables: Variables, seen: set[int]) -> None:
    """Add what a layer holds, and what the layers inside it do, unless that was seen before."""
    if id(layer) in seen:
        return
    seen.add(id(layer))
    taken: set[str] = set()

    def add(own: Iterable[keras.Variable], variables: dict[str, keras.Variable]) -> None:
        for variable in own:
            if id(variable) not in seen:
                seen.add(id(variable))
                variables[prefix + _free_name(variable.name, taken)] = variable

    # Keras has no public list of the variables of one layer alone.
    add(layer._trainable_variables, variables.weights)
    add(layer._non_trainable_variables, variables.state)
    add((generator.state for generator in layer._seed_generators), variables.state)
    for inner in layer._flatten_layers(include_self=False, recursive=False):
        name = _free_name(_name_without_number(inner), taken)
        _walk(inner, f"{prefix}{name}/", variables, seen)


def _name_without_number(layer: keras.Layer) -> str:
    """The name of a layer, without the number that Keras has put behind a name it made up."""
    without_number = re.sub(r"_\d+$", "", layer.name)
    name_of_class = type(layer).__name__.replace("_", "").lower()
    if without_number.replace("_", "").lower() == name_of_class:
        return without_number
    return layer.name


def _free_name(name: str, taken: set[str]) -> str:
    """The name, with a number behind it where it is taken; it is taken from then on."""
    free = name
    number = 0
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    taken.add(free)
    return free

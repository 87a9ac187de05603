"""The variables of a TensorFlow model: their paths, and which of them are trained.

| variable of                  | its path                                     | trained if        |
|------------------------------|----------------------------------------------|-------------------|
| Keras layer or model         | `v.path`, as `sequential/dense/kernel`       | its layer says so |
| exported Keras model         | its name, which is that path                 | it was, at export |
| tf.Module, SavedModel of one | the attributes that lead there: `layers/0/w` | `v.trainable`     |
| anything else                | its name                                     | `v.trainable`     |
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import keras
import tensorflow as tf

# Modules, and what a SavedModel is loaded as: objects whose attributes TensorFlow tracks.
_Tracked = tf.__internal__.tracking.AutoTrackable
Node: TypeAlias = Any


class NamedVariable(NamedTuple):
    """A variable, its path, and whether it is trained."""

    path: str
    variable: tf.Variable
    trainable: bool


def named_variables(model: Node, used: Iterable[tf.Variable] = ()) -> list[NamedVariable]:
    """The variables of a model, each once, with paths that differ.

    Those in `used`, which a graph captured, may be variables that no attribute of the model leads
    to: they come last.
    """
    candidates = list(_walk(model, "", set()))
    candidates += [NamedVariable(_own_name(one), one, one.trainable) for one in used]
    variables: dict[int, NamedVariable] = {}
    taken: set[str] = set()
    for named in candidates:
        if id(named.variable) in variables:  # shared: it keeps its first path
            continue
        path = named.path
        number = 0
        while path in taken:
            number += 1
            path = f"{named.path}_{number}"
        taken.add(path)
        variables[id(named.variable)] = named._replace(path=path)
    return list(variables.values())


def _walk(node: Node, path: str, seen: set[int]) -> Iterator[NamedVariable]:
    """The variables below a node, by the attributes, keys and positions that lead to them."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, tf.Variable):
        yield NamedVariable(path, node, node.trainable)
    elif isinstance(node, keras.layers.Layer):
        # The variable of TensorFlow inside does not hear of `layer.trainable`: ask the layer.
        trained = {id(variable) for variable in node.trainable_variables}
        for variable in node.variables:
            yield NamedVariable(variable.path, variable.value, id(variable) in trained)
    elif isinstance(node, _Tracked) and "trainable_variables" in vars(node):
        # An exported Keras model: the lists it was exported with, and no layers.
        trained = {id(variable) for variable in node.trainable_variables}
        for variable in node.variables:
            yield NamedVariable(_own_name(variable), variable, id(variable) in trained)
    else:
        for key, child in _children(node):
            yield from _walk(child, f"{path}/{key}".lstrip("/"), seen)


def _children(node: Node) -> Iterator[tuple[object, Node]]:
    """Key -> child of a container or a module; nothing for anything else."""
    if isinstance(node, Mapping):
        yield from node.items()
    elif isinstance(node, list | tuple):
        yield from enumerate(node)
    elif isinstance(node, _Tracked):
        for name, child in vars(node).items():
            if not name.startswith("_self_"):  # where TensorFlow keeps its own account of them
                yield name, child


def _own_name(variable: tf.Variable) -> str:
    """The name of a variable in the graph, without the number of its output."""
    return variable.name.removesuffix(":0")

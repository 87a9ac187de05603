"""Keras 3 models on JAX as a Functional, by `stateless_call`.

A call hands all variables in and throws away what the model writes, so that the model itself is
never changed. Values are copied when the Functional is made: `fit` gives the buffers of the model
away.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jaxtyping import Array, PyTree

import ntkdiag
from ntkdiag import errors
from ntkdiag.models.trainable import trainable_mask
from ntkdiag_keras.variables import variables_of

_MODES = ("eval", "train")


@errors.public
def functionalize(
    model: keras.Layer,
    variables: None = None,
    *,
    mode: str = "eval",
    trainable: Any = None,
    **options: Any,
) -> ntkdiag.Functional:
    """Turn a Keras model into a pure function `f(params, x, **kwargs)`, and its parameters.

    `ntkdiag.functionalize` comes here with a Keras model. `params` and `fixed` are path -> array,
    where a path has the names of layers, without that of the model and without the numbers that
    Keras counts up in a process: ``"dense_1/kernel"``. The model is never changed; what is random
    in it draws from the seeds as they were, the same at every call.

    Cost: a copy of all variables.

    Args:
        model: A built functional, sequential or subclassed model, or a layer.
        variables: Not for Keras, whose models carry their own.
        mode: ``"eval"``, or ``"train"``: the model is called with `training=True`, so that
            normalization takes the statistics of the batch and dropout is on.
        trainable: As `ntkdiag.functionalize` has it; no choice takes in statistics or seeds. None:
            what `fit` trains, the weights of layers that are not frozen.
        **options: `inputs`, `output`, `call_kwargs`, `unpack` and `check` of
            `ntkdiag.functionalize`.

    Returns:
        The Functional. `restore` gives a new model (of `keras.models.clone_model`), `extract` takes
        a model of the same layers.

    Raises:
        InvalidInputError: The model is not built, Keras does not run on JAX, or an argument does
            not fit.
    """
    _require_model_on_jax(model)
    if variables is not None or mode not in _MODES:
        raise errors.InvalidInputError(
            expected='the model alone, which carries its parameters, in mode="eval" or "train"',
            got=f"mode={mode!r} and a second argument, {type(variables).__name__}",
            do="Other parameters go in with Functional.with_params.",
        )
    weights, state = variables_of(model)
    if trainable is None:
        trained = {id(variable) for variable in model.trainable_variables}
        trainable = {path: id(variable) in trained for path, variable in weights.items()}
    values = _values(weights)
    options["trainable"] = dict.fromkeys(state, False) | trainable_mask(values, trainable)
    return _functional(model, weights | state, values | _values(state), mode, options)


def _functional(
    model: keras.Layer,
    variables: Mapping[str, keras.Variable],
    values: Mapping[str, Array],
    mode: str,
    options: Mapping[str, Any],
) -> ntkdiag.Functional:
    """The Functional of a model with these values of its variables."""
    plain = ntkdiag.functionalize(_in_mode(model, variables, mode), dict(values), **options)
    extract_values: Any = plain.extract  # as that of every plain function, it is there

    def restore(params: PyTree) -> keras.Layer:
        return _restored(model, plain.restore(params))

    def extract(source: PyTree) -> PyTree:
        is_model = isinstance(source, keras.Layer)
        return extract_values(_values(variables_of(source).weights) if is_model else source)

    def rebuild(
        params: PyTree, changed: Mapping[str, PyTree], mode: str = mode
    ) -> ntkdiag.Functional:
        arrays = {path: jnp.asarray(value) for path, value in changed.items()}
        all_values = plain.restore(params) | arrays
        return _functional(model, variables, all_values, mode, {**options, "check": False})

    apply: Any = plain.apply
    return dataclasses.replace(
        plain,
        apply=dataclasses.replace(apply, library="keras", mode=mode),
        restore=restore,
        extract=extract,
        rebuild=rebuild,
        library="keras",
        mode=mode,
        name=type(model).__name__,
        has_batch_statistics=_trains_by_statistics_alone(model),
        in_mode=lambda params, other: rebuild(params, {}, str(other)),
    )


def _in_mode(
    model: keras.Layer, variables: Mapping[str, keras.Variable], mode: str
) -> Callable[..., PyTree]:
    """`f(values, *args, **kwargs)` of a model, where values are by path."""
    # `fit` hands the switch to models that have it, and to no others.
    takes_training = "training" in inspect.signature(model.call).parameters
    switch = {"training": mode != "eval"} if takes_training else {}

    def f(values: Mapping[str, PyTree], *args: PyTree, **kwargs: PyTree) -> PyTree:
        # Lists are made anew: they depend on what is frozen, which the user may have changed.
        by_id = {id(variable): values[path] for path, variable in variables.items()}
        trained = [by_id[id(variable)] for variable in model.trainable_variables]
        held = [by_id[id(variable)] for variable in model.non_trainable_variables]
        outputs_and_state = model.stateless_call(trained, held, *args, **{**switch, **kwargs})
        return outputs_and_state[0]

    return f


def _trains_by_statistics_alone(model: keras.Layer) -> bool:
    """Whether training differs from evaluation by the statistics of the batch, and not at random.

    `training=True` switches dropout on, too, whose masks are noise of training.
    """
    layers = model._flatten_layers()
    if any(layer._seed_generators for layer in layers):
        return False
    norms = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    return any(layer.trainable for layer in norms)


def _restored(model: keras.Layer, values: Mapping[str, PyTree]) -> keras.Layer:
    """A new model of these values."""
    restored = keras.models.clone_model(model)
    weights, state = variables_of(restored)
    for path, variable in (weights | state).items():
        variable.assign(values[path])
    return restored


def _values(variables: Mapping[str, keras.Variable]) -> dict[str, jax.Array]:
    """Copies of the values of variables."""
    return {path: jnp.array(variable.value) for path, variable in variables.items()}


def _require_model_on_jax(model: Any) -> None:
    """Refuse what is no model, one without variables yet, and Keras on another backend."""
    backend = keras.backend.backend()
    if backend != "jax":
        raise errors.InvalidInputError(
            expected="Keras on the JAX backend",
            got=f"Keras on {backend}",
            do="Set the environment variable KERAS_BACKEND=jax before keras is imported: a .keras "
            "file loads on either backend. Or pass ntkdiag_tensorflow.functionalize(model) where "
            "the backend is TensorFlow.",
        )
    # `build` of a subclassed model may mark it as built, and leave the layers inside as they are.
    is_layer = isinstance(model, keras.Layer)
    if not is_layer or not all(layer.built for layer in model._flatten_layers()):
        raise errors.InvalidInputError(
            expected="a built Keras model or layer, whose variables exist",
            got=type(model).__name__,
            do="Call a model on a batch first, model(x), or model.build(shape).",
        )

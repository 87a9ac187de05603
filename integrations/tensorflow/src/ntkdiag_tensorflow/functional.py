"""TensorFlow models as `f(params, x)`: the adapter of `ntkdiag.functionalize`."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import tensorflow as tf
from jaxtyping import Array, PyTree

import ntkdiag
from ntkdiag import errors
from ntkdiag.models import Functional
from ntkdiag.models.trainable import trainable_mask
from ntkdiag_tensorflow.converted import Converted, Signature

# Arguments of a call that are False in evaluation.
_SWITCHES = ("training", "train", "is_training")
_Function = tf.types.experimental.PolymorphicFunction


@errors.public
def functionalize(
    model: Any,
    variables: PyTree = None,
    *,
    mode: str = "eval",
    method: str | Callable[..., Any] | None = None,
    input_signature: Any = None,
    call_kwargs: Mapping[str, Any] | None = None,
    trainable: Any = None,
    **options: Any,
) -> Functional:
    """Turn a TensorFlow model into a pure function `f(params, x)` of JAX, and its parameters.

    The graph of the model in evaluation is converted by tf2jax. `params` are the trainable
    variables that it uses, path -> array; the others (running statistics, frozen layers) are held
    fixed. The model is not changed, and what happens to it later does not change the Functional.

    Cost: a trace of the graph; a trace and a conversion for every shape of x that is met.

    Args:
        model: A built `tf.keras.Model`, a `tf.function`, a `tf.Module` or a loaded SavedModel.
        variables: The parameters of a `tf.function` f(params, x); otherwise nothing.
        mode: ``"eval"``.
        method: Method to call in place of the model itself, by name or as a function of the model.
        input_signature: A `tf.TensorSpec` of x, with None as the batch size; a list of them, one
            for each argument, where there are several. None: that of a Keras model or of the
            `tf.function`, or `model.input_shape`.
        call_kwargs: Keyword arguments for every call of the model.
        trainable: As `ntkdiag.functionalize` has it, among the trainable variables.
        **options: `inputs`, `output`, `unpack` and `check` of `ntkdiag.functionalize`.

    Returns:
        The Functional; it unpacks as `f, params`. Its `restore(params)` is path -> array for all
        variables, its `extract(model)` the parameters of the model at the time of the call.

    Raises:
        InvalidInputError: The model is not built, or its inputs are not known.
        UnsupportedModelError: The model has an operation that tf2jax does not convert.

    Example:
        >>> import tensorflow as tf
        >>> model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])
        >>> f, params = functionalize(model)
        >>> [array.shape for array in params.values()]
        [(3, 2), (2,)]
    """
    if mode != "eval":
        raise errors.InvalidInputError(
            expected='mode="eval", the only one for models of TensorFlow',
            got=f"mode={mode!r}",
            do="Leave it out: dropout is off, and normalization has its running statistics.",
        )
    called, signature = _call_of(model, method, input_signature)
    keywords = {name: False for name in _SWITCHES if name in _argument_names(called)}
    keywords |= call_kwargs or {}
    converted = Converted(functools.partial(called, **keywords), signature)
    if variables is not None:
        params = tf.nest.map_structure(lambda leaf: np.asarray(leaf).copy(), variables)
        f = _function_of_params(converted)
        return _named_as(model, ntkdiag.functionalize(f, params, trainable=trainable, **options))

    variables_of = functools.partial(_by_path, captured=converted.variables)
    path_of = {id(variable): path for path, variable in variables_of(model).items()}
    captured = {path_of[id(variable)]: variable for variable in converted.variables}
    values = _values(captured)
    trained = _trained(model)
    weights = {}
    for path, variable in captured.items():
        if trained.get(id(variable), variable.trainable):
            weights[path] = values[path]
    chosen = dict.fromkeys(values, False) | trainable_mask(weights, trainable)

    def f(values: Mapping[str, Array], *inputs: PyTree) -> PyTree:
        return converted([values[path] for path in captured], inputs, values)

    plain = ntkdiag.functionalize(f, values, trainable=chosen, **options)
    return _of_variables(plain, model, variables_of)


def function_of_params(f: Callable[..., Any]) -> Callable[..., PyTree]:
    """A `tf.function` f(params, x) in JAX."""
    return _function_of_params(Converted(*_call_of(f, None, None)))


def _function_of_params(converted: Converted) -> Callable[..., PyTree]:
    """A function of parameters and inputs; variables that it captures are held fixed."""
    captured = list(_values(_by_path(None, captured=converted.variables)).values())
    return lambda params, *inputs: converted(captured, (params, *inputs), params)


def _of_variables(
    plain: Functional, model: Any, variables_of: Callable[[Any], Mapping[str, tf.Variable]]
) -> Functional:
    """A plain Functional of the variables of a model, with the ways back to these."""
    rebuild_plain: Any = plain.rebuild  # as that of every plain function, it is there
    extract_values: Any = plain.extract

    def extract(source: Any) -> PyTree:
        is_model = not isinstance(source, Mapping)
        return extract_values(_values(variables_of(source)) if is_model else source)

    def rebuild(params: PyTree, changed: Mapping[str, PyTree]) -> Functional:
        return _of_variables(rebuild_plain(params, changed), model, variables_of)

    return dataclasses.replace(_named_as(model, plain), extract=extract, rebuild=rebuild)


def _named_as(model: Any, plain: Functional) -> Functional:
    """What was made of a plain function, as a model of TensorFlow in evaluation."""
    kind = type(model).__name__.replace("_UserObject", "SavedModel")
    name = getattr(model, "name", None) or getattr(model, "__name__", kind)
    apply: Any = plain.apply
    apply = dataclasses.replace(apply, library="tensorflow", mode="eval")
    return dataclasses.replace(plain, apply=apply, library="tensorflow", mode="eval", name=name)


def _call_of(
    model: Any, method: str | Callable[..., Any] | None, input_signature: Any
) -> tuple[Callable[..., Any], Signature]:
    """What of a model is called, and the signature of its inputs."""
    if isinstance(model, keras.layers.Layer):
        _require_built_on_tensorflow(model)
    if callable(method):
        called = functools.partial(method, model)
    elif method is None and isinstance(model, keras.layers.Layer | _Function):
        called = model
    else:
        called = getattr(model, method or "__call__", None)
    if not callable(called):
        raise errors.InvalidInputError(
            expected="a model that can be called, or the name of one of its methods in `method=`",
            got=f"{type(model).__name__} without {method or '__call__'}",
            do='Pass method="serve" for an exported Keras model, or the name of a tf.function.',
        )
    signature = input_signature
    if signature is None and called is model and isinstance(model, keras.Model) and model.inputs:
        inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
        signature = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), inputs)
        return called, (signature,)
    if signature is None:
        signature = getattr(called, "input_signature", None)
    shape = getattr(model, "input_shape", None)
    if signature is None and shape is not None:
        signature = tf.TensorSpec(shape)
    signature = tuple(signature) if isinstance(signature, list | tuple) else (signature,)
    if not all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(signature)):
        raise errors.InvalidInputError(
            expected="a model whose inputs are known: by the input_signature of its tf.function, "
            "or by its attribute input_shape",
            got=f"input_signature={signature}",
            do="Pass functionalize(model, input_signature=tf.TensorSpec((None, ...))), decorate "
            "with @tf.function(input_signature=[tf.TensorSpec((None, ...))]), or set "
            "model.input_shape = (None, ...). None is the batch size.",
        )
    return called, signature


def _argument_names(called: Callable[..., Any]) -> set[str]:
    """The names of what can be handed to a call by keyword."""
    called = called.call if isinstance(called, keras.layers.Layer) else called
    return set(inspect.signature(getattr(called, "python_function", called)).parameters)


def _require_built_on_tensorflow(model: keras.layers.Layer) -> None:
    """Refuse a Keras model of another backend, and one without variables yet."""
    backend = keras.backend.backend()
    if backend != "tensorflow" or not model.built:
        raise errors.InvalidInputError(
            expected="a built Keras model with the backend tensorflow",
            got=f"{model.name} with the backend {backend}, built={model.built}",
            do="Call model.build((None, ...)) with the shape of x, or the model on a batch. The "
            "backend is KERAS_BACKEND when Keras is imported; ntkdiag-keras takes jax.",
        )


def _by_path(model: Any, captured: Iterable[tf.Variable]) -> dict[str, tf.Variable]:
    """Path -> variable: those of a model in its own order, then others that a graph captured.

    The path is that of Keras, or else the name of the variable, with a number where it is taken.
    """
    named: dict[str, tf.Variable] = {}
    seen = set()
    for one in (*getattr(model, "variables", ()), *captured):
        is_of_keras = isinstance(one, keras.Variable)
        variable = one.value if is_of_keras else one
        if id(variable) in seen:
            continue
        seen.add(id(variable))
        name = path = one.path if is_of_keras else variable.name.removesuffix(":0")
        number = 0
        while path in named:
            number += 1
            path = f"{name}_{number}"
        named[path] = variable
    return named


def _trained(model: Any) -> dict[int, bool]:
    """Id of a variable -> whether it is trained, of those that a model itself lists.

    The variable of TensorFlow does not hear of `layer.trainable`: the lists of the model do.
    """
    if not hasattr(model, "trainable_variables"):
        return {}
    trained = dict.fromkeys(map(id, _by_path(model, ()).values()), False)
    for one in model.trainable_variables:
        trained[id(one.value if isinstance(one, keras.Variable) else one)] = True
    return trained


def _values(variables: Mapping[str, tf.Variable]) -> dict[str, Array]:
    """Path -> value now. A copy: TensorFlow updates variables in place."""
    values = {}
    for path, variable in variables.items():
        value = variable.numpy()
        values[path] = jnp.array(value)
        if value.dtype == np.float64 and values[path].dtype != np.float64:
            raise errors.InvalidInputError(
                expected="JAX in 64-bit mode for variables in float64",
                got=f"float64 at {path}",
                do='Call jax.config.update("jax_enable_x64", True) first, or make the model in '
                "float32.",
            )
    return values

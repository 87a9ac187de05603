"""What of a TensorFlow model is called, and with which inputs.

| model                        | call                        | its input signature            |
|------------------------------|-----------------------------|--------------------------------|
| Keras model                  | `model(x)`                  | of `model.input`               |
| tf.Module                    | `model(x)`, or its `method` | of the tf.function that it is  |
| tf.function                  | itself                      | its own                        |
| SavedModel                   | `model(x)`, or its `method` | that it was saved with         |
| a value of `.signatures`     | by keyword                  | its own                        |

Where there is none, `model.input_shape` is read. Arguments `training`, `train`, `is_training` of
the call are False.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from ntkdiag import errors
from ntkdiag_tensorflow.converted import Signature

_SWITCHES = ("training", "train", "is_training")
_Function = tf.types.experimental.PolymorphicFunction
_SavedSignature = tf.types.experimental.ConcreteFunction


def read_call(
    model: Any,
    method: str | Callable[..., Any] | None,
    call_kwargs: Mapping[str, Any],
    input_signature: Any,
) -> tuple[Callable[..., Any], Signature]:
    """The model in evaluation, as a function of its inputs alone, and their signature."""
    if isinstance(model, keras.layers.Layer):
        _require_ready(model)
    called = _called(model, method)
    if isinstance(called, _SavedSignature):
        called, signature = _by_position(called)
    else:
        signature = _signature(model, called)
    if input_signature is not None:
        is_one = not isinstance(input_signature, list | tuple)
        signature = (input_signature,) if is_one else tuple(input_signature)
    if signature is None or not _holds_specs(signature):
        raise errors.InvalidInputError(
            expected="a model whose inputs are known: by the input_signature of its tf.function, "
            "or by its attribute input_shape",
            got="neither" if signature is None else f"input_signature={signature}",
            do="Pass functionalize(model, input_signature=tf.TensorSpec((None, ...))), decorate "
            "with @tf.function(input_signature=[tf.TensorSpec((None, ...))]), or set "
            "model.input_shape = (None, ...). None is the batch size.",
        )

    # In evaluation, unless the user has it otherwise.
    names = _argument_names(called)
    keywords: dict[str, Any] = {name: False for name in _SWITCHES if name in names}
    keywords |= call_kwargs

    def function(*inputs: Any) -> Any:
        return called(*inputs, **keywords)

    return function, signature


def _require_ready(model: keras.layers.Layer) -> None:
    """Refuse a Keras model of another backend, and one without variables yet."""
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise errors.UnsupportedModelError(
            expected="a Keras model with the backend tensorflow",
            got=f"the backend {backend}",
            do="Set KERAS_BACKEND=tensorflow before Keras is imported; ntkdiag-keras takes models "
            "with the backend jax.",
        )
    if not model.built:
        raise errors.InvalidInputError(
            expected="a built Keras model",
            got=f"{model.name}, which has no variables yet",
            do="Call model.build((None, ...)) with the shape of x, or the model on a batch.",
        )


def _called(model: Any, method: str | Callable[..., Any] | None) -> Callable[..., Any]:
    """What is called: the model, one of its methods, or a function of the model."""
    if callable(method):
        return functools.partial(method, model)
    called = model
    is_itself_called = isinstance(model, keras.layers.Layer | _Function | _SavedSignature)
    if method is not None or not is_itself_called:
        called = getattr(model, method or "__call__", None)
    if callable(called):
        return called
    methods = [name for name, value in vars(model).items() if isinstance(value, _Function)]
    methods += [f'signatures["{name}"]' for name in getattr(model, "signatures", ())]
    raise errors.InvalidInputError(
        expected="a model that can be called, or the name of one of its methods in `method=`",
        got=f"{type(model).__name__} without {method or '__call__'}, with the tf.functions "
        f"{', '.join(methods) or '(none)'}",
        do='Pass method="serve", or functionalize(model.signatures["serving_default"]), say.',
    )


def _by_position(saved: Any) -> tuple[Callable[..., Any], Signature]:
    """A signature of a SavedModel takes its inputs by name: the same function, by position."""
    _, specs = saved.structured_input_signature

    def called(*inputs: Any) -> Any:
        return saved(**dict(zip(specs, inputs, strict=True)))

    return called, tuple(specs.values())


def _signature(model: Any, called: Callable[..., Any]) -> Signature | None:
    """The inputs of a call as far as the model says what they are."""
    if called is model and getattr(model, "inputs", None):  # Keras, but not a subclass
        inputs = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
        spec_of = lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype)
        return (tf.nest.map_structure(spec_of, inputs),)
    if getattr(called, "input_signature", None) is not None:
        return tuple(called.input_signature)
    if getattr(model, "input_shape", None) is not None:
        return (tf.TensorSpec(model.input_shape),)
    return None


def _holds_specs(signature: Signature) -> bool:
    """Whether a signature is made of tf.TensorSpec alone; SavedModels may have flags among them."""
    return all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(signature))


def _argument_names(called: Callable[..., Any]) -> set[str]:
    """The names of what can be handed to a call by keyword."""
    if isinstance(called, keras.layers.Layer):
        called = called.call
    try:
        return set(inspect.signature(getattr(called, "python_function", called)).parameters)
    except (TypeError, ValueError):
        return set()

"""TensorFlow models as `f(params, x)`: the adapter of `ntkdiag.functionalize`."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jaxtyping import Array, PyTree

import ntkdiag
from ntkdiag import errors
from ntkdiag.models import Functional
from ntkdiag_tensorflow.call import read_call
from ntkdiag_tensorflow.converted import Converted
from ntkdiag_tensorflow.variables import NamedVariable, named_variables


@errors.public
def functionalize(
    model: Any,
    variables: PyTree = None,
    *,
    mode: str = "eval",
    method: str | Callable[..., Any] | None = None,
    input_signature: Any = None,
    call_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Functional:
    """Turn a TensorFlow model into a pure function `f(params, x)` of JAX, and its parameters.

    The graph of the model in evaluation is converted by tf2jax. `params` are the trainable
    variables that it uses, path -> array; the others (running statistics, frozen layers) are held
    fixed. The model is not changed, and what happens to it later does not change the Functional.

    Cost: a trace of the graph; a trace and a conversion for every shape of x that is met.

    Args:
        model: A built `tf.keras.Model`, a `tf.Module`, a `tf.function`, a loaded SavedModel, or one
            of its `signatures`.
        variables: The parameters of a `tf.function` f(params, x); otherwise nothing.
        mode: ``"eval"``.
        method: Method to call in place of the model itself, by name or as a function of the model.
        input_signature: A `tf.TensorSpec` of x, with None as the batch size; a list of them, one
            for each argument, where there are several. None: that of the model.
        call_kwargs: Keyword arguments for every call of the model.
        **options: `trainable`, `inputs`, `output`, `unpack` and `check` of `ntkdiag.functionalize`;
            `trainable` chooses among the trainable variables.

    Returns:
        The Functional; it unpacks as `f, params`. Its `restore(params)` is path -> array for all
        variables, its `extract(model)` the parameters of the model at the time of the call.

    Raises:
        InvalidInputError: The model is not built, its inputs are not known, or an argument does not
            fit.
        UnsupportedModelError: The model draws random numbers, or has an operation that tf2jax does
            not convert; from `f` where that is not known before.

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
            do="Leave it out: dropout is off, and normalisation has its running statistics.",
        )
    function, signature = read_call(model, method, call_kwargs or {}, input_signature)
    converted = Converted(model, function, signature)
    values = _values(converted.variables)
    if variables is None:
        return _of_variables(model, converted, values, options)
    params = tf.nest.map_structure(lambda leaf: np.asarray(leaf).copy(), variables)
    plain = ntkdiag.functionalize(_of_params(converted, values), params, **options)
    return dataclasses.replace(_renamed(plain, model), fixed=plain.fixed | values, rebuild=None)


def function_of_params(f: Callable[..., Any]) -> Callable[..., PyTree]:
    """A `tf.function` f(params, x) in JAX."""
    function, signature = read_call(f, None, {}, None)
    converted = Converted(f, function, signature)
    return _of_params(converted, _values(converted.variables))


def _of_params(converted: Converted, captured: Mapping[str, Array]) -> Callable[..., PyTree]:
    """A function of parameters and inputs; variables that it captures are held fixed."""

    def f(params: PyTree, *inputs: PyTree, **kwargs: PyTree) -> PyTree:
        _require_no_keywords(kwargs)
        return converted(captured, (params, *inputs), _dtype(params))

    return f


def _of_variables(
    model: Any, converted: Converted, values: Mapping[str, Array], options: Mapping[str, Any]
) -> Functional:
    """A model with variables of these values."""
    trainable = {named.path for named in converted.variables if named.trainable}
    trained = {path: value for path, value in values.items() if path in trainable}
    held = {path: value for path, value in values.items() if path not in trainable}
    if not trained:
        raise errors.InvalidInputError(
            expected="a model with trainable variables",
            got=f"none; held fixed: {', '.join(held) or 'nothing'}",
            do="Set layer.trainable = True for what is trained. The parameters of a tf.function "
            "f(params, x) are passed: functionalize(f, params).",
        )

    def f(params: PyTree, *inputs: PyTree, **kwargs: PyTree) -> PyTree:
        _require_no_keywords(kwargs)
        return converted({**held, **params}, inputs, _dtype(params))

    plain = ntkdiag.functionalize(f, trained, **options)

    def restore(params: PyTree) -> dict[str, Array]:
        return {**held, **plain.restore(params)}

    @errors.called("Functional.extract(model)")
    def extract(source: Any) -> PyTree:
        if isinstance(source, Mapping):
            return plain.extract(source)
        variables = converted.variables if source is model else named_variables(source)
        return plain.extract(_values(variables))

    def rebuild(params: PyTree, changed: Mapping[str, PyTree]) -> Functional:
        changed_values = {path: jnp.asarray(value) for path, value in changed.items()}
        unchecked = {**options, "check": False}
        return _of_variables(model, converted, restore(params) | changed_values, unchecked)

    return dataclasses.replace(
        _renamed(plain, model),
        restore=restore,
        extract=extract,
        rebuild=rebuild,
        fixed=plain.fixed | held,
    )


def _renamed(plain: Functional, model: Any) -> Functional:
    """What was made of a plain function, as a model of TensorFlow in evaluation."""
    kind = type(model).__name__.replace("_UserObject", "SavedModel")
    name = getattr(model, "name", None) or getattr(model, "__name__", kind)
    apply = dataclasses.replace(plain.apply, library="tensorflow", mode="eval")
    return dataclasses.replace(plain, apply=apply, library="tensorflow", mode="eval", name=name)


def _values(variables: Iterable[NamedVariable]) -> dict[str, Array]:
    """Path -> value now. A copy: TensorFlow updates variables in place."""
    values = {}
    for named in variables:
        value = named.variable.numpy()
        values[named.path] = jnp.array(value)
        if value.dtype == np.float64 and values[named.path].dtype != np.float64:
            raise errors.InvalidInputError(
                expected="JAX in 64-bit mode for variables in float64",
                got=f"float64 at {named.path}",
                do='Call jax.config.update("jax_enable_x64", True) first, or make the model in '
                "float32.",
            )
    return values


def _dtype(params: PyTree) -> np.dtype:
    """The dtype that the floating ones among parameters have in common."""
    floating = [leaf.dtype for leaf in jax.tree.leaves(params) if hasattr(leaf, "dtype")]
    return jnp.result_type(*[dtype for dtype in floating if jnp.issubdtype(dtype, jnp.floating)])


def _require_no_keywords(kwargs: Mapping[str, Any]) -> None:
    """Refuse keyword arguments of a call: the graph has none."""
    if kwargs:
        raise errors.InvalidInputError(
            expected="f(params, x) without keyword arguments",
            got=", ".join(f"{name}=" for name in kwargs),
            do="Fix them for all calls: functionalize(model, call_kwargs={...}). Inputs that "
            "differ from example to example go in by position: a tuple x, with unpack=True.",
        )

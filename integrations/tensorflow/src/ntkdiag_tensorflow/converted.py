"""A TensorFlow function in JAX: tf2jax converts its graph, and its variables become arguments.

The graph is traced once, for the input signature, in which sizes may be open; what it does for
inputs of other sizes is decided when JAX traces it.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import jax.numpy as jnp
import tensorflow as tf
import tf2jax
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

from ntkdiag import errors
from ntkdiag_tensorflow.variables import NamedVariable, named_variables

# For every argument a tf.TensorSpec, or a structure of them.
Signature: TypeAlias = tuple[Any, ...]


class Converted:
    """A function of tensors, `function(*inputs)`, as a function of values and inputs in JAX.

    Attributes:
        signature: Of the inputs.
        variables: What the graph captured, each once.

    Args:
        model: The object that holds the variables: they are named by their paths in it.
        function: What is converted.
        signature: Of its inputs; sizes may be None.
    """

    def __init__(self, model: Any, function: Callable[..., Any], signature: Signature) -> None:
        self.signature = signature
        traced = tf.function(function)
        graph = _graph(traced, signature)
        captured = _captured(graph)
        _require_no_loops(graph)
        named = {id(one.variable): one for one in named_variables(model, captured)}
        self.variables: list[NamedVariable] = [named[id(variable)] for variable in captured]
        with _refusing_what_is_not_converted():
            self._in_jax, parameters = tf2jax.convert(traced, *signature)
        # tf2jax has its own names for them, in the order in which the graph captured them.
        self._paths = {}
        for name, one in zip(parameters, self.variables, strict=True):
            self._paths[name] = one.path

    def __call__(
        self, values: Mapping[str, Array], inputs: tuple[PyTree, ...], dtype: DTypeLike
    ) -> PyTree:
        """Outputs for the values of all variables, by path, where parameters have this dtype."""
        self._require_structure(inputs)
        arrays = []
        specs = tf.nest.flatten(self.signature)
        for leaf, spec in zip(tf.nest.flatten(inputs), specs, strict=True):
            arrays.append(_as_declared(leaf, spec, dtype))
        variables = {name: values[path] for name, path in self._paths.items()}
        with _refusing_what_is_not_converted():
            outputs, _ = self._in_jax(variables, *tf.nest.pack_sequence_as(self.signature, arrays))
        return outputs

    def _require_structure(self, inputs: tuple[PyTree, ...]) -> None:
        """Refuse inputs that are nested otherwise than the signature says."""
        try:
            tf.nest.assert_same_structure(self.signature, inputs, check_types=False)
        except (TypeError, ValueError):
            raise errors.InvalidInputError(
                expected=f"inputs of the structure {_described(self.signature)}",
                got=f"{tf.nest.map_structure(lambda leaf: type(leaf).__name__, inputs)}",
                do="x is the argument of the model; with unpack=True it is the tuple of several.",
            ) from None


def _graph(traced: Any, signature: Signature) -> Any:
    """The graph for a signature; where the model cannot be traced, TensorFlow says why."""
    try:
        return traced.get_concrete_function(*signature)
    except Exception as error:
        error.add_note(
            f"ntkdiag: TensorFlow traced the model for inputs of {_described(signature)}. Sizes "
            "that are None there are known as tf.shape(x)[0], not as x.shape[0]."
        )
        raise


def _captured(graph: Any) -> list[tf.Variable]:
    """The variables that a graph captured, each once, in the order of its inputs."""
    variables = {variable.handle.ref(): variable for variable in graph.variables}
    captured = []
    for tensor in graph.captured_inputs:
        if tensor.dtype != tf.resource:
            continue
        if tensor.ref() not in variables:
            raise errors.UnsupportedModelError(
                expected="a model whose only resources are variables",
                got="one that captures another resource, such as a lookup table",
                do="Apply tables and other preprocessing to x before it goes into the model.",
            )
        captured.append(variables[tensor.ref()])
    return captured


def _require_no_loops(graph: Any) -> None:
    """Refuse loops: JAX has no reverse derivative for a number of steps that is only known then."""
    definition = graph.graph.as_graph_def()
    operations = {node.op for node in definition.node}
    for function in definition.library.function:
        operations |= {node.op for node in function.node_def}
    loops = operations & {"While", "StatelessWhile"}
    if loops:
        raise errors.UnsupportedModelError(
            expected="a model without loops (tf.while_loop, tf.map_fn, tf.scan), which cannot be "
            "differentiated after conversion to JAX",
            got=f"the operation {', '.join(sorted(loops))}",
            do="Build recurrent layers with unroll=True, and write loops over a fixed number of "
            "steps in Python.",
        )


def _as_declared(leaf: Any, spec: tf.TensorSpec, dtype: DTypeLike) -> Array:
    """An input as an array that fits its spec; a floating one may also have the dtype of params."""
    array = jnp.asarray(leaf)
    declared = spec.dtype.as_numpy_dtype
    is_floating = jnp.issubdtype(array.dtype, jnp.floating)
    fits_kind = is_floating == jnp.issubdtype(declared, jnp.floating)
    if not fits_kind or not spec.shape.is_compatible_with(array.shape):
        raise errors.InvalidInputError(
            expected=f"inputs that fit the input signature, {_described(spec)}",
            got=f"{array.dtype}{list(array.shape)}",
            do="Pass what the model takes. Where it fixes the batch size, open it, because ntkdiag "
            "calls it with one example at a time: functionalize(model, "
            "input_signature=tf.TensorSpec((None, ...))).",
        )
    # In 64-bit mode NumPy's float64 comes in, for a model in float32. Where the parameters are in
    # float64 too, the model is being evaluated in float64.
    if is_floating and array.dtype != dtype:
        return array.astype(declared)
    return array


def _described(signature: Any) -> str:
    """A signature in the way arrays are written: float32[None, 3]."""

    def described(spec: tf.TensorSpec) -> str:
        shape = list(spec.shape) if spec.shape.rank is not None else "[any shape]"
        return f"{spec.dtype.name}{shape}"

    if isinstance(signature, tf.TensorSpec):
        return described(signature)
    return str(tf.nest.map_structure(described, signature))


@contextlib.contextmanager
def _refusing_what_is_not_converted() -> Iterator[None]:
    """What tf2jax cannot convert or run, as a refusal that says what to do."""
    try:
        yield
    except LookupError as error:
        if "Custom gradient" not in str(error):
            raise
        raise errors.UnsupportedModelError(
            expected="a gradient for every tf.custom_gradient (tf.nn.silu has one), once",
            got=str(error).split(". ")[0],
            do="A SavedModel has them if it was saved with "
            "tf.saved_model.SaveOptions(experimental_custom_gradients=True); second derivatives "
            "are not converted.",
        ) from error
    except (NotImplementedError, ValueError) as error:
        text = str(error).split("\n")[0]
        if "PRNG key required" in text:
            raise errors.UnsupportedModelError(
                expected="a model that draws no random numbers in evaluation",
                got="one that does",
                do='Switch that off, as in call_kwargs={"training": False} for dropout.',
            ) from error
        if "updated parameters are lost" in text:
            raise errors.UnsupportedModelError(
                expected="a model that assigns to no variable inside a tf.function that it calls",
                got="one that does",
                do="Leave counters and statistics alone in evaluation, or call the undecorated "
                "function with method=.",
            ) from error
        raise errors.UnsupportedModelError(
            expected="operations that tf2jax converts to JAX",
            got=text,
            do="Replace the operation, or leave the layers that need it out of the model (apply "
            "them to x); or write the network in JAX as f(params, x).",
        ) from error

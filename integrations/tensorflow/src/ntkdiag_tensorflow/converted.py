"""A TensorFlow function in JAX: tf2jax converts its graph, and its variables become arguments.

The graph is traced once, for the input signature, in which sizes may be open; what it does for
inputs of other sizes is decided when JAX traces it.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import tensorflow as tf
import tf2jax
from jaxtyping import Array, PyTree

from ntkdiag import errors

# For every argument a tf.TensorSpec, or a structure of them.
Signature: TypeAlias = tuple[Any, ...]


class Converted:
    """A function of tensors, `function(*inputs)`, as a function of values and inputs in JAX.

    Attributes:
        variables: What the graph captured, each once.
    """

    def __init__(self, function: Callable[..., Any], signature: Signature) -> None:
        traced = tf.function(function)
        graph = traced.get_concrete_function(*signature)
        by_handle = {variable.handle.ref(): variable for variable in graph.variables}
        handles = [tensor.ref() for tensor in graph.captured_inputs if tensor.dtype == tf.resource]
        if not by_handle.keys() >= set(handles):
            raise errors.UnsupportedModelError(
                expected="a model whose only resources are variables",
                got="one that captures another resource, such as a lookup table",
                do="Apply tables and other preprocessing to x before it goes into the model.",
            )
        self.variables: list[tf.Variable] = [by_handle[handle] for handle in handles]
        with _refusing_what_is_not_converted():
            self._in_jax, parameters = tf2jax.convert(traced, *signature)
        # tf2jax has its own names for variables, in the order in which the graph captured them.
        self._names = list(parameters)
        self._signature = signature

    def __call__(self, values: list[Array], inputs: tuple[PyTree, ...], params: PyTree) -> PyTree:
        """Outputs for the values of all variables; floating inputs get the dtype of `params`."""
        floating = [leaf for leaf in jax.tree.leaves(params) if _is_floating(leaf)]
        dtype = jnp.result_type(*floating)
        tf.nest.assert_same_structure(self._signature, inputs, check_types=False)
        arrays = []
        for leaf, spec in zip(
            tf.nest.flatten(inputs), tf.nest.flatten(self._signature), strict=True
        ):
            array = jnp.asarray(leaf)
            _require_fit(array, spec)
            arrays.append(array.astype(dtype) if _is_floating(array) else array)
        variables = dict(zip(self._names, values, strict=True))
        with _refusing_what_is_not_converted():
            outputs, _ = self._in_jax(variables, *tf.nest.pack_sequence_as(self._signature, arrays))
        return outputs


def _is_floating(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating)


def _require_fit(array: Array, spec: tf.TensorSpec) -> None:
    """Refuse an input of another shape or kind than the graph was traced for."""
    has_kind = _is_floating(array) == spec.dtype.is_floating
    if not has_kind or not spec.shape.is_compatible_with(array.shape):
        raise errors.InvalidInputError(
            expected=f"inputs that fit the input signature, {spec.dtype.name}{list(spec.shape)}",
            got=f"{array.dtype}{list(array.shape)}",
            do="Pass what the model takes. Where it fixes the batch size, open it, because ntkdiag "
            "calls it with one example at a time: functionalize(model, "
            "input_signature=tf.TensorSpec((None, ...))).",
        )


@contextlib.contextmanager
def _refusing_what_is_not_converted() -> Iterator[None]:
    """What tf2jax cannot convert or run, as a refusal that says what to do."""
    try:
        yield
    # tf2jax has no error of its own: a ValueError says what it does not convert, and that random
    # numbers lack a key. JAX raises NotImplementedError for what it lacks of a converted operation.
    except (NotImplementedError, ValueError) as error:
        first_line, _, _ = str(error).partition("\n")
        raise errors.UnsupportedModelError(
            expected="operations that tf2jax converts to JAX, without random numbers and "
            "assignments to variables in evaluation",
            got=first_line,
            do="Replace the operation, or leave the layers that need it out of the model (apply "
            "them to x), or choose another method of the model with method=.",
        ) from error

"""`empirical_ntk_fn_tf` and `get_apply_fn_and_params`: the calls of neural-tangents' prototype."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jaxtyping import Array, PyTree

import ntkdiag.neural_tangents as nt
from ntkdiag import errors
from ntkdiag_tensorflow.functional import function_of_params, functionalize


@errors.public
def empirical_ntk_fn_tf(
    f: Any,
    trace_axes: int | tuple[int, ...] = (-1,),
    diagonal_axes: int | tuple[int, ...] = (),
    vmap_axes: Any = None,
    implementation: nt.NtkImplementation | int = nt.NtkImplementation.AUTO,
    _j_rules: bool | None = None,
    _s_rules: bool | None = None,
    _fwd: bool | None = None,
) -> Callable[..., PyTree]:
    """A function that computes the empirical NTK of a TensorFlow model, J(x1) J(x2)^T.

    Cost: as `ntkdiag.neural_tangents.empirical_ntk_fn`, and a conversion for every shape of x.

    Args:
        f: A `tf.function` f(params, x) with an `input_signature`; or a `tf.Module`, a
            `tf.keras.Model` or a SavedModel, as for `get_apply_fn_and_params`.
        trace_axes: This and all others as for `ntkdiag.neural_tangents.empirical_ntk_fn`.
        diagonal_axes: Likewise.
        vmap_axes: Likewise.
        implementation: Likewise, as `_j_rules`, `_s_rules` and `_fwd`.

    Returns:
        `ntk_fn(x1, x2, params)`, with x2=None for x1; the kernel is a `tf.Tensor`, or a tree of
        them. Inputs and parameters are arrays of TensorFlow, NumPy, JAX or torch.

    Raises:
        InvalidInputError: As `functionalize`; from `ntk_fn`, axes or arguments do not fit.
        UnsupportedModelError: As `functionalize`.

    Example:
        >>> model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])
        >>> _, params = get_apply_fn_and_params(model)
        >>> ntk_fn = empirical_ntk_fn_tf(model, trace_axes=())
        >>> ntk_fn(tf.ones((4, 3)), None, params).shape
        TensorShape([4, 4, 2, 2])
    """
    if isinstance(f, tf.types.experimental.PolymorphicFunction):
        apply_fn = function_of_params(f)
    else:
        apply_fn = functionalize(f).apply
    axes = trace_axes, diagonal_axes, vmap_axes
    ntk_fn = nt.empirical_ntk_fn(apply_fn, *axes, implementation, _j_rules, _s_rules, _fwd)

    def ntk_fn_tf(x1: PyTree, x2: PyTree, params: PyTree) -> PyTree:
        return jax.tree.map(_as_tensor, ntk_fn(x1, x2, params))

    return ntk_fn_tf


@errors.public
def get_apply_fn_and_params(f: Any) -> tuple[Callable[..., PyTree], dict[str, Array]]:
    """A TensorFlow model as a function of its parameters, and these parameters.

    Cost: as `functionalize`.

    Args:
        f: A built `tf.keras.Model`, or a callable `tf.Module` or SavedModel whose inputs are known,
            by an `input_signature` or the attribute `input_shape`.

    Returns:
        `(apply_fn, params)`: `apply_fn(params, x)` is a function of JAX, for `jax.jit` and the
        like; `params` are the trainable variables alone, path -> array. The others are held fixed
        in `apply_fn`.
    """
    apply_fn, params = functionalize(f)
    return apply_fn, params


def _as_tensor(kernel: Array) -> tf.Tensor:
    """An array of JAX as a tensor of TensorFlow."""
    return tf.convert_to_tensor(np.asarray(kernel))

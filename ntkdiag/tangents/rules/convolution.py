"""`conv_general_dilated`: a = patches of the input; feature groups are blocks."""

import math

import jax
import jax.numpy as jnp
from jax import lax

from ntkdiag.tangents.arrange import arrange
from ntkdiag.tangents.contraction import Contraction
from ntkdiag.tangents.layout import Layout


def conv_general_dilated(params: dict, position: int, layout: Layout, other: tuple[int, ...]) -> Contraction | None:
    """Weight as the kernel (operand 1), without batch groups; any stride, padding, dilation and feature groups."""
    if position != 1 or params["batch_group_count"] != 1:
        return None
    spec, groups = params["dimension_numbers"], params["feature_group_count"]
    out_axis, in_axis, *spatial = spec.rhs_spec
    n_out, n_in = layout.shape[out_axis], layout.shape[in_axis]
    window = tuple(layout.shape[k] for k in spatial)

    # Kernel -> [group, window..., in, out of the group]
    split = (*layout.shape[:out_axis], groups, n_out // groups, *layout.shape[out_axis + 1 :])
    moved = layout.reshape(split)
    if moved is None:
        return None
    after = lambda k: k + (k > out_axis)
    weight = moved.transpose((out_axis, *map(after, spatial), after(in_axis), out_axis + 1))

    positions = sorted(range(1 + len(window)), key=(spec.out_spec[0], *spec.out_spec[2:]).__getitem__)

    def operand(h):
        order = (spec.lhs_spec[0], *spec.lhs_spec[2:], spec.lhs_spec[1])
        h = arrange(h, order, tuple(h.shape[k] for k in order))  # [n space... c]
        p = _patches(h, window, params)  # [n space'... window... c]
        order = (*positions, *range(len(positions), p.ndim))
        p = arrange(p, order, tuple(p.shape[k] for k in order))  # positions as they follow each other in the output
        shape = (math.prod(p.shape[: 1 + len(window)]), math.prod(window), groups, n_in)
        return arrange(p.reshape(shape), (2, 0, 1, 3), (groups, shape[0], shape[1] * n_in))

    out_size, roles = [], []
    shape = _out_shape(other, window, params)
    for axis in range(len(other)):
        if axis == spec.out_spec[1]:
            out_size += [groups, n_out // groups]
            roles += ["b", "d"]
        else:
            out_size += [shape[axis]]
            roles += ["t"]
    return Contraction(weight, (1, len(spatial) + 1, 1), operand, tuple(out_size), tuple(roles))


def _dilated(size: int, dilation: int) -> int:
    return (size - 1) * dilation + 1 if size else 0


def _out_shape(other: tuple[int, ...], window: tuple[int, ...], params: dict) -> dict[int, int]:
    """Sizes of the output axes but the feature axis, by axis."""
    spec = params["dimension_numbers"]
    shape = {spec.out_spec[0]: other[spec.lhs_spec[0]]}
    for k, w in enumerate(window):
        low, high = params["padding"][k]
        size = _dilated(other[spec.lhs_spec[2 + k]], params["lhs_dilation"][k]) + low + high
        last = _last(size, w, params["rhs_dilation"][k])
        shape[spec.out_spec[2 + k]] = last // params["window_strides"][k] + 1
    return shape


def _last(size: int, window: int, dilation: int) -> int:
    """Where the last window may begin; -1 where there is no room for one."""
    return max(-1, size - _dilated(window, dilation))


def _patches(h: jax.Array, window: tuple[int, ...], params: dict) -> jax.Array:
    """[n space... c] -> [n space'... window... c], axis by axis: side by side one strided slice for each place.

    Not `lax.conv_general_dilated_patches`: that one is a convolution with an identity kernel, and on CPU costs 10 to 40
    times as much.
    """
    edges = zip(params["padding"], params["lhs_dilation"], strict=True)
    h = lax.pad(h, jnp.zeros((), h.dtype), [(0, 0, 0), *((lo, hi, step - 1) for (lo, hi), step in edges), (0, 0, 0)])
    channels = h.shape[-1]
    for k in reversed(range(len(window))):
        dilation, stride = params["rhs_dilation"][k], params["window_strides"][k]
        last = _last(h.shape[1 + k], window[k], dilation)
        first = range(0, window[k] * dilation, dilation)
        places = [h[(slice(None),) * (1 + k) + (slice(at, at + last + 1, stride),)] for at in first]
        h = jnp.concatenate(places, axis=-1)
    return h.reshape(*h.shape[:-1], *window, channels)

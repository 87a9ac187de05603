"""`conv_general_dilated`: a convolution is a matrix product of patches, and the patches are a.

With g feature groups, window offsets w and channels c, every output position t is

    y[t, g, d] = sum_{w, c} patches[t, w, g, c] kernel[g, w, c, d]

so groups are blocks b, positions (and images) are t, offsets and channels together are inputs i.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

from ntkdiag.engine.jacobian.leaf_layout import LeafLayout
from ntkdiag.engine.jacobian.shape_operations import arrange
from ntkdiag.engine.jacobian.weight_use import WeightUse


def conv_general_dilated(
    params: dict[str, Any], side: int, layout: LeafLayout, operand_shape: tuple[int, ...]
) -> WeightUse | None:
    """The use of a kernel with any strides, padding, dilations and feature groups.

    None for a weight that is the image, and with batch groups.
    """
    if side != 1 or params["batch_group_count"] != 1:
        return None
    spec = params["dimension_numbers"]
    groups = params["feature_group_count"]
    out_axis, in_axis, *window_axes = spec.rhs_spec
    n_out = layout.shape[out_axis] // groups
    n_in = layout.shape[in_axis]
    window = tuple(layout.shape[axis] for axis in window_axes)

    # Split the outputs into groups: [... (g d) ...] -> [... g d ...]. Axes after them move by one.
    before = layout.shape[:out_axis]
    after = layout.shape[out_axis + 1 :]
    split = layout.reshape((*before, groups, n_out, *after))
    if split is None:
        return None
    moved_window = [axis + (axis > out_axis) for axis in window_axes]
    moved_in = in_axis + (in_axis > out_axis)
    # -> [g w... c d]
    weight = split.transpose((out_axis, *moved_window, moved_in, out_axis + 1))

    # The image axis and the axes in space, in the order they have in the output.
    out_axis_of = (spec.out_spec[0], *spec.out_spec[2:])
    position_order = tuple(sorted(range(1 + len(window)), key=out_axis_of.__getitem__))

    def arrange_operand(h: Shaped[Array, "..."]) -> Shaped[Array, "g t i"]:
        """The patches of an image as a: groups are blocks, (w c) inputs."""
        order = (spec.lhs_spec[0], *spec.lhs_spec[2:], spec.lhs_spec[1])
        h = _reorder(h, order)  # -> [n space... (g c)]
        patches = _patches(h, window, params)  # -> [n space'... w... (g c)]
        # Positions t have to run as they do in the cotangent of the output.
        rest = range(len(position_order), patches.ndim)
        patches = _reorder(patches, (*position_order, *rest))
        t = math.prod(patches.shape[: 1 + len(window)])
        w = math.prod(window)
        patches = patches.reshape(t, w, groups, n_in)
        return arrange(patches, (2, 0, 1, 3), (groups, t, w * n_in))  # [t w g c] -> [g t (w c)]

    # The output has its features split into groups, and positions on all other axes.
    position_sizes = _position_sizes(operand_shape, window, params)
    out_shape = []
    out_roles = []
    for axis in range(len(operand_shape)):
        if axis == spec.out_spec[1]:
            out_shape += [groups, n_out]
            out_roles += ["b", "d"]
        else:
            out_shape += [position_sizes[axis]]
            out_roles += ["t"]
    return WeightUse(
        weight=weight,
        n_axes=(1, len(window) + 1, 1),
        arrange_operand=arrange_operand,
        out_shape=tuple(out_shape),
        out_roles=tuple(out_roles),
    )


def _reorder(x: Shaped[Array, "..."], order: tuple[int, ...]) -> Shaped[Array, "..."]:
    """Transpose to an order of axes."""
    return arrange(x, order, tuple(x.shape[axis] for axis in order))


def _position_sizes(
    operand_shape: tuple[int, ...], window: tuple[int, ...], params: dict[str, Any]
) -> dict[int, int]:
    """The sizes of the output axes but the feature axis, by axis."""
    spec = params["dimension_numbers"]
    sizes = {spec.out_spec[0]: operand_shape[spec.lhs_spec[0]]}
    for k, width in enumerate(window):
        low, high = params["padding"][k]
        size = operand_shape[spec.lhs_spec[2 + k]]
        padded = _dilated(size, params["lhs_dilation"][k]) + low + high
        last = _last_start(padded, width, params["rhs_dilation"][k])
        sizes[spec.out_spec[2 + k]] = last // params["window_strides"][k] + 1
    return sizes


def _dilated(size: int, dilation: int) -> int:
    """The size of an axis with `dilation - 1` gaps between neighbours."""
    return (size - 1) * dilation + 1 if size else 0


def _last_start(size: int, width: int, dilation: int) -> int:
    """Where the last window may begin; -1 where there is no room for one."""
    return max(-1, size - _dilated(width, dilation))


def _patches(
    h: Shaped[Array, "n *space c"], window: tuple[int, ...], params: dict[str, Any]
) -> Shaped[Array, "n *positions_window c"]:
    """What each window sees: [n space... c] -> [n space'... window... c].

    Axis by axis, one strided slice for each offset in the window is put beside the others. This is
    not `lax.conv_general_dilated_patches`, which is a convolution with an identity kernel and on a
    CPU costs 10 to 40 times as much.
    """
    # Pad in space and spread the entries out (lhs_dilation): (low, high, zeros in between).
    padding = [(0, 0, 0)]
    for (low, high), dilation in zip(params["padding"], params["lhs_dilation"], strict=True):
        padding.append((low, high, dilation - 1))
    padding.append((0, 0, 0))
    h = lax.pad(h, jnp.zeros((), h.dtype), padding)
    channels = h.shape[-1]
    # From the last axis in space to the first, each offset of the window becomes the outermost part
    # of the last axis, so that in the end it is (window... c).
    for k in reversed(range(len(window))):
        axis = 1 + k
        dilation = params["rhs_dilation"][k]
        stride = params["window_strides"][k]
        last = _last_start(h.shape[axis], window[k], dilation)
        axes_before = (slice(None),) * axis
        slices = []
        for offset in range(0, window[k] * dilation, dilation):
            slices.append(h[(*axes_before, slice(offset, offset + last + 1, stride))])
        h = jnp.concatenate(slices, axis=-1)
    return h.reshape(*h.shape[:-1], *window, channels)

"""Which parts of the parameters are layers, so that numbers can be told layer by layer.

A layer is a leaf of the parameters. But where f runs one block again and again in a `lax.scan`, on
parameters that are stacked, a leaf holds as many layers as it has slices:

    blocks/kernel [3 d d]   scanned along axis 0   ->   blocks/kernel[0], [1], [2]
    blocks/kernel [d 3 d]   moved to the front, then scanned: the same

Which leaves these are is read off the program of f: every leaf is followed through calls and
through what only moves its axes to the scan that takes it apart.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag.arrays import AnyArray
from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.jaxprs import Atom, ClosedJaxpr, Equation, Jaxpr
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.models import paths

# Numbers of a piece, of which XLA makes one sum; and of all leaves that are joined: a copy of more
# would take too much memory.
_PIECE = 32
_MOST_JOINED = 2**20

# What gives back its operand: cast, copied, named, or placed.
_SAME = frozenset(
    (
        "convert_element_type", "copy", "copy_p", "device_put", "mesh_cast", "name", "pvary",
        "reduce_precision", "reshard", "sharding_constraint",
    )
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Layers:
    """The layers of a tree of parameters, L of them."""

    # Of each layer: the path of its leaf, with "[i]" for slice i of a stacked one.
    names: tuple[str, ...]
    # For each leaf the axis that its layers are stacked along; None for one layer.
    stacked: tuple[int | None, ...]

    def sums_of_squares(self, tree: PyTree) -> Float[Array, " L"]:
        """||a||^2 of each layer of a tree like the parameters, in float32 at least."""
        slices = [
            _slices(leaf, axis)
            for leaf, axis in zip(jax.tree.leaves(tree), self.stacked, strict=True)
        ]
        if sum(rows.size for rows in slices) > _MOST_JOINED:
            return jnp.concatenate([jnp.square(rows).sum(axis=1) for rows in slices])
        # In pieces of one length: XLA compiles a sum of its own for every leaf otherwise.
        pieces = [_pieces(rows) for rows in slices]
        joined = jnp.concatenate([rows.reshape(-1, _PIECE) for rows in pieces])
        sums = jnp.square(joined).sum(axis=1)
        counts = [rows.shape[1] for rows in pieces for _ in range(rows.shape[0])]
        layers = np.repeat(np.arange(len(self.names)), counts)
        return jnp.zeros(len(self.names), sums.dtype).at[layers].add(sums)


def _slices(leaf: AnyArray, axis: int | None) -> Float[Array, "s i"]:
    """The layers of a leaf, flat, as real numbers."""
    numbers = jnp.asarray(leaf, at_least_float32(leaf.dtype))
    if jnp.iscomplexobj(numbers):
        numbers = jnp.stack([jnp.real(numbers), jnp.imag(numbers)], axis=-1)
    if axis is None:
        return numbers.reshape(1, -1)
    return jnp.moveaxis(numbers, axis, 0).reshape(leaf.shape[axis], -1)


def _pieces(rows: Float[Array, "s i"]) -> Float[Array, "s p l"]:
    """Rows in pieces of one length, the last one filled with zeros."""
    n_slices, length = rows.shape
    n_pieces = max(1, -(-length // _PIECE))
    filled = jnp.pad(rows, ((0, 0), (0, n_pieces * _PIECE - length)))
    return filled.reshape(n_slices, n_pieces, _PIECE)


def layers_in(program: ClosedJaxpr, params: PyTree) -> Layers:
    """The layers of the parameters of a program whose first inputs they are."""
    leaves = paths.leaves_by_path(params)
    return layers_alone(leaves, _stacked_axes(program, list(leaves.values())))


def layers_alone(
    leaves: Mapping[str, AnyArray], stacked: Sequence[int | None] | None = None
) -> Layers:
    """The layers of parameters by path; each leaf is one unless it is stacked along an axis."""
    stacked = [None] * len(leaves) if stacked is None else stacked
    names: list[str] = []
    for (path, leaf), axis in zip(leaves.items(), stacked, strict=True):
        names += [path] if axis is None else [f"{path}[{i}]" for i in range(leaf.shape[axis])]
    return Layers(tuple(names), tuple(stacked))


# A value that shows a leaf: its number, and for each axis of the value that of the leaf it is.
_View: TypeAlias = tuple[int, tuple[int | None, ...]]


def _stacked_axes(program: ClosedJaxpr, leaves: Sequence[PyTree]) -> list[int | None]:
    """For each leaf the axis that a scan takes it apart along; None where no scan does."""
    jaxpr, _ = jaxprs.open_jaxpr(program)
    views: list[_View | None] = [None] * len(jaxpr.invars)
    for number, leaf in enumerate(leaves):
        views[number] = (number, tuple(range(leaf.ndim)))
    stacked: list[int | None] = [None] * len(leaves)
    _follow(jaxpr, views, stacked)
    return stacked


def _follow(
    jaxpr: Jaxpr, views: Sequence[_View | None], stacked: list[int | None]
) -> list[_View | None]:
    """Note in `stacked` which leaves are scanned; say which outputs are views of leaves."""
    view_of = dict(zip(jaxpr.invars, views, strict=True))

    def read(atom: Atom) -> _View | None:
        # A number written into the program shows no leaf.
        if isinstance(atom, jaxprs.Literal):
            return None
        return view_of.get(atom)

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        if not any(operands):
            continue
        bodies = jaxprs.sub_jaxprs(eqn)
        if eqn.primitive.name == "scan":
            _follow_scan(eqn, operands, stacked)
        elif len(bodies) == 1 and len(bodies[0].invars) == len(operands):
            # A call: its body has the same inputs, and its outputs are those of the body.
            results = _follow(bodies[0], operands, stacked)
            if len(results) == len(eqn.outvars):
                view_of.update(zip(eqn.outvars, results, strict=True))
        elif eqn.primitive.name == "cond":
            # The first operand chooses the branch.
            for branch in bodies:
                _follow(branch, operands[1:], stacked)
        elif eqn.outvars:
            view_of[eqn.outvars[0]] = _moved(eqn, operands[0])
    return [read(atom) for atom in jaxpr.outvars]


def _follow_scan(
    eqn: Equation, operands: Sequence[_View | None], stacked: list[int | None]
) -> None:
    """Note the leaves that a scan takes apart, and follow those that its body sees whole."""
    n_consts, n_carries = jaxprs.scan_counts(eqn.params)
    for view in operands[n_consts + n_carries :]:
        if view is None:
            continue
        leaf, axes = view
        # The first scan decides.
        if stacked[leaf] is None:
            stacked[leaf] = axes[0]
    [body] = jaxprs.sub_jaxprs(eqn)
    n_others = len(operands) - n_consts
    _follow(body, [*operands[:n_consts], *[None] * n_others], stacked)


def _moved(eqn: Equation, view: _View | None) -> _View | None:
    """The view that an equation makes of another one, if it only moves axes."""
    if view is None:
        return None
    leaf, axes = view
    name = eqn.primitive.name
    if name in _SAME:
        return view
    if name == "transpose":
        return leaf, tuple(axes[axis] for axis in eqn.params["permutation"])
    if name == "squeeze":
        gone = eqn.params["dimensions"]
        return leaf, tuple(axis for k, axis in enumerate(axes) if k not in gone)
    if name == "broadcast_in_dim":
        moved: list[int | None] = [None] * len(eqn.outvars[0].aval.shape)
        for axis, place in zip(axes, eqn.params["broadcast_dimensions"], strict=True):
            moved[place] = axis
        return leaf, tuple(moved)
    return None

"""The Jacobian of a function by its parameters, kept as factors.

1. f is traced on one example to a jaxpr: flat parameters, and what else goes in, to a vector of
   outputs.
2. A first walk over the jaxpr, on shapes alone, finds every use of every parameter (see `walk`):
   sites where its Jacobian is an outer product, and leaves with a use that has no structure.
3. The sites are sorted into the parts that the kernel is a sum over (see `sites_to_parts`).
4. A later walk adds a tap to the result of each site and hands out its other operand. A tap is an
   array of zeros: the derivative by it is the cotangent of the result it is added to. One VJP of
   that walk by all taps and all leaves without structure, mapped over output directions, gives
   every cotangent and every dense Jacobian in a single backward pass. It is JAX's own: there are no
   transposition rules here.
5. Operands and cotangents become the factors of the parts (see `parts` and `factors`).
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag.engine.jacobian.factors import Factor
from ntkdiag.engine.jacobian.leaf_layout import LeafLayout
from ntkdiag.engine.jacobian.parts import (
    Backpropagated,
    Part,
    arrange_cotangent,
)
from ntkdiag.engine.jacobian.recorder import Path, Recorder, Site
from ntkdiag.engine.jacobian.views import View
from ntkdiag.engine.jacobian.walk import walk
from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.jaxprs import ClosedJaxpr
from ntkdiag.jaxtools.precision import eps_of, unit_roundoff


@dataclasses.dataclass(frozen=True, eq=False)
class StructuredJacobian:
    """The structure of the Jacobian of f(params, kwargs, x) by params, found from shapes alone."""

    # F as a closed jaxpr of flat parameters and flat inputs, with a vector of outputs.
    jaxpr: ClosedJaxpr
    shapes: list[tuple[int, ...]]  # shapes of the parameter leaves
    sites: dict[Path, Site]  # every structured use of a parameter, by key
    tap_avals: dict[Path, jax.ShapeDtypeStruct]  # shape and dtype of each tap, by key
    dense_leaves: frozenset[int]  # leaves with at least one use that has no structure
    # Leaves that a scan runs over, [round layer ...] in memory: their rounds and their layers.
    stacked_leaves: dict[int, tuple[int, int]]
    n_outputs: int  # number of outputs of one example
    dtype: np.dtype  # dtype of the outputs

    @staticmethod
    def of(
        f: Callable[..., Array], params: list, kwargs: PyTree, x: PyTree
    ) -> "StructuredJacobian":
        """Trace `f(params, kwargs, x)` of one example, and find the structure of its Jacobian."""
        with jax.default_matmul_precision("highest"):
            jaxpr, out = jax.make_jaxpr(f, return_shape=True)(params, kwargs, x)
            recorder = Recorder()

            def first_walk(params, inputs):
                # Every leaf has a differentiable copy here (itself), so that the walk can say which
                # are used.
                _walk(jaxpr, params, dict(enumerate(params)), inputs, recorder)
                # What it handed out belongs to a trace that ends here.
                recorder.operands.clear()

            jax.eval_shape(first_walk, params, jax.tree.leaves((kwargs, x)))
        # A site whose result is added to another's has no tap of its own any more; a dict keeps the
        # taps in the order of the walk, each once.
        tap_keys = dict.fromkeys(site.tap_key for site in recorder.sites.values())
        return StructuredJacobian(
            jaxpr=jaxpr,
            shapes=[tuple(leaf.shape) for leaf in params],
            sites=recorder.sites,
            tap_avals={key: recorder.tap_avals[key] for key in tap_keys},
            dense_leaves=frozenset(recorder.dense_leaves),
            stacked_leaves=recorder.stacked_leaves,
            n_outputs=out.shape[0],
            dtype=out.dtype,
        )

    @functools.cached_property
    def roundoff(self) -> float:
        """The largest unit roundoff of parameters and outputs, and of the values between them."""
        params = self.jaxpr.in_avals[: len(self.shapes)]
        at_the_ends = [eps_of(aval.dtype) for aval in (*params, *self.jaxpr.out_avals)]
        return max(unit_roundoff(self.jaxpr), *at_the_ends)

    def factors(
        self,
        parts: list[Part],
        params: list,
        basis: Float[Array | np.ndarray, "o C"],
        kwargs: PyTree,
        x: PyTree,
    ) -> tuple[list[Factor], Float[Array, " C"]]:
        """The factor of each part of one example, along the directions `basis`, and its outputs."""
        inputs = jax.tree.leaves((kwargs, x))
        # A site that reads the cotangent of another one's tap has none of its own.
        operand_keys = {site.operand_key for site in self.sites.values()}
        untapped = frozenset(operand_keys - self.tap_avals.keys())

        # What is differentiated: taps and copies -> outputs. The operands are handed out beside it.
        def tapped(taps, dense_copies):
            recorder = Recorder(taps, untapped)
            y = _walk(self.jaxpr, params, dense_copies, inputs, recorder)
            return y, recorder.operands

        # We differentiate at taps of zero, and by those leaves only that need it.
        zeros = {key: jnp.zeros(aval.shape, aval.dtype) for key, aval in self.tap_avals.items()}
        dense_copies = {leaf: params[leaf] for leaf in sorted(self.dense_leaves)}
        # Added sites and biases are not among these: they read the cotangent that is here already.
        sites = [site for part in parts for site in part.sites]

        def backward(direction):
            # Cotangents are arranged for one direction at a time, and mapped over all of them.
            of_taps, of_leaves = vjp(direction)
            c = {site.key: arrange_cotangent(site, of_taps[site.tap_key]) for site in sites}
            return c, of_leaves  # [b t d] of each site, the shape of each leaf

        # Derivative rules of the user's are traced here only: their products are of full precision
        # too.
        with jax.default_matmul_precision("highest"):
            # The faster `jaxprs.vjp` knows no mutable arrays.
            if jaxprs.contains(self.jaxpr, jaxprs.MAKES_REF):
                y, vjp, operands = jax.vjp(tapped, zeros, dense_copies, has_aux=True)
            else:
                y, vjp, operands = jaxprs.vjp(tapped, zeros, dense_copies)
            # [o C] -> [o b t d] and [o ...]
            cotangents, jacobians = jax.vmap(backward)(basis.astype(y.dtype))
        example = Backpropagated(_computed_once(operands), _computed_once(cotangents), jacobians)
        return [part.factor(example) for part in parts], y


def _computed_once(arrays: dict) -> dict:
    """The same arrays behind a barrier, or XLA would compute them in every loop that reads them."""
    return {key: jax.lax.optimization_barrier(array) for key, array in arrays.items()}


def _walk(
    closed: ClosedJaxpr, params: list, dense_copies: dict, inputs: list, recorder: Recorder
) -> Float[Array, " C"]:
    """Walk the jaxpr of f with every parameter leaf as a view of itself, and return the outputs."""
    jaxpr, consts = jaxprs.open_jaxpr(closed)
    # The numbers of a leaf are a constant; what is differentiated by is its copy, if it has one.
    views = []
    for leaf, numbers in enumerate(params):
        layout = LeafLayout.of(tuple(numbers.shape))
        views.append(View(leaf, layout, numbers, dense_copies.get(leaf)))
    [y] = walk(jaxpr, consts, [*views, *inputs], recorder)
    return recorder.differentiable(y)

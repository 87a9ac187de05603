"""A derivative rule written by the user, opened: what it says about the cotangents of parameters.

`custom_vjp` and `custom_jvp` compute cotangents of arguments in their own way. Traced, such a rule
is a jaxpr

    inputs of the function, cotangents of its outputs -> cotangents of its arguments

with all calls in it opened, so that one flat list of equations remains. From the cotangent of a
parameter we go back, equation by equation, through what only rearranges, scales by scalars or sums
up. Where this leads to decides what the use of the parameter is:

* a product a . c, with the cotangents of the outputs going into c alone: these are the two factors
  of the Jacobian. Axes that are summed up after the product are positions, like those summed in it;
* the c of the product of another parameter: a bias of that weight;
* the cotangent of the only output: a straight-through estimator, whose output is a view of the
  parameter, with other numbers;
* anything else: no structure.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from ntkdiag import _jax
from ntkdiag._jax import Atom, Equation, Jaxpr, Variable
from ntkdiag.engine.jacobian.leaf_layout import LeafLayout
from ntkdiag.engine.jacobian.liveness import downstream, liveness
from ntkdiag.engine.jacobian.recorder import Path
from ntkdiag.engine.jacobian.shape_operations import arrange
from ntkdiag.engine.jacobian.weight_use import WeightUse, bias_use

_CALLS = frozenset(("jit", "pjit", "closed_call", "core_call"))
# Primitives whose result is their one operand, as it is or in another shape.
_RESHAPING = frozenset(
    ("reshape", "squeeze", "convert_element_type", "copy", "name", "optimization_barrier")
)


@dataclasses.dataclass(frozen=True)
class Scaling:
    """A step of a derivative rule that scales: "neg", or "mul" or "div" by a scalar."""

    primitive: str
    scalar: Atom | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Precursor:
    """A variable of a rule from which the cotangent of a parameter follows by simple steps.

    Attributes:
        variable: The variable.
        layout: Of the parameter in the shape of the variable, repeated where it is summed up later.
        scalings: What scales the variable later, the last one first.
    """

    variable: Variable
    layout: LeafLayout
    scalings: tuple[Scaling, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class RuleProduct:
    """A product of a rule from which the cotangent of a parameter follows by simple steps.

    Attributes:
        eqn: The equation, a `dot_general`.
        a_side: Which operand the cotangents of the outputs do not go into.
        layout: Of the parameter in the shape of the product, repeated where it is summed up later.
        scalings: What scales the product later, the last one first.
    """

    eqn: Equation
    a_side: int
    layout: LeafLayout
    scalings: tuple[Scaling, ...]

    @property
    def c(self) -> Variable:
        """The operand that the cotangents of the outputs go into."""
        return self.eqn.invars[1 - self.a_side]

    @property
    def operand_atoms(self) -> list[Atom]:
        """The other operand, and the scalars."""
        scalars = [scaling.scalar for scaling in self.scalings if scaling.scalar is not None]
        return [self.eqn.invars[self.a_side], *scalars]

    @property
    def summed_axes(self) -> list[int]:
        """The axes of the product that are summed up later, along which the layout repeats."""
        axes = zip(self.layout.strides, self.layout.shape, strict=True)
        return [axis for axis, (stride, size) in enumerate(axes) if stride == 0 and size > 1]

    @property
    def n_batch(self) -> int:
        """How many batch axes the product has."""
        _, batch = self.eqn.params["dimension_numbers"]
        return len(batch[0])

    def weight_use(self, evaluate: Callable[[list], list]) -> WeightUse:
        """The use of the parameter, which reads c where other uses read a cotangent of an output.

        `evaluate` gives the numbers of `operand_atoms` from what is handed out.
        """
        # The axes of a and of c: bound ones are contracted or batch axes, and have a partner in the
        # other operand; the others are free.
        a_side = self.a_side
        c_side = 1 - self.a_side
        contracted, batch = self.eqn.params["dimension_numbers"]
        a_shape = self.eqn.invars[a_side].aval.shape
        c_shape = self.eqn.invars[c_side].aval.shape
        a_bound = (*contracted[a_side], *batch[a_side])
        c_bound = (*contracted[c_side], *batch[c_side])
        a_free = [axis for axis in range(len(a_shape)) if axis not in a_bound]

        # 1. c [b t d]: what is contracted, or summed up later, are positions t; other batch axes
        # are blocks b; what is free are outputs d.
        c_roles = ["d"] * len(c_shape)
        for axis in contracted[c_side]:
            c_roles[axis] = "t"
        for product_axis, axis in enumerate(batch[c_side]):
            c_roles[axis] = "t" if product_axis in self.summed_axes else "b"
        c_blocks = [axis for axis, role in enumerate(c_roles) if role == "b"]
        c_positions = [axis for axis, role in enumerate(c_roles) if role == "t"]

        # 2. a [b t i]: each block and position of c has its partner in a; free are inputs i.
        partner = dict(zip(c_bound, a_bound, strict=True))
        a_blocks = [partner[axis] for axis in c_blocks]
        a_positions = [partner[axis] for axis in c_positions]
        a_order = (*a_blocks, *a_positions, *a_free)
        a_sizes = []
        for axes in (a_blocks, a_positions, a_free):
            a_sizes.append(math.prod(a_shape[axis] for axis in axes))

        def arrange_operand(handed_out: list) -> Shaped[Array, "b t i"]:
            a, *scalars = evaluate(handed_out)
            # What scales the product later may as well scale a.
            return arrange(_scale(a, self.scalings, scalars), a_order, tuple(a_sizes))

        # 3. The product [batch..., free of the left..., free of the right...] has the axes of the
        # parameter [b i d]. Those that are summed up later have length 1 in it and count as blocks.
        n_i = len(a_free)
        n_d = c_roles.count("d")
        after_batch = self.n_batch
        if a_side == 0:
            inputs = range(after_batch, after_batch + n_i)
            outputs = range(inputs.stop, inputs.stop + n_d)
        else:
            outputs = range(after_batch, after_batch + n_d)
            inputs = range(outputs.stop, outputs.stop + n_i)
        blocks = [batch[c_side].index(axis) for axis in c_blocks] + self.summed_axes
        first_of_summed = [slice(None)] * len(self.layout.shape)
        for product_axis in self.summed_axes:
            first_of_summed[product_axis] = slice(0, 1)
        weight = self.layout.select(tuple(first_of_summed))
        return WeightUse(
            weight=weight.transpose((*blocks, *inputs, *outputs)),
            n_axes=(len(blocks), len(inputs), len(outputs)),
            arrange_operand=arrange_operand,
            out_shape=c_shape,
            out_roles=tuple(c_roles),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class TracedVjpRule:
    """A derivative rule as a jaxpr without calls.

    Attributes:
        jaxpr: Inputs of the rule, cotangents of the outputs -> cotangents of the arguments.
        consts: Its constants.
        n_inputs: How many inputs come before the cotangents.
        arguments: Numbers of the arguments that have a cotangent.
    """

    jaxpr: Jaxpr
    consts: list
    n_inputs: int
    arguments: list[int]

    @staticmethod
    def of_equation(eqn: Equation, constants: frozenset[int]) -> "TracedVjpRule":
        """The rule of an equation, from its inputs; those in `constants` have no cotangent."""

        def pull_back(inputs):
            _, pullback = outputs_and_pullback(eqn, constants, inputs)
            return pullback

        return TracedVjpRule.of(
            eqn, constants, pull_back, _shapes(eqn.invars), _shapes(eqn.outvars)
        )

    @staticmethod
    def of(
        eqn: Equation,
        constants: frozenset[int],
        pull_back: Callable,
        inputs: list,
        cotangents: list,
    ) -> "TracedVjpRule":
        """The rule `pull_back(inputs)(cotangents)` of an equation, from arrays or shapes."""
        differentiated = [k for k in range(len(eqn.invars)) if k not in constants]
        arguments = [k for k in differentiated if is_floating(eqn.invars[k])]

        def rule(inputs, cotangents):
            of_inputs = dict(zip(differentiated, pull_back(inputs)(cotangents), strict=True))
            return [of_inputs[k] for k in arguments]

        # Traced once as it is, and once more with every call in it evaluated in place.
        with_calls, consts = _jax.open_jaxpr(jax.make_jaxpr(rule)(inputs, cotangents))

        def opened(*values):
            known = zip(with_calls.invars, values, strict=True)
            return evaluate_atoms(with_calls, consts, dict(known), with_calls.outvars)

        jaxpr, consts = _jax.open_jaxpr(jax.make_jaxpr(opened)(*inputs, *cotangents))
        return TracedVjpRule(jaxpr, consts, len(inputs), arguments)

    @property
    def cotangents(self) -> list[Variable]:
        """The cotangents of the outputs."""
        return self.jaxpr.invars[self.n_inputs :]

    def source(self, argument: int, layout: LeafLayout) -> RuleProduct | LeafLayout | None:
        """What the cotangent of a parameter, an argument with a layout, comes from.

        A product; the cotangent of the only output, which gives the layout of that output as a
        view; or anything else, None.
        """
        for precursor in self._precursors(argument, layout):
            if precursor.variable in self.cotangents:
                # The cotangent of an output: that of the only one, unscaled, comes from a view.
                if len(self.cotangents) > 1 or precursor.scalings:
                    return None
                return precursor.layout
            eqn = self._made_by.get(precursor.variable)
            if eqn is not None and eqn.primitive.name == "dot_general":
                return self._product(eqn, precursor)
        return None

    def weight_use(self, product: RuleProduct) -> tuple[WeightUse, list[int]]:
        """The use of a product's parameter, and which inputs of the rule are handed out for it."""
        # Handed out are the inputs that a and the scalars are computed from, not a itself: it is a
        # value inside the derivative rule, which has not run yet in the forward pass.
        atoms = product.operand_atoms
        needed = liveness(self.jaxpr, atoms).uses
        reads = [k for k in range(self.n_inputs) if self.jaxpr.invars[k] in needed]
        variables = [self.jaxpr.invars[k] for k in reads]

        def evaluate(handed_out: list) -> list:
            known = dict(zip(variables, handed_out, strict=True))
            return evaluate_atoms(self.jaxpr, self.consts, known, atoms)

        return product.weight_use(evaluate), reads

    def bias_use(
        self, argument: int, layout: LeafLayout, uses: dict[Variable, tuple[WeightUse, Path]]
    ) -> tuple[WeightUse, Path] | None:
        """The use of a parameter as the bias of another one, and the key of the tap they share.

        `uses` has the use and the tap of each product, by its operand c.
        """
        for precursor in self._precursors(argument, layout):
            if precursor.variable in uses and not precursor.scalings:
                use_of_weight, tap_key = uses[precursor.variable]
                use = bias_use(use_of_weight, precursor.layout)
                if use is None:
                    return None
                return use, tap_key
        return None

    @functools.cached_property
    def _varying(self) -> set[Variable]:
        """The variables that depend on the cotangents of the outputs."""
        return downstream(self.jaxpr, self.cotangents)

    @functools.cached_property
    def _made_by(self) -> dict[Variable, Equation]:
        """The equation that each variable is a result of; inputs and constants have none."""
        return {var: eqn for eqn in self.jaxpr.eqns for var in eqn.outvars}

    def _varies(self, atom: Atom) -> bool:
        """Whether a variable or literal depends on the cotangents of the outputs."""
        return not isinstance(atom, _jax.Literal) and atom in self._varying

    def _product(self, eqn: Equation, precursor: Precursor) -> RuleProduct | None:
        """The product of an equation; None where it is not linear in the cotangents of the outputs.

        Only batch axes of it may be summed up later.
        """
        left, right = eqn.invars
        if self._varies(left) and self._varies(right):
            return None
        # The operand that does not vary is a.
        a_side = 1 if self._varies(left) else 0
        product = RuleProduct(eqn, a_side, precursor.layout, precursor.scalings)
        # Batch axes come first. A free axis that is summed up would be no position of the other
        # operand, which does not have it.
        if any(axis >= product.n_batch for axis in product.summed_axes):
            return None
        return product

    def _precursors(self, argument: int, layout: LeafLayout) -> Iterator[Precursor]:
        """The variables from the cotangent of an argument back, as far as the steps are simple."""
        atom = self.jaxpr.outvars[self.arguments.index(argument)]
        scalings: tuple[Scaling, ...] = ()
        # A cotangent that does not depend on those of the outputs is a constant, such as zero.
        while self._varies(atom):
            yield Precursor(atom, layout, scalings)
            eqn = self._made_by.get(atom)
            # A cotangent that is cast to whole numbers and back is no longer linear.
            if eqn is None or not is_floating(eqn.invars[0]):
                return
            # One step back: through a scaling, or through what moves the elements.
            if eqn.primitive.name in ("neg", "mul", "div"):
                operand, scaling = self._scaled_operand(eqn)
                if scaling is None:
                    return
                atom = operand
                scalings = (*scalings, scaling)
                continue
            before = _layout_before(eqn, layout)
            if before is None:
                return
            atom = eqn.invars[0]
            layout = before

    def _scaled_operand(self, eqn: Equation) -> tuple[Atom, Scaling | None]:
        """What `neg`, `mul` or `div` scales, and how; None where it is no scalar."""
        name = eqn.primitive.name
        if name == "neg":
            return eqn.invars[0], Scaling("neg")
        # Of a product either side may be the scalar, of a quotient only the divisor.
        operand, factor = eqn.invars
        if name == "mul" and not self._varies(operand):
            operand, factor = factor, operand
        if self._varies(factor):
            return operand, None
        scalar = self._scalar_in(factor)
        if scalar is None:
            return operand, None
        return operand, Scaling(name, scalar)

    def _scalar_in(self, atom: Atom) -> Atom | None:
        """The scalar that an array of the rule repeats; None if it is no such array."""
        if not atom.aval.shape:
            return atom
        eqn = None if isinstance(atom, _jax.Literal) else self._made_by.get(atom)
        if eqn is None or eqn.primitive.name != "broadcast_in_dim" or eqn.invars[0].aval.shape:
            return None
        return eqn.invars[0]


def outputs_and_pullback(
    eqn: Equation, constants: frozenset[int], inputs: list
) -> tuple[list, Callable]:
    """The outputs of an equation, and the function from their cotangents to those of its inputs.

    Inputs in `constants` have none.
    """
    # Inputs that are constants stay outside: JAX refuses to differentiate by what a function with a
    # rule closes over.
    inputs = list(map(jnp.asarray, inputs))
    differentiated = [k for k in range(len(inputs)) if k not in constants]

    def outputs(*values):
        completed = list(inputs)
        for k, value in zip(differentiated, values, strict=True):
            completed[k] = value
        return _jax.bind(eqn, completed)

    return jax.vjp(outputs, *(inputs[k] for k in differentiated))


def evaluate_atoms(
    jaxpr: Jaxpr, consts: list, inputs: dict[Variable, Any], atoms: list[Atom]
) -> list:
    """The values of some atoms of a jaxpr, from the inputs they need, with calls opened."""
    known = dict(zip(jaxpr.constvars, consts, strict=True)) | inputs

    def read(atom):
        return atom.val if isinstance(atom, _jax.Literal) else known[atom]

    needed = liveness(jaxpr, atoms).needed
    for k, eqn in enumerate(jaxpr.eqns):
        if not needed[k]:
            continue
        values = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name in _CALLS:
            called, called_consts = _jax.open_jaxpr(eqn.params["jaxpr"])
            arguments = dict(zip(called.invars, values, strict=True))
            values = evaluate_atoms(called, called_consts, arguments, called.outvars)
        else:
            values = _jax.bind(eqn, values)
        known.update(zip(eqn.outvars, values, strict=True))
    return [read(atom) for atom in atoms]


def is_floating(atom: Atom) -> bool:
    """Whether a variable or literal of a jaxpr holds floating-point numbers."""
    return jnp.issubdtype(atom.aval.dtype, jnp.floating)


def _layout_before(eqn: Equation, layout: LeafLayout) -> LeafLayout | None:
    """The layout before an equation that rearranges or sums up; None for any other equation."""
    name = eqn.primitive.name
    shape = eqn.invars[0].aval.shape
    axes = range(len(shape))
    if name in _RESHAPING and len(eqn.invars) == 1:
        return layout.reshape(shape)
    # A broadcast that repeats nothing only inserts axes of length 1.
    if name == "broadcast_in_dim" and math.prod(shape) == math.prod(eqn.outvars[0].aval.shape):
        return layout.reshape(shape)
    if name == "transpose":
        inverse = sorted(axes, key=eqn.params["permutation"].__getitem__)
        return layout.transpose(tuple(inverse))
    if name == "reduce_sum":
        # All entries along a summed axis belong to one element of the parameter: it is repeated.
        kept = tuple(axis for axis in axes if axis not in eqn.params["axes"])
        return layout.broadcast(shape, kept)
    return None


def _scale(a: Shaped[Array, "..."], scalings: tuple[Scaling, ...], scalars: list) -> Array:
    """Apply scalings whose scalars are given in their order."""
    remaining = iter(scalars)
    for scaling in scalings:
        if scaling.primitive == "neg":
            a = -a
        elif scaling.primitive == "mul":
            a = a * next(remaining)
        else:
            a = a / next(remaining)
    return a


def _shapes(atoms: list[Atom]) -> list[jax.ShapeDtypeStruct]:
    """Shapes and dtypes of variables and literals."""
    return [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in atoms]

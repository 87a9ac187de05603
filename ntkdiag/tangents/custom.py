"""Parameters of functions with a derivative rule of their own (`custom_vjp`, `custom_jvp`).

Such a rule computes the cotangents of parameters by itself. Where one is a product, up to rearrangement and scalar
factors, the operands of the product are the two factors of the Jacobian: the one that the cotangents of the outputs go
into is c, the other one is a. Where one is the cotangent of the output (a straight-through estimator), the output is a
view of the parameter, with other numbers.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ntkdiag import _compat
from ntkdiag.tangents import contraction
from ntkdiag.tangents.arrange import arrange
from ntkdiag.tangents.contraction import Contraction
from ntkdiag.tangents.joined import Joined
from ntkdiag.tangents.layout import Layout
from ntkdiag.tangents.liveness import downstream, liveness
from ntkdiag.tangents.recorder import Recorder
from ntkdiag.tangents.views import View

CALLS = frozenset(("jit", "pjit", "closed_call", "core_call"))
# Primitives whose result is their one operand in another shape, or as it is.
_SAME = frozenset(("reshape", "squeeze", "convert_element_type", "copy", "name", "optimization_barrier"))


def custom(eqn: Any, values: list, recorder: Recorder, path: tuple) -> list:
    """A function with a rule of its own, with views among its arguments."""
    held = _held(eqn, values)
    # The rule may index constants; as such they would reach it as arrays of numpy.
    values = [v if isinstance(v, View | Joined | _compat.Tracer) else lax.optimization_barrier(v) for v in values]
    views = {k: v for k, v in enumerate(values) if isinstance(v, View) and not v.layout.repeats}
    if not views or not all(map(_is_floating, eqn.outvars)):
        return _compat.bind(eqn, [recorder.differentiable(v) for v in values])
    rule = _Rule.of_equation(eqn, held)
    sources = {k: rule.source(k, view.layout) for k, view in views.items()}
    through = {k: layout for k, layout in sources.items() if isinstance(layout, Layout)}
    if through:
        [k, layout], *_ = through.items()
        others = [None if n == k else recorder.differentiable(v) for n, v in enumerate(values)]
        return [views[k].put(lambda copy: _compat.bind(eqn, [copy if v is None else v for v in others])[0], layout)]
    products = {k: source for k, source in sources.items() if isinstance(source, _Product)}
    uses, taps = {k: rule.use(product) for k, product in products.items()}, {}
    unscaled = {products[k].c: (uses[k][0], (*path, k)) for k in products if views[k].scale is None}
    biases = {k: found for k, v in views.items() if (found := rule.bias(k, v.layout, unscaled))}
    inputs = [v.value if k in (*products, *biases) else recorder.differentiable(v) for k, v in enumerate(values)]
    if not products:
        return _compat.bind(eqn, inputs)
    for k, (use, reads) in uses.items():
        key, scale, c = (*path, k), views[k].scale, products[k].c.aval
        found = dataclasses.replace(views[k], scale=None)
        recorder.found(key, found, eqn.primitive.name, use, key, [inputs[n] for n in reads])
        taps[k] = recorder.tap(key, jnp.zeros(c.shape, c.dtype), scale)
    for k, (use, tap) in biases.items():
        recorder.found((*path, k), views[k], eqn.primitive.name, use, tap, np.ones((), views[k].value.dtype))
    return _with_taps(eqn, held, {k: views[k].layout for k in products})(inputs, taps)


@dataclasses.dataclass(frozen=True, eq=False)
class _Product:
    """A product in a derivative rule, and what becomes of it until it is the cotangent of a parameter.

    Attributes:
        eqn: The equation.
        side: Number of the operand that the cotangents of the outputs do not go into.
        layout: Of the parameter, in the shape of the product, repeated where the product is summed afterwards.
        factors: The scalars it is multiplied by ("mul") or divided by ("div"); None for "neg".
    """

    eqn: Any
    side: int
    layout: Layout
    factors: tuple[tuple[str, Any], ...]

    @property
    def c(self) -> Any:
        """The operand that the cotangents of the outputs go into."""
        return self.eqn.invars[1 - self.side]

    @property
    def needed(self) -> list[Any]:
        """The other operand, and the scalars."""
        return [self.eqn.invars[self.side], *(scalar for _, scalar in self.factors if scalar is not None)]

    @property
    def summed(self) -> list[int]:
        """The axes of the product that are summed afterwards."""
        visible = slice(self.layout.n_block, None)
        axes = zip(self.layout.array.strides[visible], self.layout.shape, strict=True)
        return [axis for axis, (stride, size) in enumerate(axes) if stride == 0 and size > 1]

    def use(self, evaluate: Callable) -> Contraction:
        """The use of the parameter; `evaluate`: what is handed out -> the numbers of `needed`.

        Axes summed afterwards are positions. They have to be batch axes of the product.
        """
        own, other = self.side, 1 - self.side
        contracted, batch = self.eqn.params["dimension_numbers"]
        shapes = [v.aval.shape for v in self.eqn.invars]
        free = [[k for k in range(len(shapes[s])) if k not in (*contracted[s], *batch[s])] for s in (0, 1)]
        roles = dict.fromkeys(contracted[other], "t")
        roles |= {axis: "t" if k in self.summed else "b" for k, axis in enumerate(batch[other])}
        partner = dict(zip((*contracted[other], *batch[other]), (*contracted[own], *batch[own]), strict=True))
        b, t = ([axis for axis in sorted(roles) if roles[axis] == role] for role in "bt")
        groups = [partner[axis] for axis in b], [partner[axis] for axis in t], free[own]
        sizes = tuple(math.prod(shapes[own][axis] for axis in axes) for axes in groups)

        def operand(handed):
            a, *scalars = evaluate(handed)
            for name, _ in self.factors:
                a = -a if name == "neg" else a * scalars.pop(0) if name == "mul" else a / scalars.pop(0)
            return arrange(a, (*groups[0], *groups[1], *groups[2]), sizes)

        n_batch, n_free = len(batch[0]), [len(axes) for axes in free]  # the axes of the product, in this order
        blocks = (*(batch[other].index(axis) for axis in b), *self.summed)
        firsts = n_batch, n_batch + n_free[0]
        inputs, outputs = (tuple(range(firsts[s], firsts[s] + n_free[s])) for s in (own, other))
        kept = tuple(slice(0, 1) if axis in self.summed else slice(None) for axis in range(n_batch + sum(n_free)))
        return Contraction(
            self.layout.slice(kept).transpose((*blocks, *inputs, *outputs)),
            (len(blocks), len(inputs), len(outputs)),
            operand,
            shapes[other],
            tuple(roles.get(axis, "d") for axis in range(len(shapes[other]))),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _Rule:
    """A derivative rule with its calls opened: inputs and cotangents of the outputs -> cotangents of the arguments.

    Attributes:
        jaxpr: The rule.
        consts: Its constants.
        n_inputs: How many inputs come before the cotangents of the outputs.
        arguments: Numbers of the arguments that have a cotangent.
    """

    jaxpr: Any
    consts: list
    n_inputs: int
    arguments: list[int]

    @staticmethod
    def of_equation(eqn: Any, held: frozenset[int]) -> "_Rule":
        """The rule of an equation, from its inputs; `held` as in `_held`."""
        avals = [[jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in vs] for vs in (eqn.invars, eqn.outvars)]
        return _Rule.of(eqn, held, lambda inputs: _pullback(eqn, held, inputs)[1], *avals)

    @staticmethod
    def of(eqn: Any, held: frozenset[int], pullback: Callable, inputs: list, cotangents: list) -> "_Rule":
        """The rule of an equation, from `pullback(inputs)(cotangents)`; see `_pullback`."""
        free = [k for k in range(len(eqn.invars)) if k not in held]
        arguments = [k for k in free if _is_floating(eqn.invars[k])]

        def rule(inputs, cotangents):
            found = dict(zip(free, pullback(inputs)(cotangents), strict=True))
            return [found[k] for k in arguments]

        jaxpr, consts = _compat.open_jaxpr(jax.make_jaxpr(rule)(inputs, cotangents))
        opened = lambda *values: _evaluate(jaxpr, consts, zip(jaxpr.invars, values, strict=True), jaxpr.outvars)
        jaxpr, consts = _compat.open_jaxpr(jax.make_jaxpr(opened)(*inputs, *cotangents))
        return _Rule(jaxpr, consts, len(inputs), arguments)

    def back(self, argument: int, layout: Layout) -> Iterator[tuple[Any, Layout, tuple[tuple[str, Any], ...]]]:
        """From the cotangent of a parameter back through what rearranges, scales and sums up.

        Args:
            argument: Number of the argument.
            layout: Of the parameter.

        Yields:
            A variable, the layout of the parameter in its shape, repeated where it is summed up afterwards, and the
            scalars it is multiplied by ("mul") or divided by ("div") afterwards; None for "neg".
        """
        varying = downstream(self.jaxpr, self.jaxpr.invars[self.n_inputs :])
        made = {var: eqn for eqn in self.jaxpr.eqns for var in eqn.outvars}
        varies = lambda atom: not isinstance(atom, _compat.Literal) and atom in varying
        atom, factors = self.jaxpr.outvars[self.arguments.index(argument)], ()
        seen: Layout | None = layout
        while seen is not None and varies(atom):
            yield atom, seen, factors
            if (eqn := made.get(atom)) is None:
                return
            atom = eqn.invars[0]
            name, shape = eqn.primitive.name, atom.aval.shape
            if not _is_floating(atom):  # cast to whole numbers and back
                return
            same = name in _SAME and len(eqn.invars) == 1
            if same or (name == "broadcast_in_dim" and math.prod(shape) == math.prod(eqn.outvars[0].aval.shape)):
                seen = seen.reshape(shape)
            elif name == "transpose":
                seen = seen.transpose(tuple(sorted(range(len(shape)), key=eqn.params["permutation"].__getitem__)))
            elif name == "reduce_sum":
                seen = seen.broadcast(shape, tuple(k for k in range(len(shape)) if k not in eqn.params["axes"]))
            elif name == "neg":
                factors = (*factors, (name, None))
            elif name in ("mul", "div"):
                atom, other = eqn.invars if name == "div" or varies(eqn.invars[0]) else eqn.invars[::-1]
                if varies(other) or (scalar := _scalar(other, made)) is None:
                    return
                factors = (*factors, (name, scalar))
            else:
                return

    def source(self, argument: int, layout: Layout) -> "_Product | Layout | None":
        """What the cotangent of a parameter is: a product, that of the one output, or anything else (None).

        Args:
            argument: Number of the argument.
            layout: Of the parameter. In the second case that of the output is returned.
        """
        given = self.jaxpr.invars[self.n_inputs :]
        varying = downstream(self.jaxpr, given)
        products = {eqn.outvars[0]: eqn for eqn in self.jaxpr.eqns if eqn.primitive.name == "dot_general"}
        for atom, seen, factors in self.back(argument, layout):
            if atom in given:
                return seen if len(given) == 1 and not factors else None
            if atom in products:
                eqn = products[atom]
                varies = [not isinstance(v, _compat.Literal) and v in varying for v in eqn.invars]
                product = _Product(eqn, int(varies[0]), seen, factors)
                batch = range(len(eqn.params["dimension_numbers"][1][0]))
                linear = not all(varies)
                return product if linear and set(product.summed) <= set(batch) else None
        return None

    def bias(self, argument: int, layout: Layout, products: dict) -> tuple[Contraction, tuple] | None:
        """The use of a parameter whose cotangent is the operand c of a product, summed up, and the tap they share.

        Args:
            argument: Number of the argument.
            layout: Of the parameter.
            products: Operand c -> use of the parameter multiplied, its tap.
        """
        for atom, seen, factors in self.back(argument, layout):
            if atom in products and not factors:
                of, tap = products[atom]
                use = contraction.bias(of, seen)
                return None if use is None else (use, tap)
        return None

    def use(self, product: _Product) -> tuple[Contraction, list[int]]:
        """The use of a parameter whose cotangent is a product, and the numbers of the inputs it hands out."""
        uses = liveness(self.jaxpr, product.needed).uses
        reads = [k for k in range(self.n_inputs) if self.jaxpr.invars[k] in uses]
        known = lambda handed: zip([self.jaxpr.invars[k] for k in reads], handed, strict=True)
        return product.use(lambda handed: _evaluate(self.jaxpr, self.consts, known(handed), product.needed)), reads


def _with_taps(eqn: Any, held: frozenset[int], layouts: dict[int, Layout]) -> Callable:
    """An equation as function of inputs and taps, by number of the argument: cotangents of taps are operands c."""

    @jax.custom_vjp
    def tapped(inputs, taps):
        return _compat.bind(eqn, inputs)

    def forward(inputs, taps):
        return _pullback(eqn, held, inputs)

    def backward(pullback, cotangents):
        residuals, tree = jax.tree.flatten(pullback)
        rule = _Rule.of(eqn, held, tree.unflatten, residuals, cotangents)
        products: Any = [rule.source(k, layout) for k, layout in layouts.items()]
        known = zip(rule.jaxpr.invars, [*residuals, *cotangents], strict=True)
        wanted = [*rule.jaxpr.outvars, *(product.c for product in products)]
        found = _evaluate(rule.jaxpr, rule.consts, known, wanted)
        n_arguments = len(rule.arguments)
        of_inputs = dict(zip(rule.arguments, found[:n_arguments], strict=True))
        of_taps = dict(zip(layouts, found[n_arguments:], strict=True))
        return [of_inputs.get(k) for k in range(len(eqn.invars))], of_taps

    tapped.defvjp(forward, backward)
    return tapped


def _pullback(eqn: Any, held: frozenset[int], inputs: list) -> tuple[list, Any]:
    """The outputs of an equation, and cotangents of them -> cotangents of its inputs but those that are held."""
    inputs = list(map(jnp.asarray, inputs))

    def outputs(*free):
        rest = iter(free)
        return _compat.bind(eqn, [value if k in held else next(rest) for k, value in enumerate(inputs)])

    return jax.vjp(outputs, *(value for k, value in enumerate(inputs) if k not in held))


def _held(eqn: Any, values: list) -> frozenset[int]:
    """Numbers of the inputs that are constants: JAX refuses to differentiate by what the function closes over.

    Under `vmap` it no longer says which inputs these are, so that every constant is held.
    """
    constants = {k for k, v in enumerate(values) if not isinstance(v, View | _compat.Tracer | Joined)}
    return frozenset(constants | set(range(eqn.params.get("num_consts", 0))))


def _evaluate(jaxpr: Any, consts: list, known: Any, atoms: list) -> list:
    """Some variables of a jaxpr, from as many of its inputs as they need; calls are opened."""
    known = {**dict(zip(jaxpr.constvars, consts, strict=True)), **dict(known)}
    read = lambda atom: atom.val if isinstance(atom, _compat.Literal) else known[atom]
    for eqn, needed in zip(jaxpr.eqns, liveness(jaxpr, atoms).needed, strict=True):
        if not needed:
            continue
        values = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name in CALLS:
            inner, inner_consts = _compat.open_jaxpr(eqn.params["jaxpr"])
            values = _evaluate(inner, inner_consts, zip(inner.invars, values, strict=True), inner.outvars)
        else:
            values = _compat.bind(eqn, values)
        known.update(zip(eqn.outvars, values, strict=True))
    return [read(atom) for atom in atoms]


def _scalar(atom: Any, made: dict) -> Any:
    """The scalar that an array of a jaxpr repeats, or None; `made`: the equation of each variable."""
    if not atom.aval.shape:
        return atom
    if isinstance(atom, _compat.Literal) or atom not in made:
        return None
    eqn = made[atom]
    return eqn.invars[0] if eqn.primitive.name == "broadcast_in_dim" and not eqn.invars[0].aval.shape else None


def _is_floating(atom: Any) -> bool:
    return jnp.issubdtype(atom.aval.dtype, jnp.floating)

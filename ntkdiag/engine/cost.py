"""Floating-point operations and live memory of a jaxpr, counted from shapes.

Operations are those of matrix products and convolutions, counted exactly; a scan counts its body as
often as it runs. Memory is found by walking the equations in order: a value is alive from the
equation that makes it to the last one that reads it, and the peak is the largest sum of what is
alive at once. Two things keep this close to what XLA allocates:

* a value that only one elementwise equation reads is computed inside the loop that reads it
  (fusion) and takes no memory;
* a reshape is the memory of its operand under another name, which then lives until both are dead.

Values are counted in two sums, by whether they depend on inputs that vary: of many evaluations at
once (`jax.vmap` over examples) each has its own varying values, and all share the others.

    memory of so many examples at once = examples * peak + shared
"""

import itertools
import math
from collections import Counter
from typing import NamedTuple

from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.jaxprs import (
    ClosedJaxpr,
    Equation,
    Jaxpr,
    Variable,
    downstream,
    variables,
    without_dead,
)

# Outputs of these are computed inside the loop that reads them when one equation reads them.
_FUSED = frozenset(
    (
        "abs", "add", "add_any", "and", "broadcast_in_dim", "clamp", "convert_element_type", "copy",
        "cos", "div", "eq", "erf", "exp", "exp2", "expm1", "ge", "gt", "iota", "is_finite", "le",
        "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "not",
        "one_minus_square", "or", "pow", "integer_pow", "rem", "round", "rsqrt", "select_n", "sign",
        "sin", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor",
    )
)  # fmt: skip
# Outputs of these are the same memory under another name.
_ALIASES = frozenset(
    ("reshape", "squeeze", "expand_dims", "stop_gradient", "copy", "optimization_barrier")
)


class JaxprCost(NamedTuple):
    """What one evaluation of a jaxpr costs."""

    flops: int  # floating-point operations of products and convolutions (2 per multiply-add)
    # Bytes of intermediate values alive at once that depend on a varying input; inputs do not
    # count, outputs do.
    peak: int
    shared: int  # the same of values that depend on none: many evaluations at once have them once


def jaxpr_cost(jaxpr: Jaxpr | ClosedJaxpr, varying: list[bool]) -> JaxprCost:
    """What a jaxpr costs; `varying` says which inputs differ between evaluations at once."""
    # XLA removes dead code as well.
    jaxpr = without_dead(jaxprs.open_jaxpr(jaxpr)[0])
    dependent = downstream(jaxpr, itertools.compress(jaxpr.invars, varying))
    memory = _LiveMemory(jaxpr)
    now = {True: 0, False: 0}  # bytes alive, of values that vary and of others
    peak = {True: 0, False: 0}
    flops = 0
    # The equations in order: each allocates its results, runs, and frees the operands that nothing
    # reads afterwards.
    for k, eqn in enumerate(jaxpr.eqns):
        is_literal = [isinstance(atom, jaxprs.Literal) for atom in eqn.invars]
        varies = [not is_literal[j] and atom in dependent for j, atom in enumerate(eqn.invars)]
        nested = _nested_cost(eqn, varies)
        flops += nested.flops + _product_flops(eqn)
        for var in memory.made_by(k, eqn):
            now[var in dependent] += _size_in_bytes(var)
        peak[True] = max(peak[True], now[True] + nested.peak)
        peak[False] = max(peak[False], now[False] + nested.shared)
        for var in memory.dead_after(k):
            now[var in dependent] -= _size_in_bytes(var)
    return JaxprCost(flops, peak[True], peak[False])


class _LiveMemory:
    """Which values of a jaxpr have memory while its equations run in order."""

    def __init__(self, jaxpr: Jaxpr):
        self._inputs = {*jaxpr.invars, *jaxpr.constvars}
        self._outputs = set(variables(jaxpr.outvars))
        self._alive: set[Variable] = set()
        self._alias_of: dict[Variable, Variable] = {}
        self._may_die_after: dict[int, list[Variable]] = {}  # number of an equation -> variables
        # For each variable the number of the equation that reads it last, and how often it is read.
        self._last_use: dict[Variable, int] = {}
        self._n_uses: Counter[Variable] = Counter()
        readers = [eqn.invars for eqn in jaxpr.eqns]
        for k, atoms in enumerate([*readers, jaxpr.outvars]):
            for var in variables(atoms):
                self._last_use[var] = k
                self._n_uses[var] += 1

    def made_by(self, k: int, eqn: Equation) -> list[Variable]:
        """The outputs of equation number k that take memory."""
        name = eqn.primitive.name
        made = []
        for var in eqn.outvars:
            end = self._last_use.get(var, -1)
            # A reshape and the like: the memory of its operand, which then lives as long as both.
            source = None
            if name in _ALIASES:
                source = next(iter(variables(eqn.invars)), None)
                source = self._alias_of.get(source, source)
            if source in self._alive or source in self._inputs:
                self._alias_of[var] = source
                end = max(end, self._last_use.get(source, -1))
                self._last_use[source] = end
                self._may_die_after.setdefault(end, []).append(source)
                continue
            # Computed inside the loop that reads it: no memory at all.
            is_fused = name in _FUSED and self._n_uses[var] == 1
            if is_fused and var not in self._outputs:
                continue
            made.append(var)
            self._may_die_after.setdefault(max(k, end), []).append(var)
        self._alive.update(made)
        return made

    def dead_after(self, k: int) -> list[Variable]:
        """The values with memory that equation number k is the last to read."""
        dead = []
        for var in self._may_die_after.pop(k, ()):
            # It may stay alive under another name, or as an output.
            is_read_later = self._last_use.get(var, -1) > k
            if var in self._alive and not is_read_later and var not in self._outputs:
                self._alive.remove(var)
                dead.append(var)
        return dead


def _size_in_bytes(var: Variable) -> int:
    """The bytes of an array; 0 for what has no shape or dtype, such as a token."""
    shape = getattr(var.aval, "shape", ())
    dtype = getattr(var.aval, "dtype", None)
    return math.prod(shape) * getattr(dtype, "itemsize", 0)


def _nested_cost(eqn: Equation, varying: list[bool]) -> JaxprCost:
    """The cost of the jaxprs in an equation: all steps of a scan, the dearest of branches."""
    is_scan = eqn.primitive.name == "scan"
    if is_scan and any(varying):
        # A carry may vary from the second step on.
        n_consts, n_carry = jaxprs.scan_counts(eqn.params)
        varying = [*varying[:n_consts], *[True] * n_carry, *varying[n_consts + n_carry :]]
    costs = []
    for jaxpr in jaxprs.sub_jaxprs(eqn):
        # Where inputs are not those of the equation one by one (the predicate of a `cond` stays
        # outside), all of them vary if any does.
        varying_inside = varying
        if len(jaxpr.invars) != len(varying):
            varying_inside = [any(varying)] * len(jaxpr.invars)
        costs.append(jaxpr_cost(jaxpr, varying_inside))
    flops = max((cost.flops for cost in costs), default=0)
    peak = max((cost.peak for cost in costs), default=0)
    shared = max((cost.shared for cost in costs), default=0)
    n_steps = eqn.params.get("length", 1) if is_scan else 1
    return JaxprCost(flops * n_steps, peak, shared)


def _product_flops(eqn: Equation) -> int:
    """Floating-point operations of a matrix product or convolution; 0 for any other equation."""
    if eqn.primitive.name == "dot_general":
        # ((contracted axes left, right), (batch axes left, right))
        (contracted, _), _ = eqn.params["dimension_numbers"]
        left = eqn.invars[0].aval.shape
        multiply_adds_per_output = math.prod(left[axis] for axis in contracted)
    elif eqn.primitive.name == "conv_general_dilated":
        # Every output is a sum over the window and the input channels of its group.
        kernel = eqn.invars[1].aval.shape
        out_axis = eqn.params["dimension_numbers"].rhs_spec[0]
        multiply_adds_per_output = math.prod(kernel[:out_axis] + kernel[out_axis + 1 :])
    else:
        return 0
    return 2 * math.prod(eqn.outvars[0].aval.shape) * multiply_adds_per_output

"""Which arrays of parameters an optimizer updates by the same elementwise program.

Such arrays share all coefficients of their update, and the factors of a common clip. The equations
of `update` are named by their primitive and the names of their inputs; an array of each kind
(gradient, parameter, momentum) has the same name for all parameters. The result of an equation that
is not elementwise, such as a norm, has a name of its own: updates agree only where they share it.
"""

from collections.abc import Callable, Hashable, Sequence

import jax

from ntkdiag.jaxtools import jaxprs

_ELEMENTWISE = frozenset(
    (
        "abs", "add", "add_any", "and", "clamp", "convert_element_type", "div", "eq", "exp", "ge",
        "gt", "integer_pow", "is_finite", "le", "log", "lt", "max", "min", "mul", "ne", "neg",
        "not", "or", "pow", "rem", "rsqrt", "select_n", "sign", "sqrt", "square", "sub", "tanh",
    )
)  # fmt: skip
# These repeat a number or pass it through.
_UNCHANGED = frozenset({"broadcast_in_dim", "copy", "copy_p", "stop_gradient"})
_CALLS = frozenset({"closed_call", "core_call", "custom_jvp_call", "jit", "pjit"})


def groups(
    function: Callable[..., list], arguments: Sequence, kinds: Sequence[Hashable], n: int
) -> list[list[int]]:
    """The numbers 0 to n - 1, in groups of outputs with equal names.

    Args:
        function: Returns some results of each of n arrays of parameters: first one of all arrays,
            then another of all.
        arguments: Its arguments.
        kinds: A name for each array among the leaves of the arguments.
        n: The number of arrays.
    """
    jaxpr, _ = jaxprs.open_jaxpr(jax.make_jaxpr(function)(*arguments))
    names = _Names()
    outputs = names.of_outputs(jaxpr, [names.of(kind) for kind in kinds])
    found: dict[Hashable, list[int]] = {}
    for index in range(n):
        found.setdefault(tuple(outputs[index::n]), []).append(index)
    return list(found.values())


class _Names:
    """Names of values: numbers, equal where the same operations act on equal names."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def of(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def new(self) -> int:
        return self.of(("new", len(self._numbers)))

    def of_outputs(self, jaxpr: jaxprs.Jaxpr, inputs: Sequence[int]) -> list[int]:
        names = dict(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: jaxprs.Atom) -> int:
            if isinstance(atom, jaxprs.Literal):
                return self.of(("literal", str(atom.val), str(atom.aval)))
            if atom not in names:  # a constant
                names[atom] = self.new()
            return names[atom]

        for eqn in jaxpr.eqns:
            results = self._of_equation(eqn, [read(atom) for atom in eqn.invars])
            names.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _of_equation(self, eqn: jaxprs.Equation, inputs: list[int]) -> list[int]:
        name, bodies = eqn.primitive.name, jaxprs.sub_jaxprs(eqn)
        if name in _UNCHANGED:
            return inputs[:1]
        if name in _CALLS and len(bodies) == 1 and len(bodies[0].invars) == len(inputs):
            return self.of_outputs(bodies[0], inputs)
        if name == "cond":
            chosen, *rest = inputs
            branches = [self.of_outputs(body, rest) for body in bodies]
            return [self.of(("cond", chosen, *each)) for each in zip(*branches, strict=True)]
        if name in _ELEMENTWISE:
            settings = str(sorted(eqn.params.items(), key=str))
            return [self.of((name, settings, *inputs))]
        return [self.new() for _ in eqn.outvars]

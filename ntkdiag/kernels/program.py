"""A function made ready for kernels: traced once per set of shapes, compiled once per way of contracting."""

import collections
import contextlib
import dataclasses
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import _compat, errors
from ntkdiag.kernels import keywords, meshes, reversible
from ntkdiag.kernels.arguments import is_traced
from ntkdiag.kernels.caches import Cache
from ntkdiag.kernels.compiled import Compiled
from ntkdiag.kernels.ways import Way, choose
from ntkdiag.tangents import channels_last
from ntkdiag.tangents.cost import Cost, cost
from ntkdiag.tangents.factors import Outer, merge
from ntkdiag.tangents.liveness import without_dead
from ntkdiag.tangents.parts import Factor, Part
from ntkdiag.tangents.tangents import Tangents, depends_on

_PROGRAMS = Cache()
# Merged Jacobians have a multiple of so many columns: they can be cut into pieces of any size.
_COLUMNS = 256


@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """Forward pass, backward passes and factors of one example as a jaxpr, ready to be batched.

    Attributes:
        jaxpr: (flat params, basis, kwargs; flat example) -> flat (factors, f(x)).
        consts: Its constants.
        structure: Tree of the outputs.
        n_fixed: How many inputs all examples share.
        varying: Which outputs depend on the example; the others are kept once.
    """

    jaxpr: Any
    consts: list
    structure: Any
    n_fixed: int
    varying: list[bool]

    @functools.cached_property
    def cost(self) -> Cost:
        """What one example costs."""
        return cost(self.jaxpr, [k >= self.n_fixed for k in range(len(self.jaxpr.invars))])

    def __call__(self, fixed: Any, x: Any) -> Any:
        """Factors [n ...] and outputs [n C] of a batch."""
        flat = jax.tree.leaves(x)
        run = jax.vmap(
            lambda *flat: channels_last.evaluate(self.jaxpr, self.consts, *flat),
            in_axes=(None,) * self.n_fixed + (0,) * len(flat),
            out_axes=[0 if v else None for v in self.varying],
        )
        return jax.tree.unflatten(self.structure, run(*jax.tree.leaves(fixed), *flat))


def _paths(params: Any) -> list[str]:
    """Names of the leaves, in full where a slash in a key would make two alike."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]
    times = collections.Counter(names)
    return [name if times[name] == 1 else jax.tree_util.keystr(path) for name, path in zip(names, paths, strict=True)]


class Program:
    """f at fixed shapes: the structure of its Jacobian and the compiled functions that compute its factors."""

    def __init__(self, f: Callable, params: Any, x: Any, kwargs: dict, *, joint: bool, call: str):
        self.joint = joint
        self.paths = _paths(params)
        shapes = lambda tree: jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), tree)
        self.dynamic = shapes(keywords.arrays(kwargs))
        self.params = jax.tree.leaves(shapes(params))
        self.example = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape if joint else v.shape[1:], v.dtype), x)
        vector = functools.partial(_as_vector, f, jax.tree.structure(params), keywords.Fixed.of(kwargs), joint, call)
        with _without_collections():
            self.tangents = Tangents.of(vector, self.params, self.dynamic, self.example)
        consts = _compat.open_jaxpr(self.tangents.jaxpr)[1]
        self.closes_over_explicit = meshes.explicit(consts) is not None
        self.closes_over_tracers = is_traced(consts)
        self.reduces = _compat.contains(self.tangents.jaxpr, "reduce_sum") and self.tangents.dtype == jnp.float32
        if self.reduces and jax.default_backend() == "cpu":
            _compat.known_answer_test()  # while the rest is traced
        self.verified: set[tuple] = set()  # settings among the keyword arguments for which examples did not interact
        self._parts: dict[str, list[Part]] = {}
        self._traces: dict[tuple, Trace] = {}
        self.begun: set[Any] = set()
        self.plans: dict[tuple, Any] = {}
        self._ways: dict[tuple, tuple[Way, ...]] = {}
        self._compiled: dict[Any, Compiled] = {}

    @staticmethod
    def of(f: Callable, params: Any, x: Any, kwargs: dict, *, joint: bool, call: str) -> "Program":
        """The program of f at these shapes, from the cache if there is one."""
        one = x if joint else jax.tree.map(lambda v: jax.ShapeDtypeStruct((1, *v.shape[1:]), v.dtype), x)
        if is_traced(params, x, kwargs):  # inside someone's trace: f may close over its tracers, so nothing is kept
            return Program(f, params, one, kwargs, joint=joint, call=call)
        key = _key(params, one, kwargs, joint)
        program = _PROGRAMS.get(f, key)
        if program is None:
            program = Program(f, params, one, kwargs, joint=joint, call=call)
            if not program.closes_over_tracers:
                _PROGRAMS.put(f, key, program)
        return program

    def parts(self, form: str) -> list[Part]:
        """What the kernel is a sum over; see `tangents.parts.group`."""
        if form not in self._parts:
            self._parts[form] = self.tangents.parts(form)
        return self._parts[form]

    def ways(self, form: str, n: int, m: int, k: int, contraction: str) -> tuple[Way, ...]:
        """How the parts are contracted; see `ways.choose`."""
        key = form, n, m, k, contraction
        if key not in self._ways:
            self._ways[key] = choose(self.parts(form), n, m, k, contraction)
        return self._ways[key]

    def trace(self, ways: tuple[Way, ...], basis: Any, merged: bool = False) -> Trace:
        """The factors of one example in the form these ways contract, as a jaxpr; see `merge` for the last argument."""
        key = (tuple(way.key for way in ways), basis.shape, basis.dtype, merged)
        if key not in self._traces:
            fixed = (self.params, jax.ShapeDtypeStruct(basis.shape, basis.dtype), self.dynamic)

            def one(fixed, x):
                factors, y = self.tangents.factors([way.part for way in ways], fixed[0], fixed[1], fixed[2], x)
                if merged:
                    both = zip(factors, ways, strict=True)
                    return merge([part for pair in both for part in _formed_apart(*pair)], _COLUMNS), y
                return [_formed(factor, way) for factor, way in zip(factors, ways, strict=True)], y

            try:
                with _without_collections():
                    closed, out = jax.make_jaxpr(one, return_shape=True)(fixed, self.example)
            except (ValueError, TypeError, NotImplementedError) as error:
                reversible.explain(self.tangents.jaxpr, self.params, (self.dynamic, self.example), error)
            jaxpr, consts = _compat.open_jaxpr(closed)
            jaxpr = without_dead(jaxpr)
            n_fixed = len(jax.tree.leaves(fixed))
            varying = depends_on(jaxpr, n_fixed)
            self._traces[key] = Trace(jaxpr, consts, jax.tree.structure(out), n_fixed, varying)
        return self._traces[key]

    def factors(
        self, ways: tuple[Way, ...], params: Any, basis: Any, kwargs: dict, x: Any, merged: bool = False
    ) -> tuple[list[Factor], Any]:
        """Factors of a batch and f(x) [n C]; not compiled, for use inside a jit."""
        fixed = (jax.tree.leaves(params), basis, keywords.arrays(kwargs))
        return self.trace(ways, basis, merged)(fixed, jax.tree.map(lambda v: v[None], x) if self.joint else x)

    def compiled_factors(self, ways: tuple[Way, ...], merged: bool = False) -> Compiled:
        """`factors` compiled, as a function of (params, basis, kwargs, x)."""
        key = (tuple(way.key for way in ways), merged)
        return self.compiled(key, functools.partial(self.factors, ways, merged=merged), reduces=self.reduces)

    def compiled_outputs(self, f: Callable, kwargs: dict) -> Compiled:
        """f compiled, as a function of (params, x, kwargs), until `forget_outputs`: it keeps f."""
        fixed = keywords.Fixed.of(kwargs)
        return self.compiled("outputs", lambda params, x, arrays: f(params, x, **fixed.fill(arrays)), once=True)

    def forget_outputs(self) -> None:
        """Let go of f."""
        self._compiled.pop("outputs", None)

    def compiled(
        self, key: Any, function: Callable, *, reduces: bool = False, once: bool = False, donate: int | None = None
    ) -> Compiled:
        """`function` compiled: the first one given under this key, so that its compilations are found again.

        For `reduces` and `once` see `_compat.compiler_options`.
        """
        if key not in self._compiled:
            options = _compat.compiler_options(reduces=reduces, once=once)
            self._compiled[key] = Compiled(function, options, donate)
        return self._compiled[key]


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Tracing makes a great many objects that all stay: looking for garbage among them takes a quarter of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _formed(factor: Factor, way: Way) -> Factor:
    """Bring the factor of one example to the form its way contracts."""
    return factor.dense() if way.name == "dense" else factor


def _formed_apart(factor: Factor, way: Way) -> list[Factor]:
    """The same, with a bias that rides along on its own where the Jacobian is formed, now or later."""
    if way.name in ("dense", "streamed") and isinstance(factor, Outer) and factor.ones:
        weight, bias = factor.apart()
        return [_formed(weight, way), bias]
    return [_formed(factor, way)]


def _key(params: Any, x: Any, kwargs: dict, joint: bool) -> tuple:
    """What two calls must share to share a program."""

    def shapes(tree):
        leaves = jax.tree.leaves(tree)
        return jax.tree.structure(tree), tuple((tuple(v.shape), v.dtype) for v in leaves)

    mode = _compat.trace_settings()  # the same shapes trace differently
    fixed = keywords.Fixed.of(kwargs)
    return joint, mode, fixed, shapes(params), shapes(x), shapes(keywords.arrays(kwargs))


def _as_vector(
    f: Callable, structure: Any, fixed: keywords.Fixed, joint: bool, call: str, params: list, dynamic: list, x: Any
) -> Any:
    """f of one example, or of a whole batch that counts as one, as a vector of all outputs."""
    x = x if joint else jax.tree.map(lambda v: v[None], x)
    try:
        out = f(jax.tree.unflatten(structure, params), x, **fixed.fill(dynamic))
    except Exception as error:
        _say_what_was_called(error, f, jax.tree.unflatten(structure, params), x, joint, call)
        raise
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(out)]
    _check_outputs(leaves, jax.tree.leaves(x)[0].shape[0], joint, call)
    if joint:  # [N ...] each -> [N C] -> examples first
        return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1).reshape(-1)
    return jnp.concatenate([leaf.reshape(-1) for leaf in leaves]) if len(leaves) > 1 else leaves[0].reshape(-1)


def _say_what_was_called(error: Exception, f: Any, params: Any, x: Any, joint: bool, call: str) -> None:
    """Add to an error that f itself raised what f was given, which is not what the user wrote."""
    leaves = jax.tree_util.tree_leaves_with_path({"params": params, "x": x})
    shapes = [f"{jax.tree_util.keystr(p, simple=True, separator='/')} {v.dtype}{list(v.shape)}" for p, v in leaves]
    given = ", ".join(shapes if len(shapes) <= 8 else [*shapes[:6], "...", shapes[-1]])
    many = "all examples as one batch" if joint else "one example, on an axis of length 1"
    error.add_note(f"{call} called f(params, x) with {many}: {given}.")
    if "unexpected keyword argument" in str(error):
        error.add_note("Keyword arguments that ntkdiag does not know are handed to f: was one of its own meant?")


def _check_outputs(leaves: list, n: int, joint: bool, call: str) -> None:
    """What f returned are floating arrays whose first axis is the n examples.

    Raises:
        InvalidInputError: They are not.
    """
    floating = lambda v: jnp.issubdtype(v.dtype, jnp.floating)
    if all(v.ndim and v.shape[0] == n and floating(v) for v in leaves) and sum(v.size for v in leaves):
        return
    got = ", ".join(f"{v.dtype}{list(v.shape)}" for v in leaves) or "nothing"
    count = "all examples" if joint else "1 example"
    do = "Return one row of outputs per example; reduce over examples outside f."
    if any(jnp.issubdtype(v.dtype, jnp.complexfloating) for v in leaves):
        do = "Return real and imaginary parts as two outputs."
    elif not all(map(floating, leaves)):
        do = "Return only what can be differentiated."
    raise errors.InvalidInputError(
        errors.message(
            call,
            expected=f"f(params, x) of {count} to return real floating arrays with the example axis first, length {n}",
            got=got,
            do=do,
        )
    )

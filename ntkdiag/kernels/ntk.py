"""The empirical neural tangent kernel."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.kernels import arguments, constants, meshes, prepare
from ntkdiag.kernels import memory as budgets
from ntkdiag.kernels import spill as spilling
from ntkdiag.kernels.convention import Convention
from ntkdiag.kernels.kernel import Kernel
from ntkdiag.kernels.plan import Plan
from ntkdiag.kernels.preconditioner import Preconditioner
from ntkdiag.kernels.probe import digest
from ntkdiag.kernels.run import run
from ntkdiag.kernels.task import Task
from ntkdiag.tangents import precision as precisions


def ntk(
    f: Callable,
    params: Any,
    x1: Any,
    x2: Any = None,
    *,
    f2: Callable | None = None,
    outputs: Any = "mean",
    per_leaf: bool | str | Sequence[str] = False,
    preconditioner: Any = None,
    memory: int | float | str | None = None,
    spill: str | os.PathLike | None = None,
    precision: str = "highest",
    examples: Literal["independent", "joint"] = "independent",
    check: bool = True,
    progress: bool = False,
    **kwargs: Any,
) -> Kernel:
    """The empirical neural tangent kernel of f at params.

    K[n,o,m,p] = sum_l <d f(x1_n)_o / d theta_l, d f(x2_m)_p / d theta_l>, reduced over outputs as `outputs` says.

    Each example is differentiated once (one forward, and one backward pass per output direction) when its factors fit
    in the budget; x2=None computes one triangle. Works inside `jax.jit`, `jax.grad` and `jax.vmap`, where the whole
    kernel is one block.

    Args:
        f: `f(params, x, **kwargs)`; its outputs (an array or a pytree of them) have the example axis first. It is
            traced once for its shapes, as by `jax.jit`: what it reads beside its arguments is fixed then.
        params: Pytree of real floating arrays.
        x1: Row examples: an array or pytree of arrays with the example axis first.
        x2: Column examples; None stands for x1.
        f2: Another function of the same parameters for the columns: K = J_f J_f2^T, such as between two loss terms. Its
            number of outputs may differ for "full" and "sum-of-logits".
        outputs: "mean" (default), "trace", "full", "diagonal", "sum-of-logits", a projection of shape [C k], or
            `RandomProjections(k)` for an unbiased estimate of the trace; see `Convention`.
        per_leaf: True for the kernel of every leaf as well (`Kernel.leaves`, layers of a scanned stack one by one), or
            path globs for groups of leaves, such as ``["**/attention/*", "**/mlp/*"]``. They sum to the whole; leaves
            that f does not use are left out.
        preconditioner: P of K = J P^-1 J^T: a number, or a pytree like params of numbers or of arrays of their shapes
            (for Adam: (1 - beta1^t) (sqrt(v_hat) + eps)). None is P = 1.
        memory: Budget in bytes, or as "2GB"; None is half of what is free. A joint batch, and a kernel inside a
            transformation, are one block whatever it is.
        spill: A directory on a fast disk, for factors that do not fit in the budget and are needed again; without one
            their examples are differentiated again. `plan` says how much and how often. Nothing is left there.
        precision: "highest" (full precision of the dtype on every backend), "bf16x3" or "bf16x6" (split bfloat16
            products for hardware with bfloat16 matrix units), or "float64" (Gram products in float64).
        examples: "independent", or "joint" where examples interact (BatchNorm in train mode): the batch is then
            differentiated as a whole.
        check: Verify that parameters are finite and, on the first call, that independent examples are independent.
        progress: Show a progress bar when there is more than one block.
        **kwargs: Handed to f; arrays are shared by all examples.

    Returns:
        A `Kernel` with array [n m], or [n o m p] (full, projection), or [n m o] (diagonal). It lies on the host when it
        was computed in more than one block.

    Raises:
        InvalidInputError: Parameters, inputs, outputs or an option are not as described.
        UnsupportedModelError: JAX cannot differentiate f in reverse mode.
        ExamplesInteractError: Examples interact and `examples="joint"` was not asked for.
        MemoryBudgetError: The budget is too small even for one example at a time.

    Cost: N C backward passes; N^2 C^2 (full) or N^2 C (trace) times the summed factor widths multiply-adds. `plan` says
    it in numbers.

    Source: Jacot et al. 2018, arXiv:1806.07572; structured contraction as in Novak et al. 2022, arXiv:2206.08720, here
    through scan and checkpoint and chosen for each parameter.

    Example:
        >>> import jax.numpy as jnp, ntkdiag
        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> K = ntkdiag.ntk(lambda w, x: x @ w, jnp.ones((2, 3)), x)
        >>> bool(jnp.allclose(K.array, x @ x.T))
        True
    """
    call = "ntk(f, params, x1)" if x2 is None else "ntk(f, params, x1, x2)"
    options = {"outputs": outputs, "per_leaf": per_leaf, "precision": precision, "examples": examples, "check": check}
    options |= {"memory": memory, "spill": spill, "progress": progress}
    return _kernel(_Request(f, params, x1, x2, f2, preconditioner, kwargs, call, check, options))


def plan(
    f: Callable,
    params: Any,
    x1: Any,
    x2: Any = None,
    *,
    f2: Callable | None = None,
    outputs: Any = "mean",
    per_leaf: bool | str | Sequence[str] = False,
    preconditioner: Any = None,
    memory: int | float | str | None = None,
    spill: str | os.PathLike | None = None,
    precision: str = "highest",
    examples: Literal["independent", "joint"] = "independent",
    check: bool = True,
    progress: bool = False,
    **kwargs: Any,
) -> Plan:
    """What `ntk` would do with these arguments, and what it would cost; nothing is computed.

    Args:
        f: As for `ntk`.
        params: Parameters, or their shapes (`jax.ShapeDtypeStruct`).
        x1: Row examples, or their shapes.
        x2: Column examples, or their shapes; None stands for x1.
        f2: As for `ntk`.
        outputs: As for `ntk`.
        per_leaf: As for `ntk`.
        preconditioner: As for `ntk`.
        memory: As for `ntk`.
        spill: As for `ntk`.
        precision: As for `ntk`.
        examples: "independent"; a joint batch is differentiated as a whole, in one block, and has no plan.
        check: Of no consequence here.
        progress: Of no consequence here.
        **kwargs: Handed to f.

    Returns:
        A `Plan`: print it for a table of parameters and how each is contracted, flops, bytes, passes, time and memory.

    Raises:
        InvalidInputError: Parameters, inputs, outputs or an option are not as described.
        UnsupportedModelError: JAX cannot differentiate f in reverse mode.
        MemoryBudgetError: The budget is too small even for one example at a time.

    Cost: tracing f a few times; no array is made.

    Example:
        >>> import jax, jax.numpy as jnp, ntkdiag
        >>> w, x = jax.ShapeDtypeStruct((784, 10), jnp.float32), jax.ShapeDtypeStruct((64, 784), jnp.float32)
        >>> ntkdiag.plan(lambda w, x: x @ w, w, x, outputs="full").rows[0].factor
        'outer'
    """
    call = "plan(f, params, x1)" if x2 is None else "plan(f, params, x1, x2)"
    del check, progress
    if examples == "joint":
        raise errors.InvalidInputError(
            errors.message(
                call,
                expected='examples="independent"',
                got='examples="joint"',
                do="A joint batch is differentiated as a whole, in one block, whatever the budget: there is no choice.",
            )
        )
    options = {"outputs": outputs, "per_leaf": per_leaf, "precision": precision, "examples": examples}
    options |= {"check": False, "spill": spill}
    job, _ = _task(_Request(f, params, x1, x2, f2, preconditioner, kwargs, call, False, options))
    return job.plan(budgets.budget(memory), spill is not None)


@dataclasses.dataclass(frozen=True, eq=False)
class _Request:
    """What `ntk` or `plan` was asked; `finite`: whether parameters are checked to be."""

    f: Callable
    params: Any
    x1: Any
    x2: Any
    f2: Callable | None
    preconditioner: Any
    kwargs: dict
    call: str
    finite: bool
    options: dict

    @property
    def arrays(self) -> tuple:
        """What may lie on devices."""
        return self.params, self.x1, self.x2, self.preconditioner, self.kwargs

    def of(self, params: Any, x1: Any, x2: Any, preconditioner: Any, kwargs: dict) -> "_Request":
        """The same of other arrays."""
        new = {"params": params, "x1": x1, "x2": x2, "preconditioner": preconditioner, "kwargs": kwargs}
        return dataclasses.replace(self, **new)

    def outputs(self) -> list:
        """Those of both functions."""
        calls = [(self.f, self.x1), (self.f2 or self.f, self.x1 if self.x2 is None else self.x2)]
        return [f(self.params, x, **self.kwargs) for f, x in calls]


def _kernel(request: _Request) -> Kernel:
    """The kernel, computed now where nothing is traced."""
    return constants.evaluated(lambda *arrays: _computed(request.of(*arrays)), request.arrays, request.outputs)


def _computed(request: _Request) -> Kernel:
    """The kernel, traced and computed within the mesh its arguments ask for."""
    job, p = _task(request)
    options = request.options
    closes_over = any(side.program.closes_over_explicit for side in job.sides)
    if mesh := meshes.within(request.arrays, closes_over, request.call):
        checked = dataclasses.replace(request, finite=False)
        return meshes.automatically(lambda *arrays: _computed(checked.of(*arrays)), mesh, *request.arrays)
    traced = job.traced
    if traced and options["precision"] == "float64" and not jax.config.read("jax_enable_x64"):
        raise errors.InvalidInputError(
            errors.message(
                request.call,
                expected='precision="float64" outside of jit, grad and vmap, or with jax_enable_x64',
                got="traced arguments and 32-bit JAX",
                do='Call ntk outside, or jax.config.update("jax_enable_x64", True).',
            )
        )
    budget = None if traced or options["memory"] is None else budgets.budget(options["memory"])
    convention = _convention(job, options["examples"], options["precision"], p)
    symmetric = job.columns is None
    arrays = run(job, budget, options["spill"], options["progress"])
    with contextlib.nullcontext() if traced else job.gram.dot.mode():
        wanted = [sum(arrays[1:], start=arrays[0]), *(arrays if job.keys else [])]
        wanted = [
            array if array.dtype == job.dtype else array.astype(job.dtype) for array in wanted
        ]  # zeros of no part
        finished = [job.reduction.finish(array) for array in wanted]
    whole, *parts = (Kernel(array, convention, symmetric, error) for array, error in finished)
    return dataclasses.replace(whole, leaves=dict(zip(job.keys, parts, strict=True))) if options["per_leaf"] else whole


def _task(request: _Request) -> tuple[Task, Preconditioner]:
    """Check everything, then trace."""
    f, call, options = request.f, request.call, request.options
    arguments.check_function(f, call)
    arguments.check_params(request.params, call, finite=request.finite)
    arguments.check_choice(options["examples"], ("independent", "joint"), f"{call[:-1]}, examples=...)")
    spilling.check_directory(options["spill"], call)
    given = request.params, request.x1, request.x2, request.kwargs
    params, x1, x2, kwargs = jax.tree.map(_as_array, given)
    n = arguments.batch_size(x1, call, "x1")
    m = n if x2 is None else arguments.batch_size(x2, call, "x2")
    if x2 is not None:
        arguments.check_alike(x1, x2, call)
    p = Preconditioner.of(request.preconditioner, params, call)
    job = prepare.task(
        f,
        request.f2,
        params,
        x1,
        x2,
        kwargs,
        outputs=options["outputs"],
        sizes=(n, m),
        joint=options["examples"] == "joint",
        per_leaf=options["per_leaf"],
        preconditioner=p,
        dot=precisions.policy(options["precision"]),
        check=options["check"],
        call=call,
    )
    return job, p


def _convention(job: Task, examples: str, precision: str, p: Preconditioner) -> Convention:
    return Convention(
        outputs=job.reduction.name,
        n_outputs=job.reduction.n_outputs,
        examples=examples,
        mode=getattr(job.rows.f, "mode", "unspecified"),
        precision=precision,
        unit_roundoff=job.gram.dot.relative,
        model_roundoff=max(side.program.tangents.roundoff for side in job.sides),
        preconditioner=p.kind,
        probe=None if arguments.is_traced(job.rows.x) else digest(job.rows.x),
    )


def _as_array(leaf: Any) -> Any:
    """numpy arrays become JAX arrays; everything else (a flag, a name) is left alone."""
    return jnp.asarray(leaf) if isinstance(leaf, (np.ndarray, np.generic)) else leaf

"""`ntk` and `plan`: from a call to the kernel in five steps.

read     everything is checked, numpy arrays become JAX arrays             inputs.py
trace    f becomes a program: how every parameter is used, from shapes     program.py, jacobian/
plan     the cheapest way of contracting every part, within the memory     contraction.py, plan.py
run      the factors of blocks of examples, contracted                     run.py, contraction.py
wrap     the numbers become a `Kernel` that knows its convention
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag import memory as budgets
from ntkdiag.arrays import on_automatic_axes
from ntkdiag.engine.inputs import Examples, Inputs, Memory, read
from ntkdiag.engine.plan import Plan, make_plan, planned
from ntkdiag.engine.run import run
from ntkdiag.jaxtools.precision import unit_roundoff as unit_roundoff_of
from ntkdiag.jaxtools.tracing import is_traced
from ntkdiag.kernel.kernel import Convention, Kernel, digest
from ntkdiag.kernel.reduction import KernelArray, RandomProjections


@errors.public
@on_automatic_axes
def ntk(
    f: Callable[..., PyTree],
    params: PyTree,
    x: PyTree,
    x2: PyTree = None,
    *,
    f2: Callable[..., PyTree] | None = None,
    reduction: str | RandomProjections = "mean",
    per_leaf: bool | str | Sequence[str] = False,
    preconditioner: PyTree = None,
    memory: Memory | None = None,
    precision: str = "highest",
    examples: Examples | None = None,
    check: bool = True,
    progress: bool | None = None,
    **kwargs: Any,
) -> Kernel:
    """The empirical neural tangent kernel of f at params.

    K[n,o,m,p] = sum_l <d f(x_n)_o / d theta_l, d f(x2_m)_p / d theta_l>, reduced over outputs as
    `reduction` says.

    Each example is differentiated once (one forward, and one backward pass per output direction)
    when all factors fit in the budget; x2=None computes one triangle. Works inside `jax.jit`,
    `jax.grad` and `jax.vmap`, where the whole kernel is one block.

    Args:
        f: `f(params, x, **kwargs)`; its outputs (an array or a pytree of them) have the example
            axis first. It is traced once per shape, as by `jax.jit`: values it closes over become
            constants.
        params: Pytree of real floating arrays.
        x: Row examples: an array or pytree of arrays with the example axis first.
        x2: Column examples; None stands for x.
        f2: Another function of the same parameters for the columns: K = J_f J_f2^T, such as between
            two loss terms. Its number of outputs may differ for "full" and "sum-of-logits".
        reduction: "mean" (default), "trace", "full", "diagonal", "sum-of-logits",
            `RandomProjections(k)` for an unbiased estimate of the trace, or "auto": "full" where
            that has at most 2048 rows, else "mean". See `Convention`.
        per_leaf: True for the kernel of every leaf as well (`Kernel.leaves`, layers of a scanned
            stack one by one), or path globs for groups of leaves, such as ``["**/attention/*",
            "**/mlp/*"]``. They sum to the whole; leaves that f does not use are left out.
        preconditioner: P of K = J P^-1 J^T: a number, or a pytree like params of numbers or of
            arrays of their shapes (for Adam: (1 - beta1^t) (sqrt(v_hat) + eps)). None is P = 1.
        memory: Budget in bytes, or as "2GB"; None is half of what is free. A joint batch, and a
            kernel inside a transformation, are one block whatever the budget is. A joint batch
            that is larger is refused.
        precision: Of the products of Jacobians, as `jax.default_matmul_precision` takes it:
            "highest" is the full precision of the dtype on every backend. Network passes always
            have that.
        examples: "independent", or "joint" where examples interact (BatchNorm in train mode): the
            batch is then differentiated as a whole. None follows f: "joint" for a `Functional` in
            mode "train", "independent" for anything else.
        check: Verify that parameters are finite and, on the first call, that examples said to be
            independent are.
        progress: Whether to show how far a kernel of several blocks has come, and the time left.
            None: on a terminal only, after two seconds; True: wherever output goes.
        **kwargs: Passed to f; arrays are shared by all examples.

    Returns:
        A `Kernel` with array [n m], or [n o m p] (full), or [n m o] (diagonal). It is
        on the host if it was computed in more than one block.

    Raises:
        InvalidInputError: Parameters, inputs, outputs or an option are not as described.
        UnsupportedModelError: JAX cannot differentiate f in reverse mode.
        ExamplesInteractError: Examples interact, and examples="joint" was not asked for.
        MemoryBudgetError: The budget is too small even for one example at a time, or for a joint
            batch; or there is no room for the output directions.

    Cost: N C backward passes, and N^2 C^2 (full) or N^2 C (trace) times the summed factor widths in
    multiply-adds; `plan` has the numbers.

    Source: Jacot et al. 2018, arXiv:1806.07572; structured contraction as in Novak et al. 2022,
    arXiv:2206.08720, here through scan and checkpoint and chosen for each parameter.

    Example:
        >>> import jax.numpy as jnp, ntkdiag
        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> K = ntkdiag.ntk(lambda w, x: x @ w, jnp.ones((2, 3)), x)
        >>> bool(jnp.allclose(K.array, x @ x.T))
        True
    """
    inputs = read(
        f,
        params,
        x,
        x2,
        f2=f2,
        reduction=reduction,
        per_leaf=per_leaf,
        preconditioner=preconditioner,
        memory=memory,
        precision=precision,
        examples=examples,
        check=check,
        progress=progress,
        **kwargs,
    )
    kernels = run(inputs, planned(inputs))
    # Groups sum to the kernel of all parameters; an estimate has the error of that sum.
    array, standard_error = inputs.finish(functools.reduce(operator.add, kernels))
    kernel = Kernel(array, _convention(inputs), inputs.symmetric, standard_error)
    if not per_leaf:
        return kernel
    leaves = {}
    # A function that uses no parameter has one array of zeros, and no name for it.
    for name, of_group in zip(inputs.names, kernels, strict=False):
        array, standard_error = inputs.finish(of_group)
        leaves[name] = dataclasses.replace(kernel, array=array, standard_error=standard_error)
    return dataclasses.replace(kernel, leaves=leaves)


@errors.public
def plan(
    f: Callable[..., PyTree], params: PyTree, x: PyTree, x2: PyTree = None, **options: Any
) -> Plan:
    """What `ntk` would do with these arguments, and what it would cost; nothing is computed.

    Args:
        f: As for `ntk`.
        params: Parameters, or their shapes (`jax.ShapeDtypeStruct`).
        x: Row examples, or their shapes.
        x2: Column examples, or their shapes; None stands for x.
        **options: Any other arguments of `ntk`. A joint batch is differentiated as a whole, in one
            block, and has no plan.

    Returns:
        A `Plan`: print it for a table of parameters and how each is contracted, flops, bytes,
        passes, time and memory.

    Raises:
        InvalidInputError: Parameters, inputs, outputs or an option are not as described.
        UnsupportedModelError: JAX cannot differentiate f in reverse mode.
        MemoryBudgetError: The budget is too small even for one example at a time.

    Cost: tracing f a few times; no array is made.

    Example:
        >>> import jax, jax.numpy as jnp, ntkdiag
        >>> w = jax.ShapeDtypeStruct((784, 10), jnp.float32)
        >>> x = jax.ShapeDtypeStruct((64, 784), jnp.float32)
        >>> ntkdiag.plan(lambda w, x: x @ w, w, x, reduction="full").rows[0].factor
        'outer'
    """
    # Shapes have no values to check.
    options["check"] = False
    inputs = read(f, params, x, x2, **options)
    if inputs.joint:
        raise errors.InvalidInputError(
            expected='examples="independent"',
            got='examples="joint"',
            do="A joint batch is always differentiated as a whole, in one block, whatever the "
            "budget.",
        )
    return make_plan(inputs, budgets.budget(inputs.memory))


def kernel_array(inputs: Inputs) -> KernelArray:
    """The numbers of a kernel alone, for `neural_tangents`, which checks its calls itself."""
    [array] = run(inputs, planned(inputs))
    kernel, _ = inputs.finish(array)
    return kernel


def _convention(inputs: Inputs) -> Convention:
    """What the numbers of a kernel mean."""
    batch = inputs.rows.batch
    # Of products of Jacobians, which may round more coarsely than their dtype.
    unit_roundoff = None
    precision = inputs.gram.precision
    if precision != "highest":
        factor = jax.ShapeDtypeStruct((1, 1), inputs.dtype)
        with jax.default_matmul_precision(precision):
            unit_roundoff = unit_roundoff_of(jax.make_jaxpr(jnp.matmul)(factor, factor))
    return Convention(
        reduction=inputs.reduction.name,
        n_outputs=inputs.reduction.rows.n_outputs,
        examples="joint" if inputs.joint else "independent",
        mode=getattr(batch.f, "mode", "unspecified"),
        precision=precision,
        unit_roundoff=unit_roundoff,
        model_roundoff=max(side.program.jacobian.roundoff for side in inputs.sides),
        preconditioner=inputs.preconditioner.kind,
        # The digest tells later whether two kernels are of the same examples. Inside a trace these
        # are not known, and have none.
        probe=None if is_traced(batch.x) else digest(batch.x),
    )

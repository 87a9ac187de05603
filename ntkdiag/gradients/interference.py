"""The change of the loss on old examples when new ones are trained on.

The linearized model has the outputs f + J d on the examples it is trained on, and the gradient
J^T dL/df there. So its training needs products with J alone, and an optimizer only sees gradients:
each step is the optimizer's own `update` on that gradient, and d grows by what it returns.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float64, PyTree

from ntkdiag import display, errors
from ntkdiag.estimate import student_t
from ntkdiag.gradients.example_losses import FunctionSpaceLoss, example_losses, with_keywords
from ntkdiag.jaxtools.precision import roundoff_of
from ntkdiag.judging.finding import Finding
from ntkdiag.judging.of_ends import interference_findings
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.pytree_dataclass import pytree

if TYPE_CHECKING:
    import optax

# Above this e1 the linearized model says nothing about the network.
MOST_E1 = 0.5
_FEW_NAMED = 3  # examples that a finding names
# An e1 below so many times its rounding is not resolved.
_RESOLVED = 4.0


@pytree("change", "lower", "upper", "by_example", "of_network", "of_new", "e1", "e1_of_new")
@dataclasses.dataclass(frozen=True, eq=False)
class Interference:
    """The change of the loss on old examples when new ones are trained on: after minus before.

    Attributes:
        change: Of the mean loss on the old examples, for the linearized model: above 0 where it
            will be worse.
        lower: Lower end of the 95 % interval, over examples like the old ones, widened by what the
            linearized model misses of the network.
        upper: Upper end.
        by_example: `[n]`, the change for each old example; their mean is `change`.
        of_network: The change of the mean loss on the old examples when the network itself takes
            the displacement of the linearized model: after one step, what that step does.
        of_new: The change of the mean loss on the new examples, for the linearized model.
        e1: How far the network leaves its tangent plane on the old examples,
            ||df - J d|| / ||df||.
        e1_of_new: The same on the new examples.
        steps: Steps that were taken.
    """

    change: float
    lower: float
    upper: float
    by_example: Float[np.ndarray, " n"]
    of_network: float
    of_new: float
    e1: float
    e1_of_new: float
    steps: int

    @errors.public
    def most_harmed(self, count: int = 10) -> np.ndarray:
        """The old examples whose loss rises most, the hardest hit first.

        Args:
            count: How many.

        Returns:
            Their indices, at most `count`: those whose loss does rise.

        Cost: none.
        """
        order = np.argsort(-np.asarray(self.by_example), stable=True)[:count]
        return order[np.asarray(self.by_example)[order] > 0]

    @property
    def findings(self) -> list[Finding]:
        """One finding if the whole interval of the change is above 0; else none."""
        return interference_findings(
            self.change,
            (self.lower, self.upper),
            self.most_harmed(_FEW_NAMED).tolist(),
            f"Of the linearized model, with e1 {self.e1:.2g} on the old examples.",
        )

    def to_dict(self) -> dict[str, display.PlainValue]:
        """The numbers by name, arrays as lists."""
        return display.plain({f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    def __repr__(self) -> str:
        return display.described(self)


@errors.public
def interference(
    f: Callable[..., PyTree],
    params: PyTree,
    *,
    old: tuple[PyTree, PyTree],
    new: tuple[PyTree, PyTree],
    loss: LossLike,
    optimizer: "optax.GradientTransformation",
    opt_state: PyTree = None,
    steps: int | np.integer = 1,
    batch_size: int = 256,
    **kwargs: Any,
) -> Interference:
    """The change of the loss on `old` when `new` is trained on, after minus before.

    In units of the loss; above 0, training on `new` harms `old`. The linearization of f at `params`
    is trained on all of `new` for `steps` steps, each by the real `update` of the optimizer, and

        change_i = l_i(f + J d) - l_i(f)        for each old example, d the displacement,

    is exact for that model: not only the product of two gradients, which is its first order.
    `.e1` says how far the network follows: above 0.5 the call is refused.

    Args:
        f: `f(params, x, **kwargs)`, with one array of outputs.
        params: Where training on `new` begins.
        old: (x, y), examples whose loss is watched; weights as `ntkdiag.losses.Weighted(y, ...)`.
        new: (x, y), examples that will be trained on, all of them in each step.
        loss: As for `gradient_kernel`.
        optimizer: The Optax optimizer that will train. A step is a call of its `update`. The slope
            of a small step of gradient descent is minus the mean of `gradient_kernel(f, params,
            *old, x2=..., y2=...)` over its columns.
        opt_state: Its state, where it has trained before; None for a fresh one.
        steps: How many steps.
        batch_size: Examples that are differentiated at a time.
        **kwargs: Passed to f.

    Returns:
        An `Interference`.

    Raises:
        InvalidInputError: As `gradient_kernel`; or `steps` is not a positive integer, or e1 of the
            displacement is above 0.5.

    Cost: about five forward passes over `new` for each step, and four over both at the end.

    Source: Jacot et al. 2018, arXiv:1806.07572, for the linearized model; Lopez-Paz and Ranzato
    2017 (GEM), arXiv:1706.08840, for the sign of the product of two gradients.

    Example:
        >>> import jax.numpy as jnp, ntkdiag, optax
        >>> f = lambda w, x: x @ w
        >>> x, sgd = jnp.ones((2, 1)), optax.sgd(0.1)
        >>> found = ntkdiag.interference(
        ...     f, jnp.zeros((1, 1)), old=(x, -x), new=(x, x), loss="mse", optimizer=sgd
        ... )
        >>> print(f"{found.change:.3f}")  # w becomes 0.1: from 1/2 to 1.1^2 / 2
        0.105
    """
    if not isinstance(steps, int | np.integer) or steps < 1:
        raise errors.InvalidInputError(
            expected="a positive integer `steps`", got=repr(steps), do="1 is the default."
        )
    network = with_keywords(f, kwargs)

    def read(pair: tuple[PyTree, PyTree]) -> _Examples:
        g, (x, labels) = example_losses(f, params, *pair, loss=loss, **kwargs)
        operator = NTKOperator(network, params, x, batch_size=batch_size)
        shape = (operator.n_examples, *operator.output_shape)
        return _Examples(operator, FunctionSpaceLoss(g.loss, labels, shape), g.scale)

    of_old, of_new = read(old), read(new)
    state = optimizer.init(of_new.operator.params) if opt_state is None else opt_state
    displacement = _displacement(of_new, jax.jit(optimizer.update), state, int(steps))
    on_old, of_network, e1 = _changes(of_old, displacement, "old")
    on_new, _, e1_of_new = _changes(of_new, displacement, "new")
    n = len(on_old)
    change = float(on_old.mean())
    half_width = np.nan  # for one example
    if n > 1:
        half_width = student_t(n - 1) * float(on_old.std(ddof=1)) / n**0.5
    half_width += abs(of_network - change)  # what the linear model misses
    return Interference(
        change=change,
        lower=change - half_width,
        upper=change + half_width,
        by_example=on_old,
        of_network=of_network,
        of_new=float(on_new.mean()),
        e1=e1,
        e1_of_new=e1_of_new,
        steps=int(steps),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Examples:
    """Examples with their losses, at the parameters and at a displacement of them."""

    operator: NTKOperator  # J of their outputs
    loss: FunctionSpaceLoss  # sum_i l_i of the outputs, up to `scale`
    scale: float  # what it is multiplied by, so that its mean is L: n / D

    def outputs(self, displacement: PyTree = None) -> Float64[np.ndarray, "1 k"]:
        """Outputs of the linearized model at params + d, as one row; of the network for None."""
        outputs = np.asarray(self.operator.outputs(), np.float64)
        if displacement is not None:
            outputs = outputs + np.asarray(self.operator.tangent(displacement), np.float64)
        return outputs.reshape(1, -1)

    def losses(self, outputs: Float64[np.ndarray, "1 k"]) -> Float64[np.ndarray, " n"]:
        """The loss of each example; their mean is L."""
        return self.scale * self.loss.terms(outputs)[0]

    def gradient(self, displacement: PyTree) -> PyTree:
        """The gradient of L at params + d, a tree like the parameters."""
        pull = self.loss.gradient(self.outputs(displacement)).reshape(-1)
        pull = pull * (self.scale / self.operator.n_examples)
        return self.operator.cotangent(jnp.asarray(pull, self.operator.dtype))


def _displacement(
    of_new: _Examples, update: Callable[..., tuple[PyTree, PyTree]], state: PyTree, steps: int
) -> PyTree:
    """The displacement of the linearized model's parameters after so many steps."""
    params = of_new.operator.params
    displacement, position = jax.tree.map(jnp.zeros_like, params), params
    for _ in range(steps):
        step, state = update(of_new.gradient(displacement), state, position)
        displacement = jax.tree.map(jnp.add, displacement, step)
        position = jax.tree.map(lambda p, d: p + d.astype(p.dtype), params, displacement)
    return displacement


def _changes(
    examples: _Examples, displacement: PyTree, which: str
) -> tuple[Float64[np.ndarray, " n"], float, float]:
    """The linearized model's changes of the losses, the mean one of the network, and e1."""
    operator = examples.operator
    before, linear = examples.outputs(), examples.outputs(displacement)
    params = jax.tree.map(lambda p, d: p + d.astype(p.dtype), operator.params, displacement)
    there = NTKOperator(operator.f, params, operator.x, batch_size=operator.batch_size, check=False)
    after = np.asarray(there.outputs(), np.float64).reshape(1, -1)
    change = float(np.linalg.norm(after - before))
    missed = float(np.linalg.norm(after - linear))
    e1 = 0.0
    if missed != 0:
        e1 = missed / change if change > 0 else np.inf
    # A change that is hardly more than rounding has an e1 of rounding.
    microbatch = jax.tree.map(lambda leaf: leaf[: operator.batch_size], operator.x)
    rounding = roundoff_of(operator.f, operator.params, microbatch) * np.linalg.norm(after)
    is_resolved = not missed <= _RESOLVED * rounding
    # Above that the linearized model says nothing about the network.
    if is_resolved and not e1 <= MOST_E1:
        raise errors.InvalidInputError(
            expected=f"e1 of at most {MOST_E1}, up to which the linearized model stands for the "
            "network",
            got=f"e1 {e1:.3g} on `{which}`: these steps lead off the tangent plane",
            do="Take a smaller rate or fewer steps, and call it again from the parameters reached.",
        )
    losses = examples.losses(before)
    of_network = float((examples.losses(after) - losses).mean())
    return examples.losses(linear) - losses, of_network, e1

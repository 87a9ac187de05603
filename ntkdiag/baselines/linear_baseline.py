"""`linear_baseline`: network, linearizations and kernel regressions in one call.

1. Train the network and its linearization at initialization side by side.
2. At the checkpoint linearize the network again, there, and train that beside them to the end.
3. Regress the labels on the kernel at initialization, K_0, and after training, K_T.
4. Judge all five on the test examples.

All models go through the same batches with the same optimizer, each by itself. At some steps they
stop, and the gap between the network and each linearization is measured.
"""

import dataclasses
import operator
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag import display, errors
from ntkdiag.baselines.training import (
    Data,
    Position,
    accuracy,
    agreement,
    batches,
    log_spaced,
    read_data,
    root_mean_square,
    train,
)
from ntkdiag.engine import ntk
from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.jaxtools.independence import check_few
from ntkdiag.jaxtools.precision import in_full_precision
from ntkdiag.linearization.gap import linearization_gap
from ntkdiag.linearization.taylor import linearize
from ntkdiag.losses.loss_argument import LossLike
from ntkdiag.models import functionalize
from ntkdiag.models.functional import Functional
from ntkdiag.predict.mse import gradient_flow
from ntkdiag.progress import under_way

if TYPE_CHECKING:
    import optax
    import pandas
    import xarray
    from matplotlib.axes import Axes

Numbers: TypeAlias = dict[str, Any]  # the numbers of one step: of JAX or NumPy, or None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LinearBaseline:
    """A network beside its linearizations and the regressions with its kernels.

    All are judged on the same test examples. Printing shows the table and the methods.

    Attributes:
        table: A line for each model: network, linearized at init, linearized at the checkpoint,
            kernel ridge on K_0 and on K_T. `train_loss`, `test_loss` and `accuracy` are its own;
            `agreement`, the share of test examples on which it decides alike, and `distance`, the
            root mean square difference of the outputs there, compare it with the trained network.
            NaN where a model has no such number: regressions have no loss but squared error. pandas
            writes it: `table.to_string()`, `table.to_csv()`, `table.to_latex()`.
        outputs: The outputs of each model on the test examples.
        gap: Network against its linearization at init, on the test examples, over the recorded
            steps. `rms` and `largest` are those of the difference of the outputs, each trained on
            its own; `relative` is rms over that of f_t - f_0. `e1` is ||df - J dtheta|| / ||df|| at
            the network's own parameters, `e2` the same with the second-order term. `loss` and
            `accuracy` are of the network, `loss_lin` and `accuracy_lin` of its linearization, and
            `agreement` is the share of examples with the same argmax.
        gap_later: Network against its linearization at the checkpoint, steps counted from there.
        checkpoint: Step at which the network was linearized again.
        params: Parameters of the trained network.
        methods: What was done, in sentences.
    """

    table: "pandas.DataFrame"
    outputs: dict[str, Float[Array, "m *o"]]
    gap: "xarray.Dataset"
    gap_later: "xarray.Dataset"
    checkpoint: int
    params: PyTree
    methods: str

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the gap of the outputs over training, from initialization and from the checkpoint.

        Args:
            ax: Axes of matplotlib to draw on; a new figure without. Open
                `ntkdiag.report.paper_style()` around the call for the look of a paper.

        Returns:
            The axes.

        Raises:
            MissingDependencyError: Without matplotlib.
        """
        axes = display.axes_to_draw_on(ax)
        # Both over the steps of the whole run.
        later = f"linearized at step {self.checkpoint}"
        axes.plot(self.gap.step, self.gap.rms, ".-", label="linearized at init")
        axes.plot(self.gap_later.step + self.checkpoint, self.gap_later.rms, ".-", label=later)
        axes.set(xlabel="step", ylabel="RMS gap of outputs")
        axes.legend()
        return axes

    def __repr__(self) -> str:
        table = self.table.to_string(float_format="{:.4g}".format, na_rep="–")
        return f"{table}\n\n{textwrap.fill(self.methods, 100)}"


@errors.public
def linear_baseline(
    model: Any,
    data: PyTree,
    optimizer: "optax.GradientTransformation",
    *,
    variables: PyTree = None,
    loss: LossLike,
    steps: int = 500,
    batch_size: int | None = None,
    checkpoint: int | None = None,
    relative_ridge: float = 1e-3,
    kernel_examples: int = 1024,
    seed: int = 0,
    progress: bool | None = None,
    **options: Any,
) -> LinearBaseline:
    """Compare a network with its linearizations and with regressions on its kernels.

    Trains the network, its linearization at initialization, and its linearization at a later
    checkpoint, by the same Optax optimizer on the same batches; and regresses the labels on its
    kernel at initialization and after training. Close to its linearization at init: lazy. Close to
    the regression on K_T only: it learned a kernel. Better than both: a kernel does not explain it.

    Cost: about 13/3 of training the network, two kernels of `kernel_examples` examples and their
    eigendecompositions.

    Source: Lee et al. 2019 (arXiv 1902.06720); Fort et al. 2020 (2010.15110); Ortiz-Jimenez et al.
    2021 (2106.06770).

    Args:
        model: As for `functionalize`, with one array of outputs.
        data: `(x, y, x_test, y_test)`; class numbers or targets shaped like the outputs.
        optimizer: An Optax transformation.
        variables: As for `functionalize`.
        loss: The loss that is trained: its name, an object of `ntkdiag.losses`, or a function
            `loss(outputs, y)`.
        steps: Number of steps.
        batch_size: Examples per step; None for all.
        checkpoint: Step at which the network is linearized again; None for a tenth of the steps.
        relative_ridge: Ridge of the regressions, in units of the mean diagonal entry of the kernel,
            which is its mean eigenvalue.
        kernel_examples: The regressions use at most so many training examples, the first ones.
            Their kernel is the mean over outputs, K kron I_C.
        seed: Of the order of examples.
        progress: Whether to show how far it has come, and the time left. None does on a terminal
            after two seconds; True wherever output goes.
        **options: Handed to `functionalize`.

    Returns:
        The comparison: print it for the table and the methods.

    Raises:
        InvalidInputError: When data, loss or a number are not as described, or as `functionalize`.
        ExamplesInteractError: When outputs of one example depend on the others, as with batch norm
            in train mode.
    """
    if checkpoint is None:
        checkpoint = max(1, steps // 10)
    if not (0 < checkpoint < steps and relative_ridge > 0 and kernel_examples >= 1):
        raise errors.InvalidInputError(
            expected="0 < `checkpoint` < `steps`, positive `relative_ridge` and `kernel_examples`",
            got=f"checkpoint={checkpoint}, steps={steps}, relative_ridge={relative_ridge}, "
            f"kernel_examples={kernel_examples}",
            do="The checkpoint is a number of steps.",
        )
    functional = functionalize(model, variables, **options)
    f, params = functional
    read = read_data(data, loss, f, params)
    read.regression_targets()  # before training, refuses labels without any
    check_few(f, params, read.x)

    # Both gaps are recorded evenly in the logarithm of their own steps.
    from_checkpoint = [checkpoint + mark for mark in log_spaced(steps - checkpoint)]
    marks = sorted({*log_spaced(steps), *from_checkpoint})
    order = batches(read.n, batch_size, steps, seed)
    start = Position(params, optimizer.init(params))
    rows = min(kernel_examples, read.n)
    with under_way("linear baseline", steps, progress) as work:
        linearized = [_Linearized(f, start, optimizer, read, order, marks)]
        network = params
        positions = train(f, start, optimizer, read, order, marks)
        for mark, position in zip(marks, positions, strict=True):
            network = position.params
            if mark == checkpoint:
                # A single row of the order stands for all steps.
                left = order[mark:] if len(order) > 1 else order
                left_marks = [later - mark for later in marks if later >= mark]
                linearized.append(_Linearized(f, position, optimizer, read, left, left_marks))
            for one in linearized:
                one.follow(network)
            work.reach(mark)
        at_init, later = linearized

        models = {
            "network": _outputs(f, network, read),
            "linearized at init": _outputs(at_init.f, at_init.params, read),
            f"linearized at step {checkpoint}": _outputs(later.f, later.params, read),
        }
        for name, at in (("kernel ridge, K_0", params), ("kernel ridge, K_T", network)):
            models[name] = _kernel_ridge(f, at, read, rows, relative_ridge)

    sentences = _methods(
        functional, read, steps, batch_size, checkpoint, relative_ridge, rows, seed
    )
    return LinearBaseline(
        table=_table(models, read),
        outputs={name: outputs for name, (_, outputs) in models.items()},
        gap=at_init.gap(),
        gap_later=later.gap(),
        checkpoint=checkpoint,
        params=network,
        methods=sentences,
    )


@errors.public
def first_beyond(gap: "xarray.Dataset", tolerance: float, name: str = "e1") -> int | None:
    """The first recorded step at which a gap is above a tolerance.

    This tells you how long a linearization holds. With ``name="e1"`` and 0.1 this is the local
    linearization time scale of the checkpoint, in steps. It is not finer than the recorded steps. A
    run that is not finite exceeds any tolerance.

    Cost: none.

    Args:
        gap: `gap` or `gap_later` of a `LinearBaseline`.
        tolerance: In the units of the number.
        name: The number: "e1", "e2", "rms", "largest" or "relative".

    Returns:
        A step, or None when the gap stayed within.

    Raises:
        InvalidInputError: When no such number was recorded.
    """
    if name not in gap:
        raise errors.InvalidInputError(
            expected=f"one of {', '.join(map(str, gap))}",
            got=repr(name),
            do="Write first_beyond(gap, 0.1).",
        )
    # NaN counts as within the tolerance: divergence is a question of its own.
    is_beyond = (abs(gap[name]) > tolerance) | ~np.isfinite(gap["rms"])
    steps = gap["step"].values[is_beyond.values]
    return int(steps[0]) if steps.size else None


class _Linearized:
    """The network linearized at a position, in training, and its gaps to the network so far."""

    def __init__(
        self,
        f: Callable[..., PyTree],
        start: Position,
        optimizer: "optax.GradientTransformation",
        data: Data,
        order: Int[np.ndarray, "steps size"],
        marks: Sequence[int],
    ):
        self.f = linearize(f, start.params)
        self.params: PyTree = start.params
        self._network, self._start, self._data, self._marks = f, start.params, data, marks
        self._positions = train(self.f, start, optimizer, data, order, marks)
        # Data are arguments: constants of the program would be folded, and held twice.
        full = in_full_precision(self._compared)
        self._compare = jax.jit(full, compiler_options=compiler_options(reduces=True))
        self._numbers: list[Numbers] = []

    def follow(self, network: PyTree) -> None:
        """Train to the next mark, and compare with the parameters of the network there."""
        self.params = next(self._positions).params
        test = self._data.x_test, self._data.y_test, self._data.classes_test
        # Before anything has moved, errors relative to the motion are 0 / 0: NaN is their value.
        with jax.debug_nans(False):
            self._numbers.append(jax.device_get(self._compare(network, self.params, *test)))

    def gap(self) -> "xarray.Dataset":
        """The gaps over the steps since the linearization; what was not measured is left out."""
        import xarray

        names = [name for name, value in self._numbers[0].items() if value is not None]
        variables = {name: ("step", [float(of[name]) for of in self._numbers]) for name in names}
        return xarray.Dataset(variables, {"step": list(self._marks)})

    def _compared(
        self,
        network_params: PyTree,
        linear_params: PyTree,
        x: PyTree,
        y: PyTree,
        classes: Int[Array, "..."] | None,
    ) -> Numbers:
        """Parameters of the network against those of the linearization, on some examples."""
        # Each trained on its own: outputs [m ...] of both, and how far they are apart.
        f, loss = self._network, self._data.loss
        outputs = f(network_params, x)
        outputs_lin = self.f(linear_params, x)
        difference = outputs - outputs_lin
        rms = root_mean_square(difference)
        # At the parameters of the network: the outputs of the Taylor models.
        gap = linearization_gap(f, self._start, network_params, x)
        return {
            "rms": rms,
            "largest": jnp.max(jnp.abs(difference)),
            "relative": rms / root_mean_square(outputs - f(self._start, x)),
            "e1": gap.e1,
            "e2": gap.e2,
            "loss": loss(outputs, y),
            "loss_lin": loss(outputs_lin, y),
            "accuracy": accuracy(outputs, classes),
            "accuracy_lin": accuracy(outputs_lin, classes),
            "agreement": agreement(outputs, outputs_lin),
        }


def _outputs(
    f: Callable[..., PyTree], params: PyTree, data: Data
) -> tuple[Float[Array, "n *o"], Float[Array, "m *o"]]:
    """Outputs of a model on the training and the test examples."""
    # Compiled, with the options that its float32 reductions need.
    run = jax.jit(in_full_precision(f), compiler_options=compiler_options(reduces=True))
    return run(params, data.x), run(params, data.x_test)


def _table(models: dict[str, tuple[Array, Array]], data: Data) -> "pandas.DataFrame":
    """A line for each model, without columns that no model has a number in."""
    import pandas

    _, network = models["network"]
    rows = []
    for name, (on_train, on_test) in models.items():
        row: dict[str, Any] = {"model": name, "accuracy": accuracy(on_test, data.classes_test)}
        # Outputs of a regression are targets: squared error alone has a meaning for them.
        is_on_scale = data.loss.is_quadratic or not name.startswith("kernel ridge")
        if is_on_scale:
            y = jax.tree.map(operator.itemgetter(slice(len(on_train))), data.y)
            row["train_loss"] = data.loss(on_train, y)
            row["test_loss"] = data.loss(on_test, data.y_test)
        if name != "network":
            row["agreement"] = agreement(on_test, network)
        if name != "network" and is_on_scale:
            row["distance"] = root_mean_square(on_test - network)
        rows.append(row)
    columns = ("train_loss", "test_loss", "accuracy", "agreement", "distance")
    kept = [name for name in columns if any(row.get(name) is not None for row in rows)]
    table = pandas.DataFrame(rows, columns=["model", *kept])
    return table.set_index("model").astype(float)


def _kernel_ridge(
    f: Callable[..., PyTree], params: PyTree, data: Data, rows: int, relative_ridge: float
) -> tuple[Float[Array, "r *o"], Float[Array, "m *o"]]:
    """Regress centred targets on the kernel at `params`, from the first `rows` training examples.

    y(x) = mean + Theta(x, X) (Theta + ridge)^-1 (Y - mean), with one-hot targets for classes and
    the ridge relative to the mean diagonal entry. Of a run that diverged it is NaN.
    """
    shape = data.shape[1:]
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(params)):
        return jnp.full((rows, *shape), jnp.nan), jnp.full((data.m, *shape), jnp.nan)
    x = jax.tree.map(lambda leaf: leaf[:rows], data.x)
    kernel = ntk(f, params, x, reduction="mean")
    cross = ntk(f, params, data.x_test, x, reduction="mean")
    # Targets [n o], around their mean over the examples.
    targets = np.asarray(data.regression_targets()[:rows], np.float64)
    mean = targets.mean(axis=0)
    # tr(Theta) / n is the mean eigenvalue, and the mean diagonal entry.
    matrix = jnp.asarray(kernel.matrix)
    mean_eigenvalue = float(jnp.trace(matrix)) / matrix.shape[0]
    ridge = relative_ridge * mean_eigenvalue
    regression = gradient_flow(kernel, targets - mean, ridge=ridge, kernel_test=cross)
    outputs = []
    for centred in (regression.train, regression.test):
        of_targets = jnp.asarray(np.asarray(centred) + mean, jnp.float32)
        outputs.append(of_targets.reshape(-1, *shape))  # [n o] -> [n ...]
    return outputs[0], outputs[1]


def _methods(
    functional: Functional,
    data: Data,
    steps: int,
    batch_size: int | None,
    checkpoint: int,
    relative_ridge: float,
    rows: int,
    seed: int,
) -> str:
    """What was done, in sentences from which a reader can repeat it."""
    n_parameters = sum(leaf.size for leaf in jax.tree.leaves(functional.params))
    # The words that differ from call to call; full batches have no order to name.
    schedule = f"{steps} steps of batches of {batch_size} in the same order (seed {seed})"
    if batch_size is None or batch_size >= data.n:
        schedule = f"{steps} full-batch steps"
    targets = "targets" if data.classes_test is None else "one-hot labels"
    loss = data.loss.describe(data.shape)
    return (
        f"The {functional.library} model {functional.name} with {n_parameters:,} parameters "
        f"({functional.mode} mode) was trained on N = {data.n} examples for {schedule} on the loss "
        f"{loss}. So were its first-order Taylor model f(θ₀) + J(θ₀)(θ − θ₀) at initialization "
        f"and, from its parameters and optimizer state at step {checkpoint}, its Taylor model at "
        f"step {checkpoint}: same optimizer, same examples. Kernel ridge regression used the "
        "empirical neural tangent kernel Θ = J Jᵀ of the network at "
        f"initialization (K_0) and after training (K_T) on {rows} training examples, the kernel "
        f"averaged over outputs, the same for each output, with {targets} centred on the training "
        f"set and the ridge {relative_ridge:g} of the mean diagonal entry. All were judged on "
        f"M = {data.m} test examples; agreement and distance compare their outputs there with "
        "those of the trained network."
    )

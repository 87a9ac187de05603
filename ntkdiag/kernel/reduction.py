"""`reduction=`: along which output directions f is differentiated, and how a kernel is reduced.

With outputs f [n C] and directions V [C k], each backward pass gives the gradient of one V_j^T f.
The kernel of those pairs all directions ("full"), or equal ones, which are added up ("trace") or
put side by side ("diagonal"). What is left is a scale, done by `Reduction.finish`:

    reduction            directions             contraction   finish
    full                 the outputs            full
    trace                the outputs            trace
    mean                 the outputs            trace         / C
    diagonal             the outputs            diagonal
    sum-of-logits        (1, ..., 1) / sqrt(C)  full          [n 1 m 1] -> [n m]
    RandomProjections    k random signs         diagonal      mean and standard error over k
"""

import dataclasses
import math
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from ntkdiag import errors
from ntkdiag.display import shortened

# Rows of the full kernel up to which it is the choice of reduction="auto".
FULL_ROWS = 2048
# Outputs per example up to which a diagnostic pays for a backward pass of each, and the number of
# random directions beyond.
MOST_OUTPUTS = 64
N_PROJECTIONS = 8
Contraction: TypeAlias = Literal["full", "trace", "diagonal"]
_CONTRACTIONS: dict[str, Contraction] = {
    "mean": "trace",
    "trace": "trace",
    "full": "full",
    "diagonal": "diagonal",
    "sum-of-logits": "full",
}

# The order of axes that exchanges rows and columns of a kernel.
MIRROR: dict[Contraction, tuple[int, ...]] = {
    "full": (2, 3, 0, 1),
    "trace": (1, 0),
    "diagonal": (1, 0, 2),
}

KernelArray: TypeAlias = Shaped[Array | np.ndarray, "..."]


@dataclasses.dataclass(frozen=True)
class RandomProjections:
    """`reduction=RandomProjections(k)`: an unbiased estimate of the trace from k directions.

    K_hat[n,m] = (1/k) sum_j <J_n^T v_j, J_m^T v_j> with vectors v_j of random signs, no two of them
    equal up to sign, which would say the same twice. The standard error is that of the mean over j,
    drawn without replacement from the M = 2^(C - 1) that there are: s / sqrt(k) sqrt(1 - k / M). It
    is itself an estimate from k numbers: for an interval take Student's t of k - 1 degrees of
    freedom. For many outputs this costs k backward passes per example instead of C.

    Attributes:
        k: Number of directions, from 2 to M; with C of them "trace" is no dearer, and exact.
        seed: Seed of the directions.
    """

    k: int
    seed: int = 0

    def possible(self, n_outputs: int) -> bool:
        """Whether there are so many directions, and a seed to draw them with."""
        for number in (self.k, self.seed):
            if not isinstance(number, int | np.integer):
                return False
        return 2 <= self.k <= 2 ** (n_outputs - 1)

    def directions(self, n_outputs: int, dtype: jax.typing.DTypeLike) -> Float[Array, "k C"]:
        """Rademacher directions, all different up to sign."""
        rng = np.random.default_rng(self.seed)
        different: dict[bytes, Float[np.ndarray, " C"]] = {}  # packed to bits -> signs
        while len(different) < self.k:
            drawn = rng.choice([-1.0, 1.0], size=(self.k, n_outputs))
            # v and -v are one direction: the first sign is made 1.
            for signs in drawn * drawn[:, :1]:
                different.setdefault(np.packbits(signs > 0).tobytes(), signs)
        return jnp.asarray(np.stack(list(different.values())[: self.k]), dtype)


# A name, or random directions of the outputs.
ReductionLike: TypeAlias = str | RandomProjections


@dataclasses.dataclass(frozen=True, eq=False)
class Directions:
    """The output directions of one side of a kernel."""

    n_outputs: int  # c, outputs of one example
    n: int  # k, number of directions: one backward pass each
    # "sum" is their sum over sqrt(C); None stands for the outputs themselves.
    source: RandomProjections | Literal["sum"] | None = None

    def basis(self, dtype: jax.typing.DTypeLike) -> Float[Array | np.ndarray, "k C"]:
        """The directions as rows of an array."""
        if self.source is None:
            return np.eye(self.n_outputs, dtype=dtype)
        if self.source == "sum":
            return np.full((1, self.n_outputs), 1 / math.sqrt(self.n_outputs), dtype)
        return self.source.directions(self.n_outputs, dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Reduction:
    """A reduction over outputs, for a function of C outputs per example."""

    name: str  # as in `Convention.reduction`
    contraction: Contraction  # which directions of a row are paired with which of a column
    rows: Directions  # directions of the rows
    columns: Directions  # the same of the columns

    @staticmethod
    def of(
        reduction: ReductionLike, n_outputs: int, n_outputs_of_columns: int | None = None
    ) -> "Reduction":
        """Read `reduction=` for a kernel between functions of so many outputs per example."""
        if isinstance(reduction, RandomProjections) and reduction.possible(n_outputs):
            name, contraction = "random-projections", "diagonal"
        elif isinstance(reduction, str) and reduction in _CONTRACTIONS:
            name, contraction = reduction, _CONTRACTIONS[reduction]
        else:
            names = ", ".join(map(repr, (*_CONTRACTIONS, "auto")))
            raise errors.InvalidInputError(
                argument="reduction=...",
                expected=f"one of {names}, or RandomProjections(k, seed) with "
                f"2 <= k <= 2^{n_outputs - 1}",
                got=shortened(reduction),
                do=f"This function has {n_outputs} outputs per example.",
            )
        # "full" pairs every output of f with every one of f2, "sum-of-logits" makes one output of
        # each first. All others need the same outputs on both sides.
        n_columns = n_outputs if n_outputs_of_columns is None else n_outputs_of_columns
        if n_outputs != n_columns and name not in ("full", "sum-of-logits"):
            raise errors.InvalidInputError(
                argument="f2=..., reduction=...",
                expected='"full" or "sum-of-logits" between functions with different numbers of '
                "outputs",
                got=f'"{name}" with {n_outputs} and {n_columns} outputs per example',
                do="The other reductions pair output o of f with output o of f2.",
            )
        sides = []
        for n in (n_outputs, n_columns):
            if isinstance(reduction, RandomProjections):
                sides.append(Directions(n, reduction.k, reduction))
            elif name == "sum-of-logits":
                sides.append(Directions(n, 1, "sum"))
            else:
                sides.append(Directions(n, n))
        return Reduction(name, contraction, *sides)

    def finish(self, kernel: KernelArray) -> tuple[KernelArray, KernelArray | None]:
        """Scale and shape as the convention says: (kernel, standard error or None)."""
        if self.name == "mean":
            return kernel / self.rows.n_outputs, None
        if self.name == "sum-of-logits":
            return kernel[:, 0, :, 0], None  # [n 1 m 1] -> [n m]
        if self.name == "random-projections":
            # [n m k] -> [n m]. Without replacement from M = 2^(C - 1) directions, the variance of
            # the mean is smaller: times 1 - k / M, the share of those that are left.
            k = self.rows.n
            n_possible = 2.0 ** min(self.rows.n_outputs - 1, 1000)  # 2^1024 is no float64 any more
            left = max(0.0, 1.0 - k / n_possible)
            return kernel.mean(-1), kernel.std(-1, ddof=1) * math.sqrt(left / k)
        return kernel, None


def automatic(n_examples: int, n_outputs: int) -> str:
    """What `reduction="auto"` of `ntk` stands for: "full" up to 2048 rows, else "mean"."""
    return "full" if n_examples * n_outputs <= FULL_ROWS else "mean"


def automatic_of_probe(n_examples: int, n_outputs: int) -> ReductionLike:
    """What "auto" stands for in `watch`, `compare` and `track`, which measure many kernels."""
    exact = automatic(n_examples, n_outputs)
    return exact if exact == "full" else _without_many_passes(exact, n_outputs)


def automatic_of_held_out(reduction: ReductionLike, n_outputs: int) -> ReductionLike:
    """The reduction of a kernel of held-out examples: the mean, unless another one is stated."""
    # No number needs the full kernel here, which costs C times as much.
    if isinstance(reduction, RandomProjections) or reduction != "auto":
        return reduction
    # Of one output every reduction is the full kernel.
    return _without_many_passes("mean", n_outputs) if n_outputs > 1 else "full"


def reduction_of_leaves(reduction: ReductionLike) -> ReductionLike:
    """The reduction of the kernels of single leaves, sum_c Theta_cc, or its estimate."""
    return reduction if isinstance(reduction, RandomProjections) else "trace"


def passes_of(reduction: ReductionLike, n_outputs: int) -> int:
    """Backward passes of each example, k."""
    if isinstance(reduction, RandomProjections):
        return reduction.k
    return 1 if reduction == "sum-of-logits" else n_outputs


def _without_many_passes(reduction: str, n_outputs: int) -> ReductionLike:
    """The mean over many outputs, estimated from random directions of them."""
    return RandomProjections(N_PROJECTIONS) if n_outputs > MOST_OUTPUTS else reduction

"""What all losses have in common."""

import abc
from typing import ClassVar

from jaxtyping import Array, ArrayLike, Float, PyTree

from ntkdiag.arrays import Number
from ntkdiag.losses.curvature import CurvatureFactor
from ntkdiag.losses.targets import Weighted

Shape = tuple[int, ...]


class Loss(abc.ABC):
    """A loss L(f) = (1/D) sum_i l(f_i, y_i): its value, its labels, its curvature in the outputs.

    Attributes:
        name: How `loss=` names it.
        is_quadratic: Whether the curvature is the identity whatever outputs and labels are, but for
            weights.
    """

    name: ClassVar[str]
    is_quadratic: ClassVar[bool] = False

    @abc.abstractmethod
    def read(self, y: PyTree, shape: Shape) -> PyTree:
        """Labels as this loss reads them beside outputs of a shape.

        Args:
            y: Class numbers or targets, or a `Weighted` with them; for a loss of the user whatever
                that takes.
            shape: Of the outputs, `[n ...]`.

        Returns:
            Targets, shaped like the outputs, or class numbers, shaped like the outputs without
            their last axis; in a `Weighted` where not all of them count alike.

        Raises:
            InvalidInputError: When the labels do not fit.
        """

    @abc.abstractmethod
    def __call__(self, outputs: Float[ArrayLike, "n *o"], y: PyTree) -> Float[Array, ""]:
        """L at these outputs."""

    @abc.abstractmethod
    def example_terms(self, outputs: Float[Array, "n *o"], labels: PyTree) -> Float[Array, " n"]:
        """What each example adds to D L, for labels as `read` returned them, or rows of these."""

    @abc.abstractmethod
    def curvature(
        self, outputs: Float[ArrayLike, "n *o"], y: PyTree | None = None
    ) -> CurvatureFactor:
        """A factor of Sigma = D d^2 L / d f^2 at these outputs: Sigma = L L^T.

        Args:
            outputs: `[n ...]`, the values f(params, x).
            y: Labels as `read` returned them, where the curvature depends on them; see
                `CustomLoss`.

        Returns:
            The factor; `outputs.size` is its number of rows.

        Raises:
            InvalidInputError: When outputs or labels do not fit.
        """

    def has_unit_curvature(self, y: PyTree) -> bool:
        """Whether Sigma is the identity beside these labels, whatever the outputs are."""
        return self.is_quadratic and not isinstance(y, Weighted)

    def require_fit(self, shape: Shape) -> None:
        """Refuse outputs of a shape that this loss has no meaning for."""
        return  # any shape will do, unless a loss says otherwise

    @abc.abstractmethod
    def denominator_for(self, shape: Shape) -> Number:
        """D for outputs of a shape."""

    @abc.abstractmethod
    def describe(self, shape: Shape) -> str:
        """The loss in words, with what its sum is divided by for outputs of a shape."""

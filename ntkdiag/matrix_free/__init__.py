"""The kernel as an operator, and ridge regression that never forms it."""

from ntkdiag.matrix_free.operator import NTKOperator as NTKOperator
from ntkdiag.matrix_free.ridge_regression import CG as CG
from ntkdiag.matrix_free.ridge_regression import Solution as Solution
from ntkdiag.matrix_free.ridge_regression import least_squares as least_squares

"""The kernel as an operator, and least squares, ridge and Gauss-Newton solves that never form it."""

from ntkdiag.linearization.matrix_free.gauss_newton import gauss_newton_step as gauss_newton_step
from ntkdiag.linearization.matrix_free.least_squares import least_squares as least_squares
from ntkdiag.linearization.matrix_free.methods import CG as CG
from ntkdiag.linearization.matrix_free.methods import LSMR as LSMR
from ntkdiag.linearization.matrix_free.minimum import minimize as minimize
from ntkdiag.linearization.matrix_free.operator import NTKOperator as NTKOperator
from ntkdiag.linearization.matrix_free.solution import Solution as Solution

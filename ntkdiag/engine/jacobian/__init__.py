"""f, params, x -> tangent factors."""

from ntkdiag.engine.jacobian.factors import Dense as Dense
from ntkdiag.engine.jacobian.factors import Factor as Factor
from ntkdiag.engine.jacobian.factors import Outer as Outer
from ntkdiag.engine.jacobian.factors import Rows as Rows
from ntkdiag.engine.jacobian.factors import Tied as Tied
from ntkdiag.engine.jacobian.structured_jacobian import StructuredJacobian as StructuredJacobian

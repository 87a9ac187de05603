"""f, params, x -> tangent factors."""

from ntkdiag.tangents.factors import Dense as Dense
from ntkdiag.tangents.factors import Outer as Outer
from ntkdiag.tangents.factors import Rows as Rows
from ntkdiag.tangents.parts import Factor as Factor
from ntkdiag.tangents.tangents import Tangents as Tangents
from ntkdiag.tangents.tied import Tied as Tied

"""Primitives whose weight Jacobian is structured: one rule per primitive, working on shapes alone.

A rule takes `(params of the equation, position of the weight, Layout of the weight, shape of the other operand)` and
returns a `Contraction`, or None where this use has no structured form (it then goes the general way).
"""

from ntkdiag.tangents.rules.convolution import conv_general_dilated
from ntkdiag.tangents.rules.dot_general import dot_general
from ntkdiag.tangents.rules.gather import gather

RULES = {"dot_general": dot_general, "conv_general_dilated": conv_general_dilated, "gather": gather}

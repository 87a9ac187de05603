"""Primitives whose weight Jacobian is structured: one rule for each, working on shapes alone.

A rule is a function

    rule(params, side, layout, operand_shape) -> WeightUse | None

of the parameters of the equation, which operand the weight is (0 or 1), the `LeafLayout` of the
weight, and the shape of the other operand. It says in which normal form the weight is used (see
`weight_use`), or None where this use has no structure; the Jacobian is then an ordinary VJP.
"""

from ntkdiag.engine.jacobian.rules.convolution import conv_general_dilated
from ntkdiag.engine.jacobian.rules.dot_general import dot_general
from ntkdiag.engine.jacobian.rules.gather import gather

RULES = {"dot_general": dot_general, "conv_general_dilated": conv_general_dilated, "gather": gather}

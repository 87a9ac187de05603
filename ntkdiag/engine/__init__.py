"""f, params, x -> kernels, from factored Jacobians."""

from ntkdiag.engine.inputs import Memory as Memory
from ntkdiag.engine.ntk import ntk as ntk
from ntkdiag.engine.ntk import plan as plan
from ntkdiag.engine.plan import Plan as Plan

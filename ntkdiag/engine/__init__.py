"""f, params, x -> kernels, from factored Jacobians."""

from ntkdiag.engine.planning.plan import Plan as Plan

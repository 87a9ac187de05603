"""In eval mode no random key may reach the outputs: dropout that stays on is refused.

The switches that ntkdiag knows are set in eval mode. A switch that sits elsewhere, in a config
object or under a name of its own, is not: dropout stays on, and a kernel that says "eval" would be
that of a thinned network. So wherever a model in eval mode has keys to draw from, it is traced once
as a function of these keys, and what the outputs do not need is taken out of the trace: a key that
is drawn and not used harms nobody, and many models split one whatever their mode.
"""

from collections.abc import Callable

import jax
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.jaxtools.jaxprs import needs_inputs
from ntkdiag.models.request import ModelRequest
from ntkdiag.models.selectors import as_pytree, select


def require_no_key_in_outputs(
    call: Callable[[PyTree], PyTree], keys: PyTree, request: ModelRequest, x: PyTree
) -> None:
    """Refuse a model in eval mode whose outputs depend on its keys: `call` is keys -> outputs."""

    def outputs_of(keys: PyTree) -> PyTree:
        return as_pytree(select(request.output, call(keys), x))

    if jax.tree.leaves(keys) and needs_inputs(outputs_of, keys):
        raise errors.InvalidInputError(
            call='functionalize(model, mode="eval")',
            expected="outputs without random numbers in eval mode",
            got="a model that draws random numbers for them",
            do="Switch its random layers off where the model is made or in call_kwargs=; for a "
            'kernel with dropout on, choose mode="dropout".',
        )

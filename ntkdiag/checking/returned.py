"""What a model returns, which of it is differentiated, and how to choose another part.

Models return caches, states and second heads beside their logits. Without `output=` all arrays that
they return are differentiated together, as one long row of outputs for every example; with it, the
part that it takes. Where a model returns a single array there is nothing to say.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag.checking.findings import Check, listed
from ntkdiag.models.functional import Functional
from ntkdiag.models.paths import leaves_by_path
from ntkdiag.models.selectors import as_pytree

# Path -> shape and dtype.
Arrays = Mapping[str, jax.Array | jax.ShapeDtypeStruct]


def arrays_returned(functional: Functional, x: PyTree, call_kwargs: Mapping[str, PyTree]) -> Arrays:
    """All arrays that the model returns, before `output=` chooses among them; it is traced once."""
    # Adapters of other libraries may keep the choice to themselves.
    model = getattr(functional.apply, "function", functional.apply)

    def arrays_of(params: PyTree, x: PyTree) -> dict[str, jax.Array]:
        leaves = leaves_by_path(as_pytree(model(params, x, **call_kwargs)))
        return {path: leaf for path, leaf in leaves.items() if isinstance(leaf, jax.Array)}

    return jax.eval_shape(arrays_of, functional.params, x)


def beside_outputs(functional: Functional, outputs: PyTree, returned: Arrays) -> Check | None:
    """What is differentiated and what is left out; None of a single array."""
    if len(returned) < 2:
        return None
    selector = getattr(functional.apply, "output", None)
    if selector is None:
        text = f"differentiated together: {_described(returned)}; {how_to_choose(returned)}"
        return Check("outputs", "note", text)
    taken = _described(leaves_by_path(outputs), of_selector=True)
    if not isinstance(selector, str):
        text = f"output= takes {taken} from what the model returns: {_described(returned)}"
        return Check("outputs", "ok", text)
    left_out = {}
    for path, leaf in returned.items():
        if path != selector and not path.startswith(f"{selector}/"):
            left_out[path] = leaf
    text = f'output="{selector}" takes {taken}; left out: {_described(left_out)}'
    return Check("outputs", "ok", text)


def how_to_choose(returned: Arrays, n: int | None = None) -> str:
    """How to take the first array that may be the outputs, of n examples if that is known."""
    for path, leaf in returned.items():
        is_floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        if is_floating and n in (None, *leaf.shape[:1]):
            return f'output="{path}" takes the {_kind(leaf)} alone'
    return "choose the outputs with output=, a path or a function of what the model returns"


def _described(arrays: Arrays, *, of_selector: bool = False) -> str:
    """Arrays with their paths; those that a selector took have none of their own."""
    if of_selector and len(arrays) == 1:
        return _kind(next(iter(arrays.values())))
    return listed([f'"{path}" {_kind(leaf)}' for path, leaf in arrays.items()])


def _kind(leaf: jax.Array | jax.ShapeDtypeStruct) -> str:
    """An array in a few letters: ``float32[4, 10]``."""
    return f"{leaf.dtype}{list(leaf.shape)}"

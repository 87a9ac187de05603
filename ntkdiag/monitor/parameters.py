"""From the optimizer's parameters to those of the measured function: the same leaves, by path."""

from typing import Any

import jax

from ntkdiag import errors


def as_parameters_of(f: Any, params: Any, *, call: str) -> Any:
    """Put an optimizer's parameters into the structure `f.params` has.

    Linen optimizers hold the tree under "params" or the whole variables, `nnx.Optimizer` a State with its leaves under
    ".value", Equinox a filtered module. The leaves are matched by path, never by order.

    Args:
        f: A Functional; a plain callable has no structure of its own and takes the parameters as they are.
        params: The optimizer's parameters.
        call: The public call, for messages.

    Returns:
        The parameters in the structure `f` takes.

    Raises:
        StructureError: When paths, shapes or dtypes differ; the message lists them.
    """
    template = getattr(f, "params", None)
    if template is None:
        return params
    want, treedef = jax.tree_util.tree_flatten_with_path(template)
    have = _by_path(params)
    paths = [_path(key) for key, _ in want]
    for prefix in ("", "params/"):
        found = {path.removeprefix(prefix): leaf for path, leaf in have.items() if path.startswith(prefix)}
        wanted = [path.removeprefix(prefix) for path in paths]
        if set(wanted) == set(found) or set(paths) == set(found):
            keys = wanted if set(wanted) == set(found) else paths
            return jax.tree.unflatten(treedef, [found[key] for key in keys])
    raise errors.StructureError(
        errors.message(
            call,
            expected="the parameters of f",
            got=", ".join(sorted(set(paths) ^ set(have))),
            do="The optimizer has to train the parameters of the measured function.",
        )
    )


def _by_path(tree: Any) -> dict[str, Any]:
    return {_path(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def _path(path: Any) -> str:
    keys = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    return "/".join(keys[:-1] if keys and keys[-1] == "value" else keys)

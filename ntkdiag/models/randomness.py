"""In eval mode no random key may reach the outputs: dropout that stays on is refused by name.

The switches that ntkdiag knows are set in eval mode. A switch that sits elsewhere, in a config
object or under a name of its own, is not: dropout stays on, and a kernel that says "eval" would be
that of a thinned network. So wherever a model in eval mode has keys to draw from,

1. it is traced once as a function of these keys;
2. what the outputs do not need is taken out of the trace: a key that is drawn and not used harms
   nobody, and many models split one whatever their mode;
3. where a key is left, the error names the layers that drew it and the switches that are left on.

One example, or one mask for the whole batch, makes no difference to this.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import jax
from jaxtyping import PyTree

from ntkdiag import _jax, errors

# How deep configs are looked for inside configs.
_DEPTH = 3


def require_no_key_in_outputs(
    outputs_of: Callable[[PyTree], PyTree],
    keys: PyTree,
    layers: Callable[[], Iterable[str]],
    held_switches: Mapping[str, bool],
    flags: Mapping[str, bool],
) -> None:
    """Refuse a model in eval mode whose outputs depend on the keys that it is handed.

    `outputs_of` takes keys to outputs; `layers`, asked after it was traced, gives the paths of the
    layers that drew from them. `held_switches` are those that `contradicting` gives, `flags` the
    booleans among the arguments of the call that nobody has set, with their defaults.
    """
    if not jax.tree.leaves(keys):
        return
    if not _jax.needs_inputs(outputs_of, keys):
        return
    named_layers = " and ".join(sorted(set(layers()))) or "the model"
    got = f"a random key that reaches them, drawn in {named_layers}"
    if held_switches:
        got += f", where the model holds {_written(held_switches)}"
    raise errors.InvalidInputError(
        call='functionalize(model, mode="eval")',
        expected="outputs without random numbers in eval mode",
        got=got,
        do=how_to_switch_off(held_switches, flags),
    )


def how_to_switch_off(held_switches: Mapping[str, bool], flags: Mapping[str, bool]) -> str:
    """What to do about a random layer that stays on in eval mode."""
    if held_switches:
        opposite = {path: not value for path, value in held_switches.items()}
        switch = f"Make the model with {_written(opposite)}"
    else:
        switch = "Its switch is none of those that ntkdiag sets: make the model with it off"
    # Keyword arguments that may switch it off, with the values that leave it on: those of this
    # model, the switches it holds, or where neither is known the most usual name.
    left_on = {"deterministic": False}
    if held_switches:
        left_on = {path.split(".")[-1]: value for path, value in held_switches.items()}
    if flags:
        left_on = dict(flags)
    call_kwargs = ", ".join(f'"{name}": {not value}' for name, value in left_on.items())
    return (
        f"{switch}, or pass call_kwargs={{{call_kwargs}}} if it is an argument of the call. For a "
        'kernel with dropout on, choose mode="dropout".'
    )


def _written(switches: Mapping[str, bool]) -> str:
    """Switches as one would write them: ``config.train=True, dropout.deterministic=False``."""
    return ", ".join(f"{path}={value}" for path, value in switches.items())


def contradicting(owner: Mapping[str, object], in_mode: Mapping[str, bool]) -> dict[str, bool]:
    """The switches of configs that are not as the mode has them: path -> value.

    `owner` has the attributes of a module by name. What JAX or a library knows (arrays, modules,
    functions) is no config: a config is a mapping, a dataclass, or a plain object with attributes.
    """
    switches: dict[str, bool] = {}
    for name, value in owner.items():
        if not name.startswith("_"):  # a library's own books
            switches |= _contradicting_in(name, value, in_mode, _DEPTH)
    return switches


def _contradicting_in(
    path: str, config: object, in_mode: Mapping[str, bool], depth: int
) -> dict[str, bool]:
    """Switches that are not as the mode has them, in what may be a config and the configs in it.

    `path` leads to the object; `depth` is how many configs deep to look, this one included.
    """
    switches: dict[str, bool] = {}
    for name, value in _attributes_of(config).items():
        inner_path = f"{path}.{name}"
        if name in in_mode and isinstance(value, bool):
            if value != in_mode[name]:
                switches[inner_path] = value
        elif depth > 1:
            switches |= _contradicting_in(inner_path, value, in_mode, depth - 1)
    return switches


def _attributes_of(config: object) -> Mapping[str, object]:
    """What a config holds by name; of anything else, nothing."""
    if isinstance(config, Mapping):
        return {str(name): value for name, value in config.items()}
    if isinstance(config, type) or callable(config) or hasattr(config, "shape"):
        return {}
    if dataclasses.is_dataclass(config):
        return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    # Objects such as `types.SimpleNamespace` and `argparse.Namespace`.
    return getattr(config, "__dict__", {})

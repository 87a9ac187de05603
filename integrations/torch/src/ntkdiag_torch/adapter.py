"""A module of PyTorch as a Functional of ntkdiag, evaluated by torchax.

1. A copy of the module, in evaluation, stands for it from then on.
2. Its parameters and buffers become arrays by path; those with `requires_grad` are trained.
3. A call puts them back (`torch.func.functional_call`) as tensors that hold JAX arrays, so that
   the module becomes a JAX program.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torchax
from jaxtyping import PyTree
from torchax.tensor import OperatorNotFound

import ntkdiag
from ntkdiag import errors
from ntkdiag.models.trainable import trainable_mask
from ntkdiag_torch.state_dict_file import to_numpy, to_tensor


@errors.public
def functionalize(
    model: torch.nn.Module,
    variables: PyTree = None,
    *,
    mode: str = "eval",
    trainable: Any = None,
    **options: Any,
) -> ntkdiag.Functional:
    """Turn a module in evaluation into `f(params, x, **kwargs)`, its parameters, and the way back.

    The module is copied to the host and never
    changed, and training it further does not show through.

    Cost: two copies of the module.

    Args:
        model: A `torch.nn.Module`, on any device, with its parameters initialized.
        variables: None: a module carries its parameters.
        mode: ``"eval"``.
        trainable: As `ntkdiag.functionalize` has it, by paths such as ``"conv1/weight"``; no
            choice takes in buffers. None: the parameters with `requires_grad`.
        **options: `inputs`, `output`, `call_kwargs`, `unpack` and `check` of
            `ntkdiag.functionalize`.

    Returns:
        The Functional: `params` and `fixed` are path -> array. `restore` returns a new module on
        the host, `extract` takes a module or a state_dict.

    Raises:
        UnsupportedModelError: If it is no module, or a scripted one; from `f`, if torchax does not
            convert an operation of it.
        InvalidInputError: If there is nothing to differentiate, or JAX has not its dtype.
    """
    model = getattr(model, "_orig_mod", model)  # behind torch.compile
    _require_evaluation_of_a_module(model, variables, mode)
    module = copy.deepcopy(model).cpu()
    arrays = {path: to_numpy(tensor) for path, tensor in _tensors(module).items()}
    _require_dtypes(arrays)
    requires_grad = {_path(name): p.requires_grad for name, p in module.named_parameters()}
    weights = {path: arrays[path] for path in requires_grad}
    mask = trainable_mask(weights, requires_grad if trainable is None else trainable)
    chosen = dict.fromkeys(arrays, False) | mask
    plain = ntkdiag.functionalize(_in_jax(module), arrays, trainable=chosen, **options)
    return _of_module(plain, module)


def _of_module(plain: ntkdiag.Functional, module: torch.nn.Module) -> ntkdiag.Functional:
    """The Functional of the tensors of a module, with the ways back to the module."""
    # Plain functions have both.
    extract_arrays: Any = plain.extract
    rebuild_plain: Any = plain.rebuild

    def restore(params: PyTree) -> torch.nn.Module:
        restored = copy.deepcopy(module)
        arrays = plain.restore(params)
        with torch.no_grad():
            for path, tensor in _tensors(restored).items():
                tensor.copy_(to_tensor(arrays[path]))
        return restored

    def extract(source: torch.nn.Module | Mapping[str, Any]) -> PyTree:
        if isinstance(source, torch.nn.Module):
            source = dict(source.named_parameters())
        arrays = {_path(name): jax.tree.map(_as_array, leaf) for name, leaf in source.items()}
        return extract_arrays(arrays)

    def rebuild(params: PyTree, values: Mapping[str, PyTree]) -> ntkdiag.Functional:
        return _of_module(rebuild_plain(params, values), module)

    apply: Any = plain.apply
    return dataclasses.replace(
        plain,
        apply=dataclasses.replace(apply, library="torch", mode="eval"),
        restore=restore,
        library="torch",
        mode="eval",
        name=type(module).__name__,
        extract=extract,
        rebuild=rebuild,
        aliases=_aliases(module),
    )


def _in_jax(module: torch.nn.Module) -> Callable[..., PyTree]:
    """`f(arrays, *args, **kwargs)` of a module in evaluation, by torchax."""
    called = copy.deepcopy(module).eval()
    names = [name for name, _ in (*called.named_parameters(), *called.named_buffers())]
    constants = _constants(called)
    environment = torchax.default_env()

    def f(arrays: Mapping[str, PyTree], *args: PyTree, **kwargs: PyTree) -> PyTree:
        by_name = constants | {name: arrays[_path(name)] for name in names}
        arguments = jax.tree.map(_as_array, (by_name, args, kwargs))
        # Random numbers, if any are drawn, are the same in every call.
        seeded = environment.override_property(prng=jax.random.key(0))
        with seeded, environment:
            tensors, args, kwargs = environment.j2t_iso(arguments)
            try:
                outputs = torch.func.functional_call(called, tensors, args, kwargs)
            except (OperatorNotFound, jax.errors.JAXTypeError) as error:
                raise _not_converted_error(called, error) from error
            return environment.t2j_iso(outputs)

    return f


def _not_converted_error(module: torch.nn.Module, error: Exception) -> errors.UnsupportedModelError:
    """The error for an operation without a counterpart in JAX, or for control flow by numbers."""
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return errors.UnsupportedModelError(
        expected="a module whose operations torchax converts to JAX",
        got=f"{type(module).__name__}, with {first_line[:200]}",
        do="Replace the operation (.item() and branches on numbers are none of a JAX program), or "
        "compute the kernel in PyTorch: "
        "https://docs.pytorch.org/tutorials/intermediate/neural_tangent_kernels.html.",
    )


def _require_evaluation_of_a_module(model: Any, variables: PyTree, mode: str) -> None:
    """Refuse what is no module that tensors can be put into, and what is not read here."""
    is_scripted = isinstance(model, torch.jit.ScriptModule)
    if is_scripted or not isinstance(model, torch.nn.Module):
        raise errors.UnsupportedModelError(
            expected="a torch.nn.Module in Python",
            got=type(model).__name__,
            do="Pass an instance of a module: of a scripted one that which it was made of.",
        )
    if variables is not None or mode != "eval":
        raise errors.InvalidInputError(
            expected='the module alone, which carries its parameters, in mode="eval"',
            got=f"mode={mode!r} and a second argument, {type(variables).__name__}",
            do="Parameters of a state_dict go in with fn.with_params(fn.extract(...)).",
        )


def _require_dtypes(arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse float64 where JAX would round it to float32."""
    wide = [path for path, array in arrays.items() if array.dtype in (np.float64, np.complex128)]
    if wide and not jax.config.read("jax_enable_x64"):
        raise errors.InvalidInputError(
            expected="JAX to have float64, as the module does",
            got=f"jax_enable_x64=False and float64 in {', '.join(wide[:8])}",
            do='Switch it on first, jax.config.update("jax_enable_x64", True); or pass '
            "copy.deepcopy(module).float().",
        )


def _path(name: str) -> str:
    return name.replace(".", "/")


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Path -> parameter or buffer, shared ones by their first path."""
    named = (*module.named_parameters(), *module.named_buffers())
    return {_path(name): tensor for name, tensor in named}


def _aliases(module: torch.nn.Module) -> dict[str, str]:
    """Other path of a shared tensor -> its first path, which it has here."""
    first_paths: dict[int, str] = {}
    aliases = {}
    for name, tensor in (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ):
        path = _path(name)
        first_path = first_paths.setdefault(id(tensor), path)
        if first_path != path:
            aliases[path] = first_path
    return aliases


def _constants(module: torch.nn.Module) -> dict[str, PyTree]:
    """Tensors that are plain attributes, by name: torchax needs them as arrays, too."""
    constants = {}
    for prefix, submodule in module.named_modules():
        for attribute, value in vars(submodule).items():
            if isinstance(value, torch.Tensor):
                constants[f"{prefix}.{attribute}".lstrip(".")] = to_numpy(value)
    return constants


def _as_array(leaf: Any) -> Any:
    """A tensor or an array among the arguments as JAX's; numbers and strings stay."""
    if isinstance(leaf, torch.Tensor):
        leaf = to_numpy(leaf)
    return jnp.asarray(leaf) if hasattr(leaf, "__array__") else leaf

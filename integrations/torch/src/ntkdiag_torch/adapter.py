"""A module of PyTorch as a Functional of ntkdiag.

1. A copy of the module, in evaluation or training, stands for it from then on.
2. Its parameters, and apart from them its buffers, become arrays by the dots of their names.
3. A call puts them back into the copy (`torch.func.functional_call`), by way of an `Evaluation`.
"""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import PyTree

import ntkdiag
from ntkdiag import errors
from ntkdiag.models.mode import Mode
from ntkdiag_torch.evaluation import Evaluation
from ntkdiag_torch.modes import batch_norms, collecting_statistics, switch
from ntkdiag_torch.tensors import to_numpy, to_tensor


@errors.public
def functionalize(
    model: torch.nn.Module,
    variables: PyTree = None,
    *,
    mode: str = "eval",
    statistics: PyTree = None,
    trainable: Any = None,
    via: str = "auto",
    check: bool = True,
    **options: Any,
) -> ntkdiag.Functional:
    """Turn a module into `f(params, x, **kwargs)`, its parameters, and the way back.

    This is what `ntkdiag.functionalize(module)` calls. The module is copied to the host and never
    changed, and training it further does not show through.

    Cost: a copy of the module and one of its parameters. By torch.func, every callback copies the
    parameters once more.

    Args:
        model: A `torch.nn.Module`, on any device, with its parameters initialised.
        variables: None: a module carries its parameters.
        mode: ``"eval"``, or ``"train"`` for a module without dropout.
        statistics: In train mode, inputs whose batch statistics are held fixed.
        trainable: As `ntkdiag.functionalize` has it, by paths such as ``"conv1/weight"``. None:
            the parameters with `requires_grad`.
        via: ``"torchax"``: the module becomes a JAX program. ``"torch.func"``: it is evaluated and
            differentiated by PyTorch, in callbacks. ``"auto"``: the first, or the second where the
            first fails at the first call; a warning then has the reason.
        check: Refuse parameters with NaN or infinity.
        **options: `inputs`, `output`, `call_kwargs` and `unpack` of `ntkdiag.functionalize`.

    Returns:
        The Functional. `restore` returns a new module on the host, `extract` takes a module or a
        state_dict.

    Raises:
        UnsupportedModelError: If it is no module, or a scripted one.
        InvalidInputError: If there is nothing to differentiate, a parameter has no value, or JAX
            has not its dtype.

    Example:
        >>> import torch, ntkdiag
        >>> fn = ntkdiag.functionalize(torch.nn.Linear(3, 2))
        >>> sorted(fn.params)
        ['bias', 'weight']
    """
    model = _module(model)
    _require_no_variables(variables)
    _require_initialised(model)
    named = dict(model.named_parameters())
    params = {name: _copied(tensor, name) for name, tensor in named.items()}
    buffers = {name: _copied(tensor, name) for name, tensor in model.named_buffers()}
    _require_dtypes(params | buffers)
    trained = [_path(name) for name, tensor in named.items() if tensor.requires_grad]
    if not trained and trainable is None:
        raise _nothing_trainable_error(named, buffers)
    module = _Module(
        template=copy.deepcopy(model).cpu(),
        evaluation=Evaluation(via),
        trainable=trained if trainable is None else trainable,
        options=options,
    )
    return module.functional(params, buffers, Mode(mode, statistics), check=check)


@dataclasses.dataclass(frozen=True)
class _Module:
    """A copy of the user's module, and what the user asked for.

    Attributes:
        template: The copy, in the mode it was handed in with.
        evaluation: By torchax or by torch.func.
        trainable: The choice of what is differentiated.
        options: The rest, for `ntkdiag.functionalize`.
    """

    template: torch.nn.Module
    evaluation: Evaluation
    trainable: Any
    options: Mapping[str, Any]

    def functional(
        self,
        all_params: Mapping[str, PyTree],
        buffers: Mapping[str, PyTree],
        mode: Mode,
        *,
        check: bool,
    ) -> ntkdiag.Functional:
        """The Functional of parameters and buffers by name, in a mode."""
        options = {**self.options, "trainable": self.trainable, "check": check}
        called = switch(copy.deepcopy(self.template), mode)

        def forward(tensors: dict[str, Any], args: tuple, kwargs: dict[str, Any]) -> Any:
            if called.training:  # it writes to its running statistics, which are thrown away
                tensors |= {name: tensors[name].clone() for name in buffers}
            return torch.func.functional_call(called, tensors, args, kwargs)

        if mode.statistics is not None:
            collect = self._function(collecting_statistics(called), buffers)
            of_batch = {**options, "output": None}
            collected = ntkdiag.functionalize(collect, _nested(all_params), **of_batch)
            buffers = {**buffers, **collected(collected.params, mode.statistics)}
            called.eval()
        plain = ntkdiag.functionalize(
            self._function(forward, buffers), _nested(all_params), **options
        )
        take_trained: Any = plain.extract  # as that of every plain function, it is there
        plain_apply: Any = plain.apply

        def restore(params: PyTree) -> torch.nn.Module:
            restored = copy.deepcopy(self.template)
            arrays = {**_flat(plain.restore(params)), **buffers}
            with torch.no_grad():
                for name, tensor in (*restored.named_parameters(), *restored.named_buffers()):
                    tensor.copy_(to_tensor(arrays[name]))
            return restored

        def extract(source: torch.nn.Module | Mapping[str, Any]) -> PyTree:
            if isinstance(source, torch.nn.Module):
                source = dict(source.named_parameters())
            arrays = {}
            for name, leaf in _flat(source).items():
                is_tensor = isinstance(leaf, torch.Tensor)
                name = self.aliases.get(name, name)
                arrays[name] = jnp.array(to_numpy(leaf, name)) if is_tensor else leaf
            return take_trained(_nested(arrays))

        def rebuild(params: PyTree, values: Mapping[str, PyTree]) -> ntkdiag.Functional:
            by_name = {path.replace("/", "."): leaf for path, leaf in values.items()}
            tree = {**_flat(plain.restore(params)), **buffers, **by_name}
            return self.functional(
                {name: tree[name] for name in all_params},
                {name: tree[name] for name in buffers},
                mode,
                check=False,
            )

        def in_mode(params: PyTree, mode: Mode) -> ntkdiag.Functional:
            return self.functional(_flat(plain.restore(params)), buffers, mode, check=False)

        return dataclasses.replace(
            plain,
            apply=dataclasses.replace(
                plain_apply, library="torch", mode=str(mode), backend=self.evaluation
            ),
            restore=restore,
            library="torch",
            mode=str(mode),
            name=type(self.template).__name__,
            fixed={**plain.fixed, **{_path(name): array for name, array in buffers.items()}},
            extract=extract,
            rebuild=rebuild,
            has_batch_statistics=bool(batch_norms(self.template)),
            in_mode=in_mode,
            aliases={_path(name): _path(of) for name, of in self.aliases.items()},
        )

    @property
    def aliases(self) -> dict[str, str]:
        """Other name of a shared tensor -> its first name, which it has here."""
        first_names: dict[int, str] = {}
        aliases = {}
        for name, tensor in _all_names(self.template):
            first = first_names.setdefault(id(tensor), name)
            if first != name:
                aliases[name] = first
        return aliases

    def _function(self, forward: Any, buffers: Mapping[str, PyTree]) -> Any:
        """`f(params, *args, **kwargs)` for the plain adapter."""
        fixed = {**_constants(self.template), **buffers}

        def f(params: PyTree, *args: PyTree, **kwargs: PyTree) -> PyTree:
            args, kwargs = jax.tree.map(_as_array, (args, kwargs))
            return self.evaluation(forward, _flat(params), fixed, args, kwargs)

        return f


def _module(model: Any) -> torch.nn.Module:
    """The module itself; refused where it is none, or a program that nothing can be put into."""
    model = getattr(model, "_orig_mod", model)  # behind torch.compile
    if isinstance(model, torch.jit.ScriptModule):
        raise errors.UnsupportedModelError(
            expected="a torch.nn.Module in Python",
            got=f"a scripted module, {type(model).__name__}",
            do="Pass the module that it was made of.",
        )
    if not isinstance(model, torch.nn.Module):
        got = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise errors.UnsupportedModelError(
            expected="a torch.nn.Module",
            got=got,
            do="Pass an instance of a module; that of a torch.export program is its module().",
        )
    return model


def _require_no_variables(variables: PyTree) -> None:
    if variables is not None:
        raise errors.InvalidInputError(
            expected="the module alone, because it carries its own parameters",
            got=f"a second argument, {type(variables).__name__}",
            do="Leave it out; those of a state_dict go in with fn.with_params(fn.extract(...)).",
        )


def _require_initialised(model: torch.nn.Module) -> None:
    """Refuse a module that has yet to see an example to know its shapes."""
    lazy = [name for name, tensor in _all_names(model) if torch.nn.parameter.is_lazy(tensor)]
    if lazy:
        raise errors.InvalidInputError(
            expected="initialised parameters",
            got=f"lazy ones without a shape: {', '.join(lazy)}",
            do="Call the module once on an example: module(x).",
        )


def _require_dtypes(arrays: Mapping[str, PyTree]) -> None:
    """Refuse float64 where JAX would round it to float32."""
    wide = [name for name, array in arrays.items() if str(array.dtype) in ("float64", "complex128")]
    if wide and not jax.config.read("jax_enable_x64"):
        raise errors.InvalidInputError(
            expected="JAX to have float64, as the module does",
            got=f"jax_enable_x64=False and float64 in {', '.join(wide[:8])}",
            do='Switch it on first, jax.config.update("jax_enable_x64", True); or pass '
            "copy.deepcopy(module).float().",
        )


def _nothing_trainable_error(
    params: Mapping[str, torch.Tensor], buffers: Mapping[str, PyTree]
) -> errors.InvalidInputError:
    """The error for a module of buffers only, or of frozen parameters only."""
    if params:
        return errors.InvalidInputError(
            expected="parameters with requires_grad",
            got=f"frozen ones only: {', '.join(list(params)[:8])}",
            do='Choose what is differentiated: trainable="**", or "head/**".',
        )
    return errors.InvalidInputError(
        expected="a module with parameters",
        got=f"buffers only: {', '.join(list(buffers)[:8]) or 'not even those'}",
        do="Make what is trained an nn.Parameter; register_buffer is for what is held fixed.",
    )


def _copied(tensor: torch.Tensor, name: str) -> np.ndarray:
    """The numbers of a tensor, which PyTorch goes on to change in place."""
    return np.array(to_numpy(tensor, name))


def _as_array(leaf: Any) -> Any:
    """An array or a tensor among the arguments as JAX's; numbers and strings stay."""
    if isinstance(leaf, torch.Tensor):
        leaf = to_numpy(leaf, "x")
    return jnp.asarray(leaf) if hasattr(leaf, "__array__") else leaf


def _all_names(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Every parameter and buffer under every name it has."""
    return [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]


def _constants(module: torch.nn.Module) -> dict[str, np.ndarray]:
    """Tensors that are plain attributes, by name: torchax needs them as arrays, too."""
    constants = {}
    for path, submodule in module.named_modules():
        for attribute, value in vars(submodule).items():
            if isinstance(value, torch.Tensor):
                name = f"{path}.{attribute}".lstrip(".")
                constants[name] = to_numpy(value, name)
    return constants


def _path(name: str) -> str:
    return name.replace(".", "/")


def _nested(arrays: Mapping[str, PyTree]) -> dict[str, PyTree]:
    """Arrays by dotted names as nested dictionaries."""
    tree: dict[str, PyTree] = {}
    for name, array in arrays.items():
        *parents, last = name.split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = array
    return tree


def _flat(tree: Mapping[str, PyTree], prefix: str = "") -> dict[str, PyTree]:
    """Nested dictionaries as arrays by dotted names."""
    arrays: dict[str, PyTree] = {}
    for name, branch in tree.items():
        if isinstance(branch, Mapping):
            arrays |= _flat(branch, f"{prefix}{name}.")
        else:
            arrays[f"{prefix}{name}"] = branch
    return arrays

"""Frozen dataclasses that are pytrees: kernels, spectra, losses, and other nouns of the package.

`jax.tree_util.register_dataclass` puts an instance together again by calling the class, and so runs
its checks on whatever JAX holds instead of a leaf: a batch of numbers, a shape, a marker. Here
an instance is checked when somebody makes it, and only then.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import TypeVar

import jax

T = TypeVar("T")


def pytree(*data_fields: str) -> Callable[[type[T]], type[T]]:
    """Decorate a frozen dataclass: these fields are leaves or subtrees, all others structure."""

    def register(cls: type[T]) -> type[T]:
        fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        names = [field.name for field in fields]
        fixed_fields = [name for name in names if name not in data_fields]

        # JAX takes an instance apart in two ways: by values alone, which is fast, and with the
        # names of the fields, for the paths of leaves.
        def flatten(instance: T) -> tuple[tuple, tuple]:
            leaves = tuple(getattr(instance, name) for name in data_fields)
            fixed = tuple(getattr(instance, name) for name in fixed_fields)
            return leaves, fixed

        def flatten_with_keys(instance: T) -> tuple[tuple, tuple]:
            leaves, fixed = flatten(instance)
            keys = map(jax.tree_util.GetAttrKey, data_fields)
            return tuple(zip(keys, leaves, strict=True)), fixed

        def unflatten(fixed: tuple, leaves: Iterable) -> T:
            instance = object.__new__(cls)  # no `__init__`, so no checks
            vars(instance).update(zip(fixed_fields, fixed, strict=True))
            vars(instance).update(zip(data_fields, leaves, strict=True))
            return instance

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
        return cls

    return register

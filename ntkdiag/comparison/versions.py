"""Versions that numbers depend on."""

import importlib.metadata
import platform

import ntkdiag

PACKAGES = ("jax", "jaxlib", "flax", "equinox", "optax", "orbax-checkpoint", "numpy")


def installed_versions(packages: tuple[str, ...] = PACKAGES) -> list[str]:
    """Name and version of ntkdiag, of every package that is installed, and of Python."""
    lines = [f"ntkdiag {ntkdiag.__version__}"]
    for name in packages:
        try:
            lines.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return [*lines, f"Python {platform.python_version()}"]

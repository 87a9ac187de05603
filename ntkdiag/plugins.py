"""Libraries that some calls need, and objects that installed distributions offer.

A distribution declares an object under a name in one of the groups ``ntkdiag.models`` and
``ntkdiag.checkpoints`` of its `pyproject.toml`. Which there are is read from the metadata of what
is installed, so that nothing heavy is imported before it is used.
"""

import importlib
import importlib.metadata
from types import ModuleType
from typing import Any

from ntkdiag import errors


def imported(module: str, what_for: str, install: str) -> ModuleType:
    """A library that a call needs for something; `install` is what pip installs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise errors.MissingDependencyError(
            expected=f"{module.partition('.')[0]}, {what_for}",
            got=f"{type(error).__name__}: {error}",
            do=f'Run: pip install "{install}"',
        ) from error


def offered(group: str, name: str) -> Any:
    """The object that a distribution offers under a name; None where none does."""
    for entry_point in importlib.metadata.entry_points(group=group, name=name):
        try:
            return entry_point.load()
        except ImportError as error:
            raise errors.MissingDependencyError(
                expected=f"{entry_point.value} to import",
                got=f"{type(error).__name__}: {error}",
                do="Install what it needs, or reinstall the distribution it is from.",
            ) from error
    return None


def names_offered(group: str) -> list[str]:
    """The names of all that is offered in a group."""
    return sorted(
        {entry_point.name for entry_point in importlib.metadata.entry_points(group=group)}
    )


def how_to_install(integration: str) -> str:
    """How to install one of our integrations that is missing."""
    return (
        f"Install ntkdiag-{integration}: in a clone of ntkdiag, run "
        f'"pip install ./integrations/{integration}".'
    )

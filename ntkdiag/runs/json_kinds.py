"""Whether what a run directory says is of the kind that it should be: it may come from elsewhere.

A kind is written as the values look that are of it:

    float, int, str         a number (NaN and whole ones included), a whole number, text
    [kind]                  a list of such values
    {str: kind}             a dictionary of such values, under any names
    {"name": kind, ...}     a dictionary with these entries, and maybe others; an entry whose name
                            ends with a question mark may be missing, or null
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from ntkdiag import errors
from ntkdiag.display import shortened

# float, int, str, or a list or a dictionary of kinds.
Kind: TypeAlias = Any

_NAMES = {float: "a number", int: "a whole number", str: "text"}


def require_kind(value: Any, kind: Kind, of: str) -> None:
    """Refuse a value of another kind; `of` is what holds it, for the message."""
    reason = misfit(value, kind)
    if reason:
        raise errors.CheckpointError(
            expected=f"{of} as it is written",
            got=reason,
            do="It was changed, or is of another version. Restore it from a copy, or write it once "
            "more.",
        )


def misfit(value: Any, kind: Kind, path: str = "") -> str:
    """What is of another kind, and where, in words; empty where all fits."""
    if isinstance(kind, list):
        return _misfit_of_list(value, kind[0], path)
    if isinstance(kind, Mapping):
        return _misfit_of_dictionary(value, kind, path)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    fits = is_whole or isinstance(value, float) if kind is float else isinstance(value, kind)
    if fits and (kind is not int or is_whole):
        return ""
    return f"{path or 'it'} = {shortened(value)}, which is not {_NAMES[kind]}"


def _misfit_of_list(value: Any, kind: Kind, path: str) -> str:
    if not isinstance(value, list):
        return f"{path or 'it'} = {shortened(value)}, which is no list"
    for place, item in enumerate(value):
        if reason := misfit(item, kind, f"{path}[{place}]"):
            return reason
    return ""


def _misfit_of_dictionary(value: Any, kind: Mapping[Any, Kind], path: str) -> str:
    if not isinstance(value, Mapping):
        return f"{path or 'it'} = {shortened(value)}, which has no entries"
    prefix = f"{path}." if path else ""
    if str in kind:
        entries = [(name, item, kind[str]) for name, item in value.items()]
    else:
        entries = []
        for name, of_entry in kind.items():
            bare = name.removesuffix("?")
            item = value.get(bare)
            if bare != name and item is None:
                continue
            if bare not in value:
                return f"no {prefix}{bare}"
            entries.append((bare, item, of_entry))
    for name, item, of_entry in entries:
        if reason := misfit(item, of_entry, f"{prefix}{name}"):
            return reason
    return ""

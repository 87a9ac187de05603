"""The format of a checkpoint file, from its first bytes, and only then from its suffix.

A name can promise anything: a pickle that is called `model.safetensors` is refused like any other.
An archive is identified by the names of what is in it: `.npz` has arrays alone.

What may be a pickle is read where an installed distribution offers that for its suffix, by the
entry point `ntkdiag.checkpoints`: a function `read(path, at)`, which runs no code that is in the
file and returns a dictionary name -> NumPy array.
"""

import functools
import os
import pathlib
import sys
import zipfile
from typing import Literal, TypeAlias

from ntkdiag import errors, plugins

Format: TypeAlias = Literal["orbax", "safetensors", "msgpack", "npz", "equinox", "by suffix"]

SUFFIXES: dict[str, Format] = {
    ".safetensors": "safetensors",
    ".msgpack": "msgpack",
    ".npz": "npz",
    ".eqx": "equinox",
}
# The formats whose arrays have names alone, which `parameter_names=` translates.
NAMED: tuple[Format, ...] = ("safetensors", "npz", "by suffix")
# Ends the name of the file that says which shard holds which array.
INDEX = ".safetensors.index.json"
READABLE = (
    "Readable are Orbax directories, safetensors (a file or a Hugging Face directory), msgpack "
    "files of Flax, arrays of NumPy (.npz) and leaves of Equinox (.eqx)."
)
_MOST_BYTES = 16  # that tell a format
_NUMPY = b"\x93NUMPY"
_ZIP = b"PK\x03\x04"
# A pickle of protocol 2 to 5; as msgpack the first byte would be an empty dictionary.
_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_PICKLE_SUFFIXES = (".pkl", ".pickle", ".joblib", *_TORCH_SUFFIXES)
GROUP = "ntkdiag.checkpoints"


def is_weights(file: pathlib.Path) -> bool:
    """Whether the suffix of a file is of a format that can be read, or its content without one."""
    if not file.is_file():
        return False
    if file.suffix in SUFFIXES or has_reader(file):
        return True
    return not file.suffix and is_readable(file)


def is_readable(file: pathlib.Path) -> bool:
    """Whether a file is of a format that can be read, whatever it is called."""
    try:
        format_of_file(file)
    except (errors.CheckpointError, OSError):
        return False
    return True


def checkpoint_error(
    path: str | os.PathLike[str], got: str, do: str = "Use another step, or save it again."
) -> errors.CheckpointError:
    """What every checkpoint error expects: a checkpoint at that path."""
    return errors.CheckpointError(expected=f"a checkpoint at {os.fspath(path)!r}", got=got, do=do)


def format_of_file(file: pathlib.Path) -> Format:
    """The format of a file; refused unless it is one that can be read."""
    if file.name.endswith(INDEX):
        return "safetensors"
    start = _start_of(file)
    is_archive = start.startswith(_ZIP)
    if is_archive and _holds_arrays_alone(file):
        return "npz"
    by_content = _format_of_bytes(start, file.stat().st_size)
    may_be_pickle = is_archive or start.startswith(_PICKLES) or file.suffix in _PICKLE_SUFFIXES
    if by_content is None and may_be_pickle:
        if has_reader(file):
            return "by suffix"
        do = f"Save the arrays again in another format. {READABLE}"
        if file.suffix in _TORCH_SUFFIXES:
            do = f"{plugins.how_to_install('torch')} It reads a state_dict, and no code. Or: {do}"
        raise checkpoint_error(
            file,
            "a pickle, or an archive that may contain one: reading it may run code",
            do,
        )
    # A file too short to identify has the format of its suffix: the reader names the damage.
    format = by_content or SUFFIXES.get(file.suffix)
    if format is None:
        raise checkpoint_error(file, "a file of an unknown format", READABLE)
    return format


def _start_of(file: pathlib.Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(_MOST_BYTES)


def has_reader(file: pathlib.Path) -> bool:
    """Whether an installed distribution offers to read files of this suffix."""
    return file.suffix.removeprefix(".") in _declared_suffixes(tuple(sys.path))


@functools.cache
def _declared_suffixes(path: tuple[str, ...]) -> list[str]:
    """Looked up once for a path of imports, as a root may hold thousands of files."""
    del path  # what the lookup goes through
    return plugins.names_offered(GROUP)


def _format_of_bytes(start: bytes, n_bytes: int) -> Format | None:
    """The format that begins so, in a file of so many bytes; None where none does."""
    if start.startswith(_NUMPY):
        return "equinox"
    # Eight bytes are the length of a header in JSON, which follows.
    length_of_header = int.from_bytes(start[:8], "little")
    if start[8:9] == b"{" and 0 < length_of_header <= n_bytes:
        return "safetensors"
    return "msgpack" if _is_dictionary_of_msgpack(start) else None


def is_tree_of_msgpack(file: pathlib.Path) -> bool:
    """Whether a file begins like a dictionary or a list of msgpack, as the trees of Orbax do."""
    start = _start_of(file)
    # 0x91 to 0x9f begin lists of 1 to 15 entries.
    is_list = start[:1] in (b"\xdc", b"\xdd") or 0x91 <= (start or b"\0")[0] <= 0x9F
    return is_list or _is_dictionary_of_msgpack(start)


def _holds_arrays_alone(file: pathlib.Path) -> bool:
    """Whether an archive has nothing but arrays of NumPy in it, by their names."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    # The directory of a damaged archive raises whatever part of it is met first.
    except Exception:
        return file.suffix == ".npz"  # its reader names the damage
    is_empty = not names and file.suffix != ".npz"
    return not is_empty and all(name.endswith(".npy") for name in names)


def _is_dictionary_of_msgpack(start: bytes) -> bool:
    """Whether bytes begin a dictionary of msgpack, whose first key is a string."""
    if not start:
        return False
    # One byte for 1 to 15 entries; for more, their number takes two bytes after it, or four.
    if 0x81 <= start[0] <= 0x8F:
        key = start[1:2]
    else:
        key = {0xDE: start[3:4], 0xDF: start[5:6]}.get(start[0], b"")
    return bool(key) and (0xA0 <= key[0] <= 0xBF or 0xD9 <= key[0] <= 0xDB)

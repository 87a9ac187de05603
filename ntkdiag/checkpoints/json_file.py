"""JSON of a checkpoint, which may be damaged in any way."""

import json
import pathlib
from typing import Any

# What reading text, and looking for entries in what it turned out to be, raises on damaged files.
JSON_ERRORS = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)

MOST_BYTES = 2**28  # the names of a million arrays


def read_json(file: pathlib.Path) -> Any:
    """The content of a file; one of `JSON_ERRORS` where it is no JSON, or does not end."""
    if not file.is_file():
        raise FileNotFoundError(f"no file {file.name}")
    if (n_bytes := file.stat().st_size) > MOST_BYTES:
        raise ValueError(f"{n_bytes:,} bytes of text")
    return json.loads(file.read_text(encoding="utf-8"))

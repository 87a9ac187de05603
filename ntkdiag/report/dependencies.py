"""The optional libraries a page needs."""

import importlib

from ntkdiag import errors

NEEDED = ("jinja2", "matplotlib")


def require_report() -> None:
    """Refuse to start on a page when a library for it is missing."""
    missing = [name for name in NEEDED if not _installed(name)]
    if missing:
        raise errors.MissingDependencyError(
            expected=f"{' and '.join(NEEDED)}, which make the page",
            got=f"no {' and no '.join(missing)}",
            do='Run: pip install "ntkdiag[report]"',
        )


def _installed(name: str) -> bool:
    # Imported, not only looked for: a damaged installation is no use to the page either.
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True

"""`ntkdiag version`: what an issue should name."""

import typer

from ntkdiag.commands.printing import print_json
from ntkdiag.commands.shared_options import JsonOption, examples

EXAMPLES = examples("ntkdiag version", "ntkdiag version --json")


def version(as_json: JsonOption = False) -> None:
    """Print the versions of ntkdiag, JAX, Flax, Equinox, Optax, Orbax and Python."""
    from ntkdiag.comparison.versions import installed_versions

    lines = installed_versions()
    if not as_json:
        typer.echo("\n".join(lines))
        return
    by_library = {}
    for line in lines:
        library, _, number = line.partition(" ")
        by_library[library] = number
    print_json(by_library)

"""Print the lower bound of every requirement of pyproject.toml as a constraint of pip.

    python .ci/lower_bounds.py test > constraints.txt

A line is ``name==version``. The extras that are named count, and those that they name. Whatever pip
installs beside them is the newest.
"""

import pathlib
import re
import sys
import tomllib

REQUIREMENT = re.compile(r"([A-Za-z0-9_.-]+)(?:\[([\w,-]+)\])?\s*(?:>=([\w.]+))?")


def bounds(project: dict, extras: set[str]) -> dict[str, str]:
    """Name -> lower bound, of the requirements and those of some extras."""
    listed = list(project["dependencies"])
    done: set[str] = set()
    while extras - done:
        extra = (extras - done).pop()
        done.add(extra)
        listed += project["optional-dependencies"][extra]
        for requirement in project["optional-dependencies"][extra]:
            name, of_extras, _ = REQUIREMENT.match(requirement).groups()
            if name == project["name"]:
                extras |= set(of_extras.split(","))
    found = {}
    for requirement in listed:
        name, _, bound = REQUIREMENT.match(requirement).groups()
        if name != project["name"]:
            if bound is None:
                raise SystemExit(f"{requirement}: no lower bound")
            found[name] = bound
    return found


def main() -> None:
    """Print them, a line each."""
    file = pathlib.Path(__file__).parents[1] / "pyproject.toml"
    project = tomllib.loads(file.read_text())["project"]
    for name, bound in sorted(bounds(project, set(sys.argv[1:])).items()):
        print(f"{name}=={bound}")


if __name__ == "__main__":
    main()

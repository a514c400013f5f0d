"""Prints what the extras of pyproject.toml ask for: `requirements.py implementer scheduler`."""

import re
import sys
import tomllib
from pathlib import Path

_OWN = re.compile(r"assay\[([^]]*)\]")


def requirements(project: dict[str, object], extras: list[str]) -> list[str]:
    """The project's own dependencies and those of `extras`, which may name one another."""
    optional = project["optional-dependencies"]
    assert isinstance(optional, dict)
    found = dict.fromkeys(project["dependencies"])  # type: ignore[call-overload]
    seen: set[str] = set()
    waiting = list(extras)
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for requirement in optional[extra]:
            own = _OWN.fullmatch(requirement)
            if own:
                waiting += [name.strip() for name in own[1].split(",")]
            else:
                found[requirement] = None
    return sorted(found)


if __name__ == "__main__":
    document = tomllib.loads(Path("pyproject.toml").read_text())
    sys.stdout.write("\n".join(requirements(document["project"], sys.argv[1:])) + "\n")

"""Print what carbonq needs, from its pyproject.toml: `wanted.py pyproject.toml [EXTRA ...]`. Standard library only."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def wanted(project: Path, extras: Sequence[str]) -> list[str]:
    """Return the requirements of the base and of the named extras; an unknown extra ends the program."""
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    optional: dict[str, list[str]] = table["optional-dependencies"]
    lines: list[str] = list(table["dependencies"])
    for extra in extras:
        if extra not in optional:
            sys.exit(f"there is no extra {extra!r}; known: {', '.join(sorted(optional))}")
        for line in optional[extra]:
            if line.startswith("carbonq["):
                lines += wanted(project, line.removeprefix("carbonq[").removesuffix("]").split(","))
            else:
                lines.append(line)
    return sorted(dict.fromkeys(lines))


if __name__ == "__main__":
    print("\n".join(wanted(Path(sys.argv[1]), sys.argv[2:])))

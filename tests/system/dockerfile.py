"""Read the Dockerfile: the instructions that ours uses, and nothing else."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

KNOWN = {
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "LABEL", "RUN", "STOPSIGNAL", "USER", "WORKDIR",
}  # fmt: skip


@dataclass
class Stage:
    """One FROM and what follows it; ``steps`` are (instruction, argument) in order."""

    base: str
    name: str | None
    steps: list[tuple[str, str]] = field(default_factory=list)

    def last(self, instruction: str) -> str:
        return [argument for name, argument in self.steps if name == instruction][-1]

    def form(self, instruction: str) -> list[str]:
        """The value of an instruction in exec form."""
        return json.loads(self.last(instruction))

    def pairs(self, instruction: str) -> dict[str, str]:
        """All key=value of ENV or LABEL."""
        words = [word for name, argument in self.steps if name == instruction for word in shlex.split(argument)]
        return dict(word.split("=", 1) for word in words)


def read(path: Path = ROOT / "Dockerfile") -> list[Stage]:
    """Return the stages. Fails for an instruction that nobody has taught it."""
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for name, argument in instructions(path.read_text()):
        assert name in KNOWN, f"{name} is not understood"
        if name == "FROM":
            words = expand(argument, arguments).split()
            stages.append(Stage(words[0], words[2] if len(words) > 2 else None))
        elif stages:
            stages[-1].steps.append((name, argument))
        else:
            assert name == "ARG"
            key, _, value = argument.partition("=")
            arguments[key] = value
    return stages


def instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split()[0], line.split(maxsplit=1)[1].strip()) for line in joined.splitlines() if line.strip()]


def expand(text: str, values: Mapping[str, str]) -> str:
    """Put the values of ARG and ENV in."""
    return re.sub(r"\$\{?(\w+)\}?", lambda found: values[found[1]], text)

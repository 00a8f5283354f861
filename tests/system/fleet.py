"""Read docker-compose.yml as Compose does, say what is wrong with it, and turn its services into local processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.system import dockerfile, zygote
from tests.system.zygote import Forked

COMPOSE = dockerfile.ROOT / "docker-compose.yml"

DONE = "service_completed_successfully"


def load(path: Path = COMPOSE) -> dict[str, Any]:
    """Return the file with its defaults put in for variables."""
    return interpolate(yaml.safe_load(path.read_text()))


def interpolate(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: interpolate(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [interpolate(inner) for inner in value]
    if not isinstance(value, str):
        return value
    return re.sub(r"\$(\$)|\$\{\w+:-([^}]*)\}", lambda found: found[1] or found[2], value)


def order(services: Mapping[str, Any]) -> list[str]:
    """Return the services' names, each after those it depends on."""
    done: list[str] = []
    while len(done) < len(services):
        ready = [
            name for name in services if name not in done and set(services[name].get("depends_on", ())) <= set(done)
        ]
        assert ready, f"services that wait for each other: {sorted(set(services) - set(done))}"
        done += ready
    return done


def problems(compose: Mapping[str, Any]) -> list[str]:
    """Say what breaks the rules that the fleet relies on."""
    found: list[str] = []
    services = compose["services"]
    awaited = {one for service in services.values() for one in service.get("depends_on", {})}
    found += [f"{name} is depended on and does not exist" for name in sorted(awaited - set(services))]
    for name, service in services.items():
        found += [f"{name}: {problem}" for problem in _of_service(service, compose)]
        for other, how in service.get("depends_on", {}).items():
            runs_on = services.get(other, {}).get("healthcheck", {}).get("disable") is None
            if (how["condition"] == "service_healthy") != runs_on or how["condition"] == "service_started":
                found.append(f"{name}: waits for {other} to be {how['condition']}")
    return found


def _of_service(service: Mapping[str, Any], compose: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for kind in ("secrets", "configs", "networks"):
        names = {one["source"] if isinstance(one, dict) else one for one in service.get(kind, ())}
        found += [f"{kind} {one} is not declared" for one in sorted(names - set(compose[kind]))]
    volumes = {one.split(":")[0] for one in service.get("volumes", ())}
    found += [f"volume {one} is not declared" for one in sorted(volumes - set(compose["volumes"]))]
    tag = service["image"].rpartition(":")[2] if ":" in service["image"] else "latest"
    if tag == "latest" or not re.search(r"\d+\.\d+", tag):
        found.append(f"image {service['image']} has no version")
    if service.get("privileged") or service.get("network_mode") == "host" or service.get("cap_add"):
        found.append("has rights that nobody needs")
    if service.get("cap_drop") != ["ALL"] or service.get("security_opt") != ["no-new-privileges:true"]:
        found.append("keeps rights that it does not need")
    if service.get("read_only") is not True:
        found.append("may write to its image")
    if not service.get("networks"):
        found.append("is on the default network")
    if "container_name" in service or "hostname" in service:
        found.append("cannot be scaled: it has a fixed name")
    found += [f"publishes {port} beyond loopback" for port in service.get("ports", ()) if not port.startswith("127.")]
    if service.get("ports") and all(
        (compose["networks"].get(one) or {}).get("internal") for one in service["networks"]
    ):
        found.append("publishes a port on an internal network")
    health = service.get("healthcheck", {})
    is_one_shot = health.get("disable") is True
    if not health.get("test") and not is_one_shot:
        found.append("has no health check")
    if is_one_shot == (service.get("restart") == "unless-stopped"):
        found.append(f"restart: {service.get('restart')}")
    limits = service.get("deploy", {}).get("resources", {}).get("limits", {})
    found += [f"has no limit of {one}" for one in ("cpus", "memory", "pids") if one not in limits]
    for key, value in service.get("environment", {}).items():
        if re.search("PASSWORD|SECRET|KEY|_URL", key) and not key.endswith("_FILE") and not value.startswith("file:"):
            found.append(f"{key} is a secret in the open")
        if key.endswith("_FILE") and value.removeprefix("/run/secrets/") not in service.get("secrets", ()):
            found.append(f"{key} names a secret that the service does not have")
    return found


@dataclass
class Host:
    """Runs the services that are made from our image as processes here, each with the paths that its container has.

    ``ports`` are the listening ports given to services, which would all be free in containers of their own.
    """

    root: Path
    compose: Mapping[str, Any]
    secrets: Path
    ports: Mapping[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    def paths(self, name: str) -> dict[str, str]:
        """Where the paths that a service may use lie here; what it did not declare is not among them."""
        service = self.compose["services"][name]
        given = self.root / name / "secrets"
        given.mkdir(parents=True, exist_ok=True)
        for secret in service.get("secrets", ()):
            if not (given / secret).is_symlink():  # health checks come by while the service reads it
                (given / secret).symlink_to(self.secrets / secret)
        found = {"/run/secrets": str(given)}
        for one in service.get("configs", ()):
            found[one["target"]] = str(dockerfile.ROOT / self.compose["configs"][one["source"]]["file"])
        for mount in service.get("volumes", ()):
            volume, path = mount.split(":")[:2]
            found[path] = str(self.root / "volumes" / volume)
        for mount in service.get("tmpfs", ()):
            path = mount.split(":")[0]
            found[path] = str(self.root / name / "tmpfs" / path.strip("/").replace("/", "-"))
        for path in found.values():
            if path.startswith(str(self.root)):
                Path(path).mkdir(parents=True, exist_ok=True)
        return found

    def environment(self, name: str) -> dict[str, str]:
        """The whole environment of a service's process: the image's and the service's, nothing of this shell's."""
        service = self.compose["services"][name]
        image = dockerfile.read()[-1].pairs("ENV") if "build" in service else {}
        paths = self.paths(name)
        values = {**image, **service.get("environment", {})}
        values = {key: self._here(value, paths) for key, value in values.items()}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        temporary = {"TMPDIR": paths["/tmp"]} if "/tmp" in paths else {}
        return {**values, **self.ports.get(name, {}), **temporary, "PATH": path}

    def command(self, name: str) -> list[str]:
        """The whole command of a service's process."""
        paths = self.paths(name)
        service = self.compose["services"][name]
        entry = dockerfile.read()[-1].form("ENTRYPOINT") if "build" in service else []
        return [self._here(word, paths) for word in (*entry, *service["command"])]

    def start(self, name: str, *words: str, instance: int = 1) -> subprocess.Popen[bytes] | Forked:
        """Start a service; ``words`` take the place of its command, as in ``docker compose run``."""
        command = [*dockerfile.read()[-1].form("ENTRYPOINT"), *words] if words else self.command(name)
        if command[0] == "carbonq":  # imports take longer than all that these processes do here
            return zygote.start(command[1:], self.environment(name), self.root / f"{name}-{instance}.log")
        with (self.root / f"{name}-{instance}.log").open("ab") as log:
            return subprocess.Popen(
                command, env=self.environment(name), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def run(self, name: str, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run one command of the image with a service's environment, as ``docker compose exec``."""
        command = [*dockerfile.read()[-1].form("ENTRYPOINT"), *words]
        return subprocess.run(
            command, env=self.environment(name), input=given, capture_output=True, timeout=120, check=False
        )

    def health(self, name: str, *more: str) -> int:
        """Run a service's health check once; return its exit status."""
        kind, *words = self.compose["services"][name]["healthcheck"]["test"]
        paths = self.paths(name)
        words = [self._here(word, paths) for word in words]
        command: Sequence[str] = [*words, *more] if kind == "CMD" else ["sh", "-c", *words]
        if command[0] == "carbonq":
            return zygote.start(command[1:], self.environment(name), self.root / f"{name}-health.log").wait(60)
        return subprocess.run(
            command, env=self.environment(name), capture_output=True, timeout=60, check=False
        ).returncode

    @staticmethod
    def _here(text: str, paths: Mapping[str, str]) -> str:
        # In one pass: what a path becomes may hold another one.
        known = "|".join(re.escape(path) for path in sorted(paths, key=len, reverse=True))
        return re.sub(rf"(?<![\w.])({known})(?![\w.-])", lambda found: paths[found[1]], text)

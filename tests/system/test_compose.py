"""docker-compose.yml without an engine: its rules hold, and its services work together as processes of this machine.

What only an engine can show is not shown: that images exist, that mounts, users and limits are granted, the networks.
"""

from __future__ import annotations

import copy
import json
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from carbonq import config
from tests.conftest import require
from tests.system import dockerfile, fleet
from tests.system.processes import until
from tests.system.zygote import Forked

MAKE_SECRETS = dockerfile.ROOT / "ops" / "docker" / "make-secrets"


def test_the_rules_hold() -> None:
    assert fleet.problems(fleet.load()) == []


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(compose: dict[str, Any]) -> None:
        place = compose["services"]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return change


def _drop(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(compose: dict[str, Any]) -> None:
        place = compose
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return change


BROKEN = {
    "redis is depended on and does not exist": _drop("services", "redis"),
    "api: secrets api_key is not declared": _drop("secrets", "api_key"),
    "beat: configs settings is not declared": _drop("configs", "settings"),
    "beat: networks inside is not declared": _drop("networks", "inside"),
    "worker-socal: volume socal is not declared": _drop("volumes", "socal"),
    "redis: image redis has no version": _set("redis", "image", to="redis"),
    "redis: image redis:latest has no version": _set("redis", "image", to="redis:latest"),
    "beat: has rights that nobody needs": _set("beat", "privileged", to=True),
    "beat: keeps rights that it does not need": _set("beat", "cap_drop", to=[]),
    "postgres: may write to its image": _drop("services", "postgres", "read_only"),
    "api: publishes 8750:8750 beyond loopback": _set("api", "ports", to=["8750:8750"]),
    "flower: publishes a port on an internal network": _set("flower", "networks", to=["inside"]),
    "control: is on the default network": _set("control", "networks", to=[]),
    "control: cannot be scaled: it has a fixed name": _set("control", "container_name", to="control"),
    "control: has no health check": _drop("services", "control", "healthcheck"),
    "control: restart: no": _set("control", "restart", to="no"),
    "migrate: restart: unless-stopped": _set("migrate", "restart", to="unless-stopped"),
    "beat: has no limit of memory": _set("beat", "deploy", to={"resources": {"limits": {"cpus": 1, "pids": 9}}}),
    "api: CARBONQ_API_KEY is a secret in the open": _set("api", "environment", "CARBONQ_API_KEY", to="cq-1"),
    "api: CARBONQ_API_KEY_FILE names a secret that the service does not have": _set(
        "api", "secrets", to=["broker_url"]
    ),
    "api: waits for redis to be service_started": _set(
        "api", "depends_on", "redis", to={"condition": "service_started"}
    ),
    "api: waits for migrate to be service_healthy": _set(
        "api", "depends_on", "migrate", to={"condition": "service_healthy"}
    ),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_broken_rule_is_found(problem: str) -> None:
    compose = copy.deepcopy(fleet.load())
    BROKEN[problem](compose)
    assert problem in fleet.problems(compose)


def test_only_the_api_and_flower_are_published_where_they_listen() -> None:
    services = fleet.load()["services"]
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    settings = config.load()
    assert published == {
        "api": [f"127.0.0.1:8750:{settings.port}"],
        "flower": [f"127.0.0.1:5555:{settings.flower_port}"],
    }


def test_every_region_has_a_worker_and_the_gpu_one_is_asked_for() -> None:
    services = fleet.load()["services"]
    regions = set(config.load(**_toml()).regions)
    workers = {
        name: service["command"][-1]
        for name, service in services.items()
        if service.get("command", ["-"])[0] == "worker"
    }
    assert set(workers.values()) == regions
    assert {name for name in workers if "profiles" not in services[name]} == {f"worker-{region}" for region in regions}
    gpu = services["worker-norcal-gpu"]
    assert gpu["profiles"] == ["gpu"]
    assert gpu["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]


def _toml() -> dict[str, Any]:
    import tomllib

    return tomllib.loads((dockerfile.ROOT / "ops" / "docker" / "carbonq.toml").read_text())


def _make_secrets(folder: Path) -> dict[str, str]:
    subprocess.run([str(MAKE_SECRETS), str(folder)], check=True, capture_output=True)
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_secrets_are_made_once_and_fit_together(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    made = _make_secrets(folder)
    assert set(made) == set(fleet.load()["secrets"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o444}
    assert made["postgres_password"].strip() == make_url(made["database_url"].strip()).password
    assert made["redis.conf"].split() == ["requirepass", make_url(made["broker_url"].strip()).password]
    assert len(set(made.values())) == len(made) and all(len(value) > 24 for value in made.values())
    (folder / "api_key").unlink()
    again = _make_secrets(folder)
    assert again["api_key"] != made["api_key"]
    assert {name: value for name, value in again.items() if name != "api_key"} == {
        name: value for name, value in made.items() if name != "api_key"
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Running:
    """The whole fleet but the GPU variant, with two workers of one service."""

    def __init__(self, root: Path, database_url: str) -> None:
        self.compose = fleet.load()
        del self.compose["services"]["worker-norcal-gpu"]
        self.processes: dict[str, subprocess.Popen[bytes] | Forked] = {}
        redis_port = _free_port()
        redis = self.compose["services"]["redis"]
        redis["command"] += ["--port", str(redis_port)]
        redis["healthcheck"]["test"][1] = redis["healthcheck"]["test"][1].replace(
            "redis-cli", f"redis-cli -p {redis_port}"
        )
        place = make_url(database_url)
        postgres = self.compose["services"]["postgres"]
        postgres["healthcheck"]["test"] += ["--port", str(place.port or 5432)]
        secrets = root / "secrets"
        made = _make_secrets(secrets)
        # The machines' names are the engine's to make; the redis password stays.
        self._replace(secrets / "broker_url", made["broker_url"].replace("@redis:6379", f"@127.0.0.1:{redis_port}"))
        self._replace(secrets / "database_url", database_url)
        ports = {
            "api": {"CARBONQ_PORT": str(_free_port())},
            "flower": {"CARBONQ_FLOWER_PORT": str(_free_port())},
        }
        self.host = fleet.Host(root, self.compose, secrets, ports)

    @staticmethod
    def _replace(path: Path, text: str) -> None:
        path.unlink()
        path.write_text(text + "\n")

    def up(self) -> None:
        """Start everything as Compose does: in the order of depends_on, each when those before it are as awaited."""
        services = self.compose["services"]
        healthy: set[str] = set()
        for name in fleet.order(services):
            for other, how in services[name].get("depends_on", {}).items():
                if how["condition"] == fleet.DONE:
                    assert self.processes[other].wait(60) == 0, self.log(other)
                elif other not in healthy:
                    self.await_health(other)
                    healthy.add(other)
            if name != "postgres":  # the machine's own stands for it
                self.processes[name] = self.host.start(name)
        self.processes["worker-socal-2"] = self.host.start("worker-socal", instance=2)
        for name in services:
            if name != "migrate" and name not in healthy:
                self.await_health(name)

    def await_health(self, name: str) -> None:
        def is_healthy() -> bool:
            process = self.processes.get(name)
            assert process is None or process.poll() is None, self.log(name)
            return self.host.health(name) == 0

        until(is_healthy, 60, f"healthy {name}: {self.log(name)}", pause_s=0.5)

    def stop_all(self) -> dict[str, int]:
        """Stop what runs as the engine does and return the exit statuses."""
        del self.processes["migrate"]
        stop_signal = getattr(signal, dockerfile.read()[-1].last("STOPSIGNAL"))
        for process in self.processes.values():
            process.send_signal(stop_signal)
        grace_s = {name: service.get("stop_grace_period", "10s") for name, service in self.compose["services"].items()}
        return {
            name: process.wait(float(grace_s[name.removesuffix("-2")].removesuffix("s")))
            for name, process in self.processes.items()
        }

    def log(self, name: str) -> str:
        path = self.host.root / f"{name}-1.log"
        return path.read_text()[-3000:] if path.exists() else ""

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait(10)


@pytest.fixture
def running(tmp_path: Path, postgres_database_url: str) -> Iterator[Running]:
    for program in ("redis-server", "redis-cli", "pg_isready"):
        if subprocess.run(["which", program], capture_output=True, check=False).returncode:
            require(f"no {program} on PATH")
    made = Running(tmp_path, postgres_database_url)
    with ExitStack() as stack:
        stack.callback(made.kill)
        made.up()
        yield made


@pytest.mark.system
@pytest.mark.timeout(200)
def test_the_services_work_together(running: Running) -> None:
    host = running.host
    made = host.run("api", "keys", "create", "by hand")
    assert made.returncode == 0, made.stderr.decode()
    host.ports["api"]["CARBONQ_API_KEY"] = made.stdout.decode().strip()  # wins over the secret
    # In a hurry: with a later deadline it might be planned for a cleaner window, minutes from now.
    words = ("submit", "embeddings", "-", "--deadline", "70s", "--wait", "-o", "-")
    done = host.run("api", *words, given=b'{"text": "wind and sun"}\n{"text": "coal and gas"}\n')
    assert done.returncode == 0, done.stderr.decode()
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [len(answer["response"]["body"]["data"][0]["embedding"]) for answer in answers] == [256, 256]
    # The key of the secret file opens the API as well.
    del host.ports["api"]["CARBONQ_API_KEY"]
    listed = host.run("api", "jobs", "list", "--json")
    assert listed.returncode == 0, listed.stderr.decode()
    assert [job["state"] for job in json.loads(listed.stdout)] == ["completed"]
    # Two workers of one service share their region's volume and do not hide each other.
    data = Path(host.paths("worker-socal")["/data"])
    assert len(list((data / "run").glob("worker-socal.*.alive"))) == 2
    # A frozen process turns unhealthy, and healthy again when it goes on.
    watched = {name: name.removesuffix("-2") for name in running.processes if name not in {"migrate", "redis"}}
    del watched["worker-socal"]  # its twin is frozen: the one that lives must not hide it
    _send(running, watched, signal.SIGSTOP)

    def turns_unhealthy(service: str) -> None:
        more = () if service in {"api", "flower"} else ("--stale", "3")
        until(lambda: host.health(service, *more) == 1, 30, f"unhealthy {service}", pause_s=1.0)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(turns_unhealthy, watched.values()))
    _send(running, watched, signal.SIGCONT)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(running.await_health, watched.values()))
    # Everything ends in order: what depends on others first.
    redis = running.processes.pop("redis")
    assert running.stop_all() == {name: 0 for name in (*watched, "worker-socal")}
    redis.terminate()
    assert redis.wait(10) == 0
    assert list(host.root.glob("**/*.alive")) == []


def _send(running: Running, names: Iterable[str], number: signal.Signals) -> None:
    for name in names:
        running.processes[name].send_signal(number)

"""More API and control processes beside those of a stack, as a fleet has them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import TracebackType

from carbonq import config
from carbonq.client import Client
from carbonq.embedded import address, ports
from carbonq.embedded.stack import READY_S, Stack
from carbonq.embedded.supervisor import ProcessSpec, Supervisor
from carbonq.errors import CarbonqError


class Copies:
    """``count`` further processes of each kind; a context that begins and ends them."""

    def __init__(self, stack: Stack, count: int, *, report: Callable[[str], None]) -> None:
        """Prepare beside a stack that runs; ``clients`` has its own API first, once the context is entered."""
        self._stack = stack
        self._count = count
        self._supervisor = Supervisor(stack.data_dir / "logs", report=report)
        self.clients: list[Client] = [stack.client()]

    def __enter__(self) -> Copies:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self.clients:
            client.close()
        self._supervisor.stop(())

    def _start(self) -> None:
        for number in range(2, self._count + 2):
            port = ports.choose(address.LOOPBACK, 0, what="the API", setting="CARBONQ_PORT")
            environment = config.environment(self._stack.settings) | {"CARBONQ_PORT": str(port), "OMP_NUM_THREADS": "1"}
            for name in ("control", "control-slow", "api"):
                command = (sys.executable, "-m", "carbonq", "process", name)
                self._supervisor.start(ProcessSpec(f"{name}-{number}", command, environment))
            self.clients.append(Client(f"http://{address.LOOPBACK}:{port}", self._stack.api_key))
        self._supervisor.wait(self._is_ready, what="all processes", timeout_s=READY_S)

    def _is_ready(self) -> bool:
        with contextlib.suppress(CarbonqError):
            return all(client.health().get("status") == "ready" for client in self.clients)
        return False

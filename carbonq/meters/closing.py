"""An engine batch that has ended and whose energy may become known a moment later, because a meter trails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from carbonq.meters.accounts import Account
from carbonq.meters.protocol import MeteredPart, MeterInfo

if TYPE_CHECKING:
    from carbonq.meters.hub import Hub


class Closing:
    """Stands for the engine batch; from ``Hub.finish``."""

    def __init__(self, hub: Hub, account: Account) -> None:
        self._hub = hub
        self._account = account

    @property
    def is_known(self) -> bool:
        """Say whether ``result`` returns at once."""
        return self._account.is_known

    def wait(self, timeout_s: float) -> bool:
        """Wait at most so long; say whether everything is known now."""
        return self._hub.wait_for(self._account, timeout_s)

    def so_far(self) -> tuple[tuple[MeteredPart, ...], MeterInfo]:
        """Return the parts with what was read up to now; a component not read for yet is None."""
        return self._hub.read_account(self._account)

    def when_known(self, act: Callable[[], None]) -> None:
        """Call ``act`` once everything is known: now, or soon from the thread that reads; at the latest at the end."""
        if self.is_known or not self._hub.call_when_known(self._account, act):
            self.result()
            act()

    def result(self) -> tuple[tuple[MeteredPart, ...], MeterInfo]:
        """Return the parts, one a window, and how they were obtained; waits at most the longest lag of the meters."""
        self._hub.wait_for(self._account, None)
        return self._hub.read_account(self._account)

"""Work on many things so that what goes wrong with one holds up no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from carbonq.errors import StoreUnavailable

_Thing = TypeVar("_Thing")
_Named = TypeVar("_Named", bound=Hashable)

#: A thing that went wrong is let be for this long, twice as long each time, up to a limit, in machine seconds.
FIRST_PAUSE_S = 2.0
MAX_PAUSE_S = 60.0


def each(things: Iterable[_Thing], act: Callable[[_Thing], int]) -> int:
    """Act on each thing and return the sum of what that said.

    Raises StoreUnavailable at once, for it would meet all of them; any other error, the first, once all had their turn.
    """
    done, defects = 0, list[Exception]()
    for thing in things:
        try:
            done += act(thing)
        except StoreUnavailable:
            raise
        except Exception as defect:  # raised below
            defects.append(defect)
    if defects:
        raise defects[0]
    return done


def halved(
    things: Sequence[_Named], act: Callable[[Sequence[_Named]], int], defects: dict[_Named, Exception], *, most: int
) -> int:
    """Act on things together, in halves where that goes wrong; return the sum of what that said.

    ``act`` does all of it or nothing. What goes wrong alone is put into ``defects``; once there are ``most`` of them
    nothing more is tried, for then it is hardly one thing's fault. n things of which k go wrong take about k log2(n)
    turns. Raises StoreUnavailable at once.
    """
    if len(defects) >= most or not things:
        return 0
    try:
        return act(things)
    except StoreUnavailable:
        raise
    except Exception as defect:
        if len(things) == 1:
            defects[things[0]] = defect
            return 0
    middle = len(things) // 2
    return sum(halved(half, act, defects, most=most) for half in (things[:middle], things[middle:]))


class Postponed:
    """Remembers what went wrong lately, for one process; a restart forgets it, which costs one more try of each."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing; ``now_s`` is machine time."""
        self._now_s = now_s
        self._until: dict[str, tuple[float, float]] = {}  # name: not before, pause

    def __len__(self) -> int:
        """Count what is remembered."""
        return len(self._until)

    def due(self, names: Sequence[str], limit: int) -> list[str]:
        """Return the first of all the names there are whose pause is over; forget what is not among the names."""
        now_s, known = self._now_s(), set(names)
        self._until = {name: pause for name, pause in self._until.items() if name in known}
        return [name for name in names if name not in self._until or self._until[name][0] <= now_s][:limit]

    def put_off(self, name: str) -> None:
        """Note that something went wrong with a thing."""
        _, before_s = self._until.get(name, (0.0, FIRST_PAUSE_S / 2))
        pause_s = min(2 * before_s, MAX_PAUSE_S)
        self._until[name] = self._now_s() + pause_s, pause_s

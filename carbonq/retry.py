"""When to try again. Pure: chance is an argument."""

from __future__ import annotations

#: Machine seconds before the second attempt.
BASE_S = 2.0

#: Longest wait between attempts, in machine seconds.
CAP_S = 300.0

#: Error code of an item whose attempts were used up; its error line is written when the job finishes.
ATTEMPTS_EXHAUSTED = "attempts_exhausted"


def backoff_s(attempt: int, *, base: float = BASE_S, cap: float = CAP_S, jitter: float) -> float:
    """Return the machine seconds to wait after the counted attempt number ``attempt`` (1, 2, ...) failed.

    Doubles from ``base`` up to ``cap``. ``jitter`` in [0, 1) takes up to half of it off, so that chunks that failed
    together do not come back together.
    """
    if attempt < 1:
        raise ValueError(f"attempt {attempt} is below 1")
    # 2**60 already exceeds any cap, and larger exponents overflow a float.
    wait = min(cap, base * 2.0 ** min(attempt - 1, 60))
    return wait * (1.0 - jitter / 2.0)

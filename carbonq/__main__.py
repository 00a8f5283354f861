"""``python -m carbonq`` is the command ``carbonq``."""

from __future__ import annotations

from carbonq.cli.main import main

if __name__ == "__main__":
    main()

"""Where a PDF's fonts are: DejaVu (Latin, Greek, Cyrillic and more), which matplotlib brings; it draws nothing here."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from carbonq.errors import ConfigError

#: Family and style in the PDF -> file.
_FILES = {("sans", ""): "DejaVuSans.ttf", ("sans", "B"): "DejaVuSans-Bold.ttf", ("mono", ""): "DejaVuSansMono.ttf"}


def missing() -> ConfigError:
    """Return what is said where the packages for PDFs are not installed."""
    return ConfigError("a PDF needs packages that are not installed: pip install 'carbonq[report]'; HTML needs none")


def files() -> dict[tuple[str, str], Path]:
    """Return the file of each family and style. Raises ConfigError where matplotlib is not installed."""
    found = find_spec("matplotlib")
    if found is None or found.origin is None:
        raise missing()
    folder = Path(found.origin).parent / "mpl-data" / "fonts" / "ttf"
    return {font: folder / name for font, name in _FILES.items()}

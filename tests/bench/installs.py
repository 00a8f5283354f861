"""What each extra costs to install from the index: ``python -m tests.bench.installs [-o FIGURES.json] [EXTRA ...]``.

Each goes into an environment of its own, from wheels only (nothing is compiled) and without pip's cache; the JSON names
seconds, CPU seconds, megabytes on disk, packages and the five largest. ``--torch VERSION`` is installed first where
sentence-transformers is wanted, because an unpinned torch may be a CUDA build of several gigabytes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]

EXTRAS = ("base", "embedded", "llama", "parquet", "plot", "postgres", "s3", "sentence-transformers", "all")


def measure(wheel: Path, extra: str, folder: Path, *, torch: str | None = None) -> dict[str, Any]:
    """Install the wheel with an extra into a new environment, use it a little, and return its figures."""
    home = folder / extra
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--no-cache-dir"]
    install = [*pip, "install", "--quiet", "--only-binary", ":all:"]
    target = str(wheel) if extra == "base" else f"{wheel}[{extra}]"
    began, burnt = time.perf_counter(), _cpu_s()
    if torch is not None and extra in ("sentence-transformers", "all"):
        subprocess.run([*install, f"torch=={torch}"], check=True, capture_output=True)
    subprocess.run([*install, target], check=True, capture_output=True, text=True)
    figures = {"extra": extra, "seconds": round(time.perf_counter() - began, 1), "cpu_s": round(_cpu_s() - burnt, 1)}
    [site] = home.glob("lib/python*/site-packages")
    figures |= _sizes(site)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(home / "bin" / "carbonq"), "models", "list", "--json"]
    listed = subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True).stdout
    figures["ready_models"] = [model["name"] for model in json.loads(listed) if model["is_ready"]]
    return figures


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _sizes(site: Path) -> dict[str, Any]:
    sizes: dict[str, int] = {}
    for path in site.rglob("*"):
        if path.is_file() and not path.is_symlink():
            name = path.relative_to(site).parts[0]
            sizes[name] = sizes.get(name, 0) + path.stat().st_size
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:5]
    return {
        "mb": round(sum(sizes.values()) / 1e6),
        "packages": len(list(site.glob("*.dist-info"))),
        "largest_mb": {name: round(size / 1e6) for name, size in largest},
    }


def main() -> None:
    """Measure and print or write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", default=EXTRAS, metavar="EXTRA")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--torch", metavar="VERSION")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="carbonq-installs-") as scratch:
        folder = Path(scratch)
        command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist")]
        subprocess.run([*command, str(CHECKOUT)], check=True, capture_output=True)
        [wheel] = (folder / "dist").glob("*.whl")
        figures: list[dict[str, Any]] = []
        for extra in asked.extras:
            figures.append(measure(wheel, extra, folder, torch=asked.torch))
            sys.stderr.write(f"{json.dumps(figures[-1])}\n")
    written = json.dumps(figures, indent=2) + "\n"
    if asked.output is None:
        sys.stdout.write(written)
    else:
        asked.output.write_text(written)


if __name__ == "__main__":
    main()

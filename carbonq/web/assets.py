"""Static files under names that hold a hash of their content, so that browsers may keep them for a year."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import Response

from carbonq.errors import NotFound

router = APIRouter()

_FOLDER = Path(__file__).parent / "static"

_MEDIA_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class _Asset:
    data: bytes
    media_type: str


def _load() -> tuple[Mapping[str, str], Mapping[str, _Asset]]:
    paths, found = dict[str, str](), dict[str, _Asset]()
    for file in sorted(_FOLDER.iterdir()):
        data = file.read_bytes()
        name = f"{file.stem}.{hashlib.sha256(data).hexdigest()[:12]}{file.suffix}"
        paths[file.name] = f"/static/{name}"
        found[name] = _Asset(data, _MEDIA_TYPES[file.suffix])
    return paths, found


_PATHS, _ASSETS = _load()


def path_of(name: str) -> str:
    """Return where a static file is, by its plain name."""
    return _PATHS[name]


@router.get("/static/{name}", include_in_schema=False)
async def static(name: str) -> Response:
    """Return a static file. Raises NotFound."""
    asset = _ASSETS.get(name)
    if asset is None:
        raise NotFound(f"there is no file {name!r}")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
    return Response(asset.data, media_type=asset.media_type, headers=headers)

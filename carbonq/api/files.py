"""OpenAI's Files API: inputs of batches come in as they stream, results of batches go out with Range."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from carbonq import ids, terms
from carbonq.api import terms as carried
from carbonq.api import views
from carbonq.api.auth import needs
from carbonq.api.body import drain, pieces
from carbonq.api.context import Api, ApiDep, CallerDep
from carbonq.api.download import download
from carbonq.api.multipart import Form
from carbonq.api.openapi import Content, gives, operation, sends
from carbonq.api.shapes.batches import Deleted, FilePage, NewFile
from carbonq.api.shapes.batches import File as FileShape
from carbonq.errors import InvalidRequest
from carbonq.model import Scope
from carbonq.services import files as intake
from carbonq.store import admin_log, files
from carbonq.store.admin_log import Action
from carbonq.store.files import File

router = APIRouter(prefix="/v1/files")

_SENT = ("Accept-Ranges", "Content-Disposition", "ETag", "Last-Modified")

_LINE = '{"id": "batch_req_1", "custom_id": "a-1", "response": {"status_code": 200, "body": {}}, "error": null}\n'

#: Files on one page at most, as OpenAI has it.
MAX_PAGE = 10_000

#: How long an input is kept where nobody says otherwise, as OpenAI keeps it.
INPUT_KEPT = timedelta(days=30)

#: Seconds that ``expires_after`` may ask for.
MIN_KEPT_S, MAX_KEPT_S = 3600, 2_592_000

#: The file is handed to the disk in pieces of this many bytes: one thread hop each.
_PIECE_BYTES = 1024 * 1024

#: Bytes that a form has beside its file.
_FORM_BYTES = 64 * 1024

#: Of a refused upload, this much beyond what would have been taken is read and dropped, so that the answer gets
#: through: a connection closed with unread input is reset, and the client would see a broken pipe.
_DRAIN_BYTES = 8 * 1024 * 1024


@router.post(
    "",
    dependencies=[needs(Scope.SUBMIT)],
    **operation(
        "upload_file",
        "openai",
        answers={200: gives(FileShape)},
        errors=(
            "disk_full",
            "empty_file",
            "incomplete_upload",
            "invalid_json_line",
            "invalid_multipart",
            "line_too_long",
            "request_timeout",
            "request_too_large",
            "too_many_tasks",
            "unknown_parameter",
            "unsupported_encoding",
            "unsupported_media_type",
        ),
        body={"multipart/form-data": Content(NewFile)},
    ),
)
async def upload(request: Request, api: ApiDep, caller: CallerDep) -> dict[str, Any]:
    """Store a file of batch requests: parts ``purpose`` and ``file``, optionally ``expires_after[seconds]``."""
    form = Form(request.headers.get("content-type", ""))
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdecimal() and int(declared[:18]) > api.limits.max_input_bytes + _FORM_BYTES:
        await drain(request)
        raise intake.too_large(api.limits.max_input_bytes)
    staged = await anyio.to_thread.run_sync(api.blobs.stage)
    limits = api.limits
    taking = intake.Intake(
        staged,
        max_bytes=limits.max_input_bytes,
        max_lines=limits.max_items,
        max_line_bytes=limits.max_line_bytes,
    )
    try:
        await _receive(request, form, taking, limits.max_input_bytes)
        now = api.clock.now()
        file = _described(form, now, request.headers)
    except BaseException:
        staged.discard()  # also on cancellation, where awaiting is not allowed any more
        raise
    size, lines = staged.size, taking.lines
    file_id = ids.new("file", "-")
    made = File(
        file_id=file_id,
        tenant=caller.tenant,
        api_key_id=caller.api_key_id,
        bytes=size,
        lines=lines,
        blob=files.blob_key(file_id),
        created_at=now,
        **file,
    )
    await anyio.to_thread.run_sync(intake.store, api.db, api.blobs, staged, made)
    return file_view(made)


async def _receive(request: Request, form: Form, taking: intake.Intake, limit: int) -> None:
    """Read the whole body, or after an error as much of it as lets the answer get through. Raises InvalidRequest."""
    refused: InvalidRequest | None = None
    came = 0
    async for piece in pieces(request):
        came += len(piece)
        if refused is not None:
            if came > limit + _DRAIN_BYTES:
                break
            continue
        try:
            if came > limit + _FORM_BYTES and form.filename is None:
                raise InvalidRequest(f"the body has more than {limit:,} bytes and no file", code="request_too_large")
            form.feed(piece)
            if form.pending_bytes >= _PIECE_BYTES:
                await anyio.to_thread.run_sync(taking.write, form.take())
        except InvalidRequest as error:
            refused = error
    if refused is not None:
        raise refused
    if not form.is_whole:
        raise InvalidRequest("the upload was cut off before its last boundary; send it again", code="incomplete_upload")
    if form.filename is None:
        raise InvalidRequest("file is missing; send the requests as the part `file`, with a file name", param="file")

    def finish() -> None:
        taking.write(form.take())
        taking.finish()

    await anyio.to_thread.run_sync(finish)


def _described(form: Form, now: datetime, headers: Mapping[str, str]) -> dict[str, Any]:
    """Return what the form's fields say of the file. Raises InvalidRequest naming the field."""
    given: dict[str, str] = {}
    asked: list[tuple[str, str]] = []
    for name, value in form.fields:
        if name.startswith("carbon["):
            asked.append((name, value))
        elif name not in {"purpose", "expires_after[anchor]", "expires_after[seconds]"}:
            raise InvalidRequest(
                f"{name} is not known; known: purpose, file, expires_after[anchor], expires_after[seconds] and "
                "carbon[...]",
                param=name,
                code="unknown_parameter",
            )
        elif name in given:
            raise InvalidRequest(f"{name} is given twice", param=name)
        else:
            given[name] = value
    if given.get("purpose") != "batch":
        state = f"is {given['purpose']!r}" if "purpose" in given else "is missing"
        raise InvalidRequest(f"purpose {state}; carbonq takes files of batch requests: purpose batch", param="purpose")
    carbon = terms.flattened(asked)
    # Read for its errors alone: a span counts from the batch's creation, not from the upload.
    carried.read(now=now, takes=terms.BATCH_KEYS, body=carbon, headers=headers)
    carbon = carried.of_headers(headers, terms.BATCH_KEYS) | carbon
    return {
        "purpose": "batch",
        "filename": form.filename,
        "carbon": carbon or None,
        "expires_at": now + (_kept(given) or INPUT_KEPT),
    }


def _kept(given: Mapping[str, str]) -> timedelta | None:
    anchor, seconds = given.get("expires_after[anchor]"), given.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    is_number = seconds is not None and seconds.isascii() and seconds.isdecimal() and len(seconds) < 20
    return kept_after({"anchor": anchor, "seconds": int(str(seconds)) if is_number else seconds})


def kept_after(value: object, *, param: str = "expires_after") -> timedelta | None:
    """Read ``{"anchor": "created_at", "seconds": N}``; None for None. Raises InvalidRequest."""
    if value is None:
        return None
    given: Mapping[Any, Any] = value if isinstance(value, dict) else {}
    seconds: object = given.get("seconds")
    if given.get("anchor") != "created_at" or set(given) != {"anchor", "seconds"}:
        raise InvalidRequest(
            f'{param} must be {{"anchor": "created_at", "seconds": {MIN_KEPT_S} to {MAX_KEPT_S}}}', param=param
        )
    if not isinstance(seconds, int) or isinstance(seconds, bool) or not MIN_KEPT_S <= seconds <= MAX_KEPT_S:
        raise InvalidRequest(
            f"{param}.seconds is {seconds!r}; it must be a whole number from {MIN_KEPT_S:,} to {MAX_KEPT_S:,}",
            param=f"{param}.seconds",
        )
    return timedelta(seconds=seconds)


@router.get("", dependencies=[needs(Scope.READ)], **operation("list_files", "openai", answers={200: gives(FilePage)}))
def list_files(  # noqa: PLR0917 (a query parameter each)
    api: ApiDep,
    caller: CallerDep,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> dict[str, Any]:
    """List the caller's files, newest first."""
    if purpose is not None and purpose not in files.PURPOSES:
        raise InvalidRequest(f"purpose {purpose!r} is not one of {', '.join(files.PURPOSES)}", param="purpose")
    with api.db.read() as tx:
        found = files.page(
            tx, caller.tenant, api.clock.now(), after=after, limit=limit + 1, purpose=purpose, order=order
        )
    return views.page_view([file_view(file) for file in found[:limit]], has_more=len(found) > limit)


@router.get(
    "/{file_id}",
    dependencies=[needs(Scope.READ)],
    **operation("get_file", "openai", answers={200: gives(FileShape)}, errors=(("not_found", 404),)),
)
def get_file(file_id: str, api: ApiDep, caller: CallerDep) -> dict[str, Any]:
    """Return what is known of a file."""
    return file_view(_file(api, file_id, caller.tenant))


@router.delete(
    "/{file_id}",
    dependencies=[needs(Scope.SUBMIT)],
    **operation("delete_file", "openai", answers={200: gives(Deleted)}, errors=(("not_found", 404),)),
)
def delete_file(file_id: str, api: ApiDep, caller: CallerDep) -> dict[str, Any]:
    """Delete a file; a batch that reads it goes on reading it to its end."""
    now = api.clock.now()
    with api.db.write() as tx:
        file = files.get(tx, file_id, caller.tenant, now, is_locked=True)
        files.mark_deleted(tx, file_id, caller.tenant, now)
        before = {"filename": file.filename, "bytes": file.bytes, "purpose": file.purpose}
        who = caller.api_key_id or "settings"
        admin_log.append(tx, Action(who, "file.deleted", file_id, caller.tenant, before=before))
    return {"id": file_id, "object": "file", "deleted": True}


@router.get(
    "/{file_id}/content",
    dependencies=[needs(Scope.READ)],
    **operation(
        "get_file_content",
        "openai",
        answers={
            200: sends("application/octet-stream", "The whole file.", headers=_SENT, example=_LINE),
            206: sends("application/octet-stream", "The range.", headers=(*_SENT, "Content-Range"), example=_LINE),
        },
        errors=(("not_found", 404), "range_not_satisfiable"),
        headers=("Range", "If-Range"),
    ),
)
def content(request: Request, file_id: str, api: ApiDep, caller: CallerDep) -> Response:
    """Return the bytes of a file, streamed, with Range."""
    file = _file(api, file_id, caller.tenant)
    return download(
        api.blobs,
        file.blob,
        filename=re.sub(r"[^A-Za-z0-9._-]", "_", file.filename),
        media_type="application/octet-stream",
        asked=request.headers.get("range"),
        if_range=request.headers.get("if-range"),
    )


def _file(api: Api, file_id: str, tenant: str) -> File:
    with api.db.read() as tx:
        return files.get(tx, file_id, tenant, api.clock.now())


def file_view(file: File) -> dict[str, Any]:
    """Return OpenAI's FileObject; times are whole unix seconds."""
    view: dict[str, Any] = {
        "id": file.file_id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at.timestamp()),
        "expires_at": None if file.expires_at is None else int(file.expires_at.timestamp()),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
        "lines": file.lines,
    }
    return view if file.carbon is None else view | {"carbon": dict(file.carbon)}

"""GET /v1/jobs/{id}/results and /errors: the assembled files, streamed, with Range for a broken download."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from carbonq.api.auth import needs
from carbonq.api.context import Api, ApiDep, CallerDep
from carbonq.api.download import download
from carbonq.api.openapi import operation, sends
from carbonq.errors import Conflict, NotFound
from carbonq.model import Scope
from carbonq.store import jobs
from carbonq.units import iso

router = APIRouter(prefix="/v1/jobs", dependencies=[needs(Scope.READ)])

MEDIA_TYPE = "application/x-ndjson"


_HEADERS = ("Accept-Ranges", "Content-Disposition", "ETag", "Last-Modified")

_LINE = '{"id": "batch_req_1", "custom_id": "a-1", "response": {"status_code": 200, "body": {}}, "error": null}\n'


def _file_operation(name: str, says: str) -> dict[str, Any]:
    return operation(
        name,
        "jobs",
        answers={
            200: sends(MEDIA_TYPE, says, headers=_HEADERS, example=_LINE),
            206: sends(MEDIA_TYPE, "The range that was asked for.", headers=(*_HEADERS, "Content-Range")),
        },
        errors=("job_not_final", "not_found", "range_not_satisfiable", "results_in_batch", "results_removed"),
        headers=("If-Range", "Range"),
    )


@router.get("/{job_id}/results", **_file_operation("get_results", "The output file."))
def results(request: Request, job_id: str, api: ApiDep, caller: CallerDep) -> Response:
    """Return the output file: one OpenAI line for each item that succeeded; 409 before the job is final."""
    return _file(request, api, job_id, caller.tenant, "results")


@router.get("/{job_id}/errors", **_file_operation("get_errors", "The error file."))
def errors(request: Request, job_id: str, api: ApiDep, caller: CallerDep) -> Response:
    """Return the error file: one OpenAI line for each item that did not succeed; 409 before the job is final."""
    return _file(request, api, job_id, caller.tenant, "errors")


def _file(request: Request, api: Api, job_id: str, tenant: str, what: str) -> Response:
    with api.db.read() as tx:
        job = jobs.get(tx, job_id, tenant)
    if not job.is_final:
        raise Conflict(
            f"job {job_id} is {job.state}: {job.items_ended} of {job.items_total} items have ended; "
            f"its {what} can be read when it is final",
            code="job_not_final",
        )
    if job.retired_at is not None and job.batch_id is not None:
        raise NotFound(
            f"the {what} of job {job_id} are in the files of its batch: GET /v1/batches/{job.batch_id} names them",
            code="results_in_batch",
        )
    if job.retired_at is not None:
        raise NotFound(
            f"the files of job {job_id} were kept until {iso(job.retired_at)} and are removed; its ledger entries stay",
            code="results_removed",
        )
    blob = job.output_blob if what == "results" else job.error_blob
    if blob is None:
        return Response(b"", media_type=MEDIA_TYPE)  # no such line: an empty file, not a missing one
    return download(
        api.blobs,
        blob,
        filename=f"{job_id}.{what}.jsonl",
        media_type=MEDIA_TYPE,
        asked=request.headers.get("range"),
        if_range=request.headers.get("if-range"),
    )

"""Write the lines of output and error files, and the ``usage`` of an answer. Pure; OpenAI's shapes, plus ``carbon``."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson

from carbonq.engines.protocol import EngineResult
from carbonq.ledger import ItemFigures
from carbonq.model import Endpoint
from carbonq.units import wh


def carbon(figures: ItemFigures, region: str, g_per_kwh: Decimal | None) -> dict[str, Any]:
    """Return the ``carbon`` object of one item; None where a figure is not known."""
    return {
        "energy_wh": None if figures.energy_uj is None else wh(figures.energy_uj),
        "gco2e": None if figures.emission_g is None else float(figures.emission_g),
        "intensity_g_per_kwh": None if g_per_kwh is None else float(g_per_kwh),
        "region": region,
        "signal": "marginal",
        "quality": figures.quality.value,
        "status": figures.status.value,
    }


def usage(result: EngineResult, endpoint: Endpoint) -> dict[str, Any]:
    """Return OpenAI's ``usage`` of an answer, without carbon; counts that are estimates say so."""
    total = result.prompt_tokens + result.completion_tokens
    marked = {"is_estimated": True} if result.is_estimated else {}
    if endpoint is Endpoint.EMBEDDINGS:
        return {"prompt_tokens": result.prompt_tokens, "total_tokens": total, **marked}
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "total_tokens": total,
        "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
        **marked,
    }


def body(body_json: bytes, used: Mapping[str, Any]) -> bytes:
    """Add ``usage`` to an answer's body without decoding it (vectors are long)."""
    return b"".join((body_json.rstrip()[:-1], b',"usage":', orjson.dumps(used), b"}"))


def output_line(custom_id: str, request_id: str, body_json: bytes, used: Mapping[str, Any]) -> bytes:
    """Return the output file's line of an item that succeeded."""
    return b"".join(
        (
            b'{"id":"batch_',
            request_id.encode(),
            b'","custom_id":',
            orjson.dumps(custom_id),
            b',"response":{"status_code":200,"request_id":"',
            request_id.encode(),
            b'","body":',
            body_json.rstrip()[:-1],
            b',"usage":',
            orjson.dumps(used),
            b'}},"error":null}\n',
        )
    )


def error_line(custom_id: str, request_id: str, result: EngineResult) -> bytes:
    """Return the error file's line of an item that failed by itself."""
    kind = "invalid_request_error" if result.status_code < 500 else "server_error"
    error = {
        "message": result.error_message,
        "type": kind,
        "param": result.error_param,
        "code": result.error_code,
    }
    return orjson.dumps(
        {
            "id": f"batch_{request_id}",
            "custom_id": custom_id,
            "response": {"status_code": result.status_code, "request_id": request_id, "body": {"error": error}},
            "error": None,
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )

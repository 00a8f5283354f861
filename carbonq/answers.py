"""Write the lines of output and error files, and the ``usage`` of an answer. Pure; OpenAI's shapes, plus ``carbon``.

Figures of ``carbon`` are JSON numbers with all their digits: read with exact decimals, they equal the ledger's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import orjson

from carbonq.booking import METHOD, BaselineAt, Figures, PartRates
from carbonq.engines.protocol import EngineResult
from carbonq.model import Endpoint, Placement, Rate, RateStatus
from carbonq.units import LEDGER_CONTEXT, UJ_PER_KWH, grams_text, iso, plain

#: Why planned work ran where and when it did, by the plan's word for it.
_WHY = {
    "at_once": "ran at once in the home region: the job was only observed, or held out to measure what planning saves",
    "carbon": "the least carbon that all waiting work together allowed, deadlines first",
    "deadline": "its deadline left no choice of window",
    "late": "it could not be in time: the earliest that was to be had",
    "overlay": "no carbon rate was known: the earliest window of the nearest region, deadlines first",
}

_UJ_PER_WH = UJ_PER_KWH // 1000

#: Decimals of a rate that is the mean of several windows', in g/kWh.
_MEAN_QUANTUM = Decimal("0.000001")


def why(placement: Placement | None) -> dict[str, Any] | None:
    """Return why planned work was where it was, and the forecast that decided it; None without a placement."""
    if placement is None:
        return None
    return {
        "reason": placement.reason,
        "sentence": _WHY.get(placement.reason, placement.reason),
        "planned_region": placement.region,
        "planned_window": iso(placement.window_at),
        "forecast_signal": placement.signal.value,
        "forecast_g_per_kwh": _decimal(placement.g_per_kwh),
        "forecast_issued_at": None if placement.issued_at is None else iso(placement.issued_at),
    }


def carbons(figures: Figures, because: Mapping[str, Any] | None) -> list[bytes]:
    """Return the ``carbon`` object of each item as JSON; null where a figure is not known.

    Figures of an item that ran in several windows are the exact sums of its entries'. ``because`` becomes ``why``.
    """
    shared = _shared(figures, because)
    tails = {one: f'"baseline":{_baseline(one)},{shared}' for one in set(figures.baselines)}
    batch, further = figures.engine_batch_id.encode(), range(2, len(figures.parts) + 1)
    pue_num, pue_den = figures.pue.as_integer_ratio()
    facility_den = pue_den * _UJ_PER_WH
    columns = (figures.energies_uj, figures.emissions, figures.inventories, figures.savings, figures.alternatives)
    # Items of as many tokens mostly have the same figures: what is alike but for the entries is written once.
    known: dict[tuple[object, ...], bytes] = {}
    found: list[bytes] = []
    for position, values in enumerate(zip(*columns, figures.baselines, strict=True)):
        rest = known.get(values)
        if rest is None:
            energy, emission, inventory, saved, alternative, baseline = values
            if energy is None:
                amounts = '"energy_uj":null,"energy_wh":null,"facility_energy_wh":null'
            else:
                amounts = (
                    f'"energy_uj":{energy},"energy_wh":{energy / _UJ_PER_WH!r},'
                    f'"facility_energy_wh":{energy * pue_num / facility_den!r}'
                )
            rest = known[values] = (
                f'{amounts},"gco2e":{_grams(emission)},"inventory_gco2e":{_grams(inventory)},'
                f'"saved_gco2e":{_grams(saved)},"baseline_gco2e":{_grams(alternative)},{tails[baseline]}}}'
            ).encode()
        more = b"".join(b',"%b.%d.%d"' % (batch, part, position) for part in further) if further else b""
        found.append(b'{"entry_ids":["%b.1.%d"%b],%b' % (batch, position, more, rest))
    return found


def _grams(quanta: int | None) -> str:
    return "null" if quanta is None else grams_text(quanta)


def _decimal(value: Decimal | None) -> orjson.Fragment | None:
    """Return a decimal as a JSON number with all its digits."""
    return None if value is None else orjson.Fragment(plain(value))


def _baseline(at: BaselineAt | None) -> str:
    if at is None:
        return "null"
    status = None if at.status is None else at.status.value
    return orjson.dumps({"region": at.region, "window": iso(at.window_at), "status": status}).decode()


def _shared(figures: Figures, because: Mapping[str, Any] | None) -> str:
    """Write what the items of an engine batch have in common, without the braces."""
    values = {
        "region": figures.region,
        "signal": "marginal",
        "intensity_g_per_kwh": _decimal(intensity(figures.parts)),
        "pue": _decimal(figures.pue),
        "quality": figures.quality.value,
        "status": figures.status.value,
        "inventory_status": figures.inventory_status.value,
        "method": METHOD,
        "requested_model": figures.requested_model,
        "downgraded": figures.downgraded and figures.downgraded.value,
        "windows": [
            {
                "window": iso(part.window_at),
                "moer": _rate(part.moer, part.moer_status),
                "aer": _rate(part.aer, part.aer_status),
            }
            for part in figures.parts
        ],
        "why": because,
    }
    return orjson.dumps(values).decode()[1:-1]


def _rate(rate: Rate | None, status: RateStatus) -> dict[str, Any] | None:
    if rate is None:
        return None
    return {
        "g_per_kwh": _decimal(rate.g_per_kwh),
        "at": iso(rate.window_at),
        "issued_at": None if rate.issued_at is None else iso(rate.issued_at),
        "source": rate.source,
        "status": status.value,
    }


def intensity(parts: Sequence[PartRates]) -> Decimal | None:
    """Return the marginal rate; over several windows their mean by the engine batch's energy. None: not known."""
    if len(parts) == 1:
        return None if parts[0].moer is None else parts[0].moer.g_per_kwh
    total, weighted = 0, Decimal(0)
    for part in parts:
        if part.moer is None or part.energy_uj is None:
            return None
        total += part.energy_uj
        weighted = LEDGER_CONTEXT.add(weighted, LEDGER_CONTEXT.multiply(part.energy_uj, part.moer.g_per_kwh))
    return LEDGER_CONTEXT.divide(weighted, Decimal(total)).quantize(_MEAN_QUANTUM) if total else None


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
        "completion_tokens_details": {"reasoning_tokens": None},  # no engine counts them apart
        **marked,
    }


def with_carbon(used: Mapping[str, Any], carbon: bytes) -> bytes:
    """Return ``usage`` with its ``carbon`` as JSON."""
    return b"".join((orjson.dumps(used)[:-1], b',"carbon":', carbon, b"}"))


def body(body_json: bytes, used: bytes) -> bytes:
    """Add ``usage`` (JSON) to an answer's body without decoding it (vectors are long)."""
    return b"".join((body_json.rstrip()[:-1], b',"usage":', used, b"}"))


def output_line(custom_id: str, request_id: str, body_json: bytes, used: bytes) -> bytes:
    """Return the output file's line of an item that succeeded; ``used`` is its usage as JSON."""
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
            used,
            b'}},"error":null}\n',
        )
    )


def failed_usage(result: EngineResult, endpoint: Endpoint, carbon: bytes) -> bytes | None:
    """Return the usage of an item that failed, which took energy all the same; None where nothing is known of it.

    Its tokens stand there where the engine told any: 0 would say that there were none.
    """
    if carbon == b"null":
        return None
    has_tokens = result.prompt_tokens + result.completion_tokens > 0
    return with_carbon(usage(result, endpoint), carbon) if has_tokens else b'{"carbon":%b}' % carbon


def error_line(custom_id: str, request_id: str, result: EngineResult, used: bytes | None = None) -> bytes:
    """Return the error file's line of an item that failed by itself; ``used`` is its usage as JSON."""
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
            "response": {
                "status_code": result.status_code,
                "request_id": request_id,
                "body": {"error": error} | ({} if used is None else {"usage": orjson.Fragment(used)}),
            },
            "error": None,
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )

"""Rows as older versions wrote them, table by table, and how to put them into a database of an older schema.

Spelled out here and not taken from the code of today: a column that was renamed or dropped since must be in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from carbonq import rooms
from carbonq.store import keys
from carbonq.store.database import Database, Tx
from carbonq.store.dialect import ExactDecimal, Json, UtcDateTime
from tests.unit.bookings import book, rate_book

T0 = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
WINDOW = timedelta(minutes=5)

KEY = "cq-an-old-key"

_RATE = {"gas": "co2", "method": None, "model": "2026-01", "step_s": 300, "is_estimated": False, "may_settle": True}

#: Beside the ledger's rows, which are as ``booking`` makes them. JSON values are lists and dictionaries.
ROWS: Mapping[str, Mapping[str, list[dict[str, Any]]]] = {
    "0001": {
        "clocks": [{"clock_id": 1, "kind": "real", "factor": 1.0, "machine_epoch": T0, "grid_epoch": T0}],
        "regions": [
            {
                "region": name,
                "zone": zone,
                "slots": 2,
                "realtime_slots": 1,
                "pue": Decimal("1.20"),
                "pue_source": "stated",
                "hardware": "cpu",
                "latency_ms": 5.0,
                "ownership": "owned",
                "models": ["words"],
                "embodied_kg": Decimal("1300.5"),
                "life_h": Decimal(35_000),
                "state": "paused",
                "is_configured": True,
                "updated_at": T0,
            }
            for name, zone in (("home", "Z-HOME"), ("away", "Z-AWAY"))
        ],
        "workers": [
            {
                "worker_id": "worker_1",
                "region": "away",
                "host": "h",
                "pid": 7,
                "slots": 2,
                "started_at": T0,
                "last_seen_at": T0,
                "last_claimed_at": None,
                "stopped_at": None,
                "software_version": "0.1.0",
                "hardware": "cpu",
            }
        ],
        "throughputs": [
            {
                "model": "words",
                "hardware": "cpu",
                "tokens_per_s": 1000.5,
                "uj_per_token": 12,
                "samples": 3,
                "updated_at": T0,
            }
        ],
        "api_keys": [
            {
                "key_id": "key_1",
                "tenant": "acme",
                "name": "old",
                "key_hash": keys.hash_key(KEY),
                "is_local": False,
                "created_at": T0,
                "expires_at": None,
                "revoked_at": None,
            }
        ],
        "jobs": [
            {
                "job_id": "job_1",
                "tenant": "acme",
                "api_key_id": "key_1",
                "source": "jobs",
                "endpoint": "/v1/embeddings",
                "model": "words",
                "requested_model": "words",
                "product_line": "search",
                "workload": None,
                "home_region": "home",
                "regions": ["away"],
                "deadline_at": T0 + 6 * HOUR,
                "late_policy": "finish_late",
                "max_carbon_g": Decimal("12.50"),
                "state": "running",
                "is_cancel_requested": False,
                "is_chunked": True,
                "input_blob": "jobs/job_1/input.jsonl",
                "input_bytes": 100,
                "items_total": 2,
                "items_succeeded": 1,
                "items_failed": 0,
                "items_expired": 0,
                "items_cancelled": 0,
                "est_tokens": 30,
                "created_at": T0,
                "machine_created_at": T0,
                "started_at": T0,
                "idempotency_key": "once",
                "body_fingerprint": "f",
                "metadata": {"team": "é"},
            }
        ],
        "chunks": [
            {
                "chunk_id": "chunk_1",
                "tenant": "acme",
                "model": "words",
                "endpoint": "/v1/embeddings",
                "regions": ["away"],
                "release_at": T0,
                "deadline_at": T0 + 6 * HOUR,
                "items_count": 2,
                "est_tokens": 30,
                "est_duration_s": 0.5,
                "est_energy_uj": 360,
                "state": "running",
                "attempt": 1,
                "token": 4,
                "lease_until": T0 + HOUR,
                "worker_id": "worker_1",
                "region": "away",
                "window_at": T0,
                "placement_id": "plc_1",
                "latest_start_at": T0 + 5 * HOUR,
                "dispatched_at": T0,
                "baseline_region": "home",
                "baseline_window_at": T0,
                "created_at": T0,
            }
        ],
        "items": [
            {
                "job_id": "job_1",
                "idx": number,
                "custom_id": f"doc-{number}",
                "line_offset": 50 * number,
                "line_bytes": 49,
                "est_tokens": 15,
                "state": state,
                "chunk_id": "chunk_1",
            }
            for number, state in enumerate(("succeeded", "waiting"))
        ],
        "attempts": [
            {
                "chunk_id": "chunk_1",
                "token": 4,
                "attempt": 1,
                "worker_id": "worker_1",
                "region": "away",
                "started_at": T0,
                "machine_started_at": T0,
                "pending": {"burnt": []},
            }
        ],
        "segments": [
            {"job_id": "job_1", "chunk_id": "chunk_1", "kind": "output", "blob": "segments/a", "bytes": 9, "items": 1}
        ],
        "events": [
            {
                "recorded_at": T0,
                "at": T0,
                "tenant": "acme",
                "job_id": "job_1",
                "type": "job.progressed",
                "data": {"succeeded": 1},
            }
        ],
        "plans": [
            {
                "plan_id": "plan_1",
                "created_at": T0,
                "recorded_at": T0,
                "chunks": 1,
                "moved": 0,
                "late": 0,
                "objective_g": 1.5,
                "lower_bound_g": 1.25,
                "is_overlay": False,
                "duration_s": 0.01,
                "inputs": "window 1",
            }
        ],
        "placements": [
            {
                "placement_id": "plc_1",
                "chunk_id": "chunk_1",
                "plan_id": "plan_1",
                "region": "away",
                "window_at": T0,
                "g_per_kwh": Decimal("250.50"),
                "issued_at": T0,
                "reason": "carbon",
                "created_at": T0,
            }
        ],
        "baseline_slots": [{"region": "home", "slot": 0, "free_at": T0 + HOUR}],
        "forecasts": [
            {
                **_RATE,
                "zone": "Z-AWAY",
                "signal": "moer",
                "source": "test",
                "issued_at": T0,
                "retrieved_at": T0,
                "start_at": T0,
                "values": ["250.50", None, "0"],
                "raw_unit": "lbs/MWh",
                "raw_per_g_per_kwh": Decimal("2.2046"),
            }
        ],
        "observations": [
            {
                **_RATE,
                "zone": "Z-AWAY",
                "signal": "moer",
                "source": "test",
                "window_at": T0,
                "revision": 1,
                "retrieved_at": T0 + WINDOW,
                "g_per_kwh": Decimal("251.5"),
                "raw": Decimal("251.5"),
                "raw_unit": "g/kWh",
            }
        ],
    },
    "0002": {
        "installation": [
            {
                "installation_id": 1,
                "settings": {"lease_s": 60.0},
                "settings_digest": "d",
                "software_version": "0.1.0",
                "updated_at": T0,
            }
        ]
    },
    "0005": {
        "shadows": [
            {
                "chunk_id": "chunk_1",
                "plan_id": "pln_1",
                "region": "away",
                "window_at": T0,
                "duration_s": 0.5,
                "g_per_kwh": Decimal("250.5"),
                "issued_at": T0,
                "signal": "moer",
                "reason": "carbon",
                "created_at": T0,
            }
        ]
    },
    "0006": {
        "corrections": [{"signal": "moer", "zone": "Z-AWAY", "source": "test", "window_at": T0}],
        "restatements": [
            {
                "restatement_id": "rst_1",
                "recorded_at": T0,
                "recorded_by": "anna",
                "reason": "the provider's new model",
                "is_automatic": False,
                "start_at": T0,
                "end_at": T0 + HOUR,
            }
        ],
        "gaps": [{"worker_id": "worker_0", "silent_since": T0, "engine_batch_id": "eb_gap0", "booked_at": T0}],
    },
    "0015": {
        "files": [
            {
                "file_id": "file-1",
                "tenant": "acme",
                "purpose": "batch",
                "filename": "requests.jsonl",
                "bytes": 98,
                "lines": 2,
                "blob": "files/file-1.jsonl",
                "carbon": {"deadline": "6h"},
                "created_at": T0,
                "expires_at": T0 + 720 * HOUR,
            }
        ],
        "batches": [
            {
                "batch_id": "batch_1",
                "tenant": "acme",
                "state": "in_progress",
                "endpoint": "/v1/embeddings",
                "model": "words",
                "input_file_id": "file-1",
                "completion_window": "6h",
                "metadata": {"team": "search"},
                "terms": {},
                "items_total": 2,
                "created_at": T0,
                "machine_created_at": T0,
                "expires_at": T0 + 6 * HOUR,
                "in_progress_at": T0,
                "idempotency_key": "once",
                "fingerprint": "f",
                "retry_count": 0,
            }
        ],
    },
    "0013": {
        "holds": [
            {"kind": "tenant", "name": "acme", "state": "paused", "held_at": T0, "reason": "unpaid", "held_by": "anna"}
        ]
    },
    "0017": {
        "quotas": [{"tenant": "acme", "limits": {"open_jobs": 5, "items_waiting": None}, "updated_at": T0}],
        "quota_counts": [{"tenant": "acme", "open_jobs": 1, "items": 2, "input_bytes": 100, "counted_at": T0}],
        "token_days": [{"tenant": "acme", "day": "2026-03-02", "tokens": 30}],
        "admin_log": [
            {
                "recorded_at": T0,
                "actor": "anna@host",
                "action": "key.created",
                "subject": "key_1",
                "tenant": "acme",
                "after": {"name": "old"},
            }
        ],
    },
    "0018": {
        "sessions": [
            {"token_hash": "t", "kind": "session", "key_hash": "k", "created_at": T0, "expires_at": T0},
        ]
    },
    "0021": {
        "targets": [
            {
                "target_id": "tgt_1",
                "tenant": "acme",
                "model": "*",
                "book": "impact",
                "g_per_1k_tokens": Decimal("0.5"),
                "created_at": T0,
                "updated_at": T0,
            }
        ],
        "target_hours": [
            {
                "tenant": "acme",
                "hour_at": T0,
                "model": "words",
                **{
                    f"{book}_{name}": value
                    for book in ("emission", "inventory")
                    for name, value in {
                        "g": Decimal("0.250000000000000"),
                        "provisional_g": Decimal("0.125000000000000"),
                        "tokens": 1_000,
                        "unknown": 1,
                        "unknown_tokens": 10,
                    }.items()
                },
            }
        ],
        "target_days": [
            {
                "tenant": "acme",
                "day_at": T0,
                "model": "words",
                **{
                    f"{book}_{name}": value
                    for book in ("emission", "inventory")
                    for name, value in {
                        "g": Decimal("0.250000000000000"),
                        "provisional_g": Decimal("0.125000000000000"),
                        "tokens": 1_000,
                        "unknown": 1,
                        "unknown_tokens": 10,
                    }.items()
                },
            }
        ],
        "target_marks": [{"mark_id": 1_000, "hour_at": T0, "is_taken": False}],
        "target_ahead": [
            {
                "tenant": "acme",
                "model": "words",
                "tokens": 100,
                "emission_tokens": 100,
                "emission_g": Decimal("0.01"),
                "inventory_tokens": 0,
                "inventory_g": Decimal(0),
            }
        ],
        "target_alarms": [{"target_id": "tgt_1", "month_at": T0, "kind": "target.at_risk", "at": T0}],
    },
    "0019": {
        "budgets": [
            {
                "budget_id": "bgt_1",
                "tenant": "acme",
                "level": "product_line",
                "name": "search",
                "book": "impact",
                "action": "queue",
                "cap_g": Decimal("500000"),
                "created_at": T0,
                "updated_at": T0,
                "is_counted": True,
            }
        ],
        "budget_cells": [
            {
                "budget_id": "bgt_1",
                "window_at": T0,
                "spent_g": Decimal("0.000000000000120"),
                "provisional_g": Decimal("0.000000000000000"),
                "unknown": 1,
            }
        ],
        "budget_totals": [
            {
                "budget_id": "bgt_1",
                "started_at": T0,
                "spent_g": Decimal("0.000000000000120"),
                "provisional_g": Decimal("0.000000000000000"),
                "unknown": 1,
            }
        ],
        "budget_counts": [
            {
                "budget_id": "bgt_1",
                "started_at": T0,
                "reserved_ug": 5,
                "unknown": 0,
                "waiting": 1,
                "waiting_ug": 7,
                "counted_at": T0,
            }
        ],
        "spent_marks": [
            {"tenant": "acme", "product_line": "search", "window_at": T0, "emission_g": Decimal("0.000000000000120")}
        ],
        "budget_alarms": [{"budget_id": "bgt_1", "kind": "budget.warning", "started_at": T0, "at": T0}],
    },
    "0016": {
        "webhooks": [
            {
                "webhook_id": "wh_1",
                "tenant": "acme",
                "name": "ours",
                "url": "https://example.com/hook",
                "event_types": ["job.completed"],
                "secret": "whsec_MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0",
                "old_secrets": [],
                "state": "enabled",
                "since_event_id": 0,
                "token": 0,
                "machine_created_at": T0,
                "machine_updated_at": T0,
            }
        ],
        "webhook_deliveries": [
            {
                "webhook_id": "wh_1",
                "message_id": "evt_1",
                "type": "job.completed",
                "body": "{}",
                "state": "pending",
                "attempts": 0,
                "next_at": T0,
                "recorded_at": T0,
            }
        ],
        "webhook_cursor": [{"cursor_id": 1, "event_id": 1}],
    },
}

#: What was booked: an engine batch of five items.
BOOKED = book(rates=rate_book())


def upgrade(database: Database, revision: str) -> None:
    """Bring a database to a revision, as the code of its day did."""
    config = Config()
    config.set_main_option("script_location", str(rooms.folder("migrations")))
    config.attributes["engine"] = database.engine
    command.upgrade(config, revision)


def fill(tx: Tx, revision: str) -> None:
    """Insert the rows that a revision's own tables hold."""
    for table, rows in ROWS.get(revision, {}).items():
        for row in rows:
            _insert(tx, table, row)
    if revision == "0001":
        for table in ("facts", "rates", "engine_batches", "entries"):
            for row in getattr(BOOKED, table):
                _insert(tx, table, row)
        for row in BOOKED.awaited:
            _insert(tx, "unsettled", row)


def _insert(tx: Tx, table: str, row: Mapping[str, Any]) -> None:
    there = {column["name"] for column in sa.inspect(tx).get_columns(table)}
    columns = [sa.column(name, _type(value)) for name, value in row.items() if name in there]
    given = {column.name: row[column.name] for column in columns}
    tx.execute(sa.table(table, *columns).insert(), given)


def _type(value: Any) -> sa.types.TypeEngine[Any]:
    kinds: tuple[tuple[Any, sa.types.TypeEngine[Any]], ...] = (
        (datetime, UtcDateTime()),
        (Decimal, ExactDecimal()),
        ((list, dict, tuple), Json()),
        (bool, sa.Boolean()),
    )
    return next((kind for types, kind in kinds if isinstance(value, types)), sa.types.NullType())

-- Rights of carbonq's processes in PostgreSQL, as narrow as each needs. Idempotent: run it again after every upgrade.
--
--   carbonq_owner    owns the tables; runs `carbonq db upgrade` and `carbonq keys`; no process that serves uses it
--   carbonq_api      API processes: take, show and cancel jobs; read keys and the ledger
--   carbonq_control  control workers: chunk, plan, dispatch, reap, finish, settle, seal, refresh, retire; no keys
--   carbonq_worker   region workers: claim chunks, end items, book energy; no keys, no plans but where a chunk was put, no other
--                    column of a job
--   carbonq_auditor  reads the ledger and what its export joins; writes nothing
--
-- Run it in carbonq's database as its owner or a superuser: `carbonq db roles | psql URL`, or by any client that sends
-- several statements at once. The roles are groups without a login: give each process a user of its own with
-- CREATE ROLE name LOGIN PASSWORD '...' IN ROLE carbonq_worker. Roles belong to the whole server, not to a database.

BEGIN;

DO $$
DECLARE
  role text;
  object record;
BEGIN
  FOREACH role IN ARRAY ARRAY['carbonq_owner', 'carbonq_api', 'carbonq_control', 'carbonq_worker', 'carbonq_auditor']
  LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
      EXECUTE format('CREATE ROLE %I NOLOGIN', role);
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), role);
    -- What an older version granted and this one does not goes away.
    CONTINUE WHEN role = 'carbonq_owner';
    EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM %I', current_schema(), role);
    EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA %I FROM %I', current_schema(), role);
  END LOOP;
  EXECUTE format('GRANT CREATE ON SCHEMA %I TO carbonq_owner', current_schema());
  EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', current_schema());
  EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA %I FROM PUBLIC', current_schema());
  -- Only an owner can disable or drop the triggers that keep the ledger append-only.
  FOR object IN
    SELECT c.oid::regclass AS name FROM pg_class c
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
  LOOP
    EXECUTE format('ALTER TABLE %s OWNER TO carbonq_owner', object.name);
  END LOOP;
  FOR object IN
    SELECT p.oid::regprocedure AS name FROM pg_proc p
    WHERE p.pronamespace = current_schema()::regnamespace
      AND (p.proname LIKE '%\_is\_append\_only' OR p.proname IN ('entries_await_seal', 'entries_is_referring', 'engine_batches_mark_hour',
                                                                     'entries_mark_hour'))
  LOOP
    EXECUTE format('ALTER FUNCTION %s OWNER TO carbonq_owner', object.name);
  END LOOP;
END $$;

-- Everybody: which schema and which clock this is.
GRANT SELECT ON alembic_version, schema_floor, clocks
  TO carbonq_api, carbonq_control, carbonq_worker, carbonq_auditor;

-- Keys: only the API looks at them, and notes when one was used; only the owner makes, changes or revokes them.
GRANT SELECT, UPDATE (last_used_at) ON api_keys TO carbonq_api;
-- Who is logged in at the dashboard: the API alone.
GRANT SELECT, INSERT, DELETE ON sessions TO carbonq_api;
-- Quotas: only the owner sets them; who stores jobs counts, and control takes off what never ran.
GRANT SELECT ON quotas TO carbonq_api, carbonq_control;
GRANT SELECT, INSERT, UPDATE ON quota_counts TO carbonq_api, carbonq_control;
GRANT SELECT, INSERT, UPDATE ON token_days TO carbonq_api, carbonq_control;
GRANT DELETE ON token_days TO carbonq_control;
-- Budgets: the API sets them and reserves at submit, control counts what was spent and holds chunks back; a worker only
-- asks whose entries it is to mark.
GRANT SELECT, INSERT, UPDATE, DELETE ON budgets TO carbonq_api;
GRANT SELECT, UPDATE (is_counted) ON budgets TO carbonq_control;
GRANT SELECT (budget_id, tenant) ON budgets TO carbonq_worker;
GRANT SELECT, DELETE ON budget_cells, budget_totals TO carbonq_api;
GRANT SELECT, INSERT, DELETE ON budget_cells, budget_totals TO carbonq_control;
GRANT SELECT, INSERT, UPDATE, DELETE ON budget_counts TO carbonq_api, carbonq_control;
GRANT SELECT, INSERT ON spent_marks TO carbonq_api;
GRANT SELECT, INSERT, DELETE ON spent_marks TO carbonq_control;
GRANT INSERT ON spent_marks TO carbonq_worker;
GRANT SELECT, DELETE ON budget_alarms TO carbonq_api;
GRANT SELECT, INSERT, UPDATE ON budget_alarms TO carbonq_control;
-- Contract targets: the API sets them, control sums up what ran toward them and tells their alarms.
GRANT SELECT, INSERT, UPDATE, DELETE ON targets TO carbonq_api;
GRANT SELECT ON targets TO carbonq_control;
GRANT SELECT ON target_days, target_ahead TO carbonq_api;
GRANT SELECT, INSERT, DELETE ON target_hours, target_days, target_ahead TO carbonq_control;
GRANT INSERT ON target_marks TO carbonq_api;
GRANT SELECT, UPDATE (is_taken), DELETE ON target_marks TO carbonq_control;
GRANT SELECT, DELETE ON target_alarms TO carbonq_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON target_alarms TO carbonq_control;
-- What administrators did: written where it is done, read by the API and the auditor; nobody changes it.
GRANT SELECT ON admin_log TO carbonq_api, carbonq_auditor;
GRANT INSERT ON admin_log TO carbonq_api;

-- The installation: the owner writes settings and regions, workers say that they live and how fast they are.
GRANT SELECT ON installation TO carbonq_api, carbonq_control, carbonq_worker, carbonq_auditor;
GRANT SELECT ON regions TO carbonq_api, carbonq_control, carbonq_worker, carbonq_auditor;
GRANT SELECT ON holds TO carbonq_api, carbonq_control, carbonq_worker;
GRANT SELECT ON workers TO carbonq_api, carbonq_control, carbonq_worker;
GRANT INSERT ON workers TO carbonq_worker;
GRANT UPDATE (last_seen_at, last_claimed_at, stopped_at) ON workers TO carbonq_worker;
GRANT SELECT ON throughputs TO carbonq_api, carbonq_control, carbonq_worker, carbonq_auditor;
GRANT INSERT, UPDATE ON throughputs TO carbonq_worker;

-- Jobs: a worker counts their items and says that they run; what was asked for stays out of its reach.
GRANT SELECT ON jobs TO carbonq_api, carbonq_control, carbonq_worker;
GRANT INSERT ON jobs TO carbonq_api, carbonq_control;
GRANT UPDATE (is_cancel_requested, items_succeeded, items_failed, items_expired, items_cancelled) ON jobs
  TO carbonq_api;
GRANT UPDATE (state, is_chunked, infeasible, error, output_blob, error_blob, finished_at, retired_at, purged_at,
              items_succeeded, items_failed, items_expired, items_cancelled) ON jobs
  TO carbonq_control;
GRANT UPDATE (progress_at) ON jobs TO carbonq_api, carbonq_control, carbonq_worker;
GRANT UPDATE (state, started_at, items_succeeded, items_failed, items_expired, items_cancelled) ON jobs
  TO carbonq_worker;

-- Files and batches: the API takes them in, control reads the inputs, makes the jobs and what comes of them.
GRANT SELECT, INSERT, UPDATE (deleted_at) ON files TO carbonq_api;
GRANT SELECT, INSERT, UPDATE (deleted_at), DELETE ON files TO carbonq_control;
GRANT SELECT, INSERT, UPDATE (state, cancelling_at) ON batches TO carbonq_api;
GRANT SELECT, UPDATE (state, model, errors, items_total, output_file_id, error_file_id, usage, expires_at,
                      in_progress_at, finalizing_at, finished_at) ON batches
  TO carbonq_control;

GRANT SELECT ON items TO carbonq_api, carbonq_control, carbonq_worker;
GRANT INSERT ON items TO carbonq_api, carbonq_control;
GRANT UPDATE (state, error_code, finished_at) ON items TO carbonq_api, carbonq_control, carbonq_worker;
GRANT UPDATE (chunk_id), DELETE ON items TO carbonq_control;

-- Chunks: the API takes items out of those that wait when a job is cancelled; a worker claims and gives back.
GRANT SELECT ON chunks TO carbonq_api, carbonq_control, carbonq_worker;
GRANT INSERT, UPDATE, DELETE ON chunks TO carbonq_control;
GRANT UPDATE (state, finished_at, dispatched_at, items_count, est_tokens, est_duration_s, est_energy_uj) ON chunks
  TO carbonq_api, carbonq_worker;
GRANT UPDATE (token, attempt, lease_until, worker_id, region, window_at, placement_id, not_before, error) ON chunks
  TO carbonq_worker;

GRANT SELECT ON attempts TO carbonq_api, carbonq_control, carbonq_worker;
GRANT UPDATE (ended_at, outcome, error, pending) ON attempts TO carbonq_control, carbonq_worker;
GRANT INSERT ON attempts TO carbonq_worker;
GRANT DELETE ON attempts TO carbonq_control;

GRANT INSERT, SELECT (segment_id) ON segments TO carbonq_worker;
GRANT SELECT, DELETE ON segments TO carbonq_control;

GRANT INSERT ON events TO carbonq_api, carbonq_control, carbonq_worker;
GRANT SELECT ON events TO carbonq_api, carbonq_control;
GRANT SELECT (event_id) ON events TO carbonq_worker;
GRANT DELETE ON events TO carbonq_control;

-- Webhooks: the API makes endpoints and tests them, control sends.
GRANT SELECT, INSERT, UPDATE, DELETE ON webhooks TO carbonq_api;
GRANT SELECT ON webhooks TO carbonq_control;
GRANT UPDATE (state, disabled_reason, failing_since, not_before, busy_until, token, machine_updated_at) ON webhooks
  TO carbonq_control;
GRANT SELECT, INSERT, DELETE ON webhook_deliveries TO carbonq_api;
GRANT SELECT, INSERT, UPDATE, DELETE ON webhook_deliveries TO carbonq_control;
GRANT SELECT, INSERT, UPDATE ON webhook_cursor TO carbonq_control;

-- Plans and what the grid said: control's own.
GRANT SELECT ON plans, placements, shadows TO carbonq_api, carbonq_control;
-- Answers say why their work ran where and when it did.
GRANT SELECT (placement_id, region, window_at, reason, signal, g_per_kwh, issued_at) ON placements TO carbonq_worker;
GRANT INSERT, DELETE ON plans, placements TO carbonq_control;
GRANT INSERT, UPDATE, DELETE ON shadows TO carbonq_control;
GRANT SELECT, INSERT, UPDATE, DELETE ON baseline_slots, source_states, outlook_skills TO carbonq_control;
GRANT SELECT ON source_states TO carbonq_api, carbonq_worker;
GRANT SELECT ON baseline_slots, outlook_skills TO carbonq_api;
GRANT SELECT ON forecasts, observations TO carbonq_api, carbonq_control, carbonq_worker;
GRANT INSERT, DELETE ON forecasts, observations TO carbonq_control;
GRANT UPDATE (is_thinned) ON forecasts TO carbonq_control;

-- The ledger: added to, never changed; not even the owner may, as long as the triggers stand.
GRANT SELECT ON rates, facts, engine_batches, entries
  TO carbonq_api, carbonq_control, carbonq_worker, carbonq_auditor;
GRANT INSERT ON rates, facts, engine_batches, entries TO carbonq_control, carbonq_worker;
GRANT SELECT ON unsettled TO carbonq_api, carbonq_control, carbonq_auditor;
GRANT INSERT ON unsettled TO carbonq_control, carbonq_worker;
GRANT DELETE ON unsettled TO carbonq_control;
-- Restatements are made by control, gaps of silent workers too; what was corrected is noted where it is stored.
GRANT SELECT ON restatements TO carbonq_api, carbonq_control, carbonq_auditor;
GRANT INSERT ON restatements TO carbonq_control;
GRANT SELECT, INSERT, DELETE ON corrections TO carbonq_control;
GRANT SELECT ON gaps TO carbonq_api, carbonq_control, carbonq_auditor;
GRANT INSERT, UPDATE (returned_at) ON gaps TO carbonq_control;
-- Seals: control makes them; who checks the ledger needs what waits for one too.
GRANT SELECT ON seals, seal_parts TO carbonq_api, carbonq_control, carbonq_auditor;
GRANT INSERT ON seals, seal_parts TO carbonq_control;
GRANT SELECT ON unsealed TO carbonq_api, carbonq_control, carbonq_auditor;
GRANT DELETE ON unsealed TO carbonq_control;
-- What the export joins to an entry.
GRANT SELECT (chunk_id, model, endpoint) ON chunks TO carbonq_auditor;
GRANT SELECT ON placements TO carbonq_auditor;

-- Keys that count up by themselves.
GRANT USAGE ON SEQUENCE items_item_id_seq TO carbonq_api, carbonq_control;
GRANT USAGE ON SEQUENCE admin_log_log_id_seq TO carbonq_api;
GRANT USAGE ON SEQUENCE spent_marks_mark_id_seq TO carbonq_api, carbonq_control, carbonq_worker;
GRANT USAGE ON SEQUENCE target_marks_mark_id_seq TO carbonq_api;
GRANT USAGE ON SEQUENCE events_event_id_seq TO carbonq_api, carbonq_control, carbonq_worker;
GRANT USAGE ON SEQUENCE webhook_deliveries_delivery_id_seq TO carbonq_api, carbonq_control;
GRANT USAGE ON SEQUENCE segments_segment_id_seq TO carbonq_worker;
GRANT USAGE ON SEQUENCE forecasts_forecast_id_seq TO carbonq_control;

COMMIT;

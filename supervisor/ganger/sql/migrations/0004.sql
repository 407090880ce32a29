-- Version 4: the trace that a job was enqueued in.
-- It only adds, so a supervisor of version 3 that is running goes on with it until somebody stops it.

-- A JSON object of the fields that OpenTelemetry's propagator makes, {"traceparent": "00-…"} at least; NULL: none. It is
-- the transaction's setting `ganger.trace`, for our clients, other languages and an INSERT written for the original
-- alike: no function gets an argument, so none is replaced under those who are calling it.
ALTER TABLE :"schema".job ADD COLUMN trace text;
ALTER TABLE :"schema".job ALTER COLUMN trace SET DEFAULT left(nullif(current_setting('ganger.trace', true), ''), 8192);

-- SESSION: what every connection of ours relies on, whatever the server, the database or the role has set; behind a
-- pooler every transaction (`local`). Settings that this server does not know are left out. The planner switches: plans
-- made while a table was empty must not turn into sequential scans when it has 300,000 rows. (jit: a plan that PostgreSQL
-- thinks is dear for a switched-off path must not be compiled for 100 ms.)
SELECT set_config(name, setting, %(local)s::boolean)
FROM unnest(
  ARRAY['search_path', 'TimeZone', 'DateStyle', 'IntervalStyle', 'bytea_output',
        'extra_float_digits', 'array_nulls', 'standard_conforming_strings',
        'default_transaction_isolation', 'default_transaction_read_only', 'default_transaction_deferrable',
        'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout',
        'idle_session_timeout', 'transaction_timeout', 'plan_cache_mode',
        'enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'enable_indexscan', 'enable_nestloop', 'jit'],
  ARRAY['pg_catalog', 'UTC', 'ISO, YMD', 'postgres', 'hex',
        '1', 'on', 'on',
        'read committed', 'off', 'off',
        %(statement_ms)s::int::text, '0', %(idle_ms)s::int::text,
        '0', '0', 'auto',
        'off', 'off', 'off', 'on', 'on', 'off']
) AS t(name, setting)
WHERE current_setting(name, true) IS NOT NULL

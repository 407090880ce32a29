-- VERSION: what stands in the schema, and on what server.
SELECT to_regclass(quote_ident(:'schema') || '.schema_version') IS NOT NULL,
       to_regclass(quote_ident(:'schema') || '.job') IS NOT NULL,
       current_setting('server_version_num')::int, current_setting('server_encoding')

-- RIGHTS: what a supervisor does and this role may not do.
SELECT right_to || ' on ' || name
FROM (VALUES ('job', 'SELECT'), ('job', 'UPDATE'), ('job', 'DELETE'),
             ('archived_job', 'SELECT'), ('archived_job', 'INSERT'), ('archived_job', 'UPDATE'),
             ('supervisor', 'SELECT'), ('supervisor', 'INSERT'), ('supervisor', 'UPDATE'), ('supervisor', 'DELETE'),
             ('idle', 'SELECT'), ('idle', 'INSERT'), ('idle', 'UPDATE'), ('idle', 'DELETE'),
             ('queue', 'SELECT')) AS needed(name, right_to)
WHERE NOT has_table_privilege(quote_ident(:'schema') || '.' || name, right_to)

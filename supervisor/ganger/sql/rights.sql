-- RIGHTS: what a supervisor does and this role may not do. `prunes`: it also deletes from the archive (--retention).
SELECT right_to || ' on ' || name
FROM (VALUES ('job', 'SELECT'), ('job', 'UPDATE'), ('job', 'DELETE'),
             ('archived_job', 'SELECT'), ('archived_job', 'INSERT'), ('archived_job', 'UPDATE'),
             ('supervisor', 'SELECT'), ('supervisor', 'INSERT'), ('supervisor', 'UPDATE'), ('supervisor', 'DELETE'),
             ('idle', 'SELECT'), ('idle', 'INSERT'), ('idle', 'UPDATE'), ('idle', 'DELETE'),
             ('queue', 'SELECT'), ('archived_job', 'DELETE')) AS needed(name, right_to)
WHERE ((name, right_to) <> ('archived_job', 'DELETE') OR %(prunes)s)
  AND NOT has_table_privilege(quote_ident(:'schema') || '.' || name, right_to)

-- ENQUEUE MANY, first: the database's clock (due times are counted from it; as text, which no DateStyle of the caller's
-- changes), and whether this role may COPY. The trace is the setting that the rows' default reads.
SELECT to_json(now()) #>> '{}', has_table_privilege(quote_ident(:'schema') || '.job', 'INSERT'),
       CASE WHEN %(trace)s::text IS NOT NULL THEN set_config('ganger.trace', %(trace)s::text, true) END

-- ENQUEUE MANY, first: the database's clock (due times are counted from it; as text, which no DateStyle of the caller's
-- changes), and whether this role may COPY.
SELECT to_json(now()) #>> '{}', has_table_privilege(quote_ident(:'schema') || '.job', 'INSERT')

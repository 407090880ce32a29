-- ENQUEUE MANY, first: the database's clock (due times are counted from it), and whether this role may COPY.
SELECT now(), has_table_privilege(quote_ident(:'schema') || '.job', 'INSERT')

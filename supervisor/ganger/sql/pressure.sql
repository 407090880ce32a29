-- PRESSURE: dead rows of our tables, as the statistics have them, and what keeps them from being removed: how many
-- transactions ago the oldest horizon of this database was taken (by sessions, prepared transactions, replication slots),
-- and for how many seconds the oldest transaction is open, as far as this role may see those of others.
SELECT
  (SELECT coalesce(jsonb_object_agg(relname, n_dead_tup), '{}') FROM pg_stat_user_tables WHERE schemaname = :'schema'),
  coalesce(greatest(
    (SELECT max(age(backend_xmin)) FROM pg_stat_activity
     WHERE pid <> pg_backend_pid() AND coalesce(datname, current_database()) = current_database()),
    (SELECT max(age(transaction)) FROM pg_prepared_xacts WHERE database = current_database()),
    (SELECT max(age(xmin)) FROM pg_replication_slots)), 0)::bigint,
  coalesce(greatest(0, (SELECT extract(epoch FROM now() - min(xact_start)) FROM pg_stat_activity
                        WHERE pid <> pg_backend_pid() AND datname = current_database())), 0)::float8

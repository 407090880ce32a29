-- ROLES: groups without a login, to be granted to the logins of applications, supervisors and people. The roles are the
-- whole server's, and made by whoever installs them first; what they may do is granted schema by schema, and here exactly
-- this, whatever was granted before. What a role may do but not touch is a function of its owner's.
DO $$
DECLARE
  missing text;
BEGIN
  FOREACH missing IN ARRAY ARRAY['ganger_enqueuer', 'ganger_supervisor', 'ganger_viewer'] LOOP
    CONTINUE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = missing);
    BEGIN
      EXECUTE pg_catalog.format('CREATE ROLE %I NOLOGIN', missing);
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL;  -- an installation in another database of this server was quicker
    END;
  END LOOP;
END $$;
REVOKE ALL ON ALL TABLES IN SCHEMA :"schema" FROM ganger_enqueuer, ganger_supervisor, ganger_viewer;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA :"schema" FROM ganger_enqueuer, ganger_supervisor, ganger_viewer;
REVOKE ALL ON SCHEMA :"schema" FROM ganger_enqueuer, ganger_supervisor, ganger_viewer;

GRANT USAGE ON SCHEMA :"schema" TO ganger_enqueuer, ganger_supervisor, ganger_viewer;
GRANT SELECT ON :"schema".schema_version TO ganger_enqueuer, ganger_supervisor, ganger_viewer;

GRANT EXECUTE ON FUNCTION :"schema".enqueue TO ganger_enqueuer;
GRANT EXECUTE ON FUNCTION :"schema".look_up TO ganger_enqueuer, ganger_supervisor, ganger_viewer;

GRANT SELECT, UPDATE, DELETE ON :"schema".job TO ganger_supervisor;
GRANT SELECT, INSERT, UPDATE, DELETE ON :"schema".archived_job TO ganger_supervisor;
GRANT SELECT, INSERT, UPDATE, DELETE ON :"schema".supervisor, :"schema".idle TO ganger_supervisor;
GRANT SELECT ON :"schema".queue TO ganger_supervisor;

GRANT SELECT ON ALL TABLES IN SCHEMA :"schema" TO ganger_viewer;

-- CREATE SCHEMA: the first step of an installation. Who may not create one in this database may still own one that
-- somebody has created for them: CREATE SCHEMA IF NOT EXISTS would refuse.
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = :'schema') THEN
    CREATE SCHEMA :"schema";
  END IF;
END $$

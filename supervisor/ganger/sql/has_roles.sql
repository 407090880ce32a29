-- HAS ROLES: whether the roles were granted anything in this schema.
SELECT EXISTS (
  SELECT FROM pg_namespace AS n CROSS JOIN LATERAL aclexplode(n.nspacl) AS a JOIN pg_roles AS r ON r.oid = a.grantee
  WHERE n.nspname = :'schema' AND r.rolname = 'ganger_supervisor')

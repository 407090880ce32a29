-- APPLIED: the newest version that was installed; 0 for none.
SELECT coalesce(max(version), 0) FROM :"schema".schema_version

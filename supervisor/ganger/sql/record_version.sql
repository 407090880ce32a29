-- RECORD VERSION: in the transaction that applied it.
INSERT INTO :"schema".schema_version (version) VALUES (%(version)s)

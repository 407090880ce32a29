-- INSTALL LOCK: one installation at a time, until the end of the transaction.
SELECT pg_advisory_xact_lock(1734438498, hashtext(:'schema'))

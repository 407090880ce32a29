-- WAKE IDLE: every supervisor that waits for work, in a statement after the one that has made some claimable.
SELECT :"schema".wake(array_agg(DISTINCT i.queue)) FROM :"schema".idle AS i

-- WAITS IN VAIN: why the present transaction could never see a job end: its snapshot is older than that, or what it has
-- written itself (the job, say) is not committed. NULL: it can.
SELECT CASE WHEN current_setting('transaction_isolation') <> 'read committed' THEN 'snapshot'
            WHEN pg_current_xact_id_if_assigned() IS NOT NULL THEN 'uncommitted' END

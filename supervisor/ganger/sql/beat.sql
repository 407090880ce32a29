-- BEAT: renews the lease. No row: the registration is gone, somebody swept it.
UPDATE :"schema".supervisor
SET beat = beat + 1, beat_at = now(), phase = %(phase)s, info = %(info)s::jsonb
WHERE supervisor_id = %(supervisor_id)s
RETURNING beat

"""``ganger status``: queues, supervisors and the archive's totals, at one moment."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ganger.commands.common import DATABASE, OK, Commands, add_command, add_database, locate, schema_of, settings_of
from ganger.formats import age, table

if TYPE_CHECKING:
    from ganger.database import Status


def add(to: Commands) -> None:
    made = add_command(to, "status", status, "show queues, supervisors with their slots, and the archive's totals")
    made.add_argument("--json", action="store_true", help="as one JSON object")
    add_database(made)


def status(options: argparse.Namespace) -> int:
    """ganger status"""
    settings = settings_of(options, DATABASE)
    from dataclasses import asdict

    from ganger import database

    with database.connect(locate(settings).conninfo) as conn:
        database.check_schema(conn, schema_of(settings))
        seen = database.status(conn, schema_of(settings))
    print(json.dumps(asdict(seen), indent=2) if options.json else _status_text(seen))
    return OK


def _status_text(seen: Status) -> str:
    queues = [
        (
            (one.queue or "all queues") + (" (paused)" if one.paused else ""),
            one.ready,
            one.scheduled,
            one.running,
            age(one.oldest_ready_s),
        )
        for one in seen.queues
    ]
    supervisors = [
        (
            one.supervisor_id,
            one.name,
            one.host,
            one.phase,
            one.running,
            _slots(one.info),
            age(one.age_s),
            age(one.beat_age_s),
        )
        for one in seen.supervisors
    ]
    archive = [(total.status, total.reason or "", total.jobs) for total in seen.archive]
    return "\n\n".join(
        (
            table(("QUEUE", "READY", "SCHEDULED", "RUNNING", "OLDEST READY"), queues, "no job in any queue"),
            table(
                ("SUPERVISOR", "NAME", "HOST", "PHASE", "RUNNING", "SLOTS", "UP", "LAST BEAT"),
                supervisors,
                "no supervisor",
            ),
            table(("ARCHIVE", "REASON", "JOBS"), archive, "no job in the archive"),
        )
    )


def _slots(info: Mapping[str, Any]) -> str:
    """Busy slots and slots of each lane, as the supervisor told them with its last beat."""
    lanes = info.get("lanes", {})
    return " ".join(f"{name}={lane.get('running', '?')}/{lane.get('slots', '?')}" for name, lane in lanes.items())

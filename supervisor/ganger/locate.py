"""Which database: the one that is named, else the PostgreSQL that starts by itself.

It is named by ``--database-url`` (or its GANGER_DATABASE_URL, or a file), else by DATABASE_URL, else by libpq's PG*
variables. A named database is never changed behind its owner's back: only the local one gets its tables by itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from ganger import config
from ganger.config import ConfigError

# Those of libpq's variables that say where to go; PGPASSWORD or PGAPPNAME alone name no database.
NAMING: Final = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGSERVICE", "PGUSER")


class Place(NamedTuple):
    """Where the database is. ``conninfo`` is for libpq: empty where PG* says it all."""

    conninfo: str
    local: bool  # it is the PostgreSQL that starts by itself
    description: str  # for people; holds no password


def named(database_url: str | None = None, environ: Mapping[str, str] | None = None) -> Place | None:
    """The database that is named, or None. Raises ConfigError for a name that libpq cannot read."""
    environ = os.environ if environ is None else environ
    if database_url is not None:
        return Place(_readable(database_url, "database_url"), False, "the database that the settings name")
    if url := environ.get("DATABASE_URL"):
        read = _readable(config.database_url(url, "DATABASE_URL"), "DATABASE_URL")
        return Place(read, False, "the database of DATABASE_URL")
    if names := [name for name in NAMING if environ.get(name)]:
        return Place("", False, f"the database of {', '.join(names)}")
    return None


def _readable(url: str, label: str) -> str:
    """The URL, if libpq can read it. What libpq says of one that it cannot read may show its password."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        conninfo_to_dict(url)
    except ProgrammingError:
        raise ConfigError(
            f"{label} cannot be read: give a URL such as postgresql://user@host/database, in which special characters "
            "are percent-encoded, or words such as host=… dbname=…."
        ) from None
    return url


def locate(database_url: str | None = None) -> Place:
    """Find the database, starting the local PostgreSQL if none is named.

    Raises as ``named``, and LocalPostgresError where the local one cannot be started.
    """
    place = named(database_url)
    if place is None:
        from ganger.local_postgres import LocalPostgres  # its imports are only paid where it is used

        local = LocalPostgres()
        place = Place(local.start(), True, f"the local PostgreSQL in {local.data_dir}")
    return place


def ready_database(database_url: str | None = None, schema: str = "proletarian") -> Place:
    """Find the database; the local one also gets its tables. Raises as ``locate``, and what psycopg raises."""
    place = locate(database_url)
    if place.local:
        from ganger.database import connect, install

        with connect(place.conninfo) as conn:
            install(conn, schema)
    return place

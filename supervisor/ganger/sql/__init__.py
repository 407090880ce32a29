"""The statements, one per file, and the one place where the name of the schema gets into them.

A file is plain SQL with a header that says what it guarantees. ``:"schema"`` and ``:'schema'`` stand for the schema's
name as psql writes them, so that a file can be tried there after ``\\set schema proletarian``; values are psycopg's
named parameters. Nothing else is ever put into a statement.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from typing import Final

from ganger_child.words import shown

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}", re.ASCII | re.IGNORECASE)
_MIGRATION: Final = re.compile(r"(\d{4})\.sql")


class BadSchemaName(ValueError):
    """The name cannot be that of our schema; the message is a sentence."""


def check_schema_name(schema: object) -> str:
    """Return the name of a schema, or raise BadSchemaName."""
    if not isinstance(schema, str) or not _SCHEMA.fullmatch(schema):
        raise BadSchemaName(
            f"schema is {shown(schema)}: give a name of letters, digits and underscores, 63 characters at most, "
            "that does not begin with a digit."
        )
    if schema.lower().startswith("pg_"):
        raise BadSchemaName(f"schema is {shown(schema)}: PostgreSQL keeps names that begin with pg_ to itself.")
    return schema


@lru_cache(maxsize=1024)
def statement(name: str, schema: str) -> bytes:
    """Return the statement of ``name``.sql for this schema, without its header. Raises BadSchemaName."""
    lines = _read(f"{name}.sql").splitlines(keepends=True)
    return _named("".join(line for line in lines if not line.startswith("--")), schema).strip().encode()


def migration(version: int, schema: str) -> str:
    """Return the text that takes a schema from the version before to this one. Raises BadSchemaName."""
    return _named(_read(f"migrations/{version:04}.sql"), schema)


@lru_cache(maxsize=1)
def newest_version() -> int:
    """The version of the schema that this code works with."""
    names = (entry.name for entry in files(__name__).joinpath("migrations").iterdir())
    return max(int(match[1]) for match in map(_MIGRATION.fullmatch, names) if match)


def _read(path: str) -> str:
    return files(__name__).joinpath(path).read_text(encoding="utf-8")


def _named(text: str, schema: str) -> str:
    name = check_schema_name(schema)
    return text.replace(':"schema"', f'"{name}"').replace(":'schema'", f"'{name}'")

"""The examples' database: ``python -m examples.db install`` makes the tables, ``recreate`` also empties them.

It is the database that DATABASE_URL or PG* names, else the local PostgreSQL. Only ganger's own schema is touched.
"""

from __future__ import annotations

import argparse

from ganger.database import connect, install, reset
from ganger.locate import locate


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.db", description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=["install", "recreate"])
    command = parser.parse_args().command
    place = locate()
    with connect(place.conninfo) as conn:
        install(conn)
        if command == "recreate":
            reset(conn)
    print(f"The tables in {place.description} are there{' and empty' if command == 'recreate' else ''}.")


if __name__ == "__main__":
    main()

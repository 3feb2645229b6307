"""Where the audit log and the budget are kept: `HOOKS_DATABASE`, a path of SQLite's or `postgresql://…`. The SQL is the same for both.

Every worker of the task queue has to reach the same one.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from typing import Any

TABLES = (
    "create table if not exists audit (key text primary key, at text not null, run text not null, agent text not null, "
    "tenant text not null, sender text not null, what text not null, call text not null, tool text not null, detail text not null)",
    "create table if not exists spent (run text primary key, tenant text not null, day text not null, dollars double precision not null)",
)


async def run(*statements: tuple[str, tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Carry statements out in one transaction, with `$1`, `$2`, … for their values; the rows of the last."""
    where = os.environ.get("HOOKS_DATABASE", "hooks.sqlite")
    if where.startswith(("postgres://", "postgresql://")):
        return await _in_postgres(where, statements)
    return await asyncio.to_thread(_in_sqlite, where, statements)


async def _in_postgres(where: str, statements: tuple[tuple[str, tuple[Any, ...]], ...]) -> list[tuple[Any, ...]]:
    import asyncpg  # pip install 'perdure[postgres]'

    connection = await asyncpg.connect(where, timeout=5)
    try:
        async with connection.transaction():
            # One at a time makes the tables: two that do so at once would be in each other's way.
            await connection.execute("select pg_advisory_xact_lock(4711)")
            for table in TABLES:
                await connection.execute(table)
            rows: list[Any] = []
            for sql, values in statements:
                rows = await connection.fetch(sql, *values)
            return [tuple(row) for row in rows]
    finally:
        await connection.close()


def _in_sqlite(where: str, statements: tuple[tuple[str, tuple[Any, ...]], ...]) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(where, timeout=5, isolation_level=None)) as connection:
        connection.execute("begin immediate")
        for table in TABLES:
            connection.execute(table)
        rows: list[tuple[Any, ...]] = []
        for sql, values in statements:
            rows = connection.execute(sql, {str(number): value for number, value in enumerate(values, 1)}).fetchall()
        connection.execute("commit")
        return rows

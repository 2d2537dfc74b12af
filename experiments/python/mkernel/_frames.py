"""Traces and results files as data frames: both are SQLite, with views for what people ask."""
from __future__ import annotations

import os
import sqlite3

from ._library import Refused

_RESULTS = 1835757170  # PRAGMA application_id of `mkernel sweep`'s files


def frame(path, query: str = ""):
    """What a file of `mkernel sweep`, or a trace, says: a pandas.DataFrame, or where pandas is not installed a dict of
    column -> list.

    query: a table or view ("jobs", "samples" of results; "launches", "overlap", "stalls", "events", "messages" of
        traces; times in ns unless the column says ms), or a SELECT. Default: "samples" of results, a row a rank and
        launch; "launches" of a trace.
    The file is only read. docs/EXPERIMENTS.md and docs/TRACE.md have the tables.
    """
    path, query = os.fspath(path), query.strip()
    if not os.path.exists(path):
        raise Refused(f"there is no file {path}")
    db = sqlite3.connect(f"file:{os.path.abspath(path).replace('%', '%25').replace('?', '%3f').replace('#', '%23')}"
                         "?mode=ro", uri=True)
    db.set_progress_handler(lambda: 0, 1_000_000)  # Ctrl-C reaches Python in a query that does not end
    try:
        names = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
        if not query:
            query = "samples" if db.execute("PRAGMA application_id").fetchone()[0] == _RESULTS else "launches"
        if query.split(None, 1)[0].lower() not in ("select", "with"):
            if query not in names:
                raise Refused(f"{path} has no {query}; it has {', '.join(sorted(names))}")
            query = 'SELECT * FROM "' + query.replace('"', '""') + '"'
        cursor = db.execute(query)
        columns = [column[0] for column in cursor.description]
        rows = cursor.fetchall()
    except sqlite3.Error as e:
        if str(e) == "interrupted":  # by a signal's handler, that is, whose exception SQLite took
            raise KeyboardInterrupt from None
        raise Refused(f"{path}: {e}") from None
    finally:
        db.close()
    try:
        import pandas
    except ImportError:
        return {name: [row[i] for row in rows] for i, name in enumerate(columns)}
    return pandas.DataFrame.from_records(rows, columns=columns)

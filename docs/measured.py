"""Rows of measured plans, for the programs beside this file: the one place that knows what older tables call a time."""
import csv

OLDER = {"fused_ms": "ms"}  # in older tables of `mkernel bench`


def rows(path):
    """The rows of a table of `mkernel tune`, `bench` or `run` that have a time, a dict each; `ms` is a number."""
    with open(path, encoding="utf-8", newline="") as f:
        for row in csv.DictReader(f):
            row = {OLDER.get(name, name): cell for name, cell in row.items()}
            row["ms"] = float(row.get("ms") or 0)
            if row["ms"] > 0:
                yield row

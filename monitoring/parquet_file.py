"""A report of usage as a Parquet file: the rows of ``--json``, with its other facts as metadata.

pyarrow takes 170 MB, so gpupool does not bring it along: it is imported when it is asked for.
"""

import importlib
import json
import sys
from typing import Any

from gpupool.monitoring.usage_report import SCHEMA, Report, as_plain, plain_cost, plain_row
from gpupool.pool.errors import UsageError

METADATA_KEY = b"gpupool"
"""Of the file's metadata, under which all but the rows stands as JSON."""

COUNTS = ("leases",)


def require_pyarrow() -> None:
    """Say what to do where pyarrow is missing: asked for before the pool is.

    Raises:
        UsageError: when it is.
    """
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UsageError(
            "--parquet needs pyarrow, which is not installed",
            why=str(error),
            hint=f"{sys.executable} -m pip install 'gpupool[parquet]'",
        ) from error


def parquet_of(report: Report, **facts: object) -> bytes:
    """Return the report as a Parquet file.

    Args:
        report: whose rows become rows, a column for each key of a row of ``--json``.
        facts: what else the metadata says, such as the servers that did not answer.
    """
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    plain = as_plain(report)
    rows: Any = plain.pop("rows")
    # The sum of all has each column, also where there is no row to tell them from.
    figures = plain_row(report.whole, report.all_figures())
    names = ("key", *figures, *plain_cost(report, None))
    types = {"key": arrow.string()} | dict.fromkeys(COUNTS, arrow.int64())
    fields = [(name, types.get(name, arrow.float64())) for name in names]
    metadata = {METADATA_KEY: json.dumps({"schema": SCHEMA, **facts, **plain}).encode()}
    table = arrow.Table.from_pylist(rows, schema=arrow.schema(fields, metadata=metadata))
    out: Any = arrow.BufferOutputStream()
    parquet.write_table(table, out)
    return bytes(out.getvalue())

"""Bare PySpark script that a report is measured against: the share and the lag of each node, in two queries.

`python -m bench.bare_script stamped|counted REFERENCE_DIR LOG_DIR...`. Each directory has its node's name. Spark starts
with the settings of a report. The script answers neither why nor since when; it knows no gap, selector or clock.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import functions as sf

from fanout.replog.read.reading import stage
from fanout.reports.entry import is_short_run
from fanout.reports.read.log_files import LogFiles
from fanout.reports.spark import LOCAL_MASTER, spark_session


def main(kind: str, directories: list[Path]) -> None:
    """Print the share and the lag of each node."""
    with tempfile.TemporaryDirectory() as target:
        staged = stage(directories, target=Path(target))
        files = LogFiles.of_files(updates=staged.updates, events=staged.events, directories=directories)
        _query(kind, files, nodes=[one.name for one in directories[1:]])


def _query(kind: str, files: LogFiles, *, nodes: list[str]) -> None:
    with spark_session(short=is_short_run(files, LOCAL_MASTER)) as spark:
        rows = spark.read.parquet(*files.updates).withColumn("at_us", sf.unix_micros("applied"))
        identity = ["stamp_primary", "stamp_epoch", "sequence"] if kind == "stamped" else ["digest"]
        published = rows.where("role != 'secondary'").groupBy(*identity).agg(sf.min("at_us").alias("published_us"))
        logged = rows.where("role = 'secondary'")
        wanted = published.crossJoin(sf.broadcast(spark.createDataFrame(pa.table({"node": nodes}))))
        got = logged.select("node", *identity).distinct().withColumn("came", sf.lit(1))
        found = wanted.join(got, on=["node", *identity], how="left")
        print(found.groupBy("node").agg(sf.count(sf.lit(1)), sf.count("came")).collect())
        late = logged.join(published, on=identity).withColumn("lag_us", sf.col("at_us") - sf.col("published_us"))
        print(late.groupBy("node").agg(sf.percentile("lag_us", sf.lit([0.5, 0.95, 0.99]))).collect())


if __name__ == "__main__":
    main(sys.argv[1], [Path(one) for one in sys.argv[2:]])

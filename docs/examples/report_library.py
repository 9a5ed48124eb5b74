"""Completeness and lag as DataFrames, in a session that is there: run it cell by cell, or as a whole.

python docs/examples/report_library.py LOG_DIR...
"""

# %% A session: in a notebook of Databricks or EMR, in spark-submit or over Spark Connect there is one already.
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from fanout.reports import completeness, lag, missing_topics, read_logs

spark = SparkSession.builder.appName("replication").getOrCreate()

# %% The logs of the primary or tap and of the secondaries: directories, or URIs that the session reads.
logs = read_logs(spark, *sys.argv[1:])
logs.updates.groupBy("node", "role").count().orderBy("node").show()

# %% Did every secondary get everything?
got = completeness(logs, settle_s=1)
got.select("node", "selector", "expected", "missing", "complete_percent_at_least").orderBy("node", "selector").show()
missing_topics(logs, settle_s=1).select("node", "topic", "missing", "cause").show(truncate=False)

# %% How late was it, in milliseconds?
late = lag(logs).where("kind = 'raw'")
late.select(
    "node", "updates", (sf.col("p50_us") / 1000).alias("p50_ms"), (sf.col("p99_us") / 1000).alias("p99_ms")
).show()

# %% One row a node, for an alert or a table of your own.
worst = got.groupBy("node").agg(
    sf.sum("missing").alias("missing"), sf.min("complete_percent_at_least").alias("percent")
)
worst.orderBy("node").show()

# Groups and joins a table of so many rows.
import sys

import numpy
import polars

random = numpy.random.default_rng(1)
rows = int(sys.argv[1])
table = polars.DataFrame({
    "key": random.integers(0, 50_000, rows),
    "kind": random.integers(0, 16, rows),
    "value": random.random(rows),
})
for _ in range(2):
    sums = table.group_by("key", "kind").agg(polars.col("value").sum(), polars.len())
    best = table.group_by("key").agg(polars.col("value").max().alias("best"))
    assert sums.join(best, on="key").height == sums.height

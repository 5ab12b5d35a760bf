# Groups, joins and sorts a table.
import sys

import polars as pl

rows = int(sys.argv[1])
table = pl.DataFrame({"i": range(rows)}).with_columns(
    k=(pl.col("i") * 7919) % 100003, s=pl.col("i").hash().cast(pl.String)
)
groups = table.group_by("k").agg(pl.len(), pl.col("s").max())
assert groups["len"].sum() == rows
later = table.with_columns(j=pl.col("i") + 1)
joined = table.join(later, left_on="i", right_on="j").filter(pl.col("k") < pl.col("k_right"))
assert joined.height > 0
assert table.sort("s")["s"][rows // 3] is not None

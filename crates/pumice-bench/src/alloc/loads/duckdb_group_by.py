# Makes a table in memory, groups and joins it.
import sys

import duckdb

database = duckdb.connect(":memory:")
database.execute("""
    create table rows as
    select hash(i) % 50000 as key, hash(i + 1) % 16 as kind, (hash(i + 2) % 1000) / 1000 as value
    from range(1000000) as numbers(i)
""")
for _ in range(int(sys.argv[1])):
    count, = database.execute("""
        with sums as (select key, kind, sum(value) as total from rows group by key, kind),
             best as (select key, max(value) as best from rows group by key)
        select count(*) from sums join best using (key) where total >= best
    """).fetchone()
    assert count > 0

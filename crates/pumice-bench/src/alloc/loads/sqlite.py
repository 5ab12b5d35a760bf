# Inserts, indexes and queries a database in memory.
import random
import sqlite3
import sys

source = random.Random(1)
rows = int(sys.argv[1])
database = sqlite3.connect(":memory:")
database.execute("create table notes (id integer primary key, key integer, text text)")
database.executemany(
    "insert into notes (key, text) values (?, ?)",
    ((source.randrange(rows), "x" * source.randrange(10, 200)) for _ in range(rows)),
)
database.execute("create index by_key on notes (key)")
query = "select a.key, count(*), max(length(b.text)) from notes a join notes b using (key) group by 1"
assert len(database.execute(query + " order by 2, 3").fetchall()) > rows / 2

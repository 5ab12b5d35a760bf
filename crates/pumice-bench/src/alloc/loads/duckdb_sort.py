# Groups, joins and sorts a table in memory, by two threads.
import sys

import duckdb

rows = int(sys.argv[1])
database = duckdb.connect(config={"threads": 2})
database.execute(
    f"create table t as select i, (i * 7919) % 100003 k, hash(i)::varchar s from range({rows}) r(i)"
)


def answer(query):
    return database.execute(query).fetchall()


grouped = answer("select count(*), sum(c) from (select k, count(*) c, max(s) from t group by k)")
assert grouped[0][1] == rows
assert answer("select count(*) from t a join t b on a.i = b.i + 1 where a.k < b.k")[0][0] > 0
assert len(answer(f"select s from t order by s limit 3 offset {rows // 3}")) == 3

#!/usr/bin/env python3
"""Whether serving `mmap` helps programs that map for themselves: plain, `--no-mmap` and with mappings.

    benches/mappings.py [--pumice PATH] [--rounds N] [--only NAME,...] [--python PATH] [--json FILE]

DuckDB, Polars and Redis bring allocators that map for themselves (jemalloc), and so do Python's arenas, Java,
Node.js, the C++ compiler (its garbage collector) and PostgreSQL's query memory beside its malloc. In every round each
program runs once in each way, in turn, starting with another way each round. Columns: median wall time in
milliseconds; the gain of mappings over `--no-mmap`, as a median of the rounds' ratios with its 95 % interval
(bootstrap), of wall time and of processor time. What is not installed is left out and named:
`pip install duckdb polars` (with `--python` for the interpreter that has them), `apt-get install redis-server
postgresql default-jdk-headless nodejs g++`.
"""

import argparse
import atexit
import glob
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

WAYS = ["plain", "--no-mmap", "mappings"]

DUCKDB = """
import duckdb
db = duckdb.connect(config={"threads": 2})
db.execute("create table t as select i, (i * 7919) % 100003 k, hash(i)::varchar s from range(3000000) r(i)")
print(db.execute("select count(*), sum(c) from (select k, count(*) c, max(s) from t group by k)").fetchall())
print(db.execute("select count(*) from t a join t b on a.i = b.i + 1 where a.k < b.k").fetchall())
print(db.execute("select s from t order by s limit 3 offset 1000000").fetchall())
"""

POLARS = """
import polars as pl
n = 3000000
t = pl.DataFrame({"i": range(n)}).with_columns(k=(pl.col("i") * 7919) % 100003, s=pl.col("i").hash().cast(pl.String))
print(t.group_by("k").agg(pl.len(), pl.col("s").max()).select(pl.col("len").sum()))
print(t.join(t.with_columns(j=pl.col("i") + 1), left_on="i", right_on="j").filter(pl.col("k") < pl.col("k_right")).height)
print(t.sort("s")["s"][1000000])
"""

ARENAS = """
import json
words = [{"id": i, "name": str(i) * 3, "tags": [i, i + 1, i + 2]} for i in range(200000)]
text = json.dumps(words)
for turn in range(3):
    again = json.loads(text)
    index = {entry["name"]: entry for entry in again}
print(len(index), len(text))
"""

JAVA = """
import java.util.*;
public class Objects {
    public static void main(String[] arguments) {
        long sum = 0;
        for (int turn = 0; turn < 12; turn++) {
            Map<Integer, byte[]> map = new HashMap<>();
            for (int i = 0; i < 150000; i++) map.put(i, new byte[200 + i % 300]);
            for (byte[] value : map.values()) sum += value.length;
        }
        System.out.println(sum);
    }
}
"""

NODE = """
let sum = 0;
for (let turn = 0; turn < 12; turn++) {
    const map = new Map();
    for (let i = 0; i < 150000; i++) map.set(i, { id: i, text: "x" + i, list: [i, i + 1] });
    for (const value of map.values()) sum += value.list[1];
    const buffers = [];
    for (let i = 0; i < 40; i++) buffers.push(Buffer.alloc(1 << 20, turn));
    sum += buffers.length;
}
console.log(sum);
"""

CPP = """
#include <algorithm>
#include <map>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>
int main() {
    std::map<std::string, std::vector<int>> m; m["a"] = {3, 1};
    std::unordered_map<int, std::string> u; u[1] = "b";
    std::sort(m["a"].begin(), m["a"].end());
    return std::regex_match("abc", std::regex("a.c")) + m.size() + u.size();
}
"""

REDIS = """
cd "$1" && shift
"$@" redis-server --port 0 --unixsocket "$PWD/socket" --save '' --daemonize no >log 2>&1 &
until redis-cli -s socket ping >/dev/null 2>&1; do sleep 0.01; done
redis-benchmark -s socket -q -n 60000 -r 60000 -d 2000 -P 16 -t set,get,lpush >/dev/null
redis-cli -s socket shutdown nosave
wait
"""

POSTGRES = (
    "set work_mem = '256MB'; create temp table t as select i, (i * 7919) % 100003 k, md5(i::text) s from "
    "generate_series(1, 600000) i; select count(*), sum(c) from (select k, count(*) c, max(s) from t group by k) x; "
    "select s from t order by s offset 300000 limit 1; select count(*) from t a join t b on a.i = b.i + 1\n"
)


def programs(folder, python):
    """Name, command, standard input, whether it runs with a prefix of its own, for each that is installed."""

    def file(name, text):
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        return path

    def has(module):
        return subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0

    found, missing = {}, []
    for name, text in (("duckdb", DUCKDB), ("polars", POLARS)):
        if has(name):
            found[name] = [python, file(f"{name}_load.py", text)]
        else:
            missing.append(name)
    found["python arenas"] = [python, file("arenas.py", ARENAS)]
    if shutil.which("javac"):
        subprocess.run(["javac", "-d", folder, file("Objects.java", JAVA)], check=True)
        found["java, parallel"] = ["java", "-XX:+UseParallelGC", "-Xmx512m", "-cp", folder, "Objects"]
        found["java, g1"] = ["java", "-XX:+UseG1GC", "-Xmx512m", "-cp", folder, "Objects"]
    else:
        missing.append("java")
    if shutil.which("node"):
        found["node"] = ["node", file("load.js", NODE)]
    else:
        missing.append("node")
    if shutil.which("g++"):
        found["g++ -O2"] = ["g++", "-O2", "-c", file("load.cpp", CPP), "-o", os.path.join(folder, "load.o")]
    else:
        missing.append("g++")
    if shutil.which("redis-server"):
        found["redis"] = ["sh", file("redis.sh", REDIS), folder]
    else:
        missing.append("redis")
    postgres = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
    if postgres and os.getuid() == 0:
        found["postgres"] = postgres_command(folder, postgres[-1])
    else:
        missing.append("postgres (as root)")
    if missing:
        print("left out:", ", ".join(missing), file=sys.stderr)
    return found


def postgres_command(folder, program):
    """PostgreSQL refuses to run as root, so another user does."""
    data = os.path.join(folder, "data")
    os.chmod(folder, 0o755)
    os.mkdir(data)
    shutil.chown(data, "nobody")
    # The shim's file must stand where only its user, or root, can put another.
    cache = tempfile.mkdtemp(dir="/run", prefix="mappings.")
    atexit.register(shutil.rmtree, cache)
    shutil.chown(cache, "nobody")
    user = ["setpriv", "--reuid=nobody", "--clear-groups", "env", f"XDG_CACHE_HOME={cache}"]
    initdb = os.path.join(os.path.dirname(program), "initdb")
    subprocess.run(user + [initdb, "-D", data, "-A", "trust"], check=True, capture_output=True, cwd=folder)
    return user + [program, "--single", "-D", data, "postgres"]


def run(command, text, folder):
    """Wall and processor time of a command and its children, in milliseconds."""
    with open(os.devnull, "wb") as null:
        began = time.perf_counter()
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, cwd=folder)
        child.stdin.write(text.encode())
        child.stdin.close()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - began
    if status != 0:
        sys.exit(f"{' '.join(command)} ended with {status:#x}")
    return wall * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3


def interval(values):
    draws = sorted(statistics.median(random.choices(values, k=len(values))) for _ in range(2000))
    return draws[50], draws[1949]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pumice", default="target/release/pumice")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", help="names, with commas between")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json")
    options = parser.parse_args()
    pumice = os.path.abspath(options.pumice)
    folder = tempfile.mkdtemp()
    loads = programs(folder, options.python)
    if options.only:
        loads = {name: loads[name] for name in options.only.split(",")}
    prefixes = {
        "plain": [],
        "--no-mmap": [pumice, "run", "--no-mmap", "--"],
        "mappings": [pumice, "run", "--mmap", "--"],
    }
    rows = []
    print(f"{'':16}{'plain':>8}{'--no-mmap':>11}{'mappings':>10}   gain, wall [95 %]          gain, processor [95 %]")
    for name, command in loads.items():
        times = {way: [] for way in WAYS}
        for turn in range(options.rounds + 1):
            for way in WAYS[turn % 3 :] + WAYS[: turn % 3]:
                text = POSTGRES if name == "postgres" else ""
                if name == "redis":
                    whole = command + prefixes[way]
                elif name == "postgres":
                    # The shim's program must start as the user that PostgreSQL runs as.
                    whole = command[:5] + prefixes[way] + command[5:]
                else:
                    whole = prefixes[way] + command
                measured = run(whole, text, folder)
                if turn > 0:
                    times[way].append(measured)
        row = {"program": name, "samples": times}
        cells = []
        for kind, what in enumerate(("wall", "processor")):
            ratios = [b[kind] / a[kind] for a, b in zip(times["mappings"], times["--no-mmap"])]
            low, high = interval(ratios)
            row[f"{what}_gain"] = statistics.median(ratios) - 1
            row[f"{what}_interval"] = [low - 1, high - 1]
            cells.append(f"{(statistics.median(ratios) - 1) * 100:+6.1f} % [{(low - 1) * 100:+6.1f}, {(high - 1) * 100:+6.1f}]")
        medians = [statistics.median(wall for wall, _ in times[way]) for way in WAYS]
        row["wall_ms"] = dict(zip(WAYS, medians))
        rows.append(row)
        print(f"{name:16}{medians[0]:8.0f}{medians[1]:11.0f}{medians[2]:10.0f}   {cells[0]}   {cells[1]}", flush=True)
    for what in ("wall", "processor"):
        mean = math.exp(statistics.mean(math.log(1 + row[f"{what}_gain"]) for row in rows)) - 1
        print(f"mean gain, {what}: {mean * 100:+.1f} % (geometric, of {len(rows)} programs)")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(rows, out, indent=1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()

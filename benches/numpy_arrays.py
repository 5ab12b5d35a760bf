#!/usr/bin/env python3
"""NumPy on arrays of 128 to 256 MB under pumice and the allocators one would use instead.

    benches/numpy_arrays.py [--pumice PATH] [--rounds N] [--json FILE]

Each allocator runs in a process of its own that lives for the whole benchmark; in every round
each of them does every operation four times in a row, in turn, so that a slow moment of the machine hits all
alike. Times are medians over the rounds of the mean of the last three, in milliseconds, to last use of the memory; the last
column is pumice's time against the best of the others, with the 95 % interval of the ratio of
medians (bootstrap). Needs NumPy; peers that are not installed are left out and named.
"""

import argparse
import glob
import json
import os
import random
import statistics
import subprocess
import sys

PEERS = {
    "glibc": None,
    "glibc hugetlb=1": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "mimalloc": "libmimalloc.so.2*",
    "jemalloc": "libjemalloc.so.2",
    "tcmalloc": "libtcmalloc_minimal.so.4",
}
DEBIAN = {
    "mimalloc": "libmimalloc2.0",
    "jemalloc": "libjemalloc2",
    "tcmalloc": "libtcmalloc-minimal4",
}

WORKER = r"""
import sys, time
import numpy as np
def busy(seconds):
    end = time.perf_counter() + seconds
    x = 0
    while time.perf_counter() < end:
        x += 1
sizes = {"128": 16 << 20, "256": 32 << 20}
arrays = {}
def operation(name, n):
    a, b = arrays[n]
    if name == "a+b":
        return lambda: a + b
    if name == "(a*2+b*3-1).sum()":
        return lambda: (a * 2 + b * 3 - 1).sum()
    if name == "ones":
        return lambda: np.ones(n)
    def zeros_sparse():
        z = np.zeros(n)
        z[::512] = 1
        return z
    return zeros_sparse
for line in sys.stdin:
    name, size = line.rstrip("\n").split("\t")
    n = sizes[size]
    if n not in arrays:
        arrays.clear()
        arrays[n] = (np.ones(n), np.ones(n))
    call = operation(name, n)
    times = []
    # One call to get going, then three in a row: the memory of each is free before the next.
    for turn in range(4):
        if name.endswith("after 20 ms"):
            busy(0.020)
        start = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - start)
        del result
    print(sum(times[1:]) / 3, flush=True)
"""

OPERATIONS = [
    "a+b",
    "(a*2+b*3-1).sum()",
    "ones",
    "zeros, 1 line a page",
    "zeros, 1 line a page, after 20 ms",
]


def library(pattern):
    for folder in ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/local/lib"):
        found = sorted(glob.glob(os.path.join(folder, pattern)))
        if found:
            return found[0]
    return None


def start(command, environment):
    return subprocess.Popen(
        command + [sys.executable, "-c", WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def ratio_interval(ours, theirs):
    draws = []
    for _ in range(2000):
        mine = statistics.median(random.choices(ours, k=len(ours)))
        other = statistics.median(random.choices(theirs, k=len(theirs)))
        draws.append(mine / other)
    draws.sort()
    return draws[50], draws[1949]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pumice", default="target/release/pumice")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json")
    options = parser.parse_args()
    workers = {"pumice": start([options.pumice, "run", "--"], {})}
    for name, how in PEERS.items():
        if isinstance(how, str):
            path = library(how)
            if path is None:
                print(f"{name} is not installed: apt-get install {DEBIAN[name]}", file=sys.stderr)
                continue
            how = {"LD_PRELOAD": path}
        workers[name] = start([], how or {})
    rows = []
    names = list(workers)
    print(f"{'ms, median of ' + str(options.rounds):42}" + "".join(f"{n:>17}" for n in names)
          + "   pumice/best of the others [95 %]")
    for size in ("128", "256"):
        for operation in OPERATIONS:
            times = {name: [] for name in workers}
            for turn in range(options.rounds + 3):
                order = names[turn % len(names):] + names[:turn % len(names)]
                for name in order:
                    worker = workers[name]
                    worker.stdin.write(f"{operation}\t{size}\n")
                    worker.stdin.flush()
                    taken = float(worker.stdout.readline())
                    if turn >= 3:
                        times[name].append(taken)
            medians = {name: statistics.median(each) for name, each in times.items()}
            best = min((m, n) for n, m in medians.items() if n != "pumice")[1]
            low, high = ratio_interval(times["pumice"], times[best])
            ratio = medians["pumice"] / medians[best]
            print(f"{operation + ', ' + size + ' MB':42}"
                  + "".join(f"{medians[n] * 1e3:17.2f}" for n in names)
                  + f"   {ratio:.3f} [{low:.3f}, {high:.3f}] {best}")
            rows.append({"operation": operation, "mb": int(size), "ratio_to_best": ratio,
                         "ratio_low": low, "ratio_high": high, "best": best,
                         **{f"{n}_ms": medians[n] * 1e3 for n in names}})
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Short programs with and without `pumice run`: what it costs where it does not help.

    benches/whole_programs.py [--pumice PATH] [--runs N] [--json FILE]

Pairs of runs, alternating which comes first. Prints the median wall time of each, the median of
the paired differences and ratios, and the ratio's 95 % interval (bootstrap over pairs).
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

SOURCE = "#include <stdio.h>\n" + "".join(
    f"int f{i}(int x) {{ int s = 0; for (int i = 0; i < x; i++) s += i * {i} ^ (s >> 3); return s; }}\n"
    for i in range(400)
) + "int main(void) { return f1(3); }\n"


def wall(command):
    # posix_spawn, so that this process's size does not matter.
    with open(os.devnull, "wb") as null:
        began = time.perf_counter()
        child = subprocess.Popen(command, stdout=null, stderr=null)
        child.wait()
        return time.perf_counter() - began


def interval(values):
    draws = sorted(
        statistics.median(random.choices(values, k=len(values))) for _ in range(2000)
    )
    return draws[50], draws[1949]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pumice", default="target/release/pumice")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--json")
    options = parser.parse_args()
    folder = tempfile.mkdtemp()
    source = os.path.join(folder, "many.c")
    with open(source, "w", encoding="utf-8") as out:
        out.write(SOURCE)
    programs = {
        "true": ["/bin/true"],
        "python3 -c pass": [sys.executable, "-c", "pass"],
        "git log": ["git", "log", "--stat"],
        "cc -O1, 400 functions": ["cc", "-O1", "-c", source, "-o", os.path.join(folder, "many.o")],
    }
    rows = []
    print(f"{'':24}{'plain ms':>10}{'pumice ms':>11}{'difference ms':>15}   ratio [95 %]")
    for name, command in programs.items():
        if shutil.which(command[0]) is None:
            print(f"{name:24}not installed")
            continue
        plain, served = [], []
        for turn in range(options.runs + 2):
            pair = [(plain, command), (served, [options.pumice, "run", "--"] + command)]
            for times, each in pair if turn % 2 else pair[::-1]:
                taken = wall(each)
                if turn >= 2:
                    times.append(taken)
        ratios = [b / a for a, b in zip(plain, served)]
        differences = [b - a for a, b in zip(plain, served)]
        low, high = interval(ratios)
        row = {
            "program": name,
            "plain_ms": statistics.median(plain) * 1e3,
            "pumice_ms": statistics.median(served) * 1e3,
            "difference_ms": statistics.median(differences) * 1e3,
            "ratio": statistics.median(ratios),
            "ratio_low": low,
            "ratio_high": high,
        }
        rows.append(row)
        print(f"{name:24}{row['plain_ms']:10.2f}{row['pumice_ms']:11.2f}"
              f"{row['difference_ms']:15.2f}   {row['ratio']:.3f} [{low:.3f}, {high:.3f}]")
    shutil.rmtree(folder)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()

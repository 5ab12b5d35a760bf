# One operation on arrays of 128 and of 256 MB: after a call to get going, so many calls in a row. Prints the seconds
# of a call, those of both sizes together.
import sys
import time

import numpy


def busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def sparse_zeros(count):
    zeros = numpy.zeros(count)
    zeros[::512] = 1
    return zeros


name, turns = sys.argv[1], int(sys.argv[2])
total = 0.0
for count in (16 << 20, 32 << 20):
    a, b = numpy.ones(count), numpy.ones(count)
    operation = {
        "add": lambda: a + b,
        "expression": lambda: (a * 2 + b * 3 - 1).sum(),
        "ones": lambda: numpy.ones(count),
        "zeros": lambda: sparse_zeros(count),
        "zeros-later": lambda: sparse_zeros(count),
    }[name]
    for turn in range(turns + 1):
        if name == "zeros-later":
            busy(0.020)
        started = time.perf_counter()
        result = operation()
        if turn > 0:
            total += (time.perf_counter() - started) / turns
        # The memory is free before the next call.
        del result
    del operation, a, b
print(total)

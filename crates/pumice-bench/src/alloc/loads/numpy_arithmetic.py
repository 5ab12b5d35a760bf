# Expressions on arrays of 32 MiB: each makes several temporary arrays.
import sys

import numpy

random = numpy.random.default_rng(1)
a, b = random.random(4 << 20), random.random(4 << 20)
total = 0.0
for turn in range(int(sys.argv[1])):
    c = a * 2 + b * turn - 1
    total += float(numpy.sqrt(numpy.abs(c)).sum())
assert total > 0

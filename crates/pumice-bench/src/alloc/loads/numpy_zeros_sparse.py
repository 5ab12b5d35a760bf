# Arrays of 128 MiB of zeros, of which one page in eight is touched.
import sys

import numpy

for turn in range(int(sys.argv[1])):
    zeros = numpy.zeros(16 << 20)
    zeros[::4096] = turn + 1
    assert zeros[4095] == 0

/* What was locked in a piece of a mapping is not locked any more, nor counted, when the mapping is gone: also where
   mremap was asked to let it grow in between. */
#define _GNU_SOURCE
#include "defect.h"

int main(void) {
    guard(20);
    size_t size = 4 * MIB;
    for (int i = 0; i < 2; i++) CHECK(munmap(memset(map(size), 1, size), size) == 0);
    long before = status_of("VmLck:");
    for (int round = 0; round < 3; round++) {
        char *at = map(size), *behind = map(size);
        fill(at, size, round);
        CHECK(mlock(at + MIB, 16 * PAGE) == 0);
        char *to = mremap(at, size, 2 * size, MREMAP_MAYMOVE);
        /* It is several mappings, which the kernel may refuse. */
        CHECK(holds(to == MAP_FAILED ? at : to, size, round));
        CHECK(status_of("VmLck:") == before + 64);
        CHECK(munmap(to == MAP_FAILED ? at : to, to == MAP_FAILED ? size : 2 * size) == 0);
        CHECK(status_of("VmLck:") == before);
        CHECK(munmap(behind, size) == 0);
    }
    puts("done");
    return 0;
}

/* What was locked of a mapping, all or a piece, is not locked any more, nor counted, when the mapping is gone: also where
   mremap was asked to let it grow in between. */
#define _GNU_SOURCE
#include "defect.h"

int main(void) {
    guard(20);
    size_t size = 4 * MIB;
    for (int i = 0; i < 2; i++) CHECK(munmap(memset(map(size), 1, size), size) == 0);
    long before = status_of("VmLck:");
    for (int round = 0; round < 4; round++) {
        char *at = map(size), *behind = map(size);
        fill(at, size, round);
        size_t locked = round % 2 ? size : 16 * PAGE;
        CHECK(mlock(round % 2 ? at : at + MIB, locked) == 0);
        char *to = mremap(at, size, 2 * size, MREMAP_MAYMOVE);
        /* What is several mappings the kernel may refuse. What has grown is locked altogether. */
        CHECK(holds(to == MAP_FAILED ? at : to, size, round));
        locked = round % 2 && to != MAP_FAILED ? 2 * size : locked;
        CHECK(status_of("VmLck:") == before + (long)(locked >> 10));
        CHECK(munmap(to == MAP_FAILED ? at : to, to == MAP_FAILED ? size : 2 * size) == 0);
        CHECK(status_of("VmLck:") == before);
        CHECK(munmap(behind, size) == 0);
    }
    puts("done");
    return 0;
}

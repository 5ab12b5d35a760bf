/* mincore of a range with a hole: what it says of the pages before the hole, and that it can't say it. */
#define _GNU_SOURCE
#include "defect.h"

int main(void) {
    guard(20);
    for (int i = 0; i < 2; i++) CHECK(munmap(memset(map(2 * MIB), 1, 2 * MIB), 2 * MIB) == 0);
    char *at = map(2 * MIB);
    memset(at, 1, 2 * MIB);
    CHECK(munmap(at + MIB, MIB / 2) == 0);
    static unsigned char seen[512];
    memset(seen, 0xaa, sizeof seen);
    printf("with a hole: %s\n", TRY(mincore(at, 2 * MIB, seen)));
    printf("said of the first page: %d\n", seen[0] != 0xaa);
    printf("to nowhere: %s\n", TRY(mincore(at, 2 * MIB, (void *)8)));
    CHECK(munmap(at, 2 * MIB) == 0);
    return 0;
}

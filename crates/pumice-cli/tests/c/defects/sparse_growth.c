/* realloc of memory that is hardly touched: what was written is there, and the rest costs no memory. */
#define _GNU_SOURCE
#include "defect.h"
#include <malloc.h>

enum { BUFFERS = 64, DOUBLINGS = 4 };

/* An eighth of the memory is more than the pages that are touched. */
static void grow(size_t size, int locked) {
    char *all[BUFFERS];
    long before = status_of("VmRSS:");
    for (int i = 0; i < BUFFERS; i++) {
        CHECK(all[i] = malloc(size));
        all[i][0] = (char)(i + 1);
        all[i][size - 1] = 1;
        if (locked) CHECK(mlock(all[i] + size / 2, 1) == 0);
    }
    size_t now = size;
    for (int turn = 0; turn < DOUBLINGS; turn++, now *= 2)
        for (int i = 0; i < BUFFERS; i++) {
            CHECK(all[i] = realloc(all[i], 2 * now));
            CHECK(all[i][0] == (char)(i + 1) && all[i][now - 1] == 1);
            all[i][2 * now - 1] = 1;
        }
    long grown = status_of("VmRSS:") - before;
    for (int i = 0; i < BUFFERS; i++)
        for (size_t end = size; end <= now; end *= 2) CHECK(all[i][end - 1] == 1);
    long most = BUFFERS * (long)(now / 1024) / 8;
    if (grown > most) printf("%ld KiB for %d times %zu\n", grown, BUFFERS, now);
    for (int i = 0; i < BUFFERS; i++) free(all[i]);
}

int main(void) {
    guard(120);
    /* The C library moves the pages of what it serves itself. */
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    for (int locked = 0; locked < 2; locked++)
        for (size_t size = 256 << 10; size <= 1 << 20; size *= 2) grow(size, locked);
    puts("done");
    return 0;
}

/* realloc of memory of which a part has attributes: what it grows by has none, and what it had stays as it was. */
#define _GNU_SOURCE
#include "defect.h"

#include <malloc.h>
#include <sys/wait.h>

enum { WIPE, READ_ONLY, CHILDLESS, NOTHING, WAYS };

static const size_t before = 16 << 20, after = 50000000;

static int set(int way, char *at, size_t size) {
    switch (way) {
    case WIPE: return madvise(at, size, MADV_WIPEONFORK);
    case READ_ONLY: return mprotect(at, size, PROT_READ);
    case CHILDLESS: return madvise(at, size, MADV_DONTFORK);
    default: return 0;
    }
}

/* In a child, which has no more of it than a plain realloc leaves it: nothing of what is new may be missing. */
static void check_in_child(const char *at) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        _exit(!is_all(at + before, 0x33, after - before));
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    guard(100);
    /* The C library's heap hands memory out with the attributes that were set on it before, but not mappings. */
    CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
    for (int way = 0; way < WAYS; way++)
        for (size_t share = way == NOTHING ? 100 : 50; share <= 100; share += 10) {
            char *at = malloc(before), *wall = malloc(before);
            CHECK(at && wall);
            memset(at, 0x5a, before);
            memset(wall, 1, before);
            char *first = (char *)(((size_t)at + PAGE) & -PAGE);
            CHECK(set(way, first, ((before - 2 * PAGE) / 100 * share) & -PAGE) == 0);
            char *now = realloc(at, after);
            CHECK(now);
            CHECK(is_all(now, 0x5a, before));
            memset(now + before, 0x33, after - before);
            check_in_child(now);
            /* An allocator writes to what is freed, and hands it out again. */
            char *page = (char *)(((size_t)now + PAGE) & -PAGE);
            size_t size = (after - 2 * PAGE) & -PAGE;
            CHECK(mprotect(page, size, RW) == 0 && madvise(page, size, MADV_DOFORK) == 0);
            CHECK(madvise(page, size, MADV_KEEPONFORK) == 0);
            free(now);
            char *zeros = calloc(1, after);
            CHECK(zeros);
            CHECK(is_zero(zeros, after));
            memset(zeros, 0x33, after);
            check_in_child(zeros);
            free(zeros);
            free(wall);
        }
    puts("done");
    return 0;
}

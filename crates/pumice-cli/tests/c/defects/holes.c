/* Allocations of which the program has unmapped a part: free and realloc take all of it, and the memory that comes
   there later is whole. */
#define _GNU_SOURCE
#include "defect.h"

#include <malloc.h>
#include <sys/resource.h>

enum { FREE, SHRINK, SHRINK_AND_GROW, WAYS, COUNT = 40, LATER = 20 };

static const size_t size = 8 * MIB;

static char *page_in(char *at, size_t offset) { return (char *)((((size_t)at + PAGE - 1) & -PAGE) + offset); }

/* Frees an allocation with a hole in one of several ways; what is left of it, if anything is. */
static char *give_up(char *at, int way) {
    if (way == FREE) {
        free(at);
        return NULL;
    }
    at = realloc(at, size / 4);
    CHECK(at);
    if (way == SHRINK_AND_GROW) {
        at = realloc(at, size);
        CHECK(at);
        memset(at, 5, size);
    }
    return at;
}

static char *block(int nth, int mapped) {
    char *at = mapped ? mmap(NULL, size, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : malloc(size);
    CHECK(at && at != MAP_FAILED);
    memset(at, nth + 1, size);
    return at;
}

/* All calls must take it for what it is: memory in use. */
static void check_whole(char *at) {
    char *page = page_in(at, 0);
    size_t len = size - 2 * PAGE;
    static unsigned char seen[8 * MIB / 4096];
    CHECK(mincore(page, len, seen) == 0);
    CHECK(mprotect(page, len, RW) == 0 && madvise(page, len, MADV_NORMAL) == 0);
    char *over = mmap(page + MIB, MIB, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(over == MAP_FAILED && errno == EEXIST);
}

static void check_after(int way, int mapped) {
    /* Blocks come to the freed ones' places at once, mappings only after others. */
    int count = mapped ? COUNT : LATER;
    char *blocks[COUNT], *left[4];
    for (int i = 0; i < 4; i++) blocks[i] = block(i, 0);
    for (int i = 0; i < 4; i++) CHECK(munmap(page_in(blocks[i], 2 * MIB + i * PAGE), size / 2) == 0);
    for (int i = 0; i < 4; i++) left[i] = give_up(blocks[i], way);
    if (way == SHRINK_AND_GROW)
        for (int i = 0; i < 4; i++) check_whole(left[i]);
    for (int i = 0; i < 2; i++) free(left[i]);
    for (int i = 0; i < count; i++) check_whole(blocks[i] = block(i, mapped));
    /* What one owner unmaps is all that goes. */
    if (mapped)
        for (int i = 0; i < count; i++) CHECK(munmap(blocks[i], size / 2) == 0);
    char *more[COUNT];
    for (int i = 0; i < count; i++) more[i] = block(100, 0);
    for (int i = 0; i < count; i++) {
        for (size_t at = mapped ? size / 2 : 0; at < size; at += 64) CHECK(blocks[i][at] == i + 1);
        free(more[i]);
        if (mapped) CHECK(munmap(blocks[i] + size / 2, size / 2) == 0);
        else free(blocks[i]);
    }
    for (int i = 2; i < 4; i++) free(left[i]);
}

/* A limit takes what is free away, and nothing else. */
static void check_limit(void) {
    char *blocks[8], *later[LATER];
    for (int i = 0; i < 8; i++) blocks[i] = block(i, 0);
    for (int i = 0; i < 8; i += 2) CHECK(munmap(page_in(blocks[i], MIB), 2 * MIB) == 0);
    for (int i = 0; i < 8; i++) free(blocks[i]);
    for (int i = 0; i < LATER; i++) later[i] = block(i, 0);
    struct rlimit limit = {(rlim_t)64 << 30, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    for (int i = 0; i < LATER; i++) {
        for (size_t at = 0; at < size; at += 64) CHECK(later[i][at] == i + 1);
        free(later[i]);
    }
}

int main(void) {
    guard(100);
    /* An allocation of the C library's is a mapping of its own, of which a part may go. */
    CHECK(mallopt(M_MMAP_THRESHOLD, 128 << 10) == 1);
    for (int i = 0; i < 6; i++) free(block(i, 0));
    for (int way = 0; way < WAYS; way++)
        for (int mapped = 0; mapped < 2; mapped++) check_after(way, mapped);
    check_limit();
    puts("whole");
    return 0;
}

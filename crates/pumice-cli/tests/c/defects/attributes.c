/* Attributes that a program sets on a part of a block end with that block, also where realloc or mremap has
   moved it meanwhile: the next owner of the memory has none of them. */
#define _GNU_SOURCE
#include "defect.h"
#include <malloc.h>

enum { OTHERS = 4 };

/* The kernel's letters for what is at an address: two and a blank each. */
static void flags_of(const void *at, char *flags, size_t size) {
    char line[512];
    int inside = 0;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    CHECK(smaps);
    *flags = 0;
    while (fgets(line, sizeof line, smaps)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            inside = start <= (uintptr_t)at && (uintptr_t)at < end;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            snprintf(flags, size, "%s", line + 8);
    }
    fclose(smaps);
}

static void check_plain(const void *at) {
    static const char *const unwanted[] = {" dc ", " wf ", " lo "};
    char flags[256];
    flags_of(at, flags, sizeof flags);
    CHECK(*flags);
    for (int i = 0; i < 3; i++)
        if (strstr(flags, unwanted[i])) {
            printf("memory of others has%s\n", flags);
            abort();
        }
}

enum what { DONTFORK, WIPEONFORK, LOCK, LOCK_ONFAULT };

static void set(enum what what, char *at, size_t size) {
    switch (what) {
    case DONTFORK: CHECK(madvise(at, size, MADV_DONTFORK) == 0); break;
    case WIPEONFORK: CHECK(madvise(at, size, MADV_WIPEONFORK) == 0); break;
    case LOCK: CHECK(mlock(at, size) == 0); break;
    default: CHECK(mlock2(at, size, MLOCK_ONFAULT) == 0); break;
    }
}

static char *by_malloc(size_t size) { return malloc(size); }
static void by_free(char *at, size_t size) { free(at); }
static char *by_realloc(char *at, size_t old, size_t size) { return realloc(at, size); }
static void by_munmap(char *at, size_t size) { CHECK(munmap(at, size) == 0); }
static char *by_mremap(char *at, size_t old, size_t size) {
    char *to = mremap(at, old, size, MREMAP_MAYMOVE);
    if (to != MAP_FAILED) return to;
    /* What is several mappings can't grow. */
    memcpy(to = map(size), at, old);
    CHECK(munmap(at, old) == 0);
    return to;
}

struct way {
    char *(*get)(size_t);
    char *(*move)(char *, size_t, size_t);
    void (*put)(char *, size_t);
};

/* Gets all that could have it, and lets a child have it as well. */
static void check_others(struct way way, size_t size) {
    char *others[OTHERS];
    size_t sizes[OTHERS];
    for (int i = 0; i < OTHERS; i++) {
        sizes[i] = i == 0 ? size : i % 2 ? 2 * MIB : 300 << 10;
        fill(others[i] = way.get(sizes[i]), sizes[i], i);
    }
    check_plain(others[0]), check_plain(others[0] + size / 2), check_plain(others[1]);
    pid_t child = fork();
    if (child == 0) {
        guard(10);
        for (int i = 0; i < OTHERS; i++) CHECK(holds(others[i], sizes[i], i));
        _exit(0);
    }
    wait_for(child);
    for (int i = 0; i < OTHERS; i++) way.put(others[i], sizes[i]);
}

static void carry(struct way way, enum what what, size_t offset, size_t part, size_t size) {
    long locked = status_of("VmLck:");
    char *at = way.get(size), *behind = way.get(size);
    fill(at, size, 1);
    char *page = (char *)((uintptr_t)(at + offset) / PAGE * PAGE);
    set(what, page, part);
    at = way.move(at, size, 2 * size);
    CHECK(at && holds(at, size, 1));
    /* The old place is somebody else's already. */
    check_others(way, size);
    fill(at + size, size, 2);
    way.put(at, 2 * size);
    check_others(way, size);
    way.put(behind, size);
    CHECK(status_of("VmLck:") == locked);
}

int main(void) {
    guard(30);
    /* Plainly such memory is unmapped when it is freed only by this. */
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    static const struct way ways[] = {{by_malloc, by_realloc, by_free}, {map, by_mremap, by_munmap}};
    size_t size = 8 * MIB + 64 * PAGE;
    for (int i = 0; i < 2; i++) {
        ways[i].put(memset(ways[i].get(size), 1, size), size);
        for (int what = DONTFORK; what <= WIPEONFORK; what++) {
            carry(ways[i], what, 3 * MIB, 16 * PAGE, size);
            carry(ways[i], what, 8 * MIB + 32 * PAGE, 8 * PAGE, size);
        }
    }
    /* What mremap does to locked memory is in mremap_locked.c. */
    carry(ways[0], LOCK, 3 * MIB, 16 * PAGE, size);
    carry(ways[0], LOCK_ONFAULT, 8 * MIB + 32 * PAGE, 8 * PAGE, size);
    puts("done");
    return 0;
}

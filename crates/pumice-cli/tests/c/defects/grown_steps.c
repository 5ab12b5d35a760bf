/* Memory that grows by a little again and again. A mapping stays one mapping, with all of its content and what was set
   on it; what it gains and is not used costs nothing, as from the kernel. A vector in which little is used of what it
   gains has about as much resident as with the C library. */
#define _GNU_SOURCE
#include "defect.h"
#include <sys/wait.h>

enum { STEP = 64 << 10, STEPS = 600 };

/* The mappings in a range. */
static int mappings_in(const char *at, size_t len) {
    char line[512];
    int count = 0;
    size_t start, end;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%zx-%zx", &start, &end) == 2) count += start < (size_t)at + len && end > (size_t)at;
    fclose(maps);
    return count;
}

/* Whether the mapping at an address has a flag. */
static int flags_have(const char *at, const char *flag) {
    char line[512];
    int is_it = 0, has = 0;
    size_t start, end;
    FILE *maps = fopen("/proc/self/smaps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%zx-%zx ", &start, &end) == 2) is_it = start <= (size_t)at && end > (size_t)at;
        if (is_it && strncmp(line, "VmFlags:", 8) == 0) has = strstr(line, flag) != NULL;
    }
    fclose(maps);
    return has;
}

/* What all of it has been given. */
enum given { NOTHING, LOCK, FOR_FORKS, HUGE_PAGES, GIVENS };

static void grow_mapping(enum given given) {
    size_t len = 4 * MIB, first = len;
    char *at = mmap(NULL, len, RW, ANON, -1, 0);
    CHECK(at != MAP_FAILED);
    fill(at, len, 1);
    if (given == LOCK && mlock(at, len) != 0) {
        /* The limit is lower. */
        puts("0 1");
        return;
    }
    if (given == FOR_FORKS) CHECK(madvise(at, len, MADV_WIPEONFORK) == 0);
    /* A kernel may have none. */
    int is_huge = given == HUGE_PAGES && madvise(at, len, MADV_HUGEPAGE) == 0;
    for (int i = 0; i < STEPS; i++) {
        at = mremap(at, len, len + STEP, MREMAP_MAYMOVE);
        if (at == MAP_FAILED && given == LOCK && errno == EAGAIN) {
            puts("0 1");
            return;
        }
        CHECK(at != MAP_FAILED && is_zero(at + len, STEP));
        at[len] = 1 + i % 100;
        len += STEP;
    }
    CHECK(holds(at, first, 1));
    for (int i = 0; i < STEPS; i++) CHECK(at[first + (size_t)i * STEP] == 1 + i % 100);
    CHECK(!is_huge || flags_have(at, " hg"));
    int is_wiped = 0;
    pid_t child = fork();
    if (child == 0) _exit(is_zero(at, len));
    CHECK(child > 0 && waitpid(child, &is_wiped, 0) == child);
    printf("%d %d\n", WEXITSTATUS(is_wiped), mappings_in(at, len));
    CHECK(munmap(at, len) == 0);
}

/* Little is used of much that it gains. */
static void grow_far(void) {
    size_t len = 8 * MIB, more = 512 * MIB;
    char *at = mmap(NULL, len, RW, ANON, -1, 0);
    CHECK(at != MAP_FAILED);
    fill(at, len, 3);
    long before = status_of("VmRSS:");
    at = mremap(at, len, len + more, MREMAP_MAYMOVE);
    CHECK(at != MAP_FAILED);
    for (size_t i = 0; i < more; i += 4 * MIB) at[len + i] = 1;
    printf("%s\n", status_of("VmRSS:") - before < 64 << 10 ? "a little" : "a lot");
    CHECK(holds(at, len, 3) && munmap(at, len + more) == 0);
}

/* All of it is full, it doubles, and grows on by steps; or it is an index with a log behind it that is full, which
   grows, and the index is used here and there. */
static void grow_vector(size_t len, int is_index) {
    char *at = malloc(len);
    CHECK(at);
    size_t full = is_index ? 2 * MIB : len;
    fill(at + len - full, full, 2);
    size_t now = is_index ? len + 2 * MIB : 2 * len;
    CHECK(at = realloc(at, now));
    if (!is_index) fill(at + len, len, 2);
    long before = status_of("VmRSS:");
    for (size_t i = 0; i < 100; i++) {
        CHECK(is_index || (at = realloc(at, now += 2 * MIB)));
        at[is_index ? i * 2 * MIB : now - 2 * MIB + STEP] = 1;
    }
    printf("%s\n", status_of("VmRSS:") - before < 64 << 10 ? "a little" : "a lot");
    CHECK(holds(at + len - full, full, 2));
    free(at);
}

/* Many that are full grow step by step, all at once, a few in each huge page. */
static void grow_many(size_t from, size_t to) {
    enum { COUNT = 250 };
    static char *all[COUNT];
    long before = status_of("VmRSS:");
    for (size_t len = from; len <= to; len += 4 << 10)
        for (int i = 0; i < COUNT; i++) {
            size_t had = len == from ? 0 : len - (4 << 10);
            CHECK(all[i] = realloc(all[i], len));
            fill(all[i] + had, len - had, i);
        }
    printf("%s\n", status_of("VmRSS:") - before < (long)(to * COUNT >> 10) / 4 * 5 + (24 << 10) ? "a little" : "a lot");
    for (int i = 0; i < COUNT; i++) free(all[i]), all[i] = NULL;
}

int main(void) {
    guard(120);
    /* Before huge pages are asked for. */
    grow_far();
    for (enum given given = NOTHING; given < GIVENS; given++) grow_mapping(given);
    grow_vector(28248 << 10, 0);
    grow_vector(300 * MIB, 1);
    grow_many(600 << 10, 880 << 10);
    grow_many(900 << 10, 1040 << 10);
    return 0;
}

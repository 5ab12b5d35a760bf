/* Memory that grows by a little again and again. A mapping stays a few mappings, with all of its content; a vector in
   which little is used of what it gains has about as much resident as with the C library. */
#define _GNU_SOURCE
#include "defect.h"

enum { STEP = 64 << 10, STEPS = 600, MANY = 150 };

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

static void grow_mapping(void) {
    size_t len = 4 * MIB, first = len;
    char *at = mmap(NULL, len, RW, ANON, -1, 0);
    CHECK(at != MAP_FAILED);
    fill(at, len, 1);
    for (int i = 0; i < STEPS; i++) {
        at = mremap(at, len, len + STEP, MREMAP_MAYMOVE);
        CHECK(at != MAP_FAILED && is_zero(at + len, STEP));
        at[len] = 1 + i % 100;
        len += STEP;
    }
    CHECK(holds(at, first, 1));
    for (int i = 0; i < STEPS; i++) CHECK(at[first + (size_t)i * STEP] == 1 + i % 100);
    printf("%s\n", mappings_in(at, len) < MANY ? "a few mappings" : "many mappings");
    CHECK(munmap(at, len) == 0);
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

int main(void) {
    guard(120);
    grow_mapping();
    grow_vector(28248 << 10, 0);
    grow_vector(300 * MIB, 1);
    return 0;
}

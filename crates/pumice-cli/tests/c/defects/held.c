/* Memory that a program keeps and hardly touches, of sizes that it fills as well: it costs what is touched, whatever
   the program fills and frees meanwhile. Memory that it has freed may be there for a while. */
#define _GNU_SOURCE
#include "defect.h"
#include <sys/resource.h>

static long touched_kib;

static char *full(size_t size) {
    char *at = malloc(size);
    CHECK(at);
    memset(at, 1, size);
    return at;
}

/* One page in `step` bytes is touched. */
static void keep(char *at, size_t size, size_t step) {
    CHECK(at);
    for (size_t offset = 0; offset < size; offset += step, touched_kib += 4) at[offset] = 1;
}

static void rounds(void) {
    for (int round = 0; round < 50; round++) {
        char *all[10];
        for (int i = 0; i < 10; i++) all[i] = full(4 * MIB);
        for (int i = 0; i < 10; i++) free(all[i]);
        for (int i = 0; i < 10; i++) keep(malloc(4 * MIB), 1, 1);
    }
}

static void turns(int zeros) {
    for (int turn = 0; turn < 300; turn++) {
        char *at = full(4 * MIB);
        keep(zeros ? calloc(1, 4 * MIB) : malloc(4 * MIB), 1, 1);
        free(at);
    }
}

static void table(void) {
    for (size_t size = MIB; size <= 64 * MIB; size *= 2) {
        char *at = calloc(1, size);
        CHECK(at);
        memset(at, 1, size);
        free(at);
    }
    for (int i = 0; i < 4; i++) keep(calloc(1, 128 * MIB), 128 * MIB, 2 * MIB);
}

static void mixed(size_t least, size_t more) {
    srand(1);
    for (int i = 0; i < 100; i++) free(full(least + (size_t)rand() % more));
    for (int i = 0; i < 1000; i++) keep(malloc(least + (size_t)rand() % more), 1, 1);
}

static void small(void) {
    for (int i = 0; i < 200; i++) free(full(256 << 10));
    for (int i = 0; i < 3000; i++) keep(malloc(256 << 10), 1, 1);
}

static void scattered(void) {
    for (int i = 0; i < 20; i++) free(full(8 * MIB));
    for (int i = 0; i < 200; i++) keep(malloc(8 * MIB), 8 * MIB, 60 << 10);
}

static void batch(void) {
    enum { COUNT = 16 };
    char *all[COUNT];
    for (int i = 0; i < COUNT; i++) all[i] = full(4 * MIB);
    for (int i = 0; i < COUNT; i++) free(all[i]);
    for (int i = 0; i < 300; i++) keep(malloc(4 * MIB), 1, 1);
}

int main(int count, char **arguments) {
    guard(120);
    CHECK(count == 2);
    long before = status_of("VmRSS:");
    /* The faults of a program that has its memory back for each turn, and of one that has not: a page of 4 MiB each. */
    long most_faults = 0;
    const char *how = arguments[1];
    if (!strcmp(how, "rounds")) rounds();
    if (!strcmp(how, "turns")) turns(0), most_faults = 30000;
    if (!strcmp(how, "zeros")) turns(1);
    if (!strcmp(how, "table")) table();
    if (!strcmp(how, "mixed")) mixed(MIB, 7 * MIB);
    if (!strcmp(how, "mixed-small")) mixed(256 << 10, 1700 << 10);
    if (!strcmp(how, "small")) small();
    if (!strcmp(how, "scattered")) scattered();
    if (!strcmp(how, "batch")) batch();
    long held_mib = (status_of("VmRSS:") - before) / 1024, touched_mib = touched_kib / 1024;
    CHECK(touched_kib > 0);
    /* Some MiB that nobody has judged yet, and what was freed last. */
    if (held_mib > touched_mib * 5 / 4 + 128) printf("%ld MiB, %ld touched\n", held_mib, touched_mib);
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    if (most_faults && usage.ru_minflt > most_faults) printf("%ld faults\n", usage.ru_minflt);
    puts("done");
    return 0;
}

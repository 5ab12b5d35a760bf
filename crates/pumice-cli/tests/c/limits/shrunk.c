/* realloc that shrinks never fails, also where a limit leaves no room for a second block, and gives memory back. */
#include "limits.h"
#include <malloc.h>
#include <sys/resource.h>

enum { COUNT = 8 };

static size_t in_use(int data) {
    char line[256];
    const char *name = data ? "VmData:" : "VmSize:";
    size_t kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status))
        if (strncmp(line, name, strlen(name)) == 0) kib = strtoul(line + strlen(name), NULL, 10);
    fclose(status);
    return kib << 10;
}

int main(int count, char **arguments) {
    int data = count > 1;
    size_t mib = 1 << 20, size = 64 * mib;
    CHECK(mallopt(M_MMAP_THRESHOLD, 128 << 10) == 1);
    char *at[COUNT];
    for (int i = 0; i < COUNT; i++) {
        CHECK(at[i] = malloc(size));
        fill(at[i], size, i);
    }
    struct rlimit limit = {560 * mib, RLIM_INFINITY};
    CHECK(setrlimit(data ? RLIMIT_DATA : RLIMIT_AS, &limit) == 0);
    size_t before = in_use(data);
    /* By little, to whole huge pages and to others, and to so little that the C library might have it elsewhere. */
    static const size_t sizes[] = {63 << 20, 50000000, 34 << 20, 3 << 20, 300000, 70000};
    for (size_t nth = 0; nth < sizeof sizes / sizeof *sizes; nth++)
        for (int i = 0; i < COUNT; i++) {
            char *now = realloc(at[i], sizes[nth]);
            CHECK(now && malloc_usable_size(now) >= sizes[nth]);
            CHECK(holds(at[i] = now, sizes[nth], i));
        }
    CHECK(before - in_use(data) > COUNT * 60 * mib);
    for (int i = 0; i < COUNT; i++) free(at[i]);
    char *again = malloc(300 * mib);
    CHECK(again);
    memset(again, 1, 300 * mib);
    free(again);
    puts("shrunk");
    return 0;
}

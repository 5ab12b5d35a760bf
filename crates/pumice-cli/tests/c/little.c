/* Asks for little by requests of 100 KiB, then for more; or has a block grow from small to large; or forgets its
   variables, or its name, in between. Says after each step whether there is a heap, which reserves addresses. */
#include "check.h"
#include <dirent.h>
#include <stdio.h>
#include <sys/prctl.h>

static int threads(void) {
    int count = -2;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    while (readdir(tasks)) count++;
    closedir(tasks);
    return count;
}

static unsigned long long addresses(void) {
    char line[200];
    unsigned long long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (fgets(line, sizeof line, status)) sscanf(line, "VmSize: %llu", &kib);
    fclose(status);
    return kib << 10;
}

static void say(void) {
    int has_heap = addresses() > 1ull << 36;
    CHECK(has_heap || threads() == 1);
    puts(has_heap ? "heap" : "none");
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    if (!strcmp(arguments[1], "grows")) {
        char *at = malloc(1000);
        CHECK(at);
        fill(at, 1000, 1);
        for (size_t size = 1000; size < 64 << 20; size += size / 3) {
            CHECK(at = realloc(at, size + size / 3));
            CHECK(holds(at, 1000, 1));
            memset(at + 1000, 1, size / 3);
        }
        free(at);
        return 0;
    }
    if (!strcmp(arguments[1], "forgets") || !strcmp(arguments[1], "renames")) {
        free(memset(malloc(100 << 10), 1, 100 << 10));
        if (arguments[1][0] == 'f') clearenv();
        else CHECK(prctl(PR_SET_NAME, "x") == 0);
        free(memset(malloc(8 << 20), 1, 8 << 20));
        say();
        return 0;
    }
    for (int i = 0; i < 120; i++) free(memset(malloc(100 << 10), 1, 100 << 10));
    say();
    for (int i = 0; i < 120; i++) free(memset(malloc(100 << 10), 1, 100 << 10));
    say();
    return 0;
}

/* Frees a lot of touched memory, then needs as much again from elsewhere: what the pool keeps must
   not be what the program lacks. Arguments: MiB to free, MiB to need. */
#define _GNU_SOURCE
#include "check.h"
#include <sys/mman.h>
#include <unistd.h>

int main(int count, char **arguments) {
    CHECK(count == 3);
    size_t freed = strtoul(arguments[1], NULL, 10) << 20;
    size_t needed = strtoul(arguments[2], NULL, 10) << 20;
    for (int round = 0; round < 4; round++) {
        char *p = malloc(freed);
        CHECK(p != NULL);
        memset(p, 1, freed);
        free(p);
        usleep(100000);
    }
    /* Time for what was freed to be offered. */
    sleep(1);
    char *p = mmap(NULL, needed, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    memset(p, 2, needed);
    puts("done");
    return 0;
}

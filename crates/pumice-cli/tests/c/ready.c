/* Waits until argv[1] bytes are resident, then maps as many and touches each page of them. Prints
 * how much that made resident in all, and how many faults it took, in units that a test can
 * compare: "none" for less than one in fifty pages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static size_t resident(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    size_t size = 0, pages = 0;
    if (file == NULL || fscanf(file, "%zu %zu", &size, &pages) != 2)
        exit(2);
    fclose(file);
    return pages * 4096;
}

static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

int main(int count, char **arguments) {
    size_t wanted = count > 1 ? strtoull(arguments[1], NULL, 10) : 0;
    int patience = count > 2 ? atoi(arguments[2]) : 0;
    int use_malloc = count > 3 && strcmp(arguments[3], "malloc") == 0;
    for (int i = 0; i < patience && resident() < wanted; i++)
        usleep(1000);
    /* The program's own pages count as well: the last block may be on its way. */
    if (patience > 0 && resident() >= wanted)
        usleep(100000);
    printf("there before: %s\n", resident() >= wanted ? "yes" : "no");

    long before = faults();
    char *at = use_malloc ? malloc(wanted)
                          : mmap(NULL, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == NULL || at == MAP_FAILED)
        return 3;
    for (size_t i = 0; i < wanted; i += 4096)
        ((volatile char *)at)[i] = 1;
    long took = faults() - before;
    printf("faults: %s\n", took < (long)(wanted / 4096 / 50) ? "none" : "many");
    size_t now = resident();
    printf("twice the memory: %s\n", now > wanted + wanted / 3 ? "yes" : "no");
    return 0;
}

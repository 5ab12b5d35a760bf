/* Ends in a core dump, here. Uses argv[1] bytes to the end, full of 0x5a; has used and freed as many
 * again, several times, between and after them. Gives up to argv[2] ms for what is resident, and would
 * be dumped, to become no more than argv[3] bytes, of which it says nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PIECES = 8 };

/* Bytes of private memory that are resident and that a dump would hold. */
static size_t dumped(void) {
    char line[512];
    size_t sum = 0, resident = 0;
    FILE *file = fopen("/proc/self/smaps", "r");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "Anonymous: %zu", &resident) == 1)
            resident *= 1024;
        if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " dd") == NULL)
            sum += resident;
    }
    fclose(file);
    return sum;
}

int main(int count, char **arguments) {
    if (count != 4)
        return 2;
    size_t piece = strtoull(arguments[1], NULL, 10) / PIECES, limit = strtoull(arguments[3], NULL, 10);
    struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_CORE, &all) != 0)
        return 3;
    char *kept[PIECES], *gone[PIECES];
    for (int turn = 0; turn < 4; turn++) {
        for (int i = 0; i < PIECES; i++) {
            if (turn == 0)
                memset(kept[i] = malloc(piece), 0x5a, piece);
            memset(gone[i] = malloc(piece), 0xa5, piece);
        }
        for (int i = 0; i < PIECES; i++)
            free(gone[i]);
    }
    for (int waited = 0; waited < atoi(arguments[2]) && dumped() > limit; waited += 20)
        usleep(20000);
    abort();
}

/* Forks while another thread's requests make the pool larger: a child that gives up addresses gives up these, too, and
   one that goes on can use them. */
#include "limits.h"
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

enum { CHILDREN = 24 };

static atomic_int is_over;

/* Keeps what it gets, so that there must be more. */
static void *want(void *unused) {
    (void)unused;
    for (int i = 0; i < 2000 && !atomic_load(&is_over); i++) {
        char *volatile at = malloc(12 * MIB);
        CHECK(at);
        usleep(100);
    }
    return NULL;
}

/* The bytes of large areas that nobody may touch. */
static size_t reserved(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    char line[512], rights[8];
    size_t start, end, sum = 0;
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%zx-%zx %7s", &start, &end, rights) == 3 && strcmp(rights, "---p") == 0 && end - start >= MIB)
            sum += end - start;
    fclose(maps);
    return sum;
}

int main(void) {
    guard();
    CHECK(mallopt(M_ARENA_MAX, 1) == 1);
    pthread_t other;
    CHECK(pthread_create(&other, NULL, want, NULL) == 0);
    for (int nth = 0; nth < CHILDREN; nth++) {
        usleep(nth % 7 * 300);
        pid_t child = fork();
        if (child == 0) {
            if (nth % 2) {
                struct rlimit most = {64 * GIB, RLIM_INFINITY};
                CHECK(setrlimit(RLIMIT_AS, &most) == 0);
                if (reserved() > 0) printf("%zu bytes are reserved\n", reserved());
            }
            for (int i = 0; i < 20; i++) {
                char *volatile at = malloc(6 * MIB);
                CHECK(at);
                for (size_t page = 0; page < 6 * MIB; page += 64 * KIB) at[page] = 1;
            }
            _exit(0);
        }
        wait_for(child);
    }
    atomic_store(&is_over, 1);
    CHECK(pthread_join(other, NULL) == 0);
    puts("done");
    return 0;
}

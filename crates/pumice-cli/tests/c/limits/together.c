/* Several threads at once lock everything, or set a limit, while others allocate: nobody is refused but as plain. */
#include "limits.h"
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>

enum { LOCKERS = 3, WORKERS = 2 };

static volatile int is_over, refused;
static pthread_barrier_t barrier;

static void *work(void *argument) {
    unsigned state = (unsigned)(size_t)argument;
    /* Few: with the shim they must fit under the limit, too. */
    char *volatile kept[3] = {0};
    while (!is_over) {
        state = state * 1103515245 + 12345;
        int which = (state >> 9) % 3;
        size_t size = 70000 + (state >> 8) % 100000;
        char *old = kept[which], *at = state >> 20 & 1 ? realloc(old, size) : (free(old), malloc(size));
        if (at == NULL) refused++;
        else memset(at, 1, size);
        kept[which] = at;
    }
    return NULL;
}

static void *lock(void *argument) {
    (void)argument;
    pthread_barrier_wait(&barrier);
    if (mlockall(MCL_CURRENT) != 0) refused++;
    return NULL;
}

/* By the thread's number, as prlimit(2) allows. */
static void *limit(void *argument) {
    (void)argument;
    struct rlimit limit = {8 * GIB, RLIM_INFINITY};
    pthread_barrier_wait(&barrier);
    if (prlimit(gettid(), RLIMIT_AS, &limit, NULL) != 0) refused++;
    char *volatile at = malloc(5 * MIB);
    if (at == NULL || mmap(NULL, 50000, RW, ANON, -1, 0) == MAP_FAILED) refused++;
    free(at);
    return NULL;
}

static void at_once(void *(*call)(void *), int seed) {
    pthread_t callers[LOCKERS], workers[WORKERS];
    pthread_attr_t little;
    struct rlimit most = {8 * MIB, 8 * MIB};
    CHECK(setrlimit(RLIMIT_MEMLOCK, &most) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
    CHECK(pthread_attr_init(&little) == 0 && pthread_attr_setstacksize(&little, 64 * KIB) == 0);
    CHECK(pthread_barrier_init(&barrier, NULL, LOCKERS) == 0);
    for (long i = 0; i < WORKERS; i++) CHECK(pthread_create(&workers[i], &little, work, (void *)(i + seed)) == 0);
    usleep(seed % 4 * 1000);
    for (int i = 0; i < LOCKERS; i++) CHECK(pthread_create(&callers[i], &little, call, NULL) == 0);
    for (int i = 0; i < LOCKERS; i++) CHECK(pthread_join(callers[i], NULL) == 0);
    is_over = 1;
    for (int i = 0; i < WORKERS; i++) CHECK(pthread_join(workers[i], NULL) == 0);
    if (refused) printf("%d were refused\n", refused);
}

int main(void) {
    guard();
    struct rlimit most;
    CHECK(getrlimit(RLIMIT_MEMLOCK, &most) == 0);
    if (geteuid() != 0 || most.rlim_max < 8 * MIB) skip("not root, or less may be locked");
    /* The C library maps each block: its heap would come to more than may be locked by and by, also without the shim. */
    CHECK(mallopt(M_ARENA_MAX, 1) == 1 && mallopt(M_MMAP_THRESHOLD, 64 * KIB) == 1);
    for (int seed = 1; seed <= 40; seed++) {
        pid_t child = fork();
        if (child == 0) {
            at_once(seed % 2 ? lock : limit, seed);
            _exit(0);
        }
        wait_for(child);
    }
    struct rlimit *nowhere = (struct rlimit *)8;
    int result = setrlimit(RLIMIT_AS, nowhere);
    printf("a bad address: %d, %s\n", result, strerror(errno));
    puts("done");
    return 0;
}

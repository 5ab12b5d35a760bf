/* Zeros by the megabyte: by threads at once, and by a thread whose signal handler forks in the middle of
 * it. Memory is filled before it is freed, so what comes back has to be cleared. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { MIB = 1 << 20, ROUNDS = 40, CHILDREN = 24 };

static void check_zero(const uint64_t *at, size_t bytes) {
    uint64_t any = 0;
    for (size_t i = 0; i < bytes / 8; i++)
        any |= at[i];
    CHECK(any == 0);
}

static void *allocate(void *number) {
    size_t which = (size_t)number;
    for (size_t round = 0; round < ROUNDS; round++) {
        size_t bytes = (8 + (round * 5 + which * 7) % 24) * MIB + round * 4096;
        uint64_t *memory = calloc(1, bytes);
        CHECK(memory);
        check_zero(memory, bytes);
        memset(memory, 0x5a, bytes);
        free(memory);
    }
    return NULL;
}

static volatile sig_atomic_t forked, is_child;
static pid_t children[CHILDREN];

static void handler(int signal) {
    (void)signal;
    if (is_child || forked == CHILDREN)
        return;
    pid_t child = fork();
    if (child == 0)
        is_child = 1;
    else if (child > 0)
        children[forked++] = child;
}

static void map_once(void) {
    size_t bytes = 24 * MIB;
    uint64_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    check_zero(memory, bytes);
    memset(memory, 0xa5, bytes);
    munmap(memory, bytes);
}

int main(void) {
    pthread_t threads[3];
    for (size_t i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, allocate, (void *)i) == 0);
    for (size_t i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);

    for (int i = 0; i < 4; i++)
        map_once();
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every = {{0, 7700}, {0, 7700}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    while (forked < CHILDREN && !is_child)
        map_once();
    if (is_child) {
        for (int i = 0; i < 2; i++)
            map_once();
        _exit(7);
    }
    every = (struct itimerval){{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        CHECK(waitpid(children[i], &status, 0) == children[i]);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    puts("zero");
    return 0;
}

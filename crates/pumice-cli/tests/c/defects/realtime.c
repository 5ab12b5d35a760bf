/* Threads of a real-time class on one processor: none waits for another that does not come to run before it. And the
   allocator's helpers have neither that class nor that processor. */
#define _GNU_SOURCE
#include "defect.h"
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { ROUNDS = 60 };

static void become(int policy, int priority) {
    struct sched_param parameter = {.sched_priority = priority};
    CHECK(pthread_setschedparam(pthread_self(), policy, &parameter) == 0);
}

/* The one of the higher priority wakes up in the middle of what the other one does, which takes long. */
static void *unmap_pieces(void *higher) {
    become(SCHED_FIFO, higher ? 3 : 1);
    size_t size = higher ? 2 * MIB : 16 * MIB, piece = higher ? PAGE : 12 * MIB;
    for (int i = 0; i < (higher ? 2 * ROUNDS : ROUNDS); i++) {
        char *at = map(size);
        for (size_t page = 0; page < size; page += 2 * MIB) at[page + MIB] = 1;
        CHECK(munmap(at + PAGE, piece) == 0);
        CHECK(mmap(at + PAGE, PAGE, RW, ANON | MAP_FIXED, -1, 0) == at + PAGE);
        CHECK(munmap(at, size) == 0);
        if (higher) nanosleep(&(struct timespec){0, 70000}, NULL);
    }
    return NULL;
}

static int as_number(const char *text) { return *text >= '0' && *text <= '9' ? atoi(text) : 0; }

static int are_apart(const cpu_set_t *before, int own) {
    int apart = 1;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *task; (task = readdir(tasks));) {
        int id = as_number(task->d_name);
        cpu_set_t set;
        if (id == 0 || id == own) continue;
        /* It may end at any moment. */
        int policy = sched_getscheduler(id);
        apart = apart && policy != SCHED_FIFO && policy != SCHED_RR;
        if (sched_getaffinity(id, sizeof set, &set) == 0) apart = apart && CPU_EQUAL(&set, before);
    }
    closedir(tasks);
    return apart;
}

/* That threads that the program did not make are as it was when it began; as soon as they have come to run. */
static void check_others(const cpu_set_t *before, int own) {
    int tries = 0;
    while (!are_apart(before, own)) {
        CHECK(++tries < 200);
        usleep(1000);
    }
}

int main(void) {
    guard(8);
    cpu_set_t before, one;
    CPU_ZERO(&one);
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
    struct sched_param parameter = {.sched_priority = 2};
    if (sched_setscheduler(0, SCHED_FIFO, &parameter) != 0) return skip("no real-time class here");
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    /* Enough that helpers have something to do, and time to begin. */
    for (int i = 0; i < 6; i++) {
        char *at = malloc(8 * MIB), *next = map(8 * MIB);
        fill(at, 8 * MIB, i), fill(next, 8 * MIB, i);
        free(at);
        CHECK(munmap(next, 8 * MIB) == 0);
        usleep(2000);
        check_others(&before, getpid());
    }
    check_others(&before, getpid());
    pthread_t threads[2];
    for (size_t i = 0; i < 2; i++)
        CHECK(pthread_create(&threads[i], NULL, unmap_pieces, (void *)i) == 0);
    for (size_t i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    check_others(&before, getpid());
    puts("done");
    return 0;
}

/* Children of every kind, from a process whose other threads allocate all the while. Parent and
   child both go on, and neither sees what the other writes. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 3, FORKS = 9, BLOCK = 2500 << 10 };

extern char **environ;
static atomic_int stop;

static void *work(void *argument) {
    uint64_t seed = (uintptr_t)argument;
    while (!atomic_load(&stop)) {
        size_t size = 1000u << (seed++ % 12);
        char *p = seed % 2 ? malloc(size) : calloc(size, 1);
        CHECK(p != NULL);
        fill(p, size, seed);
        CHECK(holds(p, size, seed));
        free(p);
    }
    return NULL;
}

static void allocate_a_lot(uint64_t seed) {
    char *blocks[16];
    for (int i = 0; i < 16; i++) {
        size_t size = (size_t)50000 << i % 6;
        blocks[i] = i % 2 ? calloc(1, size) : malloc(size);
        CHECK(blocks[i] && (i % 2 == 0 || is_zero(blocks[i], size)));
        fill(blocks[i], size, seed + i);
    }
    for (int i = 0; i < 16; i++) {
        CHECK(holds(blocks[i], (size_t)50000 << i % 6, seed + i));
        free(blocks[i]);
    }
}

static void wait_for(pid_t child) {
    int status;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* What a child does with what it inherited. */
static void live_as_child(char *kept, char *freed, int depth) {
    CHECK(holds(kept, BLOCK, 1) && holds(freed, BLOCK, 2));
    free(freed);
    allocate_a_lot(100);
    CHECK(holds(kept, BLOCK, 1));
    fill(kept, BLOCK, 50);
    if (depth > 0) {
        pid_t child = fork();
        if (child == 0) {
            CHECK(holds(kept, BLOCK, 50));
            fill(kept, BLOCK, 1);
            char *other = malloc(BLOCK);
            fill(other, BLOCK, 2);
            live_as_child(kept, other, depth - 1);
        }
        wait_for(child);
    }
    CHECK(holds(kept, BLOCK, 50));
    kept = realloc(kept, 2 * BLOCK);
    CHECK(kept && holds(kept, BLOCK, 50));
    free(kept);
    _exit(0);
}

static void test_fork(char *kept, char *freed) {
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (child == 0) live_as_child(kept, freed, i % 3);
        allocate_a_lot(200);
        if (i % 2) wait_for(child);
        else {
            allocate_a_lot(300);
            wait_for(child);
        }
        CHECK(holds(kept, BLOCK, 1) && holds(freed, BLOCK, 2));
    }
}

/* fork(2) that libc does not know of. */
static void test_raw_clone(char *kept, char *freed) {
    pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        CHECK(holds(kept, BLOCK, 1) && holds(freed, BLOCK, 2));
        free(freed);
        char *p = calloc(1, BLOCK);
        CHECK(p && is_zero(p, BLOCK));
        fill(p, BLOCK, 7);
        CHECK(holds(p, BLOCK, 7) && holds(kept, BLOCK, 1));
        free(p);
        syscall(SYS_exit_group, 0);
    }
    wait_for(child);
    CHECK(holds(kept, BLOCK, 1) && holds(freed, BLOCK, 2));
}

/* The child is the parent as far as memory goes: what it allocates, the parent frees. */
static void test_vfork(char *kept) {
    static char *volatile made;
    pid_t child = vfork();
    if (child == 0) {
        made = malloc(BLOCK);
        if (made) memset(made, 5, BLOCK);
        _exit(holds(kept, BLOCK, 1) ? 0 : 1);
    }
    wait_for(child);
    CHECK(made && made[BLOCK - 1] == 5);
    free(made);
    child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    wait_for(child);
}

static void test_spawn(const char *self) {
    char *arguments[] = {(char *)self, "spawned", NULL};
    pid_t child;
    CHECK(posix_spawn(&child, self, NULL, NULL, arguments, environ) == 0);
    wait_for(child);
    CHECK(system("exit 0") == 0);
    FILE *pipe = popen("echo from a pipe", "r");
    char line[64];
    CHECK(pipe && fgets(line, sizeof line, pipe));
    fputs(line, stdout);
    CHECK(pclose(pipe) == 0);
}

int main(int count, char **arguments) {
    if (count > 1) {
        allocate_a_lot(1);
        return 0;
    }
    setvbuf(stdout, NULL, _IONBF, 0);
    char *kept = malloc(BLOCK), *freed = malloc(BLOCK);
    fill(kept, BLOCK, 1);
    fill(freed, BLOCK, 2);
    pthread_t threads[WORKERS];
    for (uintptr_t i = 0; i < WORKERS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    test_fork(kept, freed);
    test_vfork(kept);
    test_spawn(arguments[0]);
    atomic_store(&stop, 1);
    for (int i = 0; i < WORKERS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    /* libc's own locks are not reset by a raw clone, so no other thread may hold them. */
    test_raw_clone(kept, freed);
    puts("done");
    return 0;
}

/* A fork while another thread makes its first large request, or limits addresses: the child has the room it would have
   plain. And children that no handler is told of, which borrow and lend memory: it stays its owner's. */
#include "limits.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static atomic_int at_work;

static void limit(void) {
    struct rlimit most = {8 * GIB, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_AS, &most) == 0);
}

static void use(size_t size) {
    char *volatile at = malloc(size);
    CHECK(at);
    memset(at, 1, size);
    free(at);
    at = mmap(NULL, size, RW, ANON, -1, 0);
    CHECK(at != MAP_FAILED);
    at[size / 2] = 1;
    CHECK(munmap(at, size) == 0);
}

static void *start(void *unused) {
    (void)unused;
    atomic_store(&at_work, 1);
    use(5 * MIB);
    return NULL;
}

static void *end(void *unused) {
    (void)unused;
    atomic_store(&at_work, 1);
    limit();
    use(5 * MIB);
    return NULL;
}

/* Forks at a moment that differs from seed to seed, while `call` runs. */
static void fork_beside(void *(*call)(void *), int seed) {
    pthread_t other;
    pthread_attr_t little;
    CHECK(pthread_attr_init(&little) == 0 && pthread_attr_setstacksize(&little, 64 * KIB) == 0);
    CHECK(pthread_create(&other, &little, call, NULL) == 0);
    while (!atomic_load(&at_work)) sched_yield();
    for (volatile int spin = 0; spin < seed % 20 * 4000; spin++) {}
    pid_t child = fork();
    if (child == 0) {
        limit();
        use(5 * MIB);
        use(3 * GIB / 1024);
        _exit(0);
    }
    wait_for(child);
    CHECK(pthread_join(other, NULL) == 0);
}

/* The child of a fork at the very beginning of the other thread's request finds none of what that needs. */
static void *ask(void *unused) {
    (void)unused;
    atomic_store(&at_work, 1);
    free(malloc(5 * MIB));
    return NULL;
}

static void fork_at_beginning(int seed) {
    pthread_t other;
    CHECK(pthread_create(&other, NULL, ask, NULL) == 0);
    while (!atomic_load(&at_work)) {}
    for (volatile int spin = 0; spin < seed % 50 * 40; spin++) {}
    pid_t child = fork();
    if (child == 0) {
        limit();
        void *volatile at = malloc(5 * MIB);
        CHECK(at);
        _exit(0);
    }
    wait_for(child);
    CHECK(pthread_join(other, NULL) == 0);
}

/* The same where no handler is told of it: the child can't have what it would have plain, but it goes on. */
static void fork_untold_beside(int seed) {
    pthread_t other;
    CHECK(pthread_create(&other, NULL, start, NULL) == 0);
    while (!atomic_load(&at_work)) sched_yield();
    for (volatile int spin = 0; spin < seed * 2000; spin++) {}
    pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        struct rlimit most = {8 * GIB, RLIM_INFINITY};
        _exit(setrlimit(RLIMIT_AS, &most));
    }
    wait_for(child);
    CHECK(pthread_join(other, NULL) == 0);
}

static int depth;

/* A handler of the program's that forks once itself. */
static void fork_again(void) {
    if (depth++ > 0) return;
    pid_t child = fork();
    if (child == 0) return;
    wait_for(child);
}

static void fork_within_fork(void) {
    CHECK(pthread_atfork(NULL, fork_again, NULL) == 0);
    CHECK(fork() != -1);
    limit();
    use(5 * MIB);
}

static void end_in_program(void) {
    execl("/bin/true", "true", (char *)NULL);
    _exit(1);
}

static void *borrow(void *unused) {
    (void)unused;
    pid_t child = vfork();
    if (child == 0) {
        use(5 * MIB);
        limit();
        end_in_program();
    }
    wait_for(child);
    return NULL;
}

/* Its own child makes the first request. */
static void fork_untold(void) {
    pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        borrow(NULL);
        use(16 * MIB);
        usleep(20000);
        limit();
        use(5 * MIB);
        _exit(0);
    }
    wait_for(child);
}

/* Each in a child that has not made a request. */
static void in_children(int count, void (*step)(int)) {
    for (int seed = 0; seed < count; seed++) {
        pid_t child = fork();
        if (child == 0) {
            step(seed);
            _exit(0);
        }
        wait_for(child);
    }
}

int main(void) {
    guard();
    for (int seed = 1; seed <= 40; seed++) {
        pid_t child = fork();
        if (child == 0) {
            if (seed % 2) use(5 * MIB);
            fork_beside(seed % 2 || seed % 4 == 0 ? end : start, seed / 4);
            _exit(0);
        }
        wait_for(child);
    }
    in_children(200, fork_at_beginning);
    in_children(20, fork_untold_beside);
    pid_t child = fork();
    if (child == 0) {
        fork_within_fork();
        _exit(0);
    }
    wait_for(child);
    for (int i = 0; i < 3; i++) fork_untold();
    borrow(NULL);
    use(16 * MIB);
    for (int i = 0; i < 3; i++) fork_untold();
    puts("done");
    return 0;
}

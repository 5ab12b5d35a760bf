/* Limits on addresses and data that a running program gets: from itself, by each door, from its parent, and
   from outside while it allocates. What suffices plainly must suffice. */
#include "limits.h"
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static struct rlimit limit_of(size_t bytes) { return (struct rlimit){bytes, RLIM_INFINITY}; }

static long by_setrlimit(size_t bytes) { struct rlimit it = limit_of(bytes); return setrlimit(RLIMIT_AS, &it); }
static long by_prlimit(size_t bytes) { struct rlimit it = limit_of(bytes); return prlimit(0, RLIMIT_AS, &it, NULL); }
static long by_own_number(size_t bytes) { struct rlimit it = limit_of(bytes); return prlimit(getpid(), RLIMIT_AS, &it, NULL); }
static long by_number(size_t bytes) { struct rlimit it = limit_of(bytes); return syscall(SYS_setrlimit, RLIMIT_AS, &it); }
static long by_new_number(size_t bytes) { struct rlimit it = limit_of(bytes); return syscall(SYS_prlimit64, 0, RLIMIT_AS, &it, NULL); }
static long of_data(size_t bytes) { struct rlimit it = limit_of(bytes); return setrlimit(RLIMIT_DATA, &it); }
static long of_data_by_number(size_t bytes) { struct rlimit it = limit_of(bytes); return syscall(SYS_prlimit64, 0, RLIMIT_DATA, &it, NULL); }

/* By a parent, which waits until it is to be done. */
static int asks[2], answers[2];
static long from_outside(size_t bytes) {
    char answer;
    CHECK(write(asks[1], &bytes, sizeof bytes) == sizeof bytes);
    CHECK(read(answers[0], &answer, 1) == 1);
    return answer;
}

static void serve_child(pid_t child) {
    size_t bytes;
    while (read(asks[0], &bytes, sizeof bytes) == sizeof bytes) {
        struct rlimit it = limit_of(bytes);
        char answer = prlimit(child, RLIMIT_AS, &it, NULL);
        CHECK(write(answers[1], &answer, 1) == 1);
    }
}

static const struct { const char *name; long (*call)(size_t); } calls[] = {
    {"setrlimit", by_setrlimit}, {"prlimit", by_prlimit}, {"prlimit by its number", by_own_number},
    {"setrlimit by number", by_number}, {"prlimit by number", by_new_number}, {"data", of_data},
    {"data by number", of_data_by_number}, {"outside", from_outside},
};
enum { CALLS = sizeof calls / sizeof *calls };

static void *one_more(void *unused) { return malloc(100); }

static int count(size_t size, int times, char *blocks[]) {
    int found = 0;
    for (int i = 0; i < times; i++) {
        blocks[i] = i % 3 == 0 ? calloc(1, size) : malloc(size);
        if (!blocks[i]) continue;
        found++;
        blocks[i][0] = blocks[i][size - 1] = i;
    }
    return found;
}

static void drop(char *blocks[], int times) {
    for (int i = 0; i < times; i++) free(blocks[i]);
}

static void use(void) {
    static char *small[4000], *large[20];
    printf("%d small ones\n", count(1000, 4000, small));
    printf("%d of some pages\n", count(70000, 20, large));
    drop(large, 20);
    printf("%d large ones\n", count(5 * MIB, 20, large));
    drop(large, 20);
    drop(small, 4000);
    char *p = mmap(NULL, 8 * MIB, RW, ANON, -1, 0);
    printf("a mapping: %s\n", p == MAP_FAILED ? strerror(errno) : "done");
    if (p != MAP_FAILED) {
        p = mremap(p, 8 * MIB, 20 * MIB, MREMAP_MAYMOVE);
        printf("grown: %s\n", p == MAP_FAILED ? strerror(errno) : "done");
        CHECK(munmap(p, 20 * MIB) == 0);
    }
    p = mmap(NULL, 20 * GIB, RW, ANON | MAP_NORESERVE, -1, 0);
    printf("far too much: %s\n", p == MAP_FAILED ? strerror(errno) : "done");
    pthread_t thread;
    printf("a thread: %s\n", strerror(pthread_create(&thread, NULL, one_more, NULL)));
}

static void try(int which) {
    /* What is in use must not be in the way either; nor what was. */
    churn();
    char *kept = malloc(10 * MIB), *mapped = mmap(NULL, 10 * MIB, RW, ANON, -1, 0);
    CHECK(kept && mapped != MAP_FAILED);
    kept[0] = mapped[0] = 1;
    printf("%s: %s\n", calls[which].name, calls[which].call(400 * MIB) == 0 ? "done" : strerror(errno));
    use();
    CHECK(kept[0] == 1 && mapped[0] == 1);
    kept = realloc(kept, 30 * MIB);
    printf("kept and grown: %s\n", kept && kept[0] == 1 ? "done" : "not");
    free(kept);
    CHECK(munmap(mapped, 10 * MIB) == 0);
    /* A child has the limit, too, and so has what it executes. */
    pid_t child = fork();
    if (child == 0) {
        char *p = malloc(8 * MIB);
        printf("in a child: %s\n", p ? "done" : "not");
        _exit(0);
    }
    wait_for(child);
    /* And without it all is as before. */
    struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_AS, &none) == 0 && setrlimit(RLIMIT_DATA, &none) == 0);
    use();
}

int main(int count, char **arguments) {
    guard();
    CHECK(count == 2);
    int is_outside = strcmp(arguments[1], "outside") == 0;
    churn();
    for (int i = 0; i < CALLS; i++) {
        if ((calls[i].call == from_outside) != is_outside) continue;
        CHECK(pipe(asks) == 0 && pipe(answers) == 0);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            close(asks[0]);
            try(i);
            exit(0);
        }
        close(asks[1]);
        serve_child(child);
        wait_for(child);
        close(asks[0]), close(answers[0]), close(answers[1]);
    }
    if (!is_outside) try(0);
    return 0;
}

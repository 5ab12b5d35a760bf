/* Addresses that were mapped once and are given again as hints, for what is served and what is not; and stacks
   that grow into what was unmapped. */
#define _GNU_SOURCE
#include "../mmap.h"
#include <pthread.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/syscall.h>

/* To map by each door. */
static void *by_name(void *at, size_t size, int protection, int flags, int fd) {
    return mmap(at, size, protection, flags, fd, 0);
}
static void *by_name64(void *at, size_t size, int protection, int flags, int fd) {
    return mmap64(at, size, protection, flags, fd, 0);
}
static void *by_number(void *at, size_t size, int protection, int flags, int fd) {
    return (void *)syscall(SYS_mmap, at, size, protection, flags, fd, 0L);
}
typedef void *mapper(void *, size_t, int, int, int);
static mapper *const doors[] = {by_name, by_name64, by_number};

static const struct { const char *name; int protection, flags, of_file; } kinds[] = {
    {"anonymous", RW, ANON, 0}, {"closed", PROT_NONE, ANON, 0}, {"closed, no reserve", PROT_NONE, ANON | MAP_NORESERVE, 0},
    {"read-only", PROT_READ, ANON, 0}, {"code", RW | PROT_EXEC, ANON, 0}, {"locked", RW, ANON | MAP_LOCKED, 0},
    {"shared", RW, MAP_SHARED | MAP_ANONYMOUS, 0}, {"file", PROT_READ, MAP_PRIVATE, 1}, {"shared file", RW, MAP_SHARED, 1},
    {"populated", RW, ANON | MAP_POPULATE, 0}, {"fixed, no replace", PROT_NONE, ANON | MAP_FIXED_NOREPLACE, 0},
};

static const char *place(char *at, char *hint) {
    return at == MAP_FAILED ? error_name(errno) : at == hint ? "there" : "elsewhere";
}

static void hint_again(mapper *map, size_t pages) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char *first = map(NULL, pages * PAGE, RW, ANON, -1);
        CHECK(first != MAP_FAILED);
        stamp(first, 0, pages);
        int fd = kinds[i].of_file ? file : -1;
        /* While it is in use, it is not given away. */
        char *beside = map(first, pages * PAGE, kinds[i].protection, kinds[i].flags, fd);
        CHECK(beside != first);
        if (beside != MAP_FAILED) CHECK(munmap(beside, pages * PAGE) == 0);
        CHECK(munmap(first, pages * PAGE) == 0);
        char *again = map(first, pages * PAGE, kinds[i].protection, kinds[i].flags, fd);
        printf("%s, %zu pages: %s", kinds[i].name, pages, place(again, first));
        show(again, 0, pages);
        CHECK(munmap(again, pages * PAGE) == 0);
        /* Not at a page's beginning, and for less. */
        again = map(first + 100, pages * PAGE / 2, kinds[i].protection, kinds[i].flags, fd);
        if (again != MAP_FAILED || errno != EINVAL) {
            printf(", then %s\n", place(again, first));
            CHECK(munmap(again, pages * PAGE / 2) == 0);
        } else puts("");
        /* A piece of what is still in use. */
        first = map(NULL, pages * PAGE, RW, ANON, -1);
        CHECK(first != MAP_FAILED);
        CHECK(munmap(first + pages / 4 * PAGE, pages / 2 * PAGE) == 0);
        char *hint = first + pages / 4 * PAGE;
        again = map(hint, pages / 2 * PAGE, kinds[i].protection, kinds[i].flags, fd);
        printf("in a hole: %s\n", place(again, hint));
        if (again != MAP_FAILED) CHECK(munmap(again, pages / 2 * PAGE) == 0);
        CHECK(munmap(first, pages * PAGE) == 0);
    }
}

/* A segment, and a move, to where something was. */
static void put_again(size_t pages) {
    char *other = mmap(NULL, 16 * PAGE, RW, ANON, -1, 0);
    CHECK(other != MAP_FAILED);
    char *first = mmap(NULL, pages * PAGE, RW, ANON, -1, 0);
    CHECK(first != MAP_FAILED && munmap(first, pages * PAGE) == 0);
    int id = shmget(IPC_PRIVATE, pages * PAGE, 0600);
    CHECK(id >= 0);
    char *at = shmat(id, first, 0);
    CHECK(shmctl(id, IPC_RMID, NULL) == 0);
    printf("a segment, %zu pages: %s\n", pages, place(at, first));
    CHECK(at == MAP_FAILED || shmdt(at) == 0);
    char *moved = mremap(other, 16 * PAGE, 16 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, first);
    printf("moved: %s\n", place(moved, first));
    CHECK(munmap(moved, 16 * PAGE) == 0);
}

/* Stacks, as LTP's mmap18 places them. */

static void deeper(char *stack, size_t depth) {
    /* Below the stack's lowest page, one after the other, as a thread's frames would. */
    for (char *at = stack; at > stack - depth; at -= PAGE) *(volatile char *)(at - 64) = 1;
}

static void grow(const char *name, size_t room, size_t depth, int extra) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL), signal(SIGBUS, SIG_DFL);
        size_t gap = 256 * PAGE, size = 8 * PAGE;
        char *start = mmap(NULL, room + gap + size, extra ? PROT_NONE : RW, ANON, -1, 0);
        CHECK(start != MAP_FAILED && munmap(start, room + gap + size) == 0);
        char *at = start + gap + room;
        char *stack = mmap(at, size, RW, ANON | MAP_FIXED | MAP_GROWSDOWN | extra, -1, 0);
        if (stack != at) {
            printf("%s: %s\n", name, error_name(errno));
            _exit(0);
        }
        if (room < (1 << 20)) {
            /* Something lies below it, to which the kernel keeps a gap. */
            CHECK(mmap(start + gap - PAGE, PAGE, RW, ANON | MAP_FIXED, -1, 0) == start + gap - PAGE);
        }
        deeper(stack, depth);
        CHECK(munmap(stack - depth, size + depth) == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    printf("%s: %s %d\n", name, WIFSIGNALED(status) ? "signal" : "ended", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

int main(void) {
    begin();
    alarm(100);
    for (size_t i = 0; i < 3; i++) {
        hint_again(doors[i], 300);
        hint_again(doors[i], 1024);
        hint_again(doors[i], 32);
    }
    put_again(300), put_again(1024), put_again(16);
    size_t mib = 1 << 20;
    grow("stack with room", 4 * mib, 2 * mib, 0);
    grow("of memory that was closed", 4 * mib, 2 * mib, MAP_STACK);
    grow("not replacing", 4 * mib, 2 * mib, MAP_FIXED_NOREPLACE);
    grow("stack above something", 64 * PAGE, 128 * PAGE, 0);
    grow("stack close to something", 0, 16 * PAGE, 0);
    return end();
}

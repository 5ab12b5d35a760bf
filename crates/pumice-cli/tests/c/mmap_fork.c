/* Mappings in children: made by fork, vfork and a raw clone, from a process one of whose threads
   maps all the while. Parent and child see the same at first, and then their own. */
#define _GNU_SOURCE
#include "mmap.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

enum { FORKS = 12, KEPT = 700 };

static atomic_int stop;

static void *work(void *argument) {
    size_t pages = 256 + (uintptr_t)argument;
    while (!atomic_load(&stop)) {
        char *p = map(pages * PAGE);
        check_fresh(p, pages);
        CHECK(munmap(p + 50 * PAGE, 100 * PAGE) == 0);
        /* Without the hole, where another thread's memory may be by now. */
        CHECK(munmap(p + 150 * PAGE, (pages - 150) * PAGE) == 0 && munmap(p, 50 * PAGE) == 0);
        pages = 256 + pages * 7 % 500;
    }
    return NULL;
}

/* Kept by both: stamped pages with a piece to read only, one dropped, one unmapped. */
static char *make_kept(void) {
    char *p = map(KEPT * PAGE);
    stamp(p, 0, KEPT);
    CHECK(mprotect(p + 100 * PAGE, 50 * PAGE, PROT_READ) == 0);
    CHECK(madvise(p + 200 * PAGE, 50 * PAGE, MADV_DONTNEED) == 0);
    CHECK(mprotect(p + 300 * PAGE, 50 * PAGE, PROT_NONE) == 0);
    return p;
}

static void check_kept(char *p) {
    for (size_t i = 0; i < KEPT; i++) {
        int piece = i / 50;
        char letter = piece == 2 ? 'O' : piece == 4 ? 'z' : piece == 6 ? 'n' : 'o';
        CHECK(look(p + i * PAGE, i) == letter);
    }
}

static void live_as_child(char *kept, char *gone) {
    check_kept(kept);
    CHECK(content(gone) == OLD_WORD && munmap(gone, KEPT * PAGE) == 0);
    for (int i = 0; i < 6; i++) map_fresh(300 + 100 * i);
    /* All the operations again, on what is shared with the parent so far. */
    CHECK(mprotect(kept, KEPT * PAGE, RW) == 0);
    stamp(kept, 5, KEPT);
    CHECK(madvise(kept + 400 * PAGE, 100 * PAGE, MADV_DONTNEED) == 0);
    check_fresh(kept + 400 * PAGE, 100);
    put_fixed(kept + 500 * PAGE, 50, RW, ANON, 0);
    check_fresh(kept + 500 * PAGE, 50);
    /* Its head only, which is sure to be one mapping to the kernel. */
    char *moved = mremap(kept, 100 * PAGE, (100 + KEPT) * PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && moved != kept && content(moved) == OLD_WORD + 5);
    check_fresh(moved + 100 * PAGE, KEPT);
    CHECK(munmap(moved, (100 + KEPT) * PAGE) == 0);
    CHECK(munmap(kept + 100 * PAGE, (KEPT - 100) * PAGE) == 0);
    for (int i = 0; i < 6; i++) map_fresh(1000 - 100 * i);
}

static void test_fork(char *kept, int raw) {
    for (int i = 0; i < FORKS; i++) {
        char *gone = map(KEPT * PAGE);
        stamp(gone, 0, KEPT);
        pid_t child = raw ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
        if (child == 0) {
            live_as_child(kept, gone);
            /* Grandchildren of a process that has unmapped all of that. */
            char *own = make_kept(), *other = map(KEPT * PAGE);
            stamp(other, 0, KEPT);
            pid_t grandchild = raw ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
            if (grandchild == 0) {
                live_as_child(own, other);
                syscall(SYS_exit_group, 0);
            }
            CHECK(munmap(other, KEPT * PAGE) == 0);
            map_fresh(KEPT);
            wait_for(grandchild);
            check_kept(own);
            syscall(SYS_exit_group, 0);
        }
        /* While the child lives, and after it. */
        CHECK(munmap(gone, KEPT * PAGE) == 0);
        map_fresh(KEPT);
        check_kept(kept);
        wait_for(child);
        check_kept(kept);
        map_fresh(2 * KEPT);
    }
}

/* As far as memory goes the child is the parent. */
static void test_vfork(void) {
    static char *volatile made;
    char *gone = map(KEPT * PAGE);
    stamp(gone, 0, KEPT);
    pid_t child = vfork();
    if (child == 0) {
        made = mmap(NULL, KEPT * PAGE, RW, ANON, -1, 0);
        if (made != MAP_FAILED) put(made, 5);
        _exit(content(gone) == OLD_WORD ? munmap(gone, KEPT * PAGE) : 1);
    }
    wait_for(child);
    CHECK(made != MAP_FAILED && content(made) == 5);
    CHECK(munmap(made, KEPT * PAGE) == 0);
    map_fresh(KEPT);
    /* What takes the address space along must find nothing in the way. */
    fflush(stdout);
    child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    wait_for(child);
}

int main(void) {
    begin();
    char *kept = make_kept();
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    test_fork(kept, 0);
    test_vfork();
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    /* libc's own locks are not reset by a raw clone, so no other thread may hold them. */
    test_fork(kept, 1);
    check_kept(kept);
    CHECK(munmap(kept, KEPT * PAGE) == 0);
    return end();
}

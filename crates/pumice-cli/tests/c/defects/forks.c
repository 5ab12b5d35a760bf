/* Children of a process whose other threads are in the midst of it: calls on pieces of what they have from their parent
   end, and do what they do. A filter that a child installs does not wait for helpers that are its parent's. */
#define _GNU_SOURCE
#include "defect.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>

enum { SIZE = 4 << 20, ROUNDS = 36, THREADS = 2 };

static atomic_int done;

/* Whatever a thread of the parent may hold. */
static void *be_busy(void *seed) {
    for (size_t i = (size_t)seed; !done; i++) {
        size_t size = MIB + i % 5 * 300 * PAGE;
        char *at = map(size);
        at[0] = 1;
        munmap(at + 16 * PAGE, 16 * PAGE);
        mmap(at + 16 * PAGE, 8 * PAGE, RW, ANON | MAP_FIXED, -1, 0);
        mprotect(at + 64 * PAGE, 8 * PAGE, PROT_READ);
        madvise(at, size, MADV_DONTNEED);
        munmap(at + size / 2, size - size / 2), munmap(at, size / 2);
        free(realloc(malloc(size), 2 * size));
        usleep(200);
    }
    return NULL;
}

/* As the only thread of its process, in which nothing was asked for yet. */
static void in_child(int what, char *at, char *whole) {
    char *piece = at + MIB;
    unsigned char seen[256];
    switch (what) {
    case 0:
        CHECK(mprotect(piece, MIB, PROT_READ) == 0 && mprotect(piece, MIB, RW) == 0);
        CHECK(holds(at, SIZE, 1));
        break;
    case 1:
        CHECK(madvise(piece, MIB, MADV_DONTNEED) == 0 && is_zero(piece, MIB));
        break;
    case 2:
        CHECK(mincore(piece, MIB, seen) == 0);
        CHECK(munmap(piece, MIB) == 0 && mincore(piece, MIB, seen) == -1 && errno == ENOMEM);
        break;
    case 3:
        CHECK(mmap(piece, MIB, RW, ANON | MAP_FIXED, -1, 0) == piece && is_zero(piece, MIB));
        break;
    case 4:
        CHECK(mmap(piece, MIB, PROT_NONE, ANON | MAP_FIXED, -1, 0) == piece);
        break;
    case 5:
        CHECK(munmap(piece, MIB) == 0);
        CHECK(mmap(piece, MIB, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == piece);
        CHECK(is_zero(piece, MIB));
        break;
    case 6:
        at = mremap(at, SIZE, 2 * SIZE, MREMAP_MAYMOVE);
        CHECK(at != MAP_FAILED && holds(at, SIZE, 1));
        break;
    case 7: CHECK(mlock(piece, 4 * PAGE) == 0 && munlock(piece, 4 * PAGE) == 0); break;
    case 8: free(realloc(whole, 2 * SIZE)); break;
    case 9: CHECK(mremap(at, SIZE, MIB, 0) == at && holds(at, MIB, 1)); break;
    case 10: CHECK(munmap(at, SIZE) == 0); break;
    default: {
        struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        struct sock_fprog program = {1, &all};
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
        CHECK(holds(at, SIZE, 1));
    }
    }
    char *next = map(MIB);
    CHECK(is_zero(next, MIB) && munmap(next, MIB) == 0);
    char *block = calloc(1, MIB);
    CHECK(is_zero(block, MIB));
    free(block);
}

int main(void) {
    guard(25);
    for (int i = 0; i < 2; i++) free(memset(malloc(3 << 20), 1, 3 << 20));
    char *at = map(SIZE), *whole = malloc(SIZE);
    fill(at, SIZE, 1), fill(whole, SIZE, 2);
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, be_busy, (void *)(i * 7)) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        usleep(300 + i * 37 % 500);
        pid_t child = fork();
        if (child == 0) {
            /* Nobody waits for seconds in what takes no time. */
            alarm(3);
            in_child(i % 12, at, whole);
            _exit(0);
        }
        wait_for(child);
        CHECK(holds(at, SIZE, 1) && holds(whole, SIZE, 2));
    }
    done = 1;
    for (size_t i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    puts("done");
    return 0;
}

/* A program that unmaps a part of its memory only to map something else there: nothing of pumice's comes to be there
   meanwhile. Its threads, stacks and tables would be the program's to overwrite. */
#include "defect.h"
#include <malloc.h>
#include <pthread.h>

enum { HOLES = 256, LEN = 512 * 1024, PLACES = 600 };
#define LARGE_HOLE ((size_t)PLACES << 30)

static char *holes[2 * HOLES];

/* All that pumice does not do before it is needed. */
static void *use(void *unused) {
    (void)unused;
    for (int i = 0; i < 40; i++) {
        size_t size = ((size_t)1 << 20) + i % 7 * 700 * PAGE;
        char *at = malloc(size), *mapped = map(size);
        CHECK(at && mapped);
        memset(at, 1, size);
        CHECK(munmap(mapped + 64 * PAGE, 16 * PAGE) == 0 && munmap(mapped, size) == 0);
        CHECK(at = realloc(at, 2 * size));
        CHECK(at[size - 1] == 1);
        free(at);
        usleep(3000);
    }
    return NULL;
}

int main(void) {
    guard(60);
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    /* Whatever the C library maps for itself is there. */
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, (void *(*)(void *))getenv, "A") == 0 && pthread_join(thread, NULL) == 0);
    for (int i = 0; i < HOLES; i++) {
        CHECK((holes[i] = mmap(NULL, 3 * LEN, PROT_NONE, ANON | MAP_NORESERVE, -1, 0)) != MAP_FAILED);
        /* One of each size. */
        size_t len = PAGE << i % 7;
        CHECK(munmap(holes[i] + LEN, len) == 0);
    }
    char *large = mmap(NULL, LARGE_HOLE, PROT_NONE, ANON | MAP_NORESERVE, -1, 0);
    CHECK(large != MAP_FAILED && munmap(large, LARGE_HOLE) == 0);
    use(NULL);
    for (int i = 0; i < PLACES; i++) {
        char *at = large + LARGE_HOLE / PLACES * i;
        CHECK(mmap(at, LEN, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0) == at && is_zero(at, LEN));
        CHECK(munmap(at, LEN) == 0);
    }
    for (int i = 0; i < HOLES; i++) {
        size_t len = PAGE << i % 7;
        char *at = mmap(holes[i] + LEN, len, RW, ANON | MAP_FIXED_NOREPLACE, -1, 0);
        CHECK(at == holes[i] + LEN && is_zero(at, len));
        fill(at, len, 7);
    }
    use(NULL);
    for (int i = 0; i < HOLES; i++) CHECK(holds(holes[i] + LEN, PAGE << i % 7, 7));
    puts("mine");
    return 0;
}

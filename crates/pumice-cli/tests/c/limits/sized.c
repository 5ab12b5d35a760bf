/* Beside an allocator that frees by functions of its own (jemalloc's sdallocx and dallocx, from sized_next.c), which ends a
   program that gives it what is not its own. What it gave, malloc's functions take, and the other way round. */
#include "limits.h"
#include <malloc.h>

extern void sdallocx(void *, size_t, int);
extern void dallocx(void *, int);
extern size_t sallocx(const void *, int);
extern void *mallocx(size_t, int);
extern long next_count(void);

int main(void) {
    guard();
    long before = next_count();
    for (int round = 0; round < 16; round++) {
        size_t size = (round % 8 + 1) * 100 * KIB * (round % 3 + 1) * (round % 3 + 1);
        char *p = malloc(size), *q = calloc(1, size), *r = mallocx(size, 0), *s;
        CHECK(p && q && r && posix_memalign((void **)&s, 64, size) == 0);
        CHECK(is_zero(q, size));
        fill(p, size, round), fill(r, size, round + 1), fill(s, size, round + 2);
        CHECK(sallocx(p, 0) >= size && malloc_usable_size(r) >= size);
        p = realloc(p, 2 * size), r = realloc(r, 3 * size);
        CHECK(p && r && holds(p, size, round) && holds(r, size, round + 1) && holds(s, size, round + 2));
        sdallocx(p, 2 * size, 0);
        dallocx(q, 0);
        free(r);
        sdallocx(s, size, 0);
    }
    churn();
    /* Mappings are nobody's allocation, and served as they were. */
    char *map = mmap(NULL, 4 * MIB, RW, ANON, -1, 0);
    CHECK(map != MAP_FAILED && is_zero(map, 4 * MIB));
    CHECK(munmap(map, 4 * MIB) == 0);
    printf("%s\n", next_count() == before ? "all came back" : "some did not come back");
    return 0;
}

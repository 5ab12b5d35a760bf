/* A program that defines some of malloc's family itself, over glibc's own names for them, as leak finders and fault
   injectors do, and leaves others to the C library: what those give comes to glibc's `free`. */
#include "limits.h"

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

static _Atomic long calls;

void *malloc(size_t size) { calls++; return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { calls++; return __libc_calloc(count, size); }
void *realloc(void *at, size_t size) { calls++; return __libc_realloc(at, size); }
void free(void *at) { calls++; __libc_free(at); }

int main(void) {
    guard();
    void *aligned = NULL;
    CHECK(posix_memalign(&aligned, 64, MIB) == 0);
    memset(aligned, 1, MIB);
    free(aligned);
    aligned = aligned_alloc(4096, 4 * MIB);
    CHECK(aligned);
    aligned = realloc(aligned, 5 * MIB);
    CHECK(aligned);
    free(aligned);
    free(reallocarray(NULL, 1000, 1000));
    puts(calls > 4 ? "done" : "not called");
    return 0;
}

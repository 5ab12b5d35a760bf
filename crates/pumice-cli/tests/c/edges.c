/* Every interposed function at its edges: zero, huge, overflowing and unaligned arguments. What
   C leaves open is printed, to be compared with a run without the shim. */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <unistd.h>

static const size_t huge[] = {
    SIZE_MAX, SIZE_MAX - 4095, (size_t)PTRDIFF_MAX + 1, PTRDIFF_MAX, (size_t)1 << 50,
};
#define HUGES (sizeof huge / sizeof huge[0])

static void check_block(char *p, size_t size, size_t align) {
    CHECK(p != NULL);
    CHECK((uintptr_t)p % align == 0);
    CHECK(malloc_usable_size(p) >= size);
    fill(p, size, size + 1);
    CHECK(holds(p, size, size + 1));
    /* All that is usable may be used. */
    size_t usable = malloc_usable_size(p);
    if (usable) p[usable - 1] = 1;
    errno = 77;
    free(p);
    CHECK(errno == 77);
}

static void test_malloc(void) {
    for (size_t i = 0; i < SIZES; i++) check_block(malloc(sizes[i]), sizes[i], 16);
    for (size_t i = 0; i < HUGES; i++) {
        errno = 0;
        CHECK(malloc(huge[i]) == NULL && errno == ENOMEM);
    }
    char *one = malloc(0), *two = malloc(0);
    CHECK(one && two && one != two);
    free(one);
    free(two);
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0);
}

static void test_calloc(void) {
    for (size_t i = 0; i < SIZES; i++) {
        for (int round = 0; round < 3; round++) {
            /* Leave dirt for calloc to find. */
            char *dirt = malloc(sizes[i]);
            memset(dirt, 0xa5, sizes[i]);
            free(dirt);
            char *p = calloc(sizes[i] / 8, 8);
            CHECK(p && is_zero(p, sizes[i] / 8 * 8));
            check_block(p, sizes[i] / 8 * 8, 16);
        }
    }
    errno = 0;
    CHECK(calloc(SIZE_MAX / 2, 3) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(calloc((size_t)1 << 33, (size_t)1 << 33) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(calloc(SIZE_MAX, 1) == NULL && errno == ENOMEM);
    check_block(calloc(0, SIZE_MAX), 0, 16);
    check_block(calloc(SIZE_MAX, 0), 0, 16);
}

static void test_realloc(void) {
    for (size_t i = 0; i < SIZES; i++) {
        for (size_t j = 0; j < SIZES; j++) {
            size_t least = sizes[i] < sizes[j] ? sizes[i] : sizes[j];
            char *p = malloc(sizes[i]);
            fill(p, sizes[i], i);
            if (sizes[j] == 0) {
                p = realloc(p, 0);
                if (i == 0) printf("realloc(p, 0) is %s\n", p ? "memory" : "NULL");
                else if (i == SIZES - 1) printf("so it is for large p: %s\n", p ? "memory" : "NULL");
                free(p);
                continue;
            }
            p = realloc(p, sizes[j]);
            CHECK(p && (uintptr_t)p % 16 == 0 && holds(p, least, i));
            check_block(p, sizes[j], 16);
        }
        char *p = malloc(sizes[i]);
        fill(p, sizes[i], 3);
        for (size_t j = 0; j < HUGES; j++) {
            errno = 0;
            CHECK(realloc(p, huge[j]) == NULL && errno == ENOMEM);
            errno = 0;
            CHECK(reallocarray(p, huge[j], 2) == NULL && errno == ENOMEM);
        }
        CHECK(holds(p, sizes[i], 3));
        p = reallocarray(p, 3, 40000);
        CHECK(p && holds(p, sizes[i] < 120000 ? sizes[i] : 120000, 3));
        check_block(p, 120000, 16);
        check_block(realloc(NULL, sizes[i]), sizes[i], 16);
    }
}

static void test_growth(void) {
    /* As a vector grows, across the threshold and back. */
    char *p = NULL;
    size_t size = 0;
    for (size_t next = 1000; next < (8 << 20); next += next / 3) {
        p = realloc(p, next);
        CHECK(p && holds(p, size, 9));
        fill(p, size = next, 9);
    }
    for (size_t next = size; next > 1000; next -= next / 3) {
        p = realloc(p, next);
        CHECK(p && holds(p, next, 9));
    }
    free(p);
}

static void test_posix_memalign(void) {
    static const size_t good[] = {8, 16, 64, 4096, 65536, 2 << 20, 4 << 20};
    static const size_t bad[] = {0, 1, 2, 3, 4, 12, 24, 48, 4097, SIZE_MAX};
    for (size_t i = 0; i < SIZES; i++) {
        for (size_t j = 0; j < sizeof good / sizeof good[0]; j++) {
            void *p = NULL;
            errno = 77;
            CHECK(posix_memalign(&p, good[j], sizes[i]) == 0 && errno == 77);
            check_block(p, sizes[i], good[j]);
        }
        for (size_t j = 0; j < sizeof bad / sizeof bad[0]; j++) {
            void *p = &p;
            errno = 77;
            CHECK(posix_memalign(&p, bad[j], sizes[i]) == EINVAL && p == &p);
#ifdef __GLIBC__
            CHECK(errno == 77);
#endif
        }
    }
    for (size_t i = 0; i < HUGES; i++) {
        void *p = &p;
        CHECK(posix_memalign(&p, 64, huge[i]) == ENOMEM && p == &p);
    }
}

static void test_memalign(void *(*function)(size_t, size_t), const char *name) {
    static const size_t aligns[] = {
        0, 1, 3, 8, 16, 24, 48, 64, 4096, 5000, 65536, 2 << 20, (size_t)1 << 62, (size_t)1 << 63,
        ((size_t)1 << 63) + 1, SIZE_MAX,
    };
    for (size_t i = 0; i < sizeof aligns / sizeof aligns[0]; i++) {
        for (size_t j = 0; j < SIZES; j++) {
            errno = 0;
            void *p = function(aligns[i], sizes[j]);
            size_t align = aligns[i] && (aligns[i] & (aligns[i] - 1)) == 0 ? aligns[i] : 1;
            if (p) check_block(p, sizes[j], align);
            else printf("%s(%zx, %zx): errno %d\n", name, aligns[i], sizes[j], errno);
        }
        errno = 0;
        void *p = function(aligns[i], SIZE_MAX - 8192);
        printf("%s(%zx, huge): %s, errno %d\n", name, aligns[i], p ? "memory" : "NULL", errno);
    }
}

static void test_page_functions(void) {
#ifdef __GLIBC__
    size_t page = sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < SIZES; i++) {
        check_block(valloc(sizes[i]), sizes[i], page);
        check_block(pvalloc(sizes[i]), (sizes[i] + page - 1) / page * page, page);
    }
    errno = 0;
    CHECK(valloc(SIZE_MAX) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(pvalloc(SIZE_MAX) == NULL && errno == ENOMEM);
    /* Gone from glibc, but old programs call it. */
    void (*cfree)(void *) = (void (*)(void *))dlsym(RTLD_DEFAULT, "cfree");
    if (cfree) {
        cfree(malloc(100));
        cfree(malloc(1 << 20));
        cfree(NULL);
    }
#endif
}

int main(void) {
    test_malloc();
    test_calloc();
    test_realloc();
    test_growth();
    test_posix_memalign();
    test_memalign(aligned_alloc, "aligned_alloc");
    test_memalign(memalign, "memalign");
    test_page_functions();
    puts("done");
    return 0;
}

// jemalloc's functions on memory that malloc gave, small and large.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void *mallocx(size_t, int) __attribute__((weak));
extern void *rallocx(void *, size_t, int) __attribute__((weak));
extern size_t xallocx(void *, size_t, size_t, int) __attribute__((weak));
extern size_t sallocx(void *, int) __attribute__((weak));
extern void dallocx(void *, int) __attribute__((weak));
extern void sdallocx(void *, size_t, int) __attribute__((weak));

static void check(int good, const char *what) {
    if (!good) {
        printf("wrong: %s\n", what);
        exit(1);
    }
}

int main(void) {
    check(mallocx && rallocx && xallocx && sallocx && dallocx && sdallocx, "no jemalloc");
    for (size_t size = 10; size <= 10 << 20; size *= 32) {
        dallocx(malloc(size), 0);
        sdallocx(malloc(size), size, 0);
        free(mallocx(size, 0));
        char *at = malloc(size);
        memset(at, 7, size);
        check(sallocx(at, 0) >= size, "the size");
        size_t now = xallocx(at, 2 * size, 0, 0);
        check(now >= size, "the size, as it is or larger");
        at = rallocx(at, 3 * size, 12);
        check(at && (uintptr_t)at % 4096 == 0, "moved and aligned");
        for (size_t i = 0; i < size; i++) check(at[i] == 7, "moved bytes");
        at = rallocx(at, 3 * size, 0);
        for (size_t i = 0; i < size; i++) check(at[i] == 7, "bytes that stayed or moved");
        memset(at, 8, 3 * size);
        at = realloc(at, 4 * size);
        for (size_t i = 0; i < 3 * size; i++) check(at[i] == 8, "moved on");
        sdallocx(at, 4 * size, 0);
    }
    puts("right");
}

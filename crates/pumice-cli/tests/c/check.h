/* What the test programs share: a check that names its line, and patterns in memory. */
#ifndef CHECK_H
#define CHECK_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);      \
            fflush(stdout);                                                     \
            abort();                                                            \
        }                                                                       \
    } while (0)

/* Sizes around the threshold, frames and huge pages. */
static const size_t sizes[] = {
    0, 1, 24, 4095, 4096, 65535, 65536, 65537, 100000, 131072, 1 << 20, (2 << 20) - 1,
    2 << 20, (2 << 20) + 1, 3 << 20, 9 << 20,
};
#define SIZES (sizeof sizes / sizeof sizes[0])

/* Writes a word that depends on the seed and its place to each cache line, and the last byte. Built with -fno-builtin,
   programs call memcpy where it is not named like this. */
static inline void fill(void *memory, size_t size, uint64_t seed) {
    char *at = memory;
    for (size_t i = 0; i + 8 <= size; i += 64) {
        uint64_t word = seed * 0x9e3779b97f4a7c15u + i;
        __builtin_memcpy(at + i, &word, 8);
    }
    if (size) at[size - 1] = (char)seed;
}

/* Whether the first `size` bytes are as `fill` left them, the last byte of all apart. */
static inline int holds(const void *memory, size_t size, uint64_t seed) {
    const char *at = memory;
    for (size_t i = 0; i + 8 < size; i += 64) {
        uint64_t word = seed * 0x9e3779b97f4a7c15u + i, found;
        __builtin_memcpy(&found, at + i, 8);
        if (found != word) return 0;
    }
    return 1;
}

/* Whether each byte is this one. */
static inline int is_all(const void *memory, char byte, size_t size) {
    const char *at = memory;
    return size == 0 || (at[0] == byte && memcmp(at, at + 1, size - 1) == 0);
}

static inline int is_zero(const void *memory, size_t size) { return is_all(memory, 0, size); }

#endif

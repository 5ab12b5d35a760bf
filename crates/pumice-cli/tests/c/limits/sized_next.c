/* An allocator as simple as can be, with jemalloc's names: each allocation is a mapping with a header, and
   freeing any other address ends the program. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/mman.h>
#include <unistd.h>

#define MARK 0x70756d6963652121u

struct header { uint64_t mark; void *start; size_t mapped, size; };

static _Atomic long count;

long next_count(void) { return count; }

static struct header *header_of(const void *at) {
    struct header *header = (struct header *)at - 1;
    if (header->mark != MARK || header->mapped - header->size > (1 << 21)) {
        static const char text[] = "an allocator was given what is not its own\n";
        write(1, text, sizeof text - 1);
        abort();
    }
    return header;
}

void *memalign(size_t align, size_t size) {
    size_t mapped = (size + align + sizeof(struct header) + 4095) / 4096 * 4096;
    char *start = (char *)syscall(SYS_mmap, NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    if (start == MAP_FAILED) return NULL;
    uintptr_t at = ((uintptr_t)start + sizeof(struct header) + align - 1) / align * align;
    ((struct header *)at)[-1] = (struct header){MARK, start, mapped, size};
    count++;
    return (void *)at;
}

void *malloc(size_t size) { return memalign(16, size); }
void *mallocx(size_t size, int flags) { return memalign(16, size); }
void *aligned_alloc(size_t align, size_t size) { return memalign(align, size); }
void *valloc(size_t size) { return memalign(4096, size); }
void *pvalloc(size_t size) { return memalign(4096, (size + 4095) / 4096 * 4096); }
int posix_memalign(void **out, size_t align, size_t size) { return (*out = memalign(align, size)) ? 0 : ENOMEM; }

void *calloc(size_t number, size_t size) {
    size_t bytes;
    return __builtin_mul_overflow(number, size, &bytes) ? NULL : malloc(bytes);
}

size_t malloc_usable_size(void *at) { return at ? header_of(at)->size : 0; }
size_t sallocx(const void *at, int flags) { return header_of(at)->size; }

void free(void *at) {
    if (!at) return;
    struct header header = *header_of(at);
    ((struct header *)at)[-1].mark = 0;
    count--;
    syscall(SYS_munmap, header.start, header.mapped);
}

void dallocx(void *at, int flags) { free(at); }

void sdallocx(void *at, size_t size, int flags) {
    if (header_of(at)->size < size) abort();
    free(at);
}

void *realloc(void *at, size_t size) {
    void *new = malloc(size);
    if (!at || !new) return new;
    size_t old = header_of(at)->size;
    memcpy(new, at, old < size ? old : size);
    free(at);
    return new;
}

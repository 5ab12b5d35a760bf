/* A program that patches the C library, as MPI's and libfabric's libraries do: a jump over the first instructions of
   `munmap`, `madvise`, `mremap` and `mmap` (the first of each name), on which it goes on by number. Memory that has
   been written is registered; what goes away without being seen goes stale. */
#include "limits.h"
#include <dlfcn.h>
#include <malloc.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { KEPT = 4096 };
/* What is registered: sixteen pages at most would do for a device, here it is any. */
static struct { char *at; size_t size; uint64_t frame; } kept[KEPT];
static int count, seen;

static void forget(char *at, size_t size) {
    for (int i = 0; i < count; i++)
        if (at < kept[i].at + kept[i].size && kept[i].at < at + size) kept[i--] = kept[--count], seen++;
}



static int new_munmap(void *at, size_t size) {
    forget(at, size);
    return syscall(SYS_munmap, at, size);
}

static int new_madvise(void *at, size_t size, int advice) {
    if (advice == MADV_DONTNEED || advice == MADV_FREE || advice == MADV_REMOVE) forget(at, size);
    return syscall(SYS_madvise, at, size, advice);
}

static void *new_mremap(void *at, size_t size, size_t new_size, int flags, void *to) {
    forget(at, size);
    return (void *)syscall(SYS_mremap, at, size, new_size, flags, to);
}

static void *new_mmap(void *at, size_t size, int protection, int flags, int fd, long offset) {
    if (flags & MAP_FIXED) forget(at, size);
    return (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
}

static void patch(const char *name, void *to) {
    char *at = dlsym(RTLD_DEFAULT, name);
    CHECK(at);
    size_t page = 4096;
    char *start = (char *)((uintptr_t)at & -page);
    CHECK(syscall(SYS_mprotect, start, 2 * page, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
#if defined __x86_64__
    /* mov r11, to; jmp r11 */
    unsigned char code[13] = {0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3};
    memcpy(code + 2, &to, 8);
#elif defined __aarch64__
    /* ldr x17, 8; br x17; to */
    uint32_t code[4] = {0x58000051, 0xd61f0220};
    memcpy(code + 2, &to, 8);
#endif
    memcpy(at, code, sizeof code);
    __builtin___clear_cache(at, at + sizeof code);
    CHECK(syscall(SYS_mprotect, start, 2 * page, PROT_READ | PROT_EXEC) == 0);
}

/* As a library registers what is sent: what it has of that address already is good as long as it has not been told
   otherwise. A pipe stands for the device that holds the pages. Physical pages are told apart by /proc/self/pagemap, which only root reads. */
static int pagemap;

static uint64_t frame_of(char *at) {
    uint64_t entry = 0;
    CHECK(pread(pagemap, &entry, 8, (uintptr_t)at / 4096 * 8) == 8);
    return entry & (1ull << 63) ? entry & ((1ull << 55) - 1) : 0;
}

static int stale;

static void hold(char *at) {
    int ends[2];
    struct iovec piece = {at, 4096};
    CHECK(pipe(ends) == 0 && vmsplice(ends[1], &piece, 1, 0) == 4096);
}

static void transfer(char *at, size_t size) {
    memset(at, 1, size);
    char *page = at + size / 2;
    for (int i = 0; i < count; i++) {
        if (kept[i].at != at || kept[i].size != size) continue;
        stale += kept[i].frame != frame_of(page);
        return;
    }
    forget(at, size);
    CHECK(count < KEPT);
    kept[count].at = at, kept[count].size = size;
    kept[count++].frame = frame_of(page);
}

static void work(void) {
    for (int i = 0; i < 60; i++) {
        size_t size = ((i % 7 + 1) * 300) * KIB;
        char *p = malloc(size), *q = mmap(NULL, size + MIB, RW, ANON, -1, 0);
        CHECK(p && q != MAP_FAILED);
        transfer(p, size);
        transfer(q, size + MIB);
        if (i % 5 == 1) {
            p = realloc(p, 2 * size);
            CHECK(p);
            transfer(p, 2 * size);
        }
        if (i % 5 == 2) {
            CHECK(madvise(q, MIB, MADV_DONTNEED) == 0);
            transfer(q, size + MIB);
        }
        if (i % 5 == 3) {
            CHECK(munmap(q + size, MIB) == 0);
            CHECK(mmap(q + size, MIB, RW, ANON | MAP_FIXED, -1, 0) == q + size);
            transfer(q, size + MIB);
        }
        free(p);
        CHECK(munmap(q, size + MIB) == 0);
        /* Long enough for what is free to be given back, now and then. */
        if (i % 30 == 29) usleep(250000);
    }
}

int main(void) {
    guard();
    pagemap = open("/proc/self/pagemap", O_RDONLY);
    if (geteuid() != 0 || pagemap < 0) skip("not root");
    churn();
    char *probe = malloc(MIB);
    memset(probe, 1, MIB);
    if (!frame_of(probe + MIB / 2)) skip("frames are not to be seen");
    hold(probe);
    free(probe);
    /* Those libraries see no brk either, so glibc's heap is not to shrink. */
    CHECK(mallopt(M_MMAP_THRESHOLD, 128 * KIB) && mallopt(M_TRIM_THRESHOLD, GIB));
    patch("munmap", new_munmap), patch("madvise", new_madvise), patch("mremap", new_mremap), patch("mmap", new_mmap);
    work();
    printf("%s\n", stale ? "something that was registered was not there any more" : "all that went away was seen");
    if (stale) printf("%d times\n", stale);
    printf("%s\n", seen ? "some was" : "nothing was");
    return 0;
}

/* Blocks that were written, swapped out and freed: the kernel says of their pages that they are not
   resident, and yet they are not zero. Makes a swap file of its own in the folder that is its argument, where
   it may; the process that turned it on turns it off again, however the other one ends. */
#define _GNU_SOURCE
#include "defect.h"
#include <sys/swap.h>

enum { SWAP_PAGES = 32 * 256, BLOCKS = 12, ROUNDS = 4 };

static char device[64];
static int number = -1;

static int put_line(const char *path, const char *line) {
    int fd = open(path, O_WRONLY);
    int done = fd >= 0 && write(fd, line, strlen(line)) == (ssize_t)strlen(line);
    if (fd >= 0) close(fd);
    return done;
}

/* A new device with the header of mkswap(8): version, last page, and a name at the first page's end. */
static int turn_on(void) {
    char path[64], text[16] = "";
    int fd = open("/sys/class/zram-control/hot_add", O_RDONLY);
    if (fd < 0) return 0;
    int has_number = read(fd, text, sizeof text - 1) > 0;
    close(fd);
    if (!has_number) return 0;
    number = atoi(text);
    snprintf(path, sizeof path, "/sys/block/zram%d/disksize", number);
    snprintf(text, sizeof text, "%d", SWAP_PAGES * PAGE);
    snprintf(device, sizeof device, "/dev/zram%d", number);
    static char page[PAGE];
    ((uint32_t *)page)[256] = 1;
    ((uint32_t *)page)[257] = SWAP_PAGES - 1;
    memcpy(page + PAGE - 10, "SWAPSPACE2", 10);
    return put_line(path, text) && (fd = open(device, O_WRONLY)) >= 0
           && pwrite(fd, page, PAGE, 0) == PAGE && fsync(fd) == 0 && close(fd) == 0
           && swapon(device, 0) == 0;
}

static void turn_off(void) {
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    swapoff(device);
    put_line("/sys/class/zram-control/hot_remove", text);
}

/* As memory pressure does it, of which no library can know. */
static long page_out(char *at, size_t size) {
#ifdef __x86_64__
    long result;
    __asm__ volatile("syscall" : "=a"(result)
                     : "a"(SYS_madvise), "D"(at), "S"(size), "d"(MADV_PAGEOUT)
                     : "rcx", "r11", "memory");
    return result;
#else
    return madvise(at, size, MADV_PAGEOUT);
#endif
}

/* What lies in whole pages of a block. */
static void page_out_inner(char *at, size_t size) {
    char *first = (char *)(((uintptr_t)at + PAGE - 1) / PAGE * PAGE);
    char *end = (char *)((uintptr_t)(at + size) / PAGE * PAGE);
    CHECK(page_out(first, end - first) == 0);
}

static int is_swapped_out(char *at, size_t size) {
    return page_out(at, size) == 0 && status_of("VmSwap:") >= (long)(size >> 11);
}

static char *by_malloc(size_t size) { return malloc(size); }
static char *by_calloc(size_t size) { return calloc(1, size); }
static void by_free(char *at, size_t size) { free(at); }
static void by_munmap(char *at, size_t size) { CHECK(munmap(at, size) == 0); }

/* The first rounds show what such memory is used for; only then is it swapped out. */
static void swap_and_free(char *get(size_t), char *get_zeros(size_t), void put(char *, size_t),
                          size_t size) {
    char *blocks[BLOCKS];
    for (int round = 0; round < ROUNDS; round++) {
        int count = round < ROUNDS - 1 ? 2 : BLOCKS;
        for (int i = 0; i < count; i++) fill(blocks[i] = get(size), size, i + 1);
        for (int i = 0; i < count && count == BLOCKS; i++) page_out_inner(blocks[i], size);
        for (int i = 0; i < count; i++) put(blocks[i], size);
    }
    for (int i = 0; i < BLOCKS; i++) CHECK(is_zero(blocks[i] = get_zeros(size), size));
    for (int i = 0; i < BLOCKS; i++) put(blocks[i], size);
}

static void work(void) {
    guard(20);
    swap_and_free(by_malloc, by_calloc, by_free, 2 * MIB);
    swap_and_free(by_malloc, by_calloc, by_free, 600 << 10);
    swap_and_free(map, map, by_munmap, 2 * MIB);
    exit(0);
}

int main(void) {
    char *probe = map(MIB);
    fill(probe, MIB, 1);
    int swaps = is_swapped_out(probe, MIB) || (turn_on() && is_swapped_out(probe, MIB));
    CHECK(munmap(probe, MIB) == 0);
    int status = 0;
    if (swaps) {
        pid_t child = fork();
        if (child == 0) work();
        CHECK(waitpid(child, &status, 0) == child);
    }
    if (number >= 0) turn_off();
    CHECK(status == 0);
    return swaps ? puts("done") < 0 : skip("no swap here");
}

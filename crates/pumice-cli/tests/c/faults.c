// Takes a known number of zero-fill faults. Arguments: how, and how many pages.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void touch(char *at, size_t pages, size_t page_bytes) {
    for (size_t page = 0; page < pages; page++)
        *(volatile char *)(at + page * page_bytes) = 1;
}

static char *map(size_t bytes, int advice) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || madvise(at, bytes, advice) != 0)
        exit(1);
    return at;
}

int main(int count, char **arguments) {
    if (count != 3)
        return 2;
    size_t pages = strtoul(arguments[2], NULL, 10), huge = 2 << 20;
    if (strcmp(arguments[1], "small") == 0) {
        touch(map(pages << 12, MADV_NOHUGEPAGE), pages, 4096);
    } else if (strcmp(arguments[1], "huge") == 0) {
        char *at = map((pages + 1) * huge, MADV_HUGEPAGE);
        touch(at + (huge - (size_t)at % huge) % huge, pages, huge);
    } else if (strcmp(arguments[1], "fork") == 0) {
        // The child copies what the parent has, and the parent what the child has not freed yet.
        char *at = map(pages << 12, MADV_NOHUGEPAGE);
        touch(at, pages, 4096);
        if (fork() == 0) {
            touch(at, pages, 4096);
            _exit(0);
        }
        wait(NULL);
    } else if (strcmp(arguments[1], "heap") == 0) {
        for (size_t page = 0; page < pages; page++)
            memset(malloc(4080), 1, 4080);
    } else {
        return 2;
    }
    return 0;
}

/* Shared by the programs about rights, limits and the view of others. */
#ifndef LIMITS_H
#define LIMITS_H

#define _GNU_SOURCE
#include "../check.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

enum { ANON = MAP_PRIVATE | MAP_ANONYMOUS, RW = PROT_READ | PROT_WRITE };

/* First in main: ends a program that hangs. Generous, for machines that do much else. */
static inline void guard(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(100);
}

/* For a machine that lacks the subject of the rest of the program. */
static inline void skip(const char *why) {
    printf("skipped: %s\n", why);
    exit(0);
}

/* Frees enough for helper threads to be at work. */
static inline void churn(void) {
    for (int i = 0; i < 2; i++) {
        size_t size = 4 * MIB;
        char *allocated = malloc(size), *mapped = mmap(NULL, size, RW, ANON, -1, 0);
        CHECK(allocated && mapped != MAP_FAILED);
        memset(allocated, 1, size);
        memset(mapped, 1, size);
        free(allocated);
        CHECK(munmap(mapped, size) == 0);
    }
}

static inline void wait_for(pid_t child) {
    int status;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) printf("a child ended with %d\n", status);
}

#endif

/* What the programs about defects that were found once share: see shim/defects.rs. */
#ifndef DEFECT_H
#define DEFECT_H

#include "../mmap.h"
#include <sys/syscall.h>

#define MIB ((size_t)1 << 20)

/* First in main: a program that hangs is ended, and differs by that. */
static inline void guard(unsigned seconds) {
    setvbuf(stdout, NULL, _IONBF, 0);
    alarm(seconds);
}

static inline int skip(const char *why) {
    printf("skipped: %s\n", why);
    return 0;
}

/* A field of /proc/self/status, in its own unit; -1 if there is none. */
static inline long status_of(const char *name) {
    char line[256];
    long value = -1;
    FILE *status = fopen("/proc/self/status", "r");
    CHECK(status);
    while (value < 0 && fgets(line, sizeof line, status))
        if (strncmp(line, name, strlen(name)) == 0) value = atol(line + strlen(name));
    fclose(status);
    return value;
}

#endif

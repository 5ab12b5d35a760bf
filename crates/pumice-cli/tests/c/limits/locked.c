/* mlockall under a finite limit on locked memory, which what is reserved must not count for. */
#include "limits.h"
#include <sys/resource.h>
#include <sys/syscall.h>

/* Little, for the limit is low where nobody has raised it. */
#define SOME (300 * KIB)

static long field_kib(const char *name) {
    char line[200];
    long found = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (strncmp(line, name, strlen(name)) == 0) found = atol(line + strlen(name));
    fclose(status);
    return found;
}

static void say(const char *what, long result) {
    printf("%s: %s\n", what, result == 0 ? "done" : strerror(errno));
}

static const char *size_of(long kib) { return kib <= 8 << 10 ? "as it should be" : "too much"; }

static void *map(size_t size) { return mmap(NULL, size, RW, ANON, -1, 0); }

static void try(int flags, int by_number, size_t limit) {
    churn();
    char *kept = malloc(SOME), *mapped = map(SOME);
    CHECK(kept && mapped != MAP_FAILED);
    memset(kept, 1, SOME);
    struct rlimit it = {limit, limit};
    CHECK(setrlimit(RLIMIT_MEMLOCK, &it) == 0);
    CHECK(setresuid(65534, 65534, 65534) == 0);
    say(by_number ? "mlockall by number" : "mlockall", by_number ? syscall(SYS_mlockall, flags) : mlockall(flags));
    printf("locked: %s\n", size_of(field_kib("VmLck:")));
    printf("resident: %s\n", size_of(field_kib("VmRSS:")));
    /* What comes later is locked where that was asked for, and counts. */
    char *later = malloc(SOME);
    long before = field_kib("VmLck:");
    char *more = map(SOME);
    CHECK(later && more != MAP_FAILED);
    long locked = field_kib("VmLck:") - before;
    printf("later: %s\n", locked >= SOME / KIB ? "locked" : "not locked");
    char *largest = map(2 * limit);
    printf("beyond the limit: %s\n", largest == MAP_FAILED ? strerror(errno) : "done");
    CHECK(kept[SOME - 1] == 1 && mapped[0] == 0);
    free(kept), free(later);
    CHECK(munmap(mapped, SOME) == 0 && munmap(more, SOME) == 0);
    say("munlockall", munlockall());
    printf("locked: %s\n", field_kib("VmLck:") == 0 ? "nothing" : "something");
    churn();
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    size_t limit = atoi(arguments[1]) * MIB;
    static const struct { int flags, by_number; size_t limit; } calls[] = {
        {MCL_CURRENT, 0, 0}, {MCL_CURRENT | MCL_FUTURE, 0, 0}, {MCL_CURRENT | MCL_FUTURE, 1, 0},
        {MCL_FUTURE, 0, 0}, {MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT, 0, 0}, {MCL_CURRENT, 1, MIB / 2},
        {0, 0, 0}, {64, 0, 0},
    };
    guard();
    struct rlimit most;
    CHECK(getrlimit(RLIMIT_MEMLOCK, &most) == 0);
    if (geteuid() != 0 || most.rlim_max < limit) skip("not root, or less may be locked");
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        pid_t child = fork();
        if (child == 0) {
            try(calls[i].flags, calls[i].by_number, calls[i].limit ? calls[i].limit : limit);
            exit(0);
        }
        wait_for(child);
    }
    try(MCL_CURRENT | MCL_FUTURE, 0, limit);
    return 0;
}

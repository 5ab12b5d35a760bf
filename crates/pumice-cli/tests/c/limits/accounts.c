/* mallinfo, mallinfo2 and malloc_stats, as LTP's mallinfo02 and mallinfo2_01 look at them: memory above glibc's
   threshold for mappings is counted as such, and no more once it is free. What is printed are differences. */
#include "limits.h"
#include <malloc.h>
#include <pthread.h>

static long of_stats(const char *name) {
    /* malloc_stats writes to standard error. */
    int kept = dup(2), text = memfd_create("stats", 0);
    CHECK(kept >= 0 && text >= 0 && dup2(text, 2) == 2);
    malloc_stats();
    CHECK(dup2(kept, 2) == 2 && close(kept) == 0);
    static char all[1 << 16];
    ssize_t length = pread(text, all, sizeof all - 1, 0);
    CHECK(length > 0 && close(text) == 0);
    all[length] = 0;
    long sum = 0;
    for (char *at = all; (at = strstr(at, name)); at++) sum += atol(strchr(at, '=') + 1);
    return sum;
}

static struct mallinfo2 last;

static void say(const char *what, size_t bytes) {
    struct mallinfo2 now = mallinfo2();
    struct mallinfo narrow = mallinfo();
    CHECK((int)now.hblks == narrow.hblks && (int)now.hblkhd == narrow.hblkhd && (int)now.uordblks == narrow.uordblks);
    long mapped = now.hblkhd - last.hblkhd;
    /* A header and what is missing to a page are glibc's own way. */
    printf("%s: %ld more, %s\n", what, (long)(now.hblks - last.hblks),
           mapped == 0 ? "no bytes" : labs(mapped) >= bytes && labs(mapped) < bytes + (2 << 20) + bytes / 8 ? (mapped > 0 ? "its bytes" : "its bytes less") : "other bytes");
    last = now;
}

static void *of_thread(void *unused) {
    char *p = malloc(3 * MIB);
    CHECK(p);
    return p;
}

int main(void) {
    guard();
    mallopt(M_MMAP_THRESHOLD, 128 * KIB);
    /* The first request may bring memory of its own. */
    churn();
    puts("begin");
    last = mallinfo2();
    char *p = malloc(20 * MIB);
    say("20 MiB", 20 * MIB);
    p = realloc(p, 40 * MIB);
    say("grown", 20 * MIB);
    p = realloc(p, 30 * MIB);
    say("shrunk", 10 * MIB);
    free(p);
    say("freed", 30 * MIB);
    char *blocks[10];
    for (int i = 0; i < 10; i++) blocks[i] = i % 2 ? malloc(MIB + i * 100000) : calloc(1, MIB + i * 100000);
    say("ten", 10 * MIB + 45 * 100000);
    for (int i = 0; i < 10; i++) free(blocks[i]);
    say("ten freed", 10 * MIB + 45 * 100000);
    CHECK(posix_memalign((void **)&p, 4096, 5 * MIB) == 0);
    say("aligned", 5 * MIB);
    free(p);
    say("aligned and freed", 5 * MIB);
    /* Mappings are not malloc's. */
    p = mmap(NULL, 8 * MIB, RW, ANON, -1, 0);
    CHECK(p != MAP_FAILED);
    say("a mapping", 8 * MIB);
    CHECK(munmap(p, 8 * MIB) == 0);
    say("unmapped", 8 * MIB);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, of_thread, NULL) == 0 && pthread_join(thread, (void **)&p) == 0);
    say("of a thread", 3 * MIB);
    pid_t child = fork();
    if (child == 0) {
        free(p);
        say("freed in a child", 3 * MIB);
        exit(0);
    }
    wait_for(child);
    free(p);
    say("and here", 3 * MIB);
    long before = of_stats("in use bytes");
    p = malloc(20 * MIB);
    long now = of_stats("in use bytes");
    printf("malloc_stats: %s\n", now - before >= 20 * MIB && now - before < 23 * MIB ? "20 MiB more" : "something else");
    free(p);
    printf("and %s\n", of_stats("in use bytes") == before ? "no more" : "still");
    return 0;
}

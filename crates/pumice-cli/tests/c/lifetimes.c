/* Allocation before main, in constructors, in libraries loaded later, under a rain of signals, in
   handlers at exit, and in thread-specific destructors. */
#define _GNU_SOURCE
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

static char *before_main, *in_constructor;

static void preinit(void) {
    before_main = calloc(1, 3 << 20);
    fill(before_main, 3 << 20, 1);
}

#ifdef __GLIBC__
__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = preinit;
#endif

__attribute__((constructor)) static void construct(void) {
    if (!before_main) preinit();
    in_constructor = malloc(1 << 20);
    fill(in_constructor, 1 << 20, 2);
    free(malloc(100));
}

static void at_exit(void) {
    CHECK(holds(in_constructor, 1 << 20, 2));
    free(in_constructor);
    free(malloc(5 << 20));
    puts("left");
}

static void test_plugin(const char *path) {
    for (int round = 0; round < 3; round++) {
        void *plugin = dlopen(path, RTLD_NOW);
        CHECK(plugin != NULL);
        void *(*allocate)(size_t) = (void *(*)(size_t))dlsym(plugin, "plugin_allocate");
        CHECK(allocate != NULL);
        char *small = allocate(10), *large = allocate(9 << 20);
        CHECK(is_zero(large, 9 << 20));
        CHECK(dlclose(plugin) == 0);
        fill(large, 9 << 20, round);
        CHECK(holds(large, 9 << 20, round));
        free(small);
        free(large);
    }
    CHECK(dlopen("/nonexistent/library.so", RTLD_NOW) == NULL);
    free(malloc(1 << 20));
    CHECK(dlerror() != NULL);
}

static volatile sig_atomic_t signals;
static char *volatile touched;

static void handle(int signal) {
    (void)signal;
    signals++;
    if (touched) touched[70000] = 1;
}

static void test_signals(void) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGPROF, &action, NULL) == 0);
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_PROF, &often, NULL) == 0);
    for (uint64_t i = 0; signals < 50; i++) {
        size_t size = (size_t)80000 << i % 6;
        char *p = i % 2 ? malloc(size) : calloc(1, size);
        CHECK(p && (i % 2 || is_zero(p, size)));
        touched = p;
        fill(p, 60000, i);
        CHECK(holds(p, 60000, i));
        touched = NULL;
        free(p);
    }
    CHECK(setitimer(ITIMER_PROF, &never, NULL) == 0);
}

static void destroy(void *value) {
    CHECK(holds(value, 1 << 20, 4));
    free(value);
    free(malloc(1 << 20));
}

static void *set_value(void *key) {
    char *value = malloc(1 << 20);
    fill(value, 1 << 20, 4);
    CHECK(pthread_setspecific(*(pthread_key_t *)key, value) == 0);
    return malloc(2 << 20);
}

static void test_thread_exit(void) {
    pthread_key_t key;
    CHECK(pthread_key_create(&key, destroy) == 0);
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, set_value, &key) == 0);
        CHECK(pthread_join(thread, &result) == 0);
        free(result);
    }
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    atexit(at_exit);
    CHECK(holds(before_main, 3 << 20, 1));
    free(before_main);
    test_plugin(arguments[1]);
    test_signals();
    test_thread_exit();
    puts("done");
    return 0;
}

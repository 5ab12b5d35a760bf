/* The heap starts when a process has asked for much, wherever that happens: on a small stack, beside a thread that
   changes the environment, after the program has chosen addresses for its own. */
#include "defect.h"
#include <pthread.h>
#include <signal.h>
#include <ucontext.h>

static void ask_for_much(void) {
    char *at = malloc(5 * MIB);
    CHECK(at);
    at[0] = at[5 * MIB - 1] = 1;
    free(at);
}

static void *in_thread(void *unused) {
    ask_for_much();
    return unused;
}

static void on_small_stack(void) {
    pthread_attr_t small;
    pthread_t thread;
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 16384) == 0);
    CHECK(pthread_create(&thread, &small, in_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

static void on_signal(int signal) {
    (void)signal;
    ask_for_much();
}

static char *map_behind_guard(size_t len) {
    char *at = mmap(NULL, len + PAGE, RW, ANON, -1, 0);
    CHECK(at != MAP_FAILED && mprotect(at, PAGE, PROT_NONE) == 0);
    return at + PAGE;
}

static void in_handler(void) {
    size_t len = sysconf(_SC_SIGSTKSZ);
    stack_t stack = {.ss_sp = map_behind_guard(len), .ss_size = len};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    CHECK(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    raise(SIGUSR1);
}

/* The stack of a coroutine, of which a handler opens each page when it is touched. */
static char *coroutine_stack;

static void open_page(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    char *page = (char *)((uintptr_t)info->si_addr & -PAGE);
    if (page < coroutine_stack || page >= coroutine_stack + MIB) _exit(66);
    mprotect(page, PAGE, RW);
}

static void in_coroutine(void) {
    static ucontext_t own, other;
    stack_t stack = {.ss_sp = map_behind_guard(16 * PAGE), .ss_size = 16 * PAGE};
    struct sigaction action = {.sa_sigaction = open_page, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    CHECK(sigaltstack(&stack, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0);
    coroutine_stack = mmap(NULL, MIB, PROT_NONE, ANON, -1, 0);
    CHECK(coroutine_stack != MAP_FAILED && getcontext(&other) == 0);
    other.uc_stack.ss_sp = coroutine_stack;
    other.uc_stack.ss_size = MIB;
    other.uc_link = &own;
    makecontext(&other, ask_for_much, 0);
    CHECK(swapcontext(&own, &other) == 0);
}

/* A program that takes signals when it likes, those of faults among them. */
static void with_pending_signals(void) {
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGUSR1};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        sigset_t set;
        int taken = 0;
        CHECK(sigemptyset(&set) == 0 && sigaddset(&set, signals[i]) == 0);
        CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0 && raise(signals[i]) == 0);
        ask_for_much();
        char *at = map(3 * MIB);
        CHECK(munmap(at + MIB, PAGE) == 0 && munmap(at, 3 * MIB) == 0);
        CHECK(sigwait(&set, &taken) == 0 && taken == signals[i]);
    }
}

static volatile int is_setting, has_asked;

static void *set_variables(void *unused) {
    char name[40];
    is_setting = 1;
    for (int i = 0; i < 3000 && !has_asked; i++) {
        snprintf(name, sizeof name, "VARIABLE_%d", i);
        setenv(name, "0123456789abcdef0123456789", 1);
        /* The C library's old vector becomes something else. */
        free(memset(malloc(16 + 8 * i), 0x41, 16 + 8 * i));
    }
    return unused;
}

static void beside_setenv(void) {
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, set_variables, NULL) == 0);
            while (!is_setting) sched_yield();
            usleep(i * 37 % 3000);
            ask_for_much();
            has_asked = 1;
            CHECK(pthread_join(thread, NULL) == 0);
            _exit(0);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
}

/* Takes the largest gap for its own, but for a quarter at each end: so do libraries that move threads between hosts. */
static void beside_own_addresses(void) {
    unsigned long from, to, last = 0, low = 0, high = 0, step = 1ul << 40;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps) && sscanf(line, "%lx-%lx", &from, &to) == 2 && from >> 47 == 0) {
        if (last && from - last > high - low) low = last, high = from;
        last = to;
    }
    fclose(maps);
    ask_for_much();
    from = low + (high - low) / 4, to = high - (high - low) / 4;
    for (from &= -PAGE; from + step <= to; from += step)
        CHECK(mmap((void *)from, step, PROT_NONE, ANON | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) == (void *)from);
    char *at = malloc(20 * MIB);
    CHECK(at);
    memset(at, 2, 20 * MIB);
    CHECK(at = realloc(at, 30 * MIB));
    for (int i = 0; i < 50; i++) free(memset(malloc(5 * MIB), 1, 5 * MIB));
    free(at);
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {{"thread", on_small_stack},     {"handler", in_handler},     {"coroutine", in_coroutine},  {"pending", with_pending_signals},
               {"setenv", beside_setenv}, {"addresses", beside_own_addresses}};
    guard(60);
    CHECK(count == 2);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(arguments[1], all[i].name) == 0) {
            all[i].run();
            puts("ok");
            return 0;
        }
    return 2;
}

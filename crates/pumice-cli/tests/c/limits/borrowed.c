/* A child of fork whose own child (vfork) uses memory before it has itself; and a first process of a namespace, whose
   child is the first process of another one. The memory stays the owner's: its threads follow its rights, its limits leave
   it room, its filter is heeded. */
#include "limits.h"
#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static void use(size_t size, int times) {
    for (int i = 0; i < times; i++) {
        char *at = malloc(size);
        CHECK(at);
        free(memset(at, 1, size));
        at = calloc(1, size);
        CHECK(at && at[size / 2] == 0);
        free(memset(at, 2, size));
    }
}

static void start_a_program(void) {
    execl("/bin/true", "true", (char *)NULL);
    _exit(1);
}

static void borrow(void) {
    pid_t child = vfork();
    if (child == 0) {
        char *volatile at = malloc(200 * KIB);
        at[0] = 1;
        free(at);
        start_a_program();
    }
    wait_for(child);
}

/* Every thread of the process: its users. */
static void say_users(void) {
    DIR *folder = opendir("/proc/self/task");
    CHECK(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[300], line[200];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *status = fopen(path, "r");
        int is_own = atoi(entry->d_name) == getpid();
        while (status && fgets(line, sizeof line, status))
            if (strncmp(line, "Uid:", 4) == 0 && (is_own || strstr(line, "\t0"))) printf("%s", line);
        if (status) fclose(status);
    }
    closedir(folder);
}

static void drop_rights(void) {
    use(16 * MIB, 4);
    usleep(20000);
    CHECK(setgid(65534) == 0 && setuid(65534) == 0);
    say_users();
}

static void limit_addresses(void) {
    use(6 * MIB, 4);
    struct rlimit limit = {8 * GIB, 8 * GIB};
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    pid_t child = fork();
    if (child == 0) {
        use(5 * MIB, 10);
        _exit(0);
    }
    wait_for(child);
}

#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* The calls that malloc and the steps below need, and no others. */
static void install_filter(void) {
    struct sock_filter calls[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_mmap), ALLOW(SYS_munmap), ALLOW(SYS_mremap), ALLOW(SYS_brk), ALLOW(SYS_write),
        ALLOW(SYS_exit_group), ALLOW(SYS_futex), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog filter = {sizeof calls / sizeof *calls, calls};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
}

static void filter_after_use(void) {
    use(16 * MIB, 4);
    install_filter();
    for (int i = 0; i < 20; i++) use(70000 + i * 300000, 2);
    _exit(0);
}

/* Only large memory before the filter: the C library's allocator must have taken its first steps. */
static void filter_before_small_memory(void) {
    use(MIB, 1);
    install_filter();
    char *volatile at = malloc(100);
    at = malloc(300000);
    at = realloc(at, 2 * MIB);
    free(at);
    _exit(at ? 0 : 1);
}

static int drop_and_start(void *argument) {
    (void)argument;
    if (setgid(65534) || setuid(65534)) _exit(2);
    start_a_program();
    return 3;
}

/* It has number 1, and so have its children. */
static void be_first(void) {
    static char stack[64 * KIB];
    CHECK(getpid() == 1);
    for (int i = 0; i < 20; i++) {
        use(4 * MIB, 2);
        usleep(2000);
        wait_for(clone(drop_and_start, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_NEWPID | SIGCHLD, NULL));
    }
    use(4 * MIB, 2);
}

static void in_a_child(const char *what, void (*body)(void)) {
    printf("%s\n", what);
    pid_t child = fork();
    if (child == 0) {
        body();
        _exit(0);
    }
    wait_for(child);
}

static void borrow_and_drop(void) { borrow(), drop_rights(); }
static void borrow_and_limit(void) { borrow(), limit_addresses(); }
static void borrow_and_filter(void) { borrow(), filter_after_use(); }

int main(void) {
    guard();
    if (geteuid() != 0) skip("not root");
    in_a_child("a filter before anything small", filter_before_small_memory);
    in_a_child("lent before there was any", borrow_and_drop);
    use(4 * MIB, 20);
    in_a_child("rights", borrow_and_drop);
    in_a_child("limits", borrow_and_limit);
    in_a_child("a filter", borrow_and_filter);
    if (unshare(CLONE_NEWPID) != 0) skip("no namespaces");
    in_a_child("first of a namespace", be_first);
    puts("done");
    return 0;
}

/* Calls by which a program changes its rights, by name and by number, once helper threads may be at work.
   No thread that the program did not make may have other rights than the caller afterwards. */
#include "limits.h"
#include <dirent.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <linux/securebits.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { NOBODY = 65534 };

/* A thread of the program's own, which keeps the rights that it has. */
static _Atomic pid_t other;
/* Opened before the program can no longer reach it. */
static int tasks = -1;

static void read_rights(const char *thread, char *to, size_t size) {
    static const char *const wanted[] = {
        "Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:", "Seccomp",
    };
    static const char *const links[] = {
        "root", "cwd", "ns/mnt", "ns/net", "ns/uts", "ns/ipc", "ns/user", "ns/cgroup", "ns/pid_for_children", "ns/time_for_children",
    };
    char path[300], line[4096];
    *to = 0;
    snprintf(path, sizeof path, "%s/status", thread);
    int fd = openat(tasks, path, O_RDONLY);
    /* It has ended meanwhile. */
    if (fd < 0) return;
    FILE *status = fdopen(fd, "r");
    size_t used = 0;
    while (fgets(line, sizeof line, status))
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
            if (strncmp(line, wanted[i], strlen(wanted[i])) == 0)
                used += snprintf(to + used, size - used, "%s", line);
    fclose(status);
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        char link[300];
        snprintf(path, sizeof path, "%s/%s", thread, links[i]);
        ssize_t length = readlinkat(tasks, path, link, sizeof link - 1);
        /* It has ended, and nothing tells its rights. Of processes to come there may be no namespace yet. */
        if (length < 0 && errno == ENOENT && !strstr(links[i], "children")) { *to = 0; return; }
        used += snprintf(to + used, size - used, "%s: %.*s\n", links[i], (int)length, length < 0 ? "" : link);
    }
}

/* Fewer capabilities are no more rights. */
static int is_allowed(const char *own, size_t length, const char *its, size_t its_length) {
    if (length == its_length && memcmp(own, its, length) == 0) return 1;
    if (memcmp(own, "Cap", 3) != 0) return 0;
    return (strtoull(its + 7, NULL, 16) & ~strtoull(own + 7, NULL, 16)) == 0;
}

static void show_difference(const char *name, const char *own, const char *its) {
    while (*own && *its) {
        size_t length = strcspn(own, "\n"), its_length = strcspn(its, "\n");
        if (!is_allowed(own, length, its, its_length))
            printf("%s: a thread has %.*s, and not %.*s\n", name, (int)its_length, its, (int)length, own);
        own += length + 1, its += its_length + 1;
    }
}

/* Under Landlock a process may not look into one that is less restricted. */
static void check_landlock(const char *name, const char *thread) {
    pid_t child = fork();
    if (child == 0) {
        char path[300], link[300];
        snprintf(path, sizeof path, "/proc/%s/ns/mnt", thread);
        _exit(readlink(path, link, sizeof link) < 0 && errno == EACCES);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    if (status) printf("%s: a thread is not restricted\n", name);
}

static void check(const char *name) {
    char own[8192], its[8192], self[20];
    snprintf(self, sizeof self, "%d", (int)syscall(SYS_gettid));
    read_rights(self, own, sizeof own);
    CHECK(*own);
    DIR *folder = fdopendir(openat(tasks, ".", O_RDONLY));
    CHECK(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (entry->d_name[0] == '.' || atoi(entry->d_name) == other || strcmp(entry->d_name, self) == 0) continue;
        read_rights(entry->d_name, its, sizeof its);
        if (*its) show_difference(name, own, its);
        if (strncmp(name, "Landlock", 8) == 0) check_landlock(name, entry->d_name);
    }
    closedir(folder);
}

/* The calls. */

static struct __user_cap_header_struct cap_header = {_LINUX_CAPABILITY_VERSION_3, 0};
static struct __user_cap_data_struct few_caps[2] = {{1 << CAP_SYS_CHROOT, 1 << CAP_SYS_CHROOT, 1 << CAP_SYS_CHROOT}};
extern int capset(cap_user_header_t, cap_user_data_t);

static long by_name(int which) {
    gid_t group = NOBODY;
    switch (which) {
    case 0: return setuid(NOBODY);
    case 1: return seteuid(NOBODY);
    case 2: return setreuid(NOBODY, NOBODY);
    case 3: return setresuid(NOBODY, NOBODY, NOBODY);
    case 4: return setgid(NOBODY);
    case 5: return setegid(NOBODY);
    case 6: return setregid(NOBODY, NOBODY);
    case 7: return setresgid(NOBODY, NOBODY, NOBODY);
    case 8: return setgroups(1, &group);
    case 9: return setfsuid(NOBODY);
    case 10: return setfsgid(NOBODY);
    case 11: return capset(&cap_header, few_caps);
    case 12: return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    case 13: return prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0);
    case 14: return prctl(PR_SET_SECUREBITS, SECBIT_NOROOT, 0, 0, 0) || setresuid(NOBODY, NOBODY, 0);
    case 15: return unshare(CLONE_NEWNS);
    case 16: return unshare(CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWCGROUP);
    case 17: return unshare(CLONE_NEWUSER);
    case 18: return unshare(CLONE_NEWPID);
    case 19: return unshare(CLONE_FS) || chdir("/tmp");
    case 20: return chroot("/tmp");
    default: return -2;
    }
}

static long by_number(int which) {
    gid_t group = NOBODY;
    switch (which) {
    case 0: return syscall(SYS_setuid, NOBODY);
    case 1: return syscall(SYS_setresuid, -1, NOBODY, -1);
    case 2: return syscall(SYS_setreuid, NOBODY, NOBODY);
    case 3: return syscall(SYS_setresuid, NOBODY, NOBODY, NOBODY);
    case 4: return syscall(SYS_setgid, NOBODY);
    case 5: return syscall(SYS_setresgid, -1, NOBODY, -1);
    case 6: return syscall(SYS_setregid, NOBODY, NOBODY);
    case 7: return syscall(SYS_setresgid, NOBODY, NOBODY, NOBODY);
    case 8: return syscall(SYS_setgroups, 1, &group);
    case 9: return syscall(SYS_setfsuid, NOBODY);
    case 10: return syscall(SYS_setfsgid, NOBODY);
    case 11: return syscall(SYS_capset, &cap_header, few_caps);
    case 12: return syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    case 13: return syscall(SYS_prctl, PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0);
    case 14: return syscall(SYS_prctl, PR_SET_SECUREBITS, SECBIT_NOROOT, 0, 0, 0) || syscall(SYS_setresuid, NOBODY, NOBODY, 0);
    case 15: return syscall(SYS_unshare, CLONE_NEWNS);
    case 16: return syscall(SYS_unshare, CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWCGROUP);
    case 17: return syscall(SYS_unshare, CLONE_NEWUSER);
    case 18: return syscall(SYS_unshare, CLONE_NEWPID);
    case 19: return syscall(SYS_unshare, CLONE_FS) || chdir("/tmp");
    case 20: return syscall(SYS_chroot, "/tmp");
    default: return -2;
    }
}

static const char *const names[] = {
    "setuid", "seteuid", "setreuid", "setresuid", "setgid", "setegid", "setregid", "setresgid", "setgroups",
    "setfsuid", "setfsgid", "capset", "no new privileges", "bounding set", "securebits", "unshare mounts",
    "unshare others", "unshare user", "unshare processes", "unshare files", "chroot",
};
enum { CALLS = sizeof names / sizeof *names };

/* Those that are only in one of the lists above, or need something first. */

static long keep_and_drop(void) {
    /* As daemons do: capabilities survive the change of user, and go one by one. */
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) || initgroups("nobody", NOBODY) || setgid(NOBODY) || setuid(NOBODY)) return -1;
    few_caps[0].inheritable = few_caps[0].permitted;
    return capset(&cap_header, few_caps) || prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_CHROOT, 0, 0);
}

static long enter(void) {
    int own = open("/proc/self/ns/uts", O_RDONLY);
    if (own < 0 || unshare(CLONE_NEWUTS)) return -1;
    churn();
    return setns(own, CLONE_NEWUTS);
}

static long enter_by_number(void) {
    int own = open("/proc/self/ns/uts", O_RDONLY);
    if (own < 0 || unshare(CLONE_NEWUTS)) return -1;
    churn();
    return syscall(SYS_setns, own, 0);
}

static long change_root(void) {
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return -1;
    if (mount("none", "/tmp", "tmpfs", 0, NULL) || mkdir("/tmp/old", 0700)) return -1;
    churn();
    return syscall(SYS_pivot_root, "/tmp", "/tmp/old");
}

static long restrict_self(void) {
    struct landlock_ruleset_attr rules = {.handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_BLOCK};
    int ruleset = syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
    if (ruleset < 0) return -1;
    return syscall(SYS_landlock_restrict_self, ruleset, 0);
}

static const struct { const char *name; long (*call)(void); } more[] = {
    {"keep and drop", keep_and_drop}, {"setns", enter}, {"setns by number", enter_by_number},
    {"pivot_root", change_root}, {"Landlock", restrict_self},
};
enum { MORE = sizeof more / sizeof *more };

static void try(const char *name, long result) {
    printf("%s: %s\n", name, result >= 0 ? "done" : strerror(errno));
    /* At once, and once helpers may have been started again. */
    check(name);
    if (strlen(name) % 3 == 0) churn();
    usleep(1000);
    check(name);
}

static void in_child(const char *name, int which, long (*call)(int), long (*plain)(void)) {
    pid_t child = fork();
    if (child == 0) {
        tasks = open("/proc/self/task", O_RDONLY);
        churn();
        usleep(1000);
        try(name, call ? call(which) : plain());
        exit(0);
    }
    wait_for(child);
}

static atomic_int turn;

/* Frees when it is told to, with all rights. */
static void *privileged(void *unused) {
    other = syscall(SYS_gettid);
    for (int last = 0; last < 2;) {
        if (turn == last) { usleep(100); continue; }
        churn();
        last = turn = turn + 1;
    }
    return NULL;
}

/* Beside a thread that keeps its rights: what it has to be done must not be done with them. */
static void beside_another(int which) {
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        tasks = open("/proc/self/task", O_RDONLY);
        churn();
        CHECK(pthread_create(&thread, NULL, privileged, NULL) == 0);
        while (!other) usleep(100);
        try(names[which], by_number(which));
        turn = 1;
        while (turn != 2) usleep(100);
        usleep(1000);
        check(names[which]);
        exit(0);
    }
    wait_for(child);
}

int main(void) {
    guard();
    if (geteuid() != 0) skip("not root");
    churn();
    for (int i = 0; i < CALLS; i++) {
        in_child(names[i], i, by_name, NULL);
        in_child(names[i], i, by_number, NULL);
    }
    for (int i = 0; i < MORE; i++) in_child(more[i].name, 0, NULL, more[i].call);
    for (int i = 3; i < 14; i += 4) beside_another(i);
    tasks = open("/proc/self/task", O_RDONLY);
    usleep(1000);
    try("here", setresuid(NOBODY, NOBODY, NOBODY));
    return 0;
}

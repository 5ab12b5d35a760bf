// The library that `pumice run --small` preloads between the shim and an installed allocator.
//
// Those allocators bring functions that do not call malloc and free: C++'s operators, and jemalloc's functions that
// take a pointer. Without these here the shim would see no large request of a C++ program, and jemalloc would be handed
// memory that the shim's heap served.
//
// Operators. Memory comes from malloc and goes to free, which are the shim's. Where there is none, the C++ library's own
// operator of that name is asked: it calls the new-handler, and throws or returns null. It is looked up only then, so no
// lock of the loader's is taken before. The others call the four that do something, as those of a C++ library do
// ([new.delete] in the standard), so a program that replaces one of the four has all of them.
//
// It is C, compiled with -fexceptions, since C++'s exceptions pass through it. Rust would abort there.
// Names are those of the Itanium C++ ABI: `nw` and `na` are new, `dl` and `da` are delete, `m` is a size.

#include <stddef.h>
#include <stdint.h>

void *malloc(size_t size);
void free(void *at);
void *realloc(void *at, size_t size);
int posix_memalign(void **at, size_t align, size_t size);
size_t malloc_usable_size(void *at);
void *dlsym(void *library, const char *name) __attribute__((weak));
void *dlopen(const char *file, int flags) __attribute__((weak));
void abort(void) __attribute__((noreturn));

#define RTLD_NEXT ((void *)-1l)
#define RTLD_LAZY_NOLOAD (1 | 4)

#define PUBLIC __attribute__((visibility("default")))

// The shim looks for it: jemalloc's functions are safe where this is.
PUBLIC const char pumice_small = 1;

typedef const void *nothrow;

static void *next(const char *name) {
    return dlsym ? dlsym(RTLD_NEXT, name) : NULL;
}

// The C++ library's own. The allocators' do not all throw: mimalloc's, compiled as C, ends the program.
static void *of_library(const char *name) {
    static const char *const LIBRARIES[] = {"libstdc++.so.6", "libc++.so.1"};
    for (int nth = 0; dlopen && dlsym && nth < 2; nth++) {
        void *library = dlopen(LIBRARIES[nth], RTLD_LAZY_NOLOAD);
        void *found = library ? dlsym(library, name) : NULL;
        if (found) return found;
    }
    return next(name);
}

// An object of no bytes has an address as well.
static inline void *any(size_t size) {
    return malloc(size ? size : 1);
}

static inline void *aligned(size_t size, size_t align) {
    void *at = NULL;
    size_t least = align < sizeof(void *) ? sizeof(void *) : align;
    return posix_memalign(&at, least, size ? size : 1) ? NULL : at;
}

// The four that the others call.

static void *new_here(size_t size);
static void *new_aligned_here(size_t size, size_t align);
PUBLIC void *_Znwm(size_t size) __attribute__((alias("new_here")));
PUBLIC void *_ZnwmSt11align_val_t(size_t size, size_t align) __attribute__((alias("new_aligned_here")));

static void *new_here(size_t size) {
    void *at = any(size);
    if (at) return at;
    void *(*operator)(size_t) = of_library("_Znwm");
    return operator ? operator(size) : (abort(), NULL);
}

static void *new_aligned_here(size_t size, size_t align) {
    void *at = aligned(size, align);
    if (at) return at;
    void *(*operator)(size_t, size_t) = of_library("_ZnwmSt11align_val_t");
    return operator ? operator(size, align) : (abort(), NULL);
}

PUBLIC void _ZdlPv(void *at) {
    free(at);
}

PUBLIC void _ZdlPvSt11align_val_t(void *at, size_t align) {
    (void)align;
    free(at);
}

// The others. A call of `_Znwm` goes to the program's, if it has one.

PUBLIC void *_Znam(size_t size) {
    return _Znwm(size);
}

PUBLIC void *_ZnamSt11align_val_t(size_t size, size_t align) {
    return _ZnwmSt11align_val_t(size, align);
}

// Without exceptions: one of a replaced operator has to be caught, as the C++ library does it.
static void *new_nothrow(size_t size, nothrow tag, const char *name) {
    void *at = &_Znwm == &new_here ? any(size) : NULL;
    if (at) return at;
    void *(*operator)(size_t, nothrow) = of_library(name);
    return operator ? operator(size, tag) : NULL;
}

static void *new_aligned_nothrow(size_t size, size_t align, nothrow tag, const char *name) {
    void *at = &_ZnwmSt11align_val_t == &new_aligned_here ? aligned(size, align) : NULL;
    if (at) return at;
    void *(*operator)(size_t, size_t, nothrow) = of_library(name);
    return operator ? operator(size, align, tag) : NULL;
}

PUBLIC void *_ZnwmRKSt9nothrow_t(size_t size, nothrow tag) {
    return new_nothrow(size, tag, "_ZnwmRKSt9nothrow_t");
}

PUBLIC void *_ZnamRKSt9nothrow_t(size_t size, nothrow tag) {
    return new_nothrow(size, tag, "_ZnamRKSt9nothrow_t");
}

PUBLIC void *_ZnwmSt11align_val_tRKSt9nothrow_t(size_t size, size_t align, nothrow tag) {
    return new_aligned_nothrow(size, align, tag, "_ZnwmSt11align_val_tRKSt9nothrow_t");
}

PUBLIC void *_ZnamSt11align_val_tRKSt9nothrow_t(size_t size, size_t align, nothrow tag) {
    return new_aligned_nothrow(size, align, tag, "_ZnamSt11align_val_tRKSt9nothrow_t");
}

#define FORWARDS(name, arguments, call) \
    PUBLIC void name arguments { call; }

FORWARDS(_ZdaPv, (void *at), _ZdlPv(at))
FORWARDS(_ZdlPvm, (void *at, size_t size), _ZdlPv(at))
FORWARDS(_ZdaPvm, (void *at, size_t size), _ZdaPv(at))
FORWARDS(_ZdlPvRKSt9nothrow_t, (void *at, nothrow tag), _ZdlPv(at))
FORWARDS(_ZdaPvRKSt9nothrow_t, (void *at, nothrow tag), _ZdaPv(at))
FORWARDS(_ZdaPvSt11align_val_t, (void *at, size_t align), _ZdlPvSt11align_val_t(at, align))
FORWARDS(_ZdlPvmSt11align_val_t, (void *at, size_t size, size_t align), _ZdlPvSt11align_val_t(at, align))
FORWARDS(_ZdaPvmSt11align_val_t, (void *at, size_t size, size_t align), _ZdaPvSt11align_val_t(at, align))
FORWARDS(_ZdlPvSt11align_val_tRKSt9nothrow_t, (void *at, size_t align, nothrow tag), _ZdlPvSt11align_val_t(at, align))
FORWARDS(_ZdaPvSt11align_val_tRKSt9nothrow_t, (void *at, size_t align, nothrow tag), _ZdaPvSt11align_val_t(at, align))

// jemalloc's, of which other allocators have a few: jemalloc(3). What mallocx gave may go to free, and what malloc gave
// to these.

PUBLIC void dallocx(void *at, int flags) {
    (void)flags;
    free(at);
}

PUBLIC void sdallocx(void *at, size_t size, int flags) {
    (void)size, (void)flags;
    free(at);
}

PUBLIC size_t sallocx(const void *at, int flags) {
    (void)flags;
    return malloc_usable_size((void *)at);
}

// The size that it has: it stays where it is, and as it is.
PUBLIC size_t xallocx(void *at, size_t size, size_t extra, int flags) {
    (void)size, (void)extra;
    return sallocx(at, flags);
}

PUBLIC void *rallocx(void *at, size_t size, int flags) {
    // It may stay where it is.
    if (!flags) return realloc(at, size);
    void *(*mallocx)(size_t, int) = next("mallocx");
    size_t align = (size_t)1 << (flags & 63), before = malloc_usable_size(at);
    void *to = mallocx ? mallocx(size, flags) : aligned(size, align);
    if (!to) return NULL;
    for (size_t nth = 0; nth < before && nth < size; nth++) ((char *)to)[nth] = ((char *)at)[nth];
    free(at);
    return to;
}

// Each form of operator new and delete: memory that can be used, and failures that are seen as C++ says. Every 1 MiB
// is one request of the heap's, so the report has a number that the test knows.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

static const size_t LARGE = 1 << 20, ABSURD = ~size_t(0) / 4;
static const std::align_val_t ALIGN = std::align_val_t(4096);
static int handled;

static void check(bool good, const char *what) {
    if (!good) {
        printf("wrong: %s\n", what);
        exit(1);
    }
}

static void *used(void *at, size_t size, size_t align, const char *what) {
    check(at && uintptr_t(at) % align == 0, what);
    memset(at, 0x5a, size);
    return at;
}

// Frees the memory that it could not have, as a handler may: the second call gives up.
static void handler() {
    handled++;
    std::set_new_handler(nullptr);
}

struct Object {
    std::string name;
    ~Object() { destroyed++; }
    static int destroyed;
};
int Object::destroyed;

template <typename F> static void throws(F f, const char *what) {
    Object on_the_way;
    std::set_new_handler(handler);
    handled = 0;
    try {
        Object inside;
        f();
        check(false, what);
    } catch (const std::bad_alloc &) {
    }
    check(handled == 1, what);
}

template <typename F> static void is_null(F f, const char *what) {
    std::set_new_handler(handler);
    handled = 0;
    check(f() == nullptr, what);
    check(handled == 1, what);
}

int main() {
    for (size_t size : {size_t(0), size_t(1), size_t(100), size_t(4000), LARGE}) {
        operator delete(used(operator new(size), size, 8, "new"));
        operator delete[](used(operator new[](size), size, 8, "new[]"));
        operator delete(used(operator new(size, std::nothrow), size, 8, "nothrow"), size);
        operator delete[](used(operator new[](size, std::nothrow), size, 8, "nothrow[]"), size);
        operator delete(used(operator new(size, ALIGN), size, 4096, "aligned"), ALIGN);
        operator delete[](used(operator new[](size, ALIGN), size, 4096, "aligned[]"), ALIGN);
        operator delete(used(operator new(size, ALIGN, std::nothrow), size, 4096, "both"), size, ALIGN);
        operator delete[](used(operator new[](size, ALIGN, std::nothrow), size, 4096, "both[]"), size, ALIGN);
        operator delete(used(operator new(size), size, 8, "new, nothrow delete"), std::nothrow);
        operator delete[](used(operator new[](size), size, 8, "new[], nothrow delete"), std::nothrow);
        operator delete(used(operator new(size, ALIGN), size, 4096, "aligned, nothrow"), ALIGN, std::nothrow);
        operator delete[](used(operator new[](size, ALIGN), size, 4096, "aligned[], nothrow"), ALIGN, std::nothrow);
    }
    operator delete(nullptr);
    operator delete[](nullptr, LARGE);
    volatile size_t absurd = ABSURD;
    throws([&] { operator delete(operator new(absurd)); }, "new of too much");
    throws([&] { operator delete[](operator new[](absurd)); }, "new[] of too much");
    throws([&] { operator delete(operator new(absurd, ALIGN), ALIGN); }, "aligned new of too much");
    throws([&] { operator delete[](operator new[](absurd, ALIGN), ALIGN); }, "aligned new[] of too much");
    is_null([&] { return operator new(absurd, std::nothrow); }, "nothrow new of too much");
    is_null([&] { return operator new[](absurd, std::nothrow); }, "nothrow new[] of too much");
    is_null([&] { return operator new(absurd, ALIGN, std::nothrow); }, "aligned nothrow new of too much");
    is_null([&] { return operator new[](absurd, ALIGN, std::nothrow); }, "aligned nothrow new[] of too much");
    check(Object::destroyed == 8, "destructors on the way of an exception");
    // free() of what new gave, and the other way round, as these libraries and glibc all allow.
    free(used(operator new(LARGE), LARGE, 8, "new, free"));
    operator delete(used(malloc(LARGE), LARGE, 8, "malloc, delete"));
    std::vector<char> grown;
    for (int i = 0; i < 3000000; i++) grown.push_back(char(i));
    for (int i = 0; i < 3000000; i++) check(grown[i] == char(i), "a vector that grew");
    puts("right");
}

// A program that replaces two operators has all the others call them ([new.delete.single], [new.delete.array]).
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <new>

static char arena[8 << 20];
static size_t used;
static int freed;

void *operator new(size_t size) {
    void *at = arena + used;
    used += (size + 63) & ~size_t(63);
    if (used > sizeof arena) throw std::bad_alloc();
    return at;
}

void operator delete(void *at) noexcept {
    if (!at) return;
    if (at < arena || at >= arena + sizeof arena) {
        puts("wrong: memory of another operator");
        exit(1);
    }
    freed++;
}

static bool is_own(void *at) { return at >= arena && at < arena + sizeof arena; }

int main() {
    for (size_t size : {size_t(10), size_t(1) << 20}) {
        void *all[] = {operator new(size), operator new[](size), operator new(size, std::nothrow),
                       operator new[](size, std::nothrow)};
        for (void *at : all) {
            if (!is_own(at)) {
                puts("wrong: not the program's own");
                return 1;
            }
        }
        operator delete(all[0], size);
        operator delete[](all[1], size);
        operator delete(all[2], std::nothrow);
        operator delete[](all[3], std::nothrow);
    }
    try {
        operator delete[](operator new[](16 << 20));
        puts("wrong: more than there is");
        return 1;
    } catch (const std::bad_alloc &) {
    }
    puts(freed == 8 ? "right" : "wrong: freed by others");
}

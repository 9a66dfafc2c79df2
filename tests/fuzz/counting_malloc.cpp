// Counts what malloc has handed out, and the most of it: preloaded into a process that measures the
// memory of calls (memory_of_calls.py).
#include <dlfcn.h>
#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>

namespace {

std::atomic<long long> now{0}, most{0};

void* count(void* memory) {
    if (memory == nullptr) return memory;
    const auto size = static_cast<long long>(malloc_usable_size(memory));
    const long long total = now.fetch_add(size) + size;
    long long seen = most.load();
    while (total > seen && !most.compare_exchange_weak(seen, total)) {
    }
    return memory;
}

void forget(void* memory) {
    if (memory != nullptr) now.fetch_sub(static_cast<long long>(malloc_usable_size(memory)));
}

}  // namespace

extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

void* malloc(size_t size) {
    return count(__libc_malloc(size));
}
void* calloc(size_t items, size_t size) {
    return count(__libc_calloc(items, size));
}
void* realloc(void* memory, size_t size) {
    forget(memory);
    void* moved = __libc_realloc(memory, size);
    count(moved == nullptr && size != 0 ? memory : moved);
    return moved;
}
void* memalign(size_t alignment, size_t size) {
    return count(__libc_memalign(alignment, size));
}
void* aligned_alloc(size_t alignment, size_t size) {
    return count(__libc_memalign(alignment, size));
}
int posix_memalign(void** memory, size_t alignment, size_t size) {
    *memory = count(__libc_memalign(alignment, size));
    return *memory == nullptr ? 12 : 0;
}
void free(void* memory) {
    forget(memory);
    __libc_free(memory);
}

long long counted_now() {
    return now.load();
}
long long counted_most() {
    return most.load();
}
void begin_counting() {
    most.store(now.load());
}
}

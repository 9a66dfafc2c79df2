#include "backends/simt/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if DSPARK_SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if DSPARK_SIMT_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace dspark::emulator {
namespace {

// Twice what the largest kernel needs when it is compiled without optimisation and with redzones.
constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kPage = 4096;

// Memory is committed as it is touched; a page without access rights ends each stack.
char* map_stack() {
    void* memory = mmap(nullptr, kStackBytes + kPage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, kPage, PROT_NONE) != 0) {
        std::fputs("simt emulator: no memory for the stacks of a block\n", stderr);
        std::abort();
    }
    return static_cast<char*>(memory) + kPage;
}

Fiber* scheduler = nullptr;
// Of the switch in progress.
Fiber* left = nullptr;
Fiber* entered = nullptr;

void after_switch([[maybe_unused]] Fiber& resumed) {
#if DSPARK_SIMT_ASAN
    const void* bottom = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(resumed.fake_stack, &bottom, &bytes);
    if (left == scheduler) {
        scheduler->stack = const_cast<char*>(static_cast<const char*>(bottom));
        scheduler->stack_bytes = bytes;
    }
#endif
}

void enter() {
    Fiber* self = entered;
    after_switch(*self);
    self->body(self->argument);
    std::abort();
}

}  // namespace

#if !DSPARK_SIMT_UCONTEXT
// Saves the registers that a call preserves and the stack pointer, then loads those of `to`.
extern "C" void dspark_simt_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.type dspark_simt_switch, @function
.hidden dspark_simt_switch
.globl dspark_simt_switch
dspark_simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size dspark_simt_switch, . - dspark_simt_switch
)");
#endif

void adopt_thread(Fiber& fiber) {
    scheduler = &fiber;
#if DSPARK_SIMT_TSAN
    fiber.tsan = __tsan_get_current_fiber();
#endif
}

void start_fiber(Fiber& fiber, [[maybe_unused]] int index, void (*body)(void*), void* argument) {
    if (fiber.stack == nullptr) {
        fiber.stack = map_stack();
        fiber.stack_bytes = kStackBytes;
    }
    fiber.body = body;
    fiber.argument = argument;
    fiber.fake_stack = nullptr;
#if DSPARK_SIMT_ASAN
    ASAN_UNPOISON_MEMORY_REGION(fiber.stack, fiber.stack_bytes);
#endif
#if DSPARK_SIMT_TSAN
    if (fiber.tsan != nullptr) __tsan_destroy_fiber(fiber.tsan);
    fiber.tsan = __tsan_create_fiber(0);
#endif
#if DSPARK_SIMT_UCONTEXT
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = fiber.stack_bytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, enter, 0);
#else
    const uintptr_t colour = static_cast<uintptr_t>(index % 32) * 192;
    const uintptr_t top = (reinterpret_cast<uintptr_t>(fiber.stack) + kStackBytes - colour) & ~15ul;
    uintptr_t* slot = reinterpret_cast<uintptr_t*>(top);
    *--slot = 0;  // where a return from enter() would go
    *--slot = reinterpret_cast<uintptr_t>(&enter);
    for (int preserved = 0; preserved < 6; ++preserved) *--slot = 0;
    fiber.stack_pointer = slot;
#endif
}

void switch_fiber(Fiber& from, Fiber& to) {
    left = &from;
    entered = &to;
#if DSPARK_SIMT_ASAN
    __sanitizer_start_switch_fiber(&from.fake_stack, to.stack, to.stack_bytes);
#endif
#if DSPARK_SIMT_TSAN
    __tsan_switch_to_fiber(to.tsan, __tsan_switch_to_fiber_no_sync);
#endif
#if DSPARK_SIMT_UCONTEXT
    swapcontext(&from.context, &to.context);
#else
    dspark_simt_switch(&from.stack_pointer, to.stack_pointer);
#endif
    after_switch(from);
}

void release([[maybe_unused]] void* object) {
#if DSPARK_SIMT_TSAN
    __tsan_release(object);
#endif
}

void acquire([[maybe_unused]] void* object) {
#if DSPARK_SIMT_TSAN
    __tsan_acquire(object);
#endif
}

}  // namespace dspark::emulator

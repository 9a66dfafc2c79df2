// Fibers: stacks that one operating system thread switches between. Sanitizers are told of each
// switch; to the thread sanitizer a switch orders nothing, so that a race between two fibers is
// one.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define DSPARK_SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DSPARK_SIMT_ASAN 1
#endif
#endif

#if !defined(__x86_64__) && !defined(DSPARK_SIMT_UCONTEXT)
#define DSPARK_SIMT_UCONTEXT 1
#endif
#if DSPARK_SIMT_UCONTEXT
#include <ucontext.h>
#endif

namespace dspark::emulator {

// Not movable once started.
struct Fiber {
    void* stack_pointer = nullptr;
    char* stack = nullptr;  // lowest usable byte
    size_t stack_bytes = 0;
    void (*body)(void*) = nullptr;
    void* argument = nullptr;
    void* fake_stack = nullptr;  // of the address sanitizer
    void* tsan = nullptr;        // of the thread sanitizer
#if DSPARK_SIMT_UCONTEXT
    ucontext_t context;
#endif
};

// Makes `fiber` stand for the calling thread itself.
void adopt_thread(Fiber& fiber);
// The next switch to `fiber` calls body(argument), which must not return. Restarting a fiber drops
// what it was doing. `index` staggers the stacks, which would else compete for the same cache sets.
void start_fiber(Fiber& fiber, int index, void (*body)(void*), void* argument);
// `from` is the running fiber.
void switch_fiber(Fiber& from, Fiber& to);

// For the thread sanitizer, else nothing: what happens before a release of `object` happens before
// what follows an acquire of it.
void release(void* object);
void acquire(void* object);

}  // namespace dspark::emulator

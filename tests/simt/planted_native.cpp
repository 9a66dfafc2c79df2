// Bugs outside of what the emulator itself watches, for the address and undefined-behaviour
// sanitizers. Not to be run without them.
#include "device/lanes.h"
#include "planted.h"

namespace dspark::DSPARK_ISA {
namespace {

struct NativeArgs {
    Global<int> out;  // [256]
    int amount;
};
struct NativeShared {
    SharedArray<int, kThreads> tile;
};

// Element `amount` of an array on the stack of a thread, which has 4.
template <int W>
DSPARK_KERNEL(kThreads)
void local_array(NativeArgs args) {
    check_warp_size<W>();
    volatile int local[4] = {0, 1, 2, 3};
    sync_block();
    args.out[thread_idx()] = local[args.amount];
}

// Element `amount` of shared memory behind the back of the checks.
template <int W>
DSPARK_KERNEL(kThreads)
void raw_shared(NativeArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(NativeShared, shared);
    int* raw = shared.tile.element;
    raw[thread_idx()] = thread_idx();
    sync_block();
    args.out[thread_idx()] = raw[args.amount];
}

template <int W>
DSPARK_KERNEL(kThreads)
void shift(NativeArgs args) {
    check_warp_size<W>();
    args.out[thread_idx()] = 1 << args.amount;
}

}  // namespace
}  // namespace dspark::DSPARK_ISA

namespace dspark::planted {
namespace {

using namespace dspark::DSPARK_ISA;

Outcome run_native(void (*kernel)(NativeArgs), int amount) {
    DeviceVector<int> out("out", kBlock);
    const NativeArgs args = {out.data(), amount};
    return {launch("native", kernel, {1, 1, 1}, kBlock, nullptr, args), true};
}

#define DSPARK_PLANTED(Name, name, kernel, amount) \
    struct Name {                                  \
        static constexpr const char* kName = name; \
        template <int W>                           \
        static Outcome run() {                     \
            return run_native(kernel<W>, amount);  \
        }                                          \
    };

DSPARK_PLANTED(LocalOverflow, "local_overflow", local_array, 4)
DSPARK_PLANTED(LocalInBounds, "local_in_bounds", local_array, 3)
DSPARK_PLANTED(RawSharedOverflow, "raw_shared_overflow", raw_shared, kBlock)
DSPARK_PLANTED(RawSharedInBounds, "raw_shared_in_bounds", raw_shared, kBlock - 1)
DSPARK_PLANTED(WideShift, "wide_shift", shift, 40)
DSPARK_PLANTED(Shift, "shift", shift, 20)

}  // namespace

std::vector<Case> native_cases() {
    return {make_case<LocalOverflow>(),     make_case<LocalInBounds>(),
            make_case<RawSharedOverflow>(), make_case<RawSharedInBounds>(),
            make_case<WideShift>(),         make_case<Shift>()};
}

}  // namespace dspark::planted

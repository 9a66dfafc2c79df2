// Access patterns whose counters are known exactly.
#include "device/lanes.h"
#include "planted.h"

namespace dspark::DSPARK_ISA {
namespace {

constexpr int kStride = 32;

struct PatternArgs {
    Global<const float> from;  // [256 * 32]
    Global<float> to;          // [256]
};
template <class T, int N>
struct PatternShared {
    SharedArray<T, N> tile;
};

template <int W, int kStep>
DSPARK_KERNEL(kThreads)
void load_pattern(PatternArgs args) {
    check_warp_size<W>();
    args.to[thread_idx()] = args.from[thread_idx() * kStep];
}

template <int W>
DSPARK_KERNEL(kThreads)
void load_by_16(PatternArgs args) {
    check_warp_size<W>();
    const Bytes16 bytes = load16(args.from, 16 * thread_idx());
    float value;
    memcpy(&value, bytes.word, sizeof(value));
    args.to[thread_idx()] = value;
}

// Stores, and loads the first 4 KiB, before and after the other 28 KiB have been loaded.
template <int W, bool kOnce>
DSPARK_KERNEL(kThreads)
void load_twice(PatternArgs args) {
    check_warp_size<W>();
    const int at = 16 * thread_idx();
    constexpr int kBytes = 16 * kThreads;
    for (int turn = 0; turn < 2; ++turn) {
        const Bytes16 first = load16(args.from, at);
        args.to[thread_idx()] = static_cast<float>(first.word[0]);
        sync_block();
        for (int i = 1; turn == 0 && i < kStride / 4; ++i) {
            kOnce ? load16_once(args.from, i * kBytes + at) : load16(args.from, i * kBytes + at);
            sync_block();
        }
    }
}

// Each thread stores to one element of shared memory and loads it again.
template <int W, class T, int kStep>
DSPARK_KERNEL(kThreads)
void shared_pattern(PatternArgs args) {
    using Shared = PatternShared<T, kThreads * kStep>;
    check_warp_size<W>();
    DSPARK_SHARED(Shared, shared);
    const int t = thread_idx();
    shared.tile[t * kStep] = static_cast<T>(t);
    sync_block();
    args.to[t] = static_cast<float>(shared.tile[t * kStep]);
}

// By 16 bytes.
template <int W>
DSPARK_KERNEL(kThreads)
void shared_by_four(PatternArgs args) {
    using Shared = PatternShared<float, kThreads * 4>;
    check_warp_size<W>();
    DSPARK_SHARED(Shared, shared);
    const int t = thread_idx();
    shared.tile.store4(4 * t, 1.0f, 2.0f, 3.0f, 4.0f);
    sync_block();
    float a, b, c, d;
    shared.tile.load4(4 * (kThreads - 1 - t), a, b, c, d);
    args.to[t] = a + b + c + d;
}

template <int W>
DSPARK_KERNEL(kThreads)
void shared_broadcast(PatternArgs args) {
    using Shared = PatternShared<float, 1>;
    check_warp_size<W>();
    DSPARK_SHARED(Shared, shared);
    if (thread_idx() == 0) shared.tile[0] = 1.0f;
    sync_block();
    args.to[thread_idx()] = shared.tile[0];
}

}  // namespace
}  // namespace dspark::DSPARK_ISA

namespace dspark::planted {
namespace {

using namespace dspark::DSPARK_ISA;

Outcome run_pattern(void (*kernel)(PatternArgs), int64_t cache = 0) {
    DeviceVector<float> from("from", kBlock * kStride, emulator::kReadOnly);
    DeviceVector<float> to("to", kBlock);
    const PatternArgs args = {from.data(), to.data()};
    emulator::set_cache(cache);
    const int code = launch("pattern", kernel, {1, 1, 1}, kBlock, nullptr, args);
    emulator::set_cache(0);
    return {code, true};
}

#define DSPARK_PATTERN(Name, name, ...)            \
    struct Name {                                  \
        static constexpr const char* kName = name; \
        template <int W>                           \
        static Outcome run() {                     \
            return run_pattern(__VA_ARGS__);       \
        }                                          \
    };

DSPARK_PATTERN(Coalesced, "coalesced", (load_pattern<W, 1>))
DSPARK_PATTERN(Strided, "strided", (load_pattern<W, kStride>))
DSPARK_PATTERN(By16, "by_16", load_by_16<W>)
DSPARK_PATTERN(CacheAll, "cache_that_holds_all", (load_twice<W, false>), 40 << 10)
DSPARK_PATTERN(CachePart, "cache_that_holds_a_part", (load_twice<W, false>), 16 << 10)
DSPARK_PATTERN(CacheOnce, "cache_and_loads_once", (load_twice<W, true>), 16 << 10)
DSPARK_PATTERN(SharedInOrder, "shared_in_order", (shared_pattern<W, float, 1>))
DSPARK_PATTERN(SharedStrided, "shared_strided", (shared_pattern<W, float, kStride>))
DSPARK_PATTERN(SharedDoubles, "shared_doubles", (shared_pattern<W, double, 1>))
DSPARK_PATTERN(SharedBytes, "shared_bytes", (shared_pattern<W, uint8_t, 1>))
DSPARK_PATTERN(SharedByFour, "shared_by_four", shared_by_four<W>)
DSPARK_PATTERN(SharedBroadcast, "shared_broadcast", shared_broadcast<W>)

}  // namespace

std::vector<Case> counting_cases() {
    return {make_case<Coalesced>(),     make_case<Strided>(),       make_case<By16>(),
            make_case<SharedInOrder>(), make_case<SharedStrided>(), make_case<SharedDoubles>(),
            make_case<SharedBytes>(),   make_case<SharedByFour>(),  make_case<SharedBroadcast>(),
            make_case<CacheAll>(),      make_case<CachePart>(),     make_case<CacheOnce>()};
}

}  // namespace dspark::planted

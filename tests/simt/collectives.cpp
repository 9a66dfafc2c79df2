// The collectives of csrc/device against loops over the threads.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include "device/block_reduce.h"
#include "device/block_scan.h"
#include "planted.h"

namespace dspark::DSPARK_ISA {
namespace {

struct CollectiveArgs {
    Global<const int64_t> values;  // [256]
    Global<int64_t> out;           // [kOutputs, 256]
};
enum Output {
    kWarpSum,
    kWarpMax,
    kWarpMin,
    kWarpInclusive,
    kWarpExclusive,
    kBlockSum,
    kBlockMax,
    kBlockMin,
    kBlockMaxFloat,
    kBlockAny,
    kBlockBefore,
    kBlockTotal,
    kBlockBeforeInt,
    kShuffleUp,
    kShuffleDown,
    kBallot,
    kOutputs,
};

template <int W>
struct CollectiveShared {
    BlockReduceScratch<W, int64_t> sum, max, min;
    BlockReduceScratch<W, float> max_float;
    BlockReduceScratch<W, uint32_t> any;
    BlockScanScratch<W, int64_t> scan;
    BlockScanScratch<W, uint32_t> scan_int;
};

template <int W>
DSPARK_KERNEL(kThreads)
void all_collectives(CollectiveArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(CollectiveShared<W>, shared);
    const int t = thread_idx();
    const int64_t v = args.values[t];
    const auto put = [&](Output output, auto value) {
        args.out[output * kThreads + t] = static_cast<int64_t>(value);
    };
    put(kWarpSum, warp_sum<W>(v));
    put(kWarpMax, warp_max<W>(v));
    put(kWarpMin, warp_min<W>(v));
    put(kWarpInclusive, warp_inclusive_sum<W>(v));
    put(kWarpExclusive, warp_exclusive_sum<W>(v));
    put(kBlockSum, block_sum<W>(v, shared.sum));
    put(kBlockMax, block_max<W>(v, shared.max));
    put(kBlockMin, block_min<W>(v, shared.min));
    put(kBlockMaxFloat, block_max<W>(static_cast<float>(v), shared.max_float));
    put(kBlockAny, block_any<W>(v == args.values[kThreads - 1], shared.any));
    const BlockScan<int64_t> scan = block_exclusive_sum<W>(v, shared.scan);
    put(kBlockBefore, scan.before);
    put(kBlockTotal, scan.total);
    const uint32_t small = static_cast<uint32_t>(v & 0xFF);
    put(kBlockBeforeInt, block_exclusive_sum<W>(small, shared.scan_int).before);
    put(kShuffleUp, shuffle_up<W>(v, 3));
    put(kShuffleDown, shuffle_down<W>(v, 3));
    put(kBallot, ballot<W>(v > 0));
}

// The same scratch again and again, with a barrier between, or without.
template <int W, bool kBarrier>
DSPARK_KERNEL(kThreads)
void reuse_scratch(CollectiveArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(CollectiveShared<W>, shared);
    const int t = thread_idx();
    for (int output = 0; output < kOutputs; ++output) {
        args.out[output * kThreads + t] = block_sum<W>(args.values[t] + output, shared.sum);
        if (kBarrier) sync_block();
    }
}

}  // namespace
}  // namespace dspark::DSPARK_ISA

namespace dspark::planted {
namespace {

using namespace dspark::DSPARK_ISA;

using Values = std::vector<int64_t>;

Values random_values(int round) {
    std::mt19937_64 random(static_cast<uint64_t>(round));
    Values values(kBlock);
    for (int64_t& value : values) {
        value = static_cast<int64_t>(random() >> 24) - (int64_t{1} << 39);
        if (round == 1) value %= 3;
        if (round == 2) value = -5;
    }
    return values;
}

// What thread t gets: `fold` over the values of the threads [begin, end).
int64_t expected(Output output, const Values& values, int t, int warp_size) {
    const int first = t / warp_size * warp_size;
    const auto begin = values.begin();
    const auto warp = begin + first;
    const auto warp_end = warp + warp_size;
    const auto here = begin + t;
    const auto small = [](int64_t sum, int64_t v) { return sum + (v & 0xFF); };
    switch (output) {
        case kWarpSum:
            return std::accumulate(warp, warp_end, int64_t{0});
        case kWarpMax:
            return *std::max_element(warp, warp_end);
        case kWarpMin:
            return *std::min_element(warp, warp_end);
        case kWarpInclusive:
            return std::accumulate(warp, here + 1, int64_t{0});
        case kWarpExclusive:
            return std::accumulate(warp, here, int64_t{0});
        case kBlockTotal:
        case kBlockSum:
            return std::accumulate(begin, values.end(), int64_t{0});
        case kBlockMax:
            return *std::max_element(begin, values.end());
        case kBlockMin:
            return *std::min_element(begin, values.end());
        case kBlockMaxFloat:
            return static_cast<int64_t>(static_cast<float>(*std::max_element(begin, values.end())));
        case kBlockAny:
            return 1;
        case kBlockBefore:
            return std::accumulate(begin, here, int64_t{0});
        case kBlockBeforeInt:
            return std::accumulate(begin, here, int64_t{0}, small);
        case kShuffleUp:
            return t - first >= 3 ? values[t - 3] : values[t];
        case kShuffleDown:
            return t - first + 3 < warp_size ? values[t + 3] : values[t];
        case kBallot: {
            uint64_t mask = 0;
            for (int lane = 0; lane < warp_size; ++lane) mask |= uint64_t{warp[lane] > 0} << lane;
            return static_cast<int64_t>(mask);
        }
        case kOutputs:
            break;
    }
    return 0;
}

template <class Expected>
Outcome run_collectives(void (*kernel)(CollectiveArgs), Expected expected_of) {
    for (int round = 0; round < 3; ++round) {
        DeviceVector<int64_t> values("values", kBlock, emulator::kReadOnly);
        DeviceVector<int64_t> out("out", kOutputs * kBlock, emulator::kUninitialised);
        const Values random = random_values(round);
        std::copy(random.begin(), random.end(), values.data());
        const CollectiveArgs args = {values.data(), out.data()};
        const int code = launch("collectives", kernel, {1, 1, 1}, kBlock, nullptr, args);
        if (code != 0) return {code, false};
        for (int i = 0; i < kOutputs * kBlock; ++i) {
            if (out[i] != expected_of(static_cast<Output>(i / kBlock), random, i % kBlock)) {
                return {0, false};
            }
        }
    }
    return {0, true};
}

struct Collectives {
    static constexpr const char* kName = "collectives";
    template <int W>
    static Outcome run() {
        return run_collectives(all_collectives<W>, [](Output output, const Values& values, int t) {
            return expected(output, values, t, W);
        });
    }
};

int64_t expected_sum(Output output, const Values& values, int) {
    return std::accumulate(values.begin(), values.end(), int64_t{kBlock} * output);
}
struct ReusedScratch {
    static constexpr const char* kName = "reused_scratch";
    template <int W>
    static Outcome run() {
        return run_collectives(reuse_scratch<W, true>, expected_sum);
    }
};
struct ReusedScratchUnordered {
    static constexpr const char* kName = "reused_scratch_unordered";
    template <int W>
    static Outcome run() {
        return run_collectives(reuse_scratch<W, false>, expected_sum);
    }
};

}  // namespace

std::vector<Case> collective_cases() {
    return {make_case<Collectives>(), make_case<ReusedScratch>(),
            make_case<ReusedScratchUnordered>()};
}

}  // namespace dspark::planted

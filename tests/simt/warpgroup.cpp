// Warpgroups on the emulator: products against the published layouts, a ring of stages filled by
// copies and by threads, and ways to get it wrong. Warps of 4 and 64 have none; there the cases
// only say so.
#include <random>

#include "device/lanes.h"
#include "device/narrow.h"
#include "planted.h"

namespace dspark::DSPARK_ISA {
namespace {

constexpr int kLines = 64;
constexpr int kDepth = 16;
constexpr int kWidest = 64;
constexpr int kLeftWords = kLines * kDepth / 2;
constexpr int kRightWords = kWidest * kDepth / 2;
constexpr int kStages = 2;

struct RingArgs {
    Global<const uint32_t> left;   // [steps, 8 octets, 2 chunks, 8 lines, 4 words]
    Global<const uint32_t> right;  // the same of the columns
    int steps;
    Global<float> sums;  // [64, columns]
};

struct RingShared {
    SharedArray<uint32_t, kStages * kLeftWords> left;
    SharedArray<uint32_t, kStages * kRightWords> right;
    TransferBarrier full[kStages];
    TransferBarrier empty[kStages];
};

enum class Fault {
    kNone,
    kNoWait,          // operands are read before they have come
    kNoWaitForWords,  // the same, by threads
    kEarlyReuse,      // a stage is filled before it is free
    kEarlyArrive,     // a stage is given back before the products have read it
    kUnpublished,     // threads store an operand and do not publish it
    kEarlySums,       // sums are read before they are there
    kNotBegun,        // no begin_products
    kHalfGroup,       // two warps of four multiply
    kTwoOperands,     // the warps disagree about an operand
    kMissingArrival,  // three warps of four arrive
    kUnfinished       // a copy that nobody awaits
};

// Warpgroup 0 fills the stages.
template <int W, int kColumns, Fault kFault>
DSPARK_DEVICE void fill_stages(const RingArgs& args, RingShared& shared) {
    const int extra = kFault == Fault::kUnfinished ? 1 : 0;
    for (int s = 0; s < args.steps + extra; ++s) {
        const int stage = s % kStages;
        if (s >= kStages && kFault != Fault::kEarlyReuse) {
            await_phase(shared.empty[stage], (s / kStages + 1) % 2);
        }
        if (thread_idx() == 0) {
            arrive_and_expect(shared.full[stage], 4 * kLeftWords);
            copy_bulk(shared.left, stage * kLeftWords, args.left,
                      int64_t{s % args.steps} * 4 * kLeftWords, 4 * kLeftWords, shared.full[stage]);
        }
        if (s == args.steps) return;
        for (int i = thread_idx(); i < kColumns * kDepth / 2; i += kWarpgroupThreads) {
            shared.right[stage * kRightWords + i] = args.right[s * kRightWords + i];
        }
        if (kFault != Fault::kUnpublished) publish_operands();
        arrive<W>(shared.full[stage]);
    }
}

// Words of the left matrix, taken out of its pieces.
DSPARK_DEVICE void read_left(const RingShared& shared, int stage, uint32_t (&words)[4]) {
    const int warp = thread_idx() % kWarpgroupThreads / 32, lane = thread_idx() % 32;
    for (int i = 0; i < 4; ++i) {
        const int line = 16 * warp + lane / 4 + 8 * (i % 2);
        words[i] =
            shared.left[stage * kLeftWords + line / 8 * 64 + i / 2 * 32 + line % 8 * 4 + lane % 4];
    }
}

// Warpgroup 1 multiplies.
template <int W, class Half, int kColumns, bool kWords, Fault kFault>
DSPARK_DEVICE void multiply_stages(const RingArgs& args, RingShared& shared) {
    const int warp = thread_idx() % kWarpgroupThreads / 32;
    float sums[kColumns / 2];
    uint32_t words[4];
    for (int s = 0; s < args.steps; ++s) {
        const int stage = s % kStages;
        if (kFault != Fault::kNoWait && kFault != Fault::kNoWaitForWords) {
            await_phase(shared.full[stage], s / kStages % 2);
        }
        if (kWords) read_left(shared, stage, words);
        if (kFault == Fault::kHalfGroup && warp >= 2) return;
        if (kFault != Fault::kNotBegun) begin_products();
        const int right_at = kFault == Fault::kTwoOperands && warp == 3 ? 4 : 0;
        const Operand right = operand_at(shared.right, stage * kRightWords + right_at, 128, 256);
        if (kWords) {
            multiply_group<Half, kColumns>(words, right, s > 0, sums);
        } else {
            const Operand left = operand_at(shared.left, stage * kLeftWords, 128, 256);
            multiply_group<Half, kColumns>(left, right, s > 0, sums);
        }
        end_batch();
        if (kFault == Fault::kEarlyArrive) arrive<W>(shared.empty[stage]);
        if (kFault != Fault::kEarlySums) await_products<0>();
        if (kFault == Fault::kMissingArrival && warp == 3) continue;
        if (kFault != Fault::kEarlyArrive) arrive<W>(shared.empty[stage]);
    }
    for (int i = 0; i < kColumns / 2; ++i) {
        const int line = 16 * warp + thread_idx() % 32 / 4 + 8 * (i / 2 % 2);
        const int column = 8 * (i / 4) + 2 * (thread_idx() % 4) + i % 2;
        args.sums[line * kColumns + column] = sums[i];
    }
    if (kFault == Fault::kEarlySums) await_products<0>();
}

template <int W, class Half, int kColumns, bool kWords, Fault kFault>
DSPARK_KERNEL(kThreads)
void ring(RingArgs args) {
    check_warp_size<W>();
    DSPARK_LARGE_SHARED(RingShared, shared);
    if constexpr (kHasWarpgroups<W>) {
        if (thread_idx() == 0) {
            for (int stage = 0; stage < kStages; ++stage) {
                init_barrier(shared.full[stage], 1 + kWarpgroupThreads / W);
                init_barrier(shared.empty[stage], kWarpgroupThreads / W);
            }
        }
        sync_block();
        if (thread_idx() < kWarpgroupThreads) {
            fill_stages<W, kColumns, kFault>(args, shared);
        } else {
            multiply_stages<W, Half, kColumns, kWords, kFault>(args, shared);
        }
    }
}

}  // namespace
}  // namespace dspark::DSPARK_ISA

namespace dspark::planted {
namespace {

using namespace dspark::DSPARK_ISA;

// Where an element lies, from the picture of the layout: pieces of 8 lines of 16 bytes, the two
// depths of a line octet side by side.
int place_of(int line, int depth) {
    return (line / 8 * 2 + depth / 8) * 64 + line % 8 * 8 + depth % 8;
}

template <class Half>
Half half_of(float value) {
    Half half;
    narrow(value, &half);
    return half;
}

// The operand of a step in its pieces, and as a matrix.
template <class Half>
void fill(int lines, int step, int kind, std::mt19937& random, uint32_t* words, float* matrix) {
    for (int line = 0; line < lines; ++line) {
        for (int k = 0; k < kDepth; ++k) {
            float value = static_cast<float>((line * 7 + k * 11 + step * 5) % 32 - 13);
            if (kind == 1) value = k == (line + step) % kDepth ? 1.0f : 0.0f;
            if (kind == 2) value = std::normal_distribution<float>()(random);
            const Half half = half_of<Half>(value);
            const int at = place_of(line, k);
            uint32_t& word = words[at / 2];
            word = (word & ~(0xFFFFu << (16 * (at % 2)))) | uint32_t{half.bits} << (16 * (at % 2));
            matrix[line * kDepth + k] = to_float(half);
        }
    }
}

template <int W, class Half, int kColumns, bool kWords, Fault kFault>
Outcome run_ring() {
    if (!kHasWarpgroups<W>) return {0, W == 4 || W == 64};
    constexpr int kSteps = 5;
    for (int kind = 0; kind < 3; ++kind) {
        std::mt19937 random(7);
        DeviceVector<uint32_t> left("left", kSteps * kLeftWords, emulator::kReadOnly);
        DeviceVector<uint32_t> right("right", kSteps * kRightWords, emulator::kReadOnly);
        DeviceVector<float> sums("sums", kLines * kColumns, emulator::kUninitialised);
        std::vector<float> wanted(kLines * kColumns);
        for (int s = 0; s < kSteps; ++s) {
            float lines[kLines * kDepth], columns[kColumns * kDepth];
            fill<Half>(kLines, s, kind, random, left.data() + s * kLeftWords, lines);
            fill<Half>(kColumns, s + 3, kind, random, right.data() + s * kRightWords, columns);
            for (int i = 0; i < kLines * kColumns; ++i) {
                for (int k = 0; k < kDepth; ++k) {
                    wanted[i] +=
                        lines[i / kColumns * kDepth + k] * columns[i % kColumns * kDepth + k];
                }
            }
        }
        const RingArgs args = {left.data(), right.data(), kSteps, sums.data()};
        const int code = launch_large<RingShared>("ring", ring<W, Half, kColumns, kWords, kFault>,
                                                  {1, 1, 1}, kBlock, nullptr, args);
        if (code != 0) return {code, false};
        const bool right_sums =
            all_of(kLines * kColumns, [&](int i) { return sums[i] == wanted[i]; });
        if (!right_sums) return {0, false};
    }
    return {0, true};
}

#define DSPARK_RING(Name, name, Half, columns, words, fault)          \
    struct Name {                                                     \
        static constexpr const char* kName = name;                    \
        template <int W>                                              \
        static Outcome run() {                                        \
            return run_ring<W, Half, columns, words, Fault::fault>(); \
        }                                                             \
    };

DSPARK_RING(Brain16, "warpgroup_bfloat16_16", BFloat16, 16, false, kNone)
DSPARK_RING(Brain48, "warpgroup_bfloat16_48", BFloat16, 48, false, kNone)
DSPARK_RING(Half64, "warpgroup_float16_64", Float16, 64, false, kNone)
DSPARK_RING(Words32, "warpgroup_words_bfloat16_32", BFloat16, 32, true, kNone)
DSPARK_RING(Words64, "warpgroup_words_float16_64", Float16, 64, true, kNone)
DSPARK_RING(NoWait, "warpgroup_no_wait", BFloat16, 16, false, kNoWait)
DSPARK_RING(NoWaitWords, "warpgroup_no_wait_for_words", BFloat16, 16, true, kNoWaitForWords)
DSPARK_RING(EarlyReuse, "warpgroup_early_reuse", BFloat16, 16, false, kEarlyReuse)
DSPARK_RING(EarlyArrive, "warpgroup_early_arrive", BFloat16, 16, false, kEarlyArrive)
DSPARK_RING(Unpublished, "warpgroup_unpublished", BFloat16, 16, false, kUnpublished)
DSPARK_RING(EarlySums, "warpgroup_early_sums", BFloat16, 16, false, kEarlySums)
DSPARK_RING(NotBegun, "warpgroup_not_begun", BFloat16, 16, false, kNotBegun)
DSPARK_RING(HalfGroup, "warpgroup_half", BFloat16, 16, false, kHalfGroup)
DSPARK_RING(TwoOperands, "warpgroup_two_operands", BFloat16, 16, false, kTwoOperands)
DSPARK_RING(MissingArrival, "warpgroup_missing_arrival", BFloat16, 16, false, kMissingArrival)
DSPARK_RING(Unfinished, "warpgroup_unfinished", BFloat16, 16, false, kUnfinished)

}  // namespace

std::vector<Case> warpgroup_cases() {
    return {make_case<Brain16>(),     make_case<Brain48>(),     make_case<Half64>(),
            make_case<Words32>(),     make_case<Words64>(),     make_case<NoWait>(),
            make_case<NoWaitWords>(), make_case<EarlyReuse>(),  make_case<EarlyArrive>(),
            make_case<Unpublished>(), make_case<EarlySums>(),   make_case<NotBegun>(),
            make_case<HalfGroup>(),   make_case<TwoOperands>(), make_case<MissingArrival>(),
            make_case<Unfinished>()};
}

}  // namespace dspark::planted

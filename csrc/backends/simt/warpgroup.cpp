// Matrix products of warpgroups, as "Parallel Thread Execution ISA" defines wgmma.mma_async and the
// layout of its matrices without swizzle. A product reads its operands when it is issued or when it
// is awaited: hardware may do either. Until then its sums hold nothing.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/simt/machine.h"
#include "backends/simt/memory.h"
#include "device/dtype.h"

namespace dspark::emulator {
namespace {

constexpr int kThreadsOfGroup = 128;
constexpr int kWarpLanes = 32;
constexpr int kLines = 64;
constexpr int kDepth = 16;
constexpr int kMaxColumns = 256;

// The sums of all threads while products that add to them have not been awaited.
struct Accumulator {
    float* of[kThreadsOfGroup];
    int columns;
    int products;               // not awaited
    std::vector<float> values;  // [thread, columns / 2]
};

struct Product {
    GroupCall call;  // of the first thread
    const uint32_t* left_words[kThreadsOfGroup];
    Accumulator* sums;
    bool is_done;
};

struct Group {
    int waiting = 0;
    bool has_begun = false;
    std::vector<Accumulator*> accumulators;
    std::vector<Product> open;  // since the last batch
    std::vector<std::vector<Product>> batches;
};

Group groups[kMaxThreads / kThreadsOfGroup];
bool runs_late = false;

float to_float(FloatType type, uint16_t bits) {
    return type == FloatType::kBFloat16 ? simt::to_float(BFloat16{bits})
                                        : simt::to_float(Float16{bits});
}

const char* element_at(const GroupOperand& operand, int line, int depth) {
    return static_cast<const char*>(operand.address) + line / 8 * operand.line_stride +
           depth / 8 * operand.depth_stride + line % 8 * 16 + depth % 8 * 2;
}

// Pieces of eight lines, as the warp of `reader` reads them.
void check_lines(const GroupOperand& operand, int first_line, int lines, const Thread& reader) {
    const char* end = machine.shared + machine.shared_bytes;
    for (int line = first_line; line < first_line + lines; line += 8) {
        for (int depth = 0; depth < kDepth; depth += 8) {
            const char* at = element_at(operand, line, depth);
            if (at < machine.shared || at + 128 > end) {
                fail(Error::kOutOfBounds, format("an operand that is not in shared memory"));
            }
            if (machine.settings.level < Level::kFull) continue;
            Access access = access_of(reader, false, true);
            access.of_product = true;
            const size_t offset = static_cast<size_t>(at - machine.shared);
            const Conflict conflict = machine.shared_shadow.check(offset, 128, access);
            if (conflict.kind == Conflict::kNone) continue;
            fail_conflict(conflict, false, 128, format("byte %zu of shared memory", offset));
        }
    }
}

void check_operand(const GroupOperand& operand) {
    const bool aligned = reinterpret_cast<uintptr_t>(operand.address) % 16 == 0 &&
                         operand.depth_stride % 16 == 0 && operand.line_stride % 16 == 0;
    const auto fits = [](int stride) { return stride >= 0 && stride < 1 << 18; };
    if (!aligned || !fits(operand.depth_stride) || !fits(operand.line_stride)) {
        fail(Error::kUnaligned, format("an operand whose place or strides are no multiples of 16"));
    }
}

using Lines = float[kMaxColumns][kDepth];

void read_shared(const GroupOperand& operand, FloatType type, int lines, Lines& out) {
    for (int line = 0; line < lines; ++line) {
        for (int k = 0; k < kDepth; ++k) {
            uint16_t bits;
            memcpy(&bits, element_at(operand, line, k), sizeof(bits));
            out[line][k] = to_float(type, bits);
        }
    }
}

void read_words(const Product& product, Lines& out) {
    for (int thread = 0; thread < kThreadsOfGroup; ++thread) {
        const int warp = thread / kWarpLanes;
        const int lane = thread % kWarpLanes;
        for (int i = 0; i < 8; ++i) {  // elements, two to a word
            const uint32_t word = product.left_words[thread][i / 2];
            const int line = 16 * warp + lane / 4 + 8 * (i / 2 % 2);
            const int k = lane % 4 * 2 + i % 2 + 8 * (i / 4);
            out[line][k] =
                to_float(product.call.type, static_cast<uint16_t>(word >> (16 * (i % 2))));
        }
    }
}

void run(Product& product, const Thread* threads) {
    if (product.is_done) return;
    product.is_done = true;
    const GroupCall& call = product.call;
    for (int warp = 0; warp < kThreadsOfGroup / kWarpLanes; ++warp) {
        const Thread& reader = threads[warp * kWarpLanes];
        if (call.left_words == nullptr) check_lines(call.left, 16 * warp, 16, reader);
        check_lines(call.right, 0, call.columns, reader);
    }
    static Lines left, right;
    if (call.left_words == nullptr) {
        read_shared(call.left, call.type, kLines, left);
    } else {
        read_words(product, left);
    }
    read_shared(call.right, call.type, call.columns, right);
    float* sums = product.sums->values.data();
    for (int thread = 0; thread < kThreadsOfGroup; ++thread) {
        const int first = 16 * (thread / kWarpLanes) + thread % kWarpLanes / 4;
        for (int i = 0; i < call.columns / 2; ++i) {
            const float* row = left[first + 8 * (i % 4 / 2)];
            const float* column = right[8 * (i / 4) + 2 * (thread % 4) + i % 2];
            float& sum = sums[thread * (call.columns / 2) + i];
            if (!call.accumulate) sum = 0.0f;
            for (int k = 0; k < kDepth; ++k) sum += row[k] * column[k];
        }
    }
}

Accumulator* accumulator_of(Group& group, const Thread* threads) {
    const GroupCall& call = *threads[0].group_call;
    for (Accumulator* sums : group.accumulators) {
        if (sums->of[0] == call.sums) return sums;
    }
    Accumulator* sums = new Accumulator{{}, call.columns, 0, {}};
    for (int i = 0; i < kThreadsOfGroup; ++i) {
        sums->of[i] = threads[i].group_call->sums;
        sums->values.insert(sums->values.end(), sums->of[i], sums->of[i] + call.columns / 2);
        std::fill_n(sums->of[i], call.columns / 2, NAN);
    }
    group.accumulators.push_back(sums);
    return sums;
}

void multiply(Group& group, const Thread* threads) {
    const GroupCall& call = *threads[0].group_call;
    if (!group.has_begun) {
        fail(Error::kRace, format("a product without begin_products since the last wait"));
    }
    if (call.columns % 8 != 0 || call.columns < 8 || call.columns > kMaxColumns) {
        fail(Error::kBadLaunch, format("a product of %d columns", call.columns));
    }
    check_operand(call.right);
    if (call.left_words == nullptr) check_operand(call.left);
    Product product = {call, {}, accumulator_of(group, threads), false};
    for (int i = 0; i < kThreadsOfGroup; ++i) {
        product.left_words[i] = threads[i].group_call->left_words;
    }
    if (product.sums->columns != call.columns) {
        fail(Error::kBadLaunch, format("products of several widths share their sums"));
    }
    ++product.sums->products;
    if (!runs_late) run(product, threads);
    group.open.push_back(product);
    machine.counters->warpgroup_products += 1;
}

// Gives the sums back to the registers.
void retire(Group& group, Accumulator* sums) {
    for (int i = 0; i < kThreadsOfGroup; ++i) {
        const float* from = sums->values.data() + i * (sums->columns / 2);
        std::copy_n(from, sums->columns / 2, sums->of[i]);
    }
    auto& all = group.accumulators;
    all.erase(std::find(all.begin(), all.end(), sums));
    delete sums;
}

void await(Group& group, const Thread* threads, int batches) {
    group.has_begun = false;
    while (static_cast<int>(group.batches.size()) > batches) {
        for (Product& product : group.batches.front()) {
            run(product, threads);
            if (--product.sums->products == 0) retire(group, product.sums);
        }
        group.batches.erase(group.batches.begin());
    }
}

bool same_group_call(const Thread& a, const Thread& b) {
    const GroupCall& x = *a.group_call;
    const GroupCall& y = *b.group_call;
    const auto same = [](const GroupOperand& p, const GroupOperand& q) {
        return p.address == q.address && p.depth_stride == q.depth_stride &&
               p.line_stride == q.line_stride;
    };
    return same_place(a, b) && x.operation == y.operation && x.type == y.type &&
           x.columns == y.columns && x.accumulate == y.accumulate && x.batches == y.batches &&
           (x.left_words == nullptr) == (y.left_words == nullptr) && same(x.left, y.left) &&
           same(x.right, y.right);
}

// All threads of a group have arrived.
void complete(Group& group, Thread* threads) {
    for (int i = 1; i < kThreadsOfGroup; ++i) {
        if (same_group_call(threads[i], threads[0])) continue;
        fail(Error::kDivergentCollective,
             format("the threads of a warpgroup are at different operations or operands"));
    }
    const GroupCall& call = *threads[0].group_call;
    switch (call.operation) {
        case GroupOperation::kBegin:
            group.has_begun = true;
            break;
        case GroupOperation::kMultiply:
            multiply(group, threads);
            break;
        case GroupOperation::kEndBatch:
            group.batches.push_back(std::move(group.open));
            group.open.clear();
            break;
        case GroupOperation::kAwait:
            await(group, threads, call.batches);
            break;
    }
    group.waiting = 0;
    for (int i = 0; i < kThreadsOfGroup; ++i) {
        threads[i].accesses_left = machine.settings.access_limit;
        set_ready(threads[i]);
    }
}

}  // namespace

void begin_groups_of_block() {
    for (Group& group : groups) {
        for (Accumulator* sums : group.accumulators) delete sums;
        group = Group{};
    }
    runs_late = draws_late(2);
}

Text unfinished_products() {
    for (const Group& group : groups) {
        if (!group.accumulators.empty()) {
            return format("the block has ended before its products were awaited");
        }
    }
    return {};
}

void group_operation(const GroupCall& call, const char* file, int line) {
    require_warp_size(kWarpLanes);
    Thread& thread = *current;
    if (machine.thread_count % kThreadsOfGroup != 0) {
        fail(Error::kBadLaunch, format("a block of %d threads is not a whole number of warpgroups",
                                       machine.thread_count));
    }
    thread.group_call = &call;
    set_place(thread, file, line, __builtin_frame_address(0));
    const int index = thread.index / kThreadsOfGroup;
    set_waiting(thread, State::kAtGroupOperation);
    Group& group = groups[index];
    if (++group.waiting == kThreadsOfGroup) {
        complete(group, &machine.threads[index * kThreadsOfGroup]);
    }
    yield();
}

}  // namespace dspark::emulator

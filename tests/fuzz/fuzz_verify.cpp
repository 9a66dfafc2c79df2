// The rows of a pass on the CPU with hostile lengths, offsets, slots and counts: pack, unpack,
// commit, accumulate_stats. They check what they are given; nothing may be read or written outside.
#include "fuzzed.h"
#include "ops/verify/cpu.h"

namespace {

using namespace dspark;
using namespace fuzzed;

struct Batch {
    explicit Batch(FuzzedDataProvider& in)
        : size(in.ConsumeIntegralInRange<int64_t>(0, 5)),
          drafts(in.ConsumeIntegralInRange<int64_t>(0, 4)),
          rows(in.ConsumeIntegralInRange<int64_t>(0, 20)),
          lengths(size),
          starts(size + 1) {
        int32_t start = 0;
        for (int64_t b = 0; b < size; ++b) {
            lengths[b] = number<int32_t>(in, 0, static_cast<int32_t>(drafts));
            starts[b] = number<int32_t>(in, start, start);
            start += lengths[b] >= 0 && lengths[b] < 9 ? lengths[b] + 1 : 1;
        }
        starts[size] = number<int32_t>(in, start, start);
        per_request = in.ConsumeBool() ? 0 : in.ConsumeIntegralInRange<int64_t>(1, 6);
        if (per_request > 0 && size > 0 && rows / size < per_request) per_request = 0;
    }
    RowLayout layout() const { return {starts, size, per_request}; }
    int64_t size, drafts, rows, per_request;
    Array<int32_t> lengths, starts;
};

void fuzz_pack(FuzzedDataProvider& in) {
    const Batch batch(in);
    const auto anchor = numbers<int64_t>(in, batch.size, 0, 99);
    const auto ids = numbers<int64_t>(in, batch.size * batch.drafts, -1, 99);
    const auto lengths = numbers<int64_t>(in, batch.size, 0, 40);
    const int64_t blocks = in.ConsumeIntegralInRange<int64_t>(0, 6);
    const auto table = numbers<int32_t>(in, batch.size * blocks, 0, 99);
    const Array<int64_t> input(batch.rows), positions(batch.rows), slots(batch.rows),
        sample(batch.rows);
    const Array<int32_t> requests(batch.rows);
    PackArgs args = {};
    args.anchor = anchor;
    args.draft_token_ids = ids;
    args.seq_lens = lengths;
    args.verify_lens = batch.lengths;
    args.layout = batch.layout();
    if (in.ConsumeBool()) args.block_table = table;
    args.num_blocks = blocks;
    args.block_size = in.ConsumeIntegralInRange<int64_t>(1, 16);
    args.num_drafts = batch.drafts;
    args.max_rows = batch.rows;
    args.input_ids = input;
    args.positions = positions;
    args.request_ids = requests;
    args.slot_mapping = slots;
    args.sample_rows = sample;
    if (baseline::pack(args).fault != VerifyFault::kNone) return;
    for (int64_t row = 0; row < batch.rows; ++row) {
        require(input[row] >= 0 && positions[row] >= 0, "a negative id or position");
        require(requests[row] >= -1 && requests[row] < batch.size, "a request that is not");
        require(sample[row] >= 0 && sample[row] < batch.rows, "a row that is not");
    }
}

void fuzz_unpack(FuzzedDataProvider& in) {
    const Batch batch(in);
    const int64_t width = in.ConsumeIntegralInRange<int64_t>(0, 5);
    const Array<uint32_t> rows(batch.rows * width), fill(1);
    const int64_t places = batch.size * (batch.drafts + 1);
    const Array<uint32_t> block(places * width);
    UnpackArgs args = {};
    args.rows = rows.data.get();
    args.fill = fill.data.get();
    args.layout = batch.layout();
    args.num_rows = batch.rows;
    args.num_drafts = batch.drafts;
    args.row_size = width;
    args.element_size = args.unit = 4;
    args.block = block.data.get();
    baseline::unpack(args, 0, batch.size);
}

void fuzz_commit(FuzzedDataProvider& in) {
    const Batch batch(in);
    const auto emitted = numbers<int32_t>(in, batch.size, 0, static_cast<int32_t>(batch.drafts));
    const auto last = numbers<int64_t>(in, batch.size, -1, 99);
    const auto lengths = numbers<int64_t>(in, batch.size, 0, 40);
    const Array<int64_t> grown(batch.size), anchor(batch.size);
    const Array<bool> kept(batch.rows);
    const Array<int32_t> rejected(batch.size);
    CommitArgs args = {};
    args.num_emitted = emitted;
    args.last_token = last;
    args.seq_lens = lengths;
    args.layout = batch.layout();
    args.num_rows = batch.rows;
    args.new_seq_lens = grown;
    args.anchor = anchor;
    args.row_kept = kept;
    args.num_rejected = rejected;
    if (baseline::commit(args).fault != VerifyFault::kNone) return;
    for (int64_t b = 0; b < batch.size; ++b) require(rejected[b] >= 0, "fewer than none rejected");
}

void fuzz_stats(FuzzedDataProvider& in) {
    AccumulateStatsArgs args = {};
    args.batch = in.ConsumeIntegralInRange<int64_t>(0, 5);
    args.num_requests = in.ConsumeIntegralInRange<int64_t>(0, 5);
    args.num_drafts = in.ConsumeIntegralInRange<int64_t>(0, 4);
    const auto most = static_cast<int32_t>(args.num_drafts);
    const auto lengths = numbers<int32_t>(in, args.batch, 0, most);
    const auto accepted = numbers<int32_t>(in, args.batch, 0, most);
    const auto slots = numbers<int32_t>(in, args.batch, -1, 5);
    const bool by_slot = in.ConsumeBool();
    if (!by_slot && args.batch > args.num_requests) return;  // refused by the operator
    const int64_t cells = args.num_requests * args.num_drafts;
    const Array<int64_t> verified(cells), reached(cells), histogram(cells + args.num_requests);
    args.verify_lens = lengths;
    args.num_accepted = accepted;
    if (by_slot) args.request_ids = slots;
    args.verified = verified;
    args.reached = reached;
    args.histogram = histogram;
    const bool is_good = baseline::accumulate_stats(args).fault == VerifyFault::kNone;
    int64_t steps = 0;
    for (int64_t i = 0; i < histogram.count; ++i) steps += histogram[i];
    require(is_good ? steps <= args.batch : steps == 0, "steps that were not");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    FuzzedDataProvider in(data, size);
    switch (in.ConsumeIntegralInRange<int>(0, 3)) {
        case 0:
            fuzz_pack(in);
            break;
        case 1:
            fuzz_unpack(in);
            break;
        case 2:
            fuzz_commit(in);
            break;
        default:
            fuzz_stats(in);
    }
    return 0;
}

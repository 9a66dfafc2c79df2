// The operators for vocabularies that are spread over processes; they have CPU kernels.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "backends/cpu/isa.h"
#include "ops/draft/checks.h"
#include "ops/draft/cpu_shards.h"
#include "ops/draft/op_block.h"

namespace dspark::draft {
namespace {

constexpr int64_t kTileSize = DSPARK_ISA::kTile;

Call cpu_call(const char* op, const char* name, const Tensor& like) {
    Arg(op, name, like).on_cpu();
    return {op, like, false};
}

// The logits of one draft of a block, K = 1.
std::tuple<Tensor, Tensor, Tensor> markov_logits(const Tensor& base_logits, const Tensor& anchor,
                                                 const Tensor& w1, const Tensor& w2,
                                                 std::string head, const OptionalTensor& hidden,
                                                 const OptionalTensor& head_weight,
                                                 const OptionalTensor& head_bias,
                                                 const OptionalTensor& state, bool exact) {
    const Call op = cpu_call("markov_logits", "base_logits", base_logits);
    const MarkovModel model = {
        dense(base_logits), dense(anchor),      dense(w1),       dense(w2), head,
        dense(hidden),      dense(head_weight), dense(head_bias)};
    MarkovArgs args = check_model(op, model);
    op.within("base_logits", args.num_positions, "K=1", 1, 1);
    args.exact = exact;
    args.num_drafts = 1;
    args.vocab = args.draft_vocab;
    const bool is_rnn = args.head == MarkovHead::kRnn;
    const OptionalTensor given = dense(state);
    if (given && !is_rnn)
        fail(op.op, "state", "only head rnn has one: expected None, got a tensor");
    if (given) {
        Arg(op.op, "state", *given)
            .on_device_of(base_logits)
            .dtype({ScalarType::Float})
            .shape({{"B", args.batch}, {"r", args.rank}});
    }
    Tensor logits = new_tensor(base_logits, {args.batch, 1, args.vocab}, base_logits.scalar_type());
    Tensor prev_embed = new_tensor(w1, {args.batch, 1, args.rank}, w1.scalar_type());
    Tensor next_state =
        new_tensor(base_logits, {args.batch, is_rnn ? args.rank : 0}, ScalarType::Float);
    args.logits = logits.mutable_data_ptr();
    args.prev_embed = prev_embed.mutable_data_ptr();
    if (args.batch > 0) {
        run_step(op.op, args, given ? given->const_data_ptr<float>() : nullptr,
                 is_rnn ? next_state.mutable_data_ptr<float>() : nullptr);
    }
    return {logits, prev_embed, next_state};
}

std::tuple<Tensor, Tensor, Tensor> row_statistics(const Tensor& logits, const Tensor& temperature) {
    const Call op = cpu_call("row_statistics", "logits", logits);
    const Tensor rows = dense(logits);
    const Tensor heat = dense(temperature);
    RowStatisticsArgs args = {};
    args.logits = op.floats("logits", rows, {{"N"}, {"V"}}, args.logits_type);
    args.rows = rows.size(0);
    args.vocab = rows.size(1);
    op.within("logits", args.vocab, "a vocabulary below 2^31", 0, INT32_MAX - kTileSize);
    args.tiles = DSPARK_ISA::num_tiles(args.vocab);
    args.temperature = op.vector<float>("temperature", heat, ScalarType::Float, {"N", args.rows});
    check_row_temperatures(op, args.temperature, args.rows);
    Tensor tile_max = new_tensor(logits, {args.rows, args.tiles}, ScalarType::Float);
    Tensor tile_sum = new_tensor(logits, {args.rows, args.tiles}, ScalarType::Float);
    Tensor tile_nan = new_tensor(logits, {args.rows, args.tiles}, ScalarType::Byte);
    args.tile_max = tile_max.mutable_data_ptr<float>();
    args.tile_sum = tile_sum.mutable_data_ptr<float>();
    args.tile_nan = static_cast<uint8_t*>(tile_nan.mutable_data_ptr());
    torch::stable::parallel_for(0, args.rows * args.tiles, 1 + kEntriesPerThread / kTileSize,
                                [&](int64_t begin, int64_t end) {
                                    DSPARK_CPU_DISPATCH(shard_statistics, args, begin, end);
                                });
    return {tile_max, tile_sum, tile_nan};
}

Tensor draw_shard(const Tensor& logits, int64_t first_tile, const Tensor& tile_max,
                  const Tensor& tile_sum, const Tensor& temperature, const Tensor& seeds,
                  const Tensor& positions, int64_t slot) {
    const Call op = cpu_call("draw_shard", "logits", logits);
    const Tensor inputs[] = {dense(logits),      dense(tile_max), dense(tile_sum),
                             dense(temperature), dense(seeds),    dense(positions)};
    DrawShardArgs args = {};
    args.logits = op.floats("logits", inputs[0], {{"N"}, {"width"}}, args.logits_type);
    args.rows = logits.size(0);
    args.width = logits.size(1);
    const host::Dim rows = {"N", args.rows};
    const char* names[] = {"tile_max", "tile_sum"};
    Arg(op.op, names[0], inputs[1]).shape({rows, {"tiles"}});
    args.tiles = tile_max.size(1);
    for (int i = 0; i < 2; ++i) {
        Arg(op.op, names[i], inputs[1 + i])
            .on_device_of(logits)
            .dtype({ScalarType::Float})
            .shape({rows, {"tiles", args.tiles}});
    }
    args.tile_max = inputs[1].const_data_ptr<float>();
    args.tile_sum = inputs[2].const_data_ptr<float>();
    op.within("tile_max", args.tiles, "the tiles of a row", 1, INT32_MAX / kTileSize);
    const int64_t held = DSPARK_ISA::num_tiles(args.width);
    op.within("first_tile", first_tile, "0 to " + std::to_string(args.tiles - held), 0,
              args.tiles - held);
    if (args.width % kTileSize != 0 && first_tile + held < args.tiles) {
        fail(op.op, "logits",
             "expected whole tiles of 4096 entries, got " + std::to_string(args.width));
    }
    args.first_tile = first_tile;
    args.temperature = op.vector<float>("temperature", inputs[3], ScalarType::Float, rows);
    check_row_temperatures(op, args.temperature, args.rows);
    args.seeds = op.vector<int64_t>("seeds", inputs[4], ScalarType::Long, rows);
    args.positions = op.vector<int64_t>("positions", inputs[5], ScalarType::Long, rows);
    op.within("slot", slot, "0 to 2^31 - 1", 0, INT32_MAX);
    args.slot = static_cast<int32_t>(slot);
    Tensor token_ids = new_tensor(logits, {args.rows}, ScalarType::Long);
    args.token_ids = token_ids.mutable_data_ptr<int64_t>();
    torch::stable::parallel_for(0, args.rows, 4, [&](int64_t begin, int64_t end) {
        DSPARK_CPU_DISPATCH(draw_shard, args, begin, end);
    });
    return token_ids;
}

}  // namespace
}  // namespace dspark::draft

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    m.impl("markov_logits", TORCH_BOX(&dspark::draft::markov_logits));
    m.impl("row_statistics", TORCH_BOX(&dspark::draft::row_statistics));
    m.impl("draw_shard", TORCH_BOX(&dspark::draft::draw_shard));
}

// The operators for vocabularies that are spread over processes, on the backends of op.h.
#pragma once

#include <string>
#include <tuple>

#include "ops/draft/op.h"

namespace dspark::draft {

constexpr int64_t kTileSize = DSPARK_ISA::kTile;

// Checks the inputs of markov_logits. `state` is what comes before the draft.
inline MarkovArgs check_step(const Call& op, const MarkovModel& model, const OptionalTensor& state,
                             bool exact) {
    MarkovArgs args = check_model(op, model);
    op.within("base_logits", args.num_positions, "K=1", 1, 1);
    args.exact = exact;
    args.num_drafts = 1;
    args.vocab = args.draft_vocab;
    if (!state) return args;
    if (args.head != MarkovHead::kRnn)
        fail(op.op, "state", "only head rnn has one: expected None, got a tensor");
    Arg(op.op, "state", *state)
        .on_device_of(op.like)
        .dtype({ScalarType::Float})
        .shape({{"B", args.batch}, {"r", args.rank}});
    args.first_state = state->const_data_ptr<float>();
    return args;
}

struct DrawShardInputs {
    const Tensor logits, tile_max, tile_sum, temperature, seeds, positions;
    int64_t first_tile, slot;
};

inline void check_row_tiles(const Call& op, const DrawShardInputs& in, DrawShardArgs& args) {
    const host::Dim rows = {"N", args.rows};
    Arg(op.op, "tile_max", in.tile_max).shape({rows, {"tiles"}});
    args.tiles = in.tile_max.size(1);
    const Tensor* parts[] = {&in.tile_max, &in.tile_sum};
    const char* names[] = {"tile_max", "tile_sum"};
    for (int i = 0; i < 2; ++i) {
        Arg(op.op, names[i], *parts[i])
            .on_device_of(op.like)
            .dtype({ScalarType::Float})
            .shape({rows, {"tiles", args.tiles}});
    }
    args.tile_max = in.tile_max.const_data_ptr<float>();
    args.tile_sum = in.tile_sum.const_data_ptr<float>();
    const int64_t most = op.on_device ? kMaxDeviceVocab / kTileSize : INT32_MAX / kTileSize;
    op.within("tile_max", args.tiles, "the tiles of a row, 1 to " + std::to_string(most), 1, most);
}

// Checks the inputs of draw_shard.
inline DrawShardArgs check_draw_shard(const Call& op, const DrawShardInputs& in) {
    DrawShardArgs args = {};
    args.logits = op.floats("logits", in.logits, {{"N"}, {"width"}}, args.logits_type);
    args.rows = in.logits.size(0);
    args.width = in.logits.size(1);
    check_row_tiles(op, in, args);
    const int64_t held = DSPARK_ISA::num_tiles(args.width);
    op.within("first_tile", in.first_tile, "0 to " + std::to_string(args.tiles - held), 0,
              args.tiles - held);
    if (args.width % kTileSize != 0 && in.first_tile + held < args.tiles) {
        fail(op.op, "logits",
             "expected whole tiles of 4096 entries, got " + std::to_string(args.width));
    }
    args.first_tile = in.first_tile;
    const host::Dim rows = {"N", args.rows};
    const auto* temperature =
        op.vector<float>("temperature", in.temperature, ScalarType::Float, rows);
    if (!op.on_device) check_row_temperatures(op, temperature, args.rows);
    args.temperature = temperature;
    args.seeds = op.vector<int64_t>("seeds", in.seeds, ScalarType::Long, rows);
    args.positions = op.vector<int64_t>("positions", in.positions, ScalarType::Long, rows);
    op.within("slot", in.slot, "0 to 2^31 - 1", 0, INT32_MAX);
    args.slot = static_cast<int32_t>(in.slot);
    return args;
}

template <class Backend>
struct ShardOperators {
    using Common = Operators<Backend>;

    static std::tuple<Tensor, Tensor, Tensor> markov_logits(
        const Tensor& base_logits, const Tensor& anchor, const Tensor& w1, const Tensor& w2,
        host::Text head, const OptionalTensor& hidden, const OptionalTensor& head_weight,
        const OptionalTensor& head_bias, const OptionalTensor& state, bool exact) {
        const Call op = Common::call("markov_logits", "base_logits", base_logits);
        const MarkovModel model = {
            dense(base_logits), dense(anchor),      dense(w1),       dense(w2), head,
            dense(hidden),      dense(head_weight), dense(head_bias)};
        const OptionalTensor before = dense(state);
        MarkovArgs args = check_step(op, model, before, exact);
        if (op.on_device) check_device_sizes(op, args);
        const bool is_rnn = args.head == MarkovHead::kRnn;
        Tensor logits = Common::output(base_logits, {args.batch, 1, args.vocab},
                                       base_logits.scalar_type(), args.logits);
        Tensor prev_embed =
            Common::output(w1, {args.batch, 1, args.rank}, w1.scalar_type(), args.prev_embed);
        Tensor next_state = Common::output(base_logits, {args.batch, is_rnn ? args.rank : 0},
                                           ScalarType::Float, args.last_state);
        if (!is_rnn) args.last_state = nullptr;
        if (args.batch > 0) Backend::run_logits(args, base_logits);
        return {logits, prev_embed, next_state};
    }

    static std::tuple<Tensor, Tensor, Tensor> row_statistics(const Tensor& logits,
                                                             const Tensor& temperature) {
        const Call op = Common::call("row_statistics", "logits", logits);
        const Tensor rows = dense(logits);
        const Tensor heat = dense(temperature);
        RowStatisticsArgs args = {};
        args.logits = op.floats("logits", rows, {{"N"}, {"V"}}, args.logits_type);
        args.rows = rows.size(0);
        args.vocab = rows.size(1);
        op.within("logits", args.vocab, "a vocabulary below 2^31", 0, INT32_MAX - kTileSize);
        args.tiles = DSPARK_ISA::num_tiles(args.vocab);
        const auto* values =
            op.vector<float>("temperature", heat, ScalarType::Float, {"N", args.rows});
        if (!op.on_device) check_row_temperatures(op, values, args.rows);
        args.temperature = values;
        const std::vector<int64_t> tiles = {args.rows, args.tiles};
        Tensor tile_max = Common::output(logits, tiles, ScalarType::Float, args.tile_max);
        Tensor tile_sum = Common::output(logits, tiles, ScalarType::Float, args.tile_sum);
        Tensor tile_nan = Common::output(logits, tiles, ScalarType::Byte, args.tile_nan);
        if (args.rows > 0 && args.tiles > 0) Backend::run(args, logits);
        return {tile_max, tile_sum, tile_nan};
    }

    static Tensor draw_shard(const Tensor& logits, int64_t first_tile, const Tensor& tile_max,
                             const Tensor& tile_sum, const Tensor& temperature, const Tensor& seeds,
                             const Tensor& positions, int64_t slot) {
        const Call op = Common::call("draw_shard", "logits", logits);
        const DrawShardInputs in = {
            dense(logits), dense(tile_max),  dense(tile_sum), dense(temperature),
            dense(seeds),  dense(positions), first_tile,      slot};
        DrawShardArgs args = check_draw_shard(op, in);
        Tensor token_ids = Common::output(logits, {args.rows}, ScalarType::Long, args.token_ids);
        if (args.rows > 0) Backend::run(args, logits);
        return token_ids;
    }

    // As Operators::implement.
    template <class Library>
    static void implement(Library& m) {
        m.impl("markov_logits", TORCH_BOX(&markov_logits));
        m.impl("row_statistics", TORCH_BOX(&row_statistics));
        m.impl("draw_shard", TORCH_BOX(&draw_shard));
    }
};

}  // namespace dspark::draft

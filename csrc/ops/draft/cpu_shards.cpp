// CPU kernels for vocabularies that are spread over processes; compiled once per instruction set.
// What a process computes of a row is what one process computes of it: the tiles are the same.
#include "ops/draft/cpu_shards.h"

#include "backends/cpu/law.h"
#include "device/philox.h"
#include "ops/draft/algorithm.h"
#include "ops/draft/cpu_types.h"

namespace dspark::DSPARK_ISA {

using namespace draft;

namespace {

// A law over a row of `vocab` entries, started.
inline Law start_row(FloatType type, const void* logits, int64_t row, int64_t vocab,
                     float temperature) {
    Law law = {};
    law.dtype = type;
    law.vocab = static_cast<int32_t>(vocab);
    with_type(type, logits, [&](const auto* data) { law.row = data + row * vocab; });
    start_law(law, temperature);
    return law;
}

// The tiles of a row that are here.
struct LocalTiles {
    const DrawShardArgs& args;
    Law law;  // of them alone

    // The tile of the row as a tile of the law; -1: elsewhere.
    int find(int64_t tile) const {
        const int64_t local = tile - args.first_tile;
        return local >= 0 && local < num_tiles(args.width) ? static_cast<int>(local) : -1;
    }
};

int64_t draw_greedy(const LocalTiles& local, const float* tile_max, float maximum) {
    int64_t tile = 0;
    while (tile_max[tile] != maximum) ++tile;
    const int here = local.find(tile);
    if (here < 0) return -1;
    const int64_t begin = int64_t{here} * kTile;
    const int count = tile_size(local.law.vocab, here);
    for (int i = 0; i < count; ++i) {
        if (read_entry(row_of(local.law), begin + i) == maximum) return tile * kTile + i;
    }
    return -1;  // the statistics are those of other rows
}

int64_t draw_sampled(const LocalTiles& local, const Law& whole, double u, DrawBuffers& buffers) {
    law_totals(whole, buffers.totals);
    const double v = u * add_totals(whole, buffers.totals);
    const TileChoice choice = choose_tile(buffers.totals, num_tiles(whole.vocab), v);
    const int here = local.find(choice.tile);
    if (choice.tile < 0 || here < 0) return -1;
    store_entries(kept_weights(local.law, here, buffers.target_tile), buffers.weights);
    return draw_in_choice(choice, v, tile_size(local.law.vocab, here), buffers);
}

}  // namespace

void shard_statistics(const RowStatisticsArgs& args, int64_t begin, int64_t end) {
    alignas(64) float buffer[kTile];
    for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / args.tiles;
        const Law law =
            start_row(args.logits_type, args.logits, row, args.vocab, args.temperature[row]);
        const TileStatistics tile = tile_statistics(law, static_cast<int>(i % args.tiles), buffer);
        args.tile_max[i] = tile.maximum;
        args.tile_sum[i] = tile.sum;
        args.tile_nan[i] = tile.has_nan;
    }
}

void draw_shard(const DrawShardArgs& args, int64_t row_begin, int64_t row_end) {
    const int64_t vocab = args.tiles * kTile;  // of the whole row, or a little more
    DrawBuffers buffers(vocab);
    const LawTables tables(vocab);
    for (int64_t row = row_begin; row < row_end; ++row) {
        const float temperature = args.temperature[row];
        LocalTiles local = {args,
                            start_row(args.logits_type, args.logits, row, args.width, temperature)};
        Law whole = local.law;
        whole.vocab = static_cast<int32_t>(vocab);
        tables.attach(whole, vocab);
        whole.maximum = -kInfinity;
        for (int64_t t = 0; t < args.tiles; ++t) {
            whole.tile_max[t] = args.tile_max[row * args.tiles + t];
            whole.tile_sum[t] = args.tile_sum[row * args.tiles + t];
            if (whole.tile_max[t] > whole.maximum) whole.maximum = whole.tile_max[t];
        }
        local.law.tile_max = whole.tile_max + args.first_tile;
        local.law.has_nan = true;  // perhaps: tiles are read with care
        int64_t id = args.first_tile == 0 && args.width > 0 ? 0 : -1;  // of a row without entries
        if (whole.maximum > -kInfinity && whole.is_greedy) {
            id = draw_greedy(local, whole.tile_max, whole.maximum);
        } else if (whole.maximum > -kInfinity) {
            add_tiles(whole);
            const double u =
                uniform(args.seeds[row], args.positions[row], Stream::kDraft, args.slot);
            id = draw_sampled(local, whole, u, buffers);
        }
        args.token_ids[row] = id;
    }
}

}  // namespace dspark::DSPARK_ISA

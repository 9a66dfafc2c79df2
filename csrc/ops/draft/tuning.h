// How the logits of one draft are spread over blocks. Numbers to tune: no result depends on them.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/draft/args.h"

namespace dspark::draft {

// A block takes a range of vocabulary rows and a group of requests. It keeps the inputs u of its
// requests in shared memory and passes the rows of w2 through it, some rows and some entries of
// them (a chunk) at a time. kBiasLanes threads (all of a warp, if it is smaller) are a team: a team
// multiplies rows_of_team rows with requests_of_team requests.
struct LogitsPlan {
    int32_t requests_of_team;  // 1, 4 or 8
    int32_t narrow_inputs;     // 1: u is exact in 16 bits and kept so
    int32_t request_teams;     // teams side by side in the direction of the requests
    int32_t group_size;        // requests of a group
    int32_t groups;
    int32_t pass_rows;  // vocabulary rows at a time
    int32_t size;       // of a row, padded to a multiple of kBiasLanes
    int32_t chunk;      // entries of a row at a time, a multiple of kBiasLanes
    int32_t block_rows;
    int64_t ranges;  // of block_rows vocabulary rows
};

// Floats in shared memory for inputs and rows together, at most for inputs, at most for rows. The
// emulated warps of 4 make wider passes.
constexpr int kInputFloats = 8192;
constexpr int kRowFloats = 8192;
constexpr int arena_floats(int warp_size) {
    return warp_size < kBiasLanes ? kInputFloats + 4096 : kInputFloats + 2560;
}
constexpr int kMaxRank = 2048;  // what devices are made for

constexpr int rows_of_team(int warp_size) {
    return warp_size < kBiasLanes ? 4 : 8;
}
constexpr int team_threads(int warp_size) {
    return warp_size < kBiasLanes ? warp_size : kBiasLanes;
}
// Teams of a block that work on different rows or requests.
constexpr int num_teams(int warp_size) {
    return 256 / team_threads(warp_size);
}

inline int32_t requests_of_team(const MarkovArgs& args) {
    if (args.batch == 1) return 1;
    return args.batch <= 4 || 8 * args.padded_rank > kInputFloats ? 4 : 8;
}

// `is_spare`: the plan of a kernel that has one kind of teams only, of 8 requests.
inline LogitsPlan plan_logits(const MarkovArgs& args, int warp_size, bool is_spare = false) {
    LogitsPlan plan = {};
    const int64_t rank = args.padded_rank > 0 ? args.padded_rank : kBiasLanes;
    plan.size = static_cast<int32_t>(rank);
    plan.requests_of_team = is_spare ? 8 : requests_of_team(args);
    // Embeddings in bfloat16 are u as they are; float16 takes more to widen than it saves.
    plan.narrow_inputs = !is_spare && plan.requests_of_team == 8 &&
                         args.head == MarkovHead::kVanilla && args.w1_type == FloatType::kBFloat16;
    const int64_t input_size = plan.narrow_inputs ? rank / 2 : rank;  // in floats, of a request
    plan.request_teams = 1;
    while (plan.requests_of_team == 8 && plan.request_teams < 8 &&
           plan.request_teams * 8 < args.batch &&
           plan.request_teams * 16 * input_size <= kInputFloats) {
        plan.request_teams *= 2;
    }
    plan.group_size = plan.requests_of_team * plan.request_teams;
    plan.groups = static_cast<int32_t>((args.batch + plan.group_size - 1) / plan.group_size);
    plan.pass_rows = num_teams(warp_size) / plan.request_teams * rows_of_team(warp_size);
    // A thread brings in at most four pieces of 16 bytes for a chunk.
    const int64_t input_floats = (plan.group_size + 3) / 4 * 4 * input_size;
    const int64_t rest = arena_floats(warp_size) - input_floats;
    const int64_t loaded = args.w2_type == FloatType::kFloat32 ? kRowFloats / 2 : kRowFloats;
    const int64_t most = (rest < loaded ? rest : loaded) / plan.pass_rows / kBiasLanes * kBiasLanes;
    const int64_t chunks = (rank + most - 1) / most;
    plan.chunk =
        static_cast<int32_t>((rank + chunks * kBiasLanes - 1) / (chunks * kBiasLanes)) * kBiasLanes;
    // The more requests, the more inputs a block has to fetch before it begins.
    plan.block_rows = args.batch <= 4 ? 256 : args.batch <= 16 ? 512 : 1024;
    if (plan.block_rows < plan.pass_rows) plan.block_rows = plan.pass_rows;
    plan.ranges = (args.draft_vocab + plan.block_rows - 1) / plan.block_rows;
    return plan;
}

// ---- matrix units -------------------------------------------------------------------------------

// How matrix units share the work: a block takes a range of vocabulary rows, kPassRows at a time,
// and a group of requests, in tiles of 16.
struct MatrixPlan {
    int32_t tiles;  // 1, 2 or 4; 0: products are taken in lanes
    int32_t group_size;
    int32_t groups;
    int32_t block_rows;
    int64_t ranges;
};

constexpr int kPassRows = 128;
constexpr int kMaxMatrixRank = 1024;
// Words in shared memory for the inputs of a group: 64 requests of rank 256, 16 of 1024.
constexpr int kMatrixInputWords = 64 * (256 / 2 + 4);

inline int32_t most_matrix_tiles(int64_t rank) {
    return rank <= 256 ? 4 : rank <= 512 ? 2 : 1;
}

// Whether the product may be given to matrix units: rows of w2 are read 16 bytes at a time.
inline bool suits_matrix_units(const MarkovArgs& args) {
    uint64_t address = 0;
    std::memcpy(&address, &args.w2, sizeof(address));
    return !args.exact && args.w2_type != FloatType::kFloat32 && address % 16 == 0 &&
           args.rank % 8 == 0 && args.rank > 0 && args.rank <= kMaxMatrixRank;
}

inline MatrixPlan plan_matrix(const MarkovArgs& args, int warp_size) {
    MatrixPlan plan = {1, 0, 0, 0, 0};
    while (plan.tiles * 16 < args.batch && plan.tiles < most_matrix_tiles(args.rank)) {
        plan.tiles *= 2;
    }
    plan.group_size = plan.tiles * 16;
    plan.groups = static_cast<int32_t>((args.batch + plan.group_size - 1) / plan.group_size);
    // Few blocks: each fetches the inputs once, and has the registers of a multiprocessor for rows
    // on their way. Chips with warps of 64 have more multiprocessors.
    const int64_t blocks = warp_size == 64 ? 256 : 128;
    const int64_t rows = (args.draft_vocab + blocks - 1) / blocks;
    plan.block_rows = static_cast<int32_t>((rows + kPassRows - 1) / kPassRows * kPassRows);
    plan.ranges = (args.draft_vocab + plan.block_rows - 1) / plan.block_rows;
    return plan;
}

}  // namespace dspark::draft

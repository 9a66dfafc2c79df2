// CPU kernels for vocabularies that are spread over processes, on ranges of rows.
#pragma once

#include "backends/cpu/isa.h"
#include "ops/draft/args.h"

// clang-format off
DSPARK_CPU_DECLARE(
    // A range of pairs (row, tile).
    void shard_statistics(const ::dspark::RowStatisticsArgs& args, int64_t begin, int64_t end);
    void draw_shard(const ::dspark::DrawShardArgs& args, int64_t row_begin, int64_t row_end))
// clang-format on

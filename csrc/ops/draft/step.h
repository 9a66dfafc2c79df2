// One launch of markov_sample, and the device memory that launches of a call share.
#pragma once

#include "device/backend.h"
#include "ops/draft/args.h"
#include "ops/draft/tuning.h"

namespace dspark::draft {

// Nothing needs to be cleared beforehand: the first launch of a call clears the counters and flags.
struct MarkovScratch {
    Global<uint32_t> tickets;       // [n + 1] of each launch
    Global<uint32_t> tiles_done;    // [B] tiles of rows of a request whose statistics are there
    Global<uint32_t> inputs_ready;  // [B] k + 1: the inputs of draft k are there
    Global<int32_t> tile_first;     // [B, tiles] of the row being drawn from, if greedy
    Global<double> tile_scale;      // [B, tiles]
};

// The launch that computes the logits of draft k, after it has drawn draft k - 1. Its jobs, by
// ticket: what produces inputs; the logits; columns to fill.
struct MarkovStep {
    MarkovArgs args;
    MarkovScratch scratch;
    LogitsPlan plan;
    MatrixPlan matrix;
    int64_t k;
    int64_t producers;
    int64_t logits_jobs;
    int64_t lane_jobs;  // of `plan`; differs from logits_jobs where matrix units are to be used
    int64_t fill_jobs;
    bool is_ordered;  // jobs go by tickets, and inputs are awaited
};

constexpr int kFillRows = 64;  // rows of logits of a fill job

}  // namespace dspark::draft

namespace dspark::DSPARK_ISA::draft {
using dspark::draft::kFillRows;
using dspark::draft::kPassRows;
using dspark::draft::MarkovScratch;
using dspark::draft::MarkovStep;
using dspark::draft::MatrixPlan;
}  // namespace dspark::DSPARK_ISA::draft

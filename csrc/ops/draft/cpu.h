// CPU kernels of the draft family, each on a range so that the caller can spread it over threads.
#pragma once

#include "backends/cpu/isa.h"
#include "ops/draft/args.h"

// clang-format off
DSPARK_CPU_DECLARE(
    // Fills the columns of `logits` no draft id maps to with -inf; rows = pairs (request, draft).
    void mask_logits(const ::dspark::MarkovArgs& args, int64_t row_begin, int64_t row_end);
    // Embeds the token before draft k; returns a request whose token has no embedding, or -1.
    int64_t embed_previous(const ::dspark::MarkovArgs& args, int64_t k);
    // Logits of draft k, base + bias, for a range of groups of kBiasRows draft ids, all requests.
    void markov_logits(const ::dspark::MarkovArgs& args, int64_t k, int64_t group_begin,
                       int64_t group_end);
    // Draws draft k from the logits kept, for a range of requests.
    void draw_tokens(const ::dspark::MarkovArgs& args, int64_t k, int64_t request_begin,
                     int64_t request_end);
    // to[i] = data[i] in float32.
    void widen_weight(::dspark::FloatType type, const void* data, int64_t size, float* to);
    // `scratch` holds padded_size floats.
    void confidence(const ::dspark::ConfidenceArgs& args, int64_t row_begin, int64_t row_end,
                    float* scratch);
    void calibrate(const ::dspark::CalibrateArgs& args, int64_t row_begin, int64_t row_end))
// clang-format on

// The CPU kernels of the sampling family, declared once per instruction set.
#pragma once

#include <cstdint>

#include "backends/cpu/isa.h"
#include "ops/sampling/args.h"

// Kernels over a range of rows or requests; ranges may run in different threads.
//
// prepare_laws fills laws [begin, end) of the B * (K + 1) target laws followed by the B * K draft
// laws; without it every law is filled by the request that needs it.
DSPARK_CPU_DECLARE(void target_probs(const TargetProbsArgs& args, int64_t begin, int64_t end);
                   void sample(const SampleArgs& args, int64_t begin, int64_t end);
                   void prepare_laws(const VerifyArgs& args, int64_t begin, int64_t end);
                   void rejection_sample(const VerifyArgs& args, int64_t begin, int64_t end);
                   void block_acceptance(const VerifyArgs& args, int64_t begin, int64_t end))

// Single evaluations of docs/numerics.md sections 2 and 5, for known-answer tests.
DSPARK_CPU_DECLARE(void evaluate_exp2_nonpositive(const float* z, float* out, int64_t count);
                   double evaluate_exp2_double(double z); double evaluate_log2_double(double y);
                   double evaluate_uniform(int64_t seed, int64_t position, uint32_t stream,
                                           int32_t slot);
                   void evaluate_philox4x32(const uint32_t* counter, const uint32_t* key,
                                            uint32_t* out))

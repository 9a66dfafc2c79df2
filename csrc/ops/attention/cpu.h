// Entry points of the attention CPU kernels, one set per instruction set.
#pragma once

#include "backends/cpu/isa.h"
#include "ops/attention/args.h"

// Computes tasks task_begin .. task_end - 1: task t is head t % num_kv_heads of groups[t /
// num_kv_heads]. `scratch` holds attention_scratch_floats() of the largest of those groups.
DSPARK_CPU_DECLARE(void attention(const AttentionArgs& args, int64_t task_begin, int64_t task_end,
                                  float* scratch))

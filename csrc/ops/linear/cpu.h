// Entry points of the linear CPU kernels, one set per instruction set.
#pragma once

#include "backends/cpu/isa.h"
#include "ops/linear/args.h"

// Packs panels panel_begin .. panel_end - 1.
DSPARK_CPU_DECLARE(void pack_linear(const PackLinearArgs& args, int64_t panel_begin,
                                    int64_t panel_end))
// Computes tasks task_begin .. task_end - 1 of num_panels * linear_row_chunks(num_rows): task t is
// row chunk t % chunks of panel t / chunks.
DSPARK_CPU_DECLARE(void linear(const LinearArgs& args, int64_t task_begin, int64_t task_end))

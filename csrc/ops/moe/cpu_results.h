// How the CPU kernels of the expert layer store what they have computed.
#pragma once

#include "device/narrow.h"
#include "ops/moe/args_experts.h"

namespace dspark::DSPARK_ISA::experts {

// Rounds `count` floats to the type of the result, from entry `at` on.
inline void store_results(const GroupedGemmArgs& args, const float* values, int64_t count,
                          int64_t at) {
    const auto round = [&](auto* out) {
        for (int64_t i = 0; i < count; ++i) narrow(values[i], &out[at + i]);
    };
    switch (args.out_dtype) {
        case FloatType::kFloat32:
            return round(static_cast<float*>(args.out));
        case FloatType::kBFloat16:
            return round(static_cast<BFloat16*>(args.out));
        case FloatType::kFloat16:
            return round(static_cast<Float16*>(args.out));
    }
}

}  // namespace dspark::DSPARK_ISA::experts

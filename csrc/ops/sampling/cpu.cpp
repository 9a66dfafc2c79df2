// CPU kernels of the sampling family; compiled once per instruction set, in namespace dspark::DSPARK_ISA.
#include "ops/sampling/cpu.h"

#include "backends/cpu/simd.h"
#include "device/numeric.h"
#include "device/philox.h"

namespace dspark::DSPARK_ISA {

void evaluate_exp2_nonpositive(const float* z, float* out, int64_t count) {
    int64_t i = 0;
    for (; i + FloatVector::kWidth <= count; i += FloatVector::kWidth) {
        store(out + i, exp2_nonpositive(load(z + i)));
    }
    for (; i < count; ++i) out[i] = exp2_nonpositive(z[i]);
}

double evaluate_exp2_double(double z) { return exp2_double(z); }

double evaluate_log2_double(double y) { return log2_double(y); }

double evaluate_uniform(int64_t seed, int64_t position, uint32_t stream, int32_t slot) {
    return uniform(seed, position, static_cast<Stream>(stream), slot);
}

void evaluate_philox4x32(const uint32_t* counter, const uint32_t* key, uint32_t* out) {
    const PhiloxCounter result =
        philox4x32({{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
    for (int i = 0; i < 4; ++i) out[i] = result.word[i];
}

}  // namespace dspark::DSPARK_ISA

// The table of launch functions, once for each GPU compiler.
#include "host/gpu_backend.h"

#include "device/backend.h"
#include "ops/draft/launch.h"
#include "ops/moe/launch.h"
#include "ops/moe/launch_experts.h"
#include "ops/router/launch.h"
#include "ops/sampling/launch.h"
#include "ops/verify/launch.h"

#define DSPARK_TEXT_OF(name) #name
#define DSPARK_TEXT(name) DSPARK_TEXT_OF(name)

namespace dspark::DSPARK_ISA {

const GpuBackend* gpu_backend() {
    static const GpuBackend table = {DSPARK_TEXT(DSPARK_ISA), &error_string,   &draft_launch(),
                                     &experts_launch(),       &moe_launch(),   &router_launch(),
                                     &sampling_launch(),      &verify_launch()};
    return &table;
}

}  // namespace dspark::DSPARK_ISA

#ifdef DSPARK_EXPORT_GPU_TABLE
extern "C" __attribute__((visibility("default")))
const dspark::GpuBackend* DSPARK_EXPORT_GPU_TABLE() {
    return dspark::DSPARK_ISA::gpu_backend();
}
#endif

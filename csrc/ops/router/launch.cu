// The launch sequence of the router family: one text for every device compiler and the emulator.
#include "ops/router/launch.h"

#include "device/sequence.h"
#include "ops/router/kernel.h"

namespace dspark::DSPARK_ISA {
namespace {

using namespace router;

// The kernel with the fewest experts per thread that holds all: a warp up to 16 of them.
template <int W>
void launch_route(Sequence& sequence, const RouteArgs& args) {
    const char* const name = "route";
    const int experts = args.num_experts;
    const int64_t blocks = (args.num_tokens + kWarps<W> - 1) / kWarps<W>;
    if (experts <= 2 * W) return sequence.run(name, route_by_warp_kernel<W, 2>, blocks, args);
    if (experts <= 4 * W) return sequence.run(name, route_by_warp_kernel<W, 4>, blocks, args);
    if (experts <= 8 * W) return sequence.run(name, route_by_warp_kernel<W, 8>, blocks, args);
    if (experts <= 16 * W) return sequence.run(name, route_by_warp_kernel<W, 16>, blocks, args);
    if (experts <= 4 * kThreads) {
        return sequence.run(name, route_by_block_kernel<W, 4>, args.num_tokens, args);
    }
    sequence.run(name, route_by_block_kernel<W, 16>, args.num_tokens, args);
}

int route(const RouteArgs& args, LaunchTarget& target) {
    return with_warp_size([&](auto warp_size) {
        Sequence sequence(target);
        launch_route<warp_size>(sequence, args);
        return sequence.code();
    });
}

}  // namespace

const RouterLaunch& router_launch() {
    static const RouterLaunch functions = {route};
    return functions;
}

}  // namespace dspark::DSPARK_ISA

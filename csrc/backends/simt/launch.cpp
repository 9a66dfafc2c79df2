// Settings, and a launch from its first block to its last.
#include <numeric>

#include "backends/simt/machine.h"
#include "backends/simt/memory.h"
#include "backends/simt/ordering.h"

namespace dspark::emulator {

Machine machine;
Thread* current = nullptr;

void set_level(Level level) {
    machine.settings.level = level;
}
void set_seed(uint64_t seed) {
    machine.settings.seed = seed;
}
void set_poison(uint32_t pattern) {
    machine.settings.poison = pattern;
}
void set_access_limit(int64_t accesses) {
    machine.settings.access_limit = accesses;
}
void set_warp_size(int warp_size) {
    machine.settings.warp_size = warp_size;
}
int warp_size() {
    return machine.settings.warp_size;
}
void set_warpgroups(bool has_them) {
    machine.settings.warpgroups = has_them;
}
bool has_warpgroups() {
    return machine.settings.warpgroups && machine.settings.warp_size == 32;
}
void set_scaled_matrix_unit(bool has_one) {
    machine.settings.scaled_matrix_unit = has_one;
}
bool has_scaled_matrix_unit() {
    return machine.settings.scaled_matrix_unit && machine.settings.warp_size == 64;
}
void set_multiprocessors(int count) {
    machine.settings.multiprocessors = count;
}
int multiprocessors() {
    return machine.settings.multiprocessors;
}
void set_cache(int64_t bytes) {
    machine.settings.cache = bytes > 0 ? std::make_unique<Cache>(bytes) : nullptr;
}
void set_launch_hook(LaunchHook hook) {
    machine.settings.hook = hook;
}

int thread_index() {
    return current->index;
}
Dim3 block_index() {
    return machine.block;
}
Dim3 grid_size() {
    return machine.grid;
}

namespace {

// Block i of the schedule: a permutation, the identity for seed 0.
struct BlockOrder {
    int64_t count;
    int64_t stride = 1;
    int64_t start = 0;

    explicit BlockOrder(int64_t blocks) : count(blocks) {
        if (machine.settings.seed == 0) return;
        start = static_cast<int64_t>(next_random() % static_cast<uint64_t>(count));
        stride = 1 + static_cast<int64_t>(next_random() % static_cast<uint64_t>(count));
        while (std::gcd(stride, count) != 1) ++stride;
    }
    int64_t operator[](int64_t i) const { return (start + i * stride) % count; }
};

bool is_launchable(Dim3 grid, int threads) {
    return !machine.running && grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.y <= 65535 &&
           grid.z <= 65535 && threads > 0 && threads <= kMaxThreads;
}

void begin_launch(const char* name, const KernelCall& call, Dim3 grid, int threads) {
    Machine& m = machine;
    m.running = true;
    m.failure = Error::kNone;
    m.kernel = name;
    m.call = &call;
    m.grid = grid;
    m.block = {};
    m.thread_count = threads;
    m.counters = &counters_of(m.kernel);
    m.random = m.settings.seed;
    if (m.clock > 0x80000000u) {
        reset_shadows();
        m.clock = 0;
    }
    m.launch_time = m.clock + 1;
    begin_ordering_of_launch();
    adopt_thread(m.scheduler);
}

}  // namespace

int launch_kernel(const char* name, const KernelCall& call, Dim3 grid, int threads) {
    Machine& m = machine;
    if (m.settings.hook != nullptr) {
        const int extent[3] = {grid.x, grid.y, grid.z};
        return m.settings.hook(name, extent, threads, call.args, call.args_bytes);
    }
    if (!is_launchable(grid, threads)) {
        m.kernel = name;
        write_report(Error::kBadLaunch,
                     format("grid (%d, %d, %d) of %d threads", grid.x, grid.y, grid.z, threads),
                     -1);
        return static_cast<int>(Error::kBadLaunch);
    }
    begin_launch(name, call, grid, threads);
    m.counters->launches += 1;
    const int64_t plane = int64_t{grid.x} * grid.y;
    const BlockOrder order(plane * grid.z);
    for (int64_t i = 0; i < order.count && m.failure == Error::kNone; ++i) {
        const int64_t block = order[i];
        m.counters->blocks += 1;
        run_block({static_cast<int>(block % grid.x), static_cast<int>(block / grid.x % grid.y),
                   static_cast<int>(block / plane)});
    }
    m.running = false;
    return static_cast<int>(m.failure);
}

}  // namespace dspark::emulator

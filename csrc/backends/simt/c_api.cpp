// The emulator's settings and results for callers that load the shared library, such as tests in
// Python. Each function does what its namesake in emulator.h does.
#include "backends/simt/emulator.h"

#define DSPARK_EXPORT extern "C" __attribute__((visibility("default")))

namespace emulator = dspark::emulator;

DSPARK_EXPORT void dspark_simt_set_level(int level) {
    emulator::set_level(static_cast<emulator::Level>(level));
}
DSPARK_EXPORT void dspark_simt_set_seed(uint64_t seed) {
    emulator::set_seed(seed);
}
DSPARK_EXPORT void dspark_simt_set_poison(uint32_t pattern) {
    emulator::set_poison(pattern);
}
DSPARK_EXPORT void dspark_simt_set_access_limit(int64_t accesses) {
    emulator::set_access_limit(accesses);
}
DSPARK_EXPORT void dspark_simt_set_warp_size(int warp_size) {
    emulator::set_warp_size(warp_size);
}
DSPARK_EXPORT void dspark_simt_set_warpgroups(int has_them) {
    emulator::set_warpgroups(has_them != 0);
}
DSPARK_EXPORT void dspark_simt_set_scaled_matrix_unit(int has_one) {
    emulator::set_scaled_matrix_unit(has_one != 0);
}
DSPARK_EXPORT void dspark_simt_set_multiprocessors(int count) {
    emulator::set_multiprocessors(count);
}
DSPARK_EXPORT void dspark_simt_set_cache(int64_t bytes) {
    emulator::set_cache(bytes);
}
DSPARK_EXPORT void dspark_simt_set_launch_hook(emulator::LaunchHook hook) {
    emulator::set_launch_hook(hook);
}
// 0, or 1 if the buffer overlaps another one.
DSPARK_EXPORT int dspark_simt_register_buffer(const void* begin, int64_t bytes, const char* name,
                                              int flags) {
    return emulator::register_buffer(begin, bytes, name, flags) ? 0 : 1;
}
// 0, or 1 if there is no such buffer.
DSPARK_EXPORT int dspark_simt_unregister_buffer(const void* begin) {
    return emulator::unregister_buffer(begin) ? 0 : 1;
}
DSPARK_EXPORT void dspark_simt_unregister_all_buffers() {
    emulator::unregister_all_buffers();
}
DSPARK_EXPORT const char* dspark_simt_last_report() {
    return emulator::last_report();
}
DSPARK_EXPORT int dspark_simt_last_error() {
    return static_cast<int>(emulator::last_error());
}
DSPARK_EXPORT void dspark_simt_clear_error() {
    emulator::clear_error();
}
DSPARK_EXPORT const char* dspark_simt_error_text(int code) {
    return emulator::error_text(code);
}
DSPARK_EXPORT const char* dspark_simt_counters_json() {
    return emulator::counters_json();
}
DSPARK_EXPORT void dspark_simt_reset_counters() {
    emulator::reset_counters();
}

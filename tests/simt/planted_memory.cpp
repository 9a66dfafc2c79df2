// Accesses that are out of bounds, unaligned, not allowed, or of memory nobody wrote.
#include "device/lanes.h"
#include "planted.h"

namespace dspark::DSPARK_ISA {
namespace {

struct CopyArgs {
    Global<const float> from;  // [256]
    Global<float> to;          // [256]
    int count;
};
struct CopyShared {
    SharedArray<float, kThreads> tile;
};

// Entries [0, count) of from, plus one.
template <int W>
DSPARK_KERNEL(kThreads)
void add_one(CopyArgs args) {
    check_warp_size<W>();
    const int t = thread_idx();
    if (t < args.count) args.to[t] = args.from[t] + 1.0f;
}

// By 16 bytes, from an offset in bytes.
template <int W, int kOffset>
DSPARK_KERNEL(kThreads)
void copy_by_16(CopyArgs args) {
    check_warp_size<W>();
    const int t = thread_idx();
    if (t < args.count / 4 - 1) store16(args.to, 16 * t, load16(args.from, 16 * t + kOffset));
}

// Through shared memory, with kShift entries too far.
template <int W, int kShift>
DSPARK_KERNEL(kThreads)
void through_shared(CopyArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(CopyShared, shared);
    const int t = thread_idx();
    shared.tile[t + kShift] = args.from[t] + 1.0f;
    sync_block();
    args.to[t] = shared.tile[t + kShift];
}

// Leaves out thread kSkipped when it fills the tile.
template <int W, int kSkipped>
DSPARK_KERNEL(kThreads)
void read_unwritten_shared(CopyArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(CopyShared, shared);
    const int t = thread_idx();
    if (t != kSkipped) shared.tile[t] = args.from[t] + 1.0f;
    sync_block();
    args.to[t] = shared.tile[t];
}

// In place: to is a workspace that an earlier kernel must have filled.
template <int W>
DSPARK_KERNEL(kThreads)
void add_one_in_place(CopyArgs args) {
    check_warp_size<W>();
    args.to[thread_idx()] += 1.0f;
}
template <int W, int kCount>
DSPARK_KERNEL(kThreads)
void copy_first(CopyArgs args) {
    check_warp_size<W>();
    const int t = thread_idx();
    if (t < kCount) args.to[t] = args.from[t];
}

}  // namespace
}  // namespace dspark::DSPARK_ISA

namespace dspark::planted {
namespace {

using namespace dspark::DSPARK_ISA;
using emulator::kReadOnly;
using emulator::kReadWrite;
using emulator::kUninitialised;

// What a kernel gets, and which of it is wrong.
struct Setup {
    int from_size = kBlock;
    int to_size = kBlock;
    int to_flags = kReadWrite;
    bool from_is_null = false;
    float added = 1.0f;
    int checked = kBlock;
};

Outcome run_copy(void (*kernel)(CopyArgs), Setup setup, void (*before)(CopyArgs) = nullptr) {
    DeviceVector<float> from("from", setup.from_size, kReadOnly);
    DeviceVector<float> to("to", setup.to_size, setup.to_flags);
    for (int i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
    const CopyArgs args = {setup.from_is_null ? nullptr : from.data(), to.data(), kBlock};
    int code = 0;
    if (before != nullptr) code = launch("before", before, {1, 1, 1}, kBlock, nullptr, args);
    if (code == 0) code = launch("copy", kernel, {1, 1, 1}, kBlock, nullptr, args);
    const int checked = code == 0 ? setup.checked : 0;
    return {code, all_of(checked, [&](int i) { return to[i] == from[i] + setup.added; })};
}

#define DSPARK_PLANTED(Name, name, ...)            \
    struct Name {                                  \
        static constexpr const char* kName = name; \
        template <int W>                           \
        static Outcome run() {                     \
            Setup setup;                           \
            __VA_ARGS__;                           \
        }                                          \
    };

DSPARK_PLANTED(LoadOutOfBounds, "load_out_of_bounds", setup.from_size = 255;
               return run_copy(add_one<W>, setup))
DSPARK_PLANTED(StoreOutOfBounds, "store_out_of_bounds", setup.to_size = 255;
               return run_copy(add_one<W>, setup))
DSPARK_PLANTED(InBounds, "in_bounds", return run_copy(add_one<W>, setup))
DSPARK_PLANTED(NullPointer, "null_pointer", setup.from_is_null = true;
               return run_copy(add_one<W>, setup))
DSPARK_PLANTED(StoreReadOnly, "store_read_only", setup.to_flags = kReadOnly;
               return run_copy(add_one<W>, setup))
DSPARK_PLANTED(Unaligned, "unaligned", return run_copy(copy_by_16<W, 4>, setup))
DSPARK_PLANTED(Aligned, "aligned", setup.added = 0; setup.checked = kBlock - 4;
               return run_copy(copy_by_16<W, 0>, setup))
DSPARK_PLANTED(SharedOutOfBounds, "shared_out_of_bounds",
               return run_copy(through_shared<W, 1>, setup))
DSPARK_PLANTED(SharedBelowBounds, "shared_below_bounds",
               return run_copy(through_shared<W, -1>, setup))
DSPARK_PLANTED(SharedInBounds, "shared_in_bounds", return run_copy(through_shared<W, 0>, setup))
DSPARK_PLANTED(UnwrittenShared, "unwritten_shared",
               return run_copy(read_unwritten_shared<W, 200>, setup))
DSPARK_PLANTED(WrittenShared, "written_shared",
               return run_copy(read_unwritten_shared<W, -1>, setup))
DSPARK_PLANTED(UnwrittenWorkspace, "unwritten_workspace", setup.to_flags = kUninitialised;
               return run_copy(add_one_in_place<W>, setup, copy_first<W, 255>))
DSPARK_PLANTED(WrittenWorkspace, "written_workspace", setup.to_flags = kUninitialised;
               return run_copy(add_one_in_place<W>, setup, copy_first<W, 256>))

}  // namespace

std::vector<Case> memory_cases() {
    return {make_case<LoadOutOfBounds>(),
            make_case<StoreOutOfBounds>(),
            make_case<InBounds>(),
            make_case<NullPointer>(),
            make_case<StoreReadOnly>(),
            make_case<Unaligned>(),
            make_case<Aligned>(),
            make_case<SharedOutOfBounds>(),
            make_case<SharedBelowBounds>(),
            make_case<SharedInBounds>(),
            make_case<UnwrittenShared>(),
            make_case<WrittenShared>(),
            make_case<UnwrittenWorkspace>(),
            make_case<WrittenWorkspace>()};
}

}  // namespace dspark::planted

// The launches of an operator, one after the other on a stream.
#pragma once

#include <cstdint>

#include "device/lanes.h"
#include "device/launch_code.h"

namespace dspark::DSPARK_ISA {

// One-dimensional launches on one stream; after the first failure, which the target remembers, the
// rest is skipped.
class Sequence {
  public:
    explicit Sequence(LaunchTarget& target) : target_(target) {}

    template <class Args>
    void run(const char* name, void (*kernel)(Args), int64_t blocks, const Args& args) {
        if (code_ != 0) return;
        code_ = blocks > kMostBlocks ? kTooManyBlocks
                                     : launch(name, kernel, {static_cast<int>(blocks), 1, 1},
                                              kThreads, target_.stream, args);
        if (code_ != 0) target_.failed = name;
    }
    // A kernel of another number of threads, with a DSPARK_LARGE_SHARED object of type Shared.
    template <class Shared, class Args>
    void run_large(const char* name, void (*kernel)(Args), int64_t blocks, int threads,
                   const Args& args) {
        if (code_ != 0) return;
        code_ = blocks > kMostBlocks
                    ? kTooManyBlocks
                    : launch_large<Shared>(name, kernel, {static_cast<int>(blocks), 1, 1}, threads,
                                           target_.stream, args);
        if (code_ != 0) target_.failed = name;
    }
    int code() const { return code_; }

  private:
    static constexpr int64_t kMostBlocks = (int64_t{1} << 32) / kThreads - 1;  // HIP counts threads

    LaunchTarget& target_;
    int code_ = 0;
};

}  // namespace dspark::DSPARK_ISA

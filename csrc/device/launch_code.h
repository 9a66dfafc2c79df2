// Where a launch sequence runs and how it tells that it failed.
#pragma once

namespace dspark {

struct LaunchTarget {
    void* stream;                  // the vendor's
    const char* failed = nullptr;  // the kernel whose launch failed
};

// What a launch sequence returns besides 0 and the error codes of the vendor: more blocks than a
// grid can have, some 16 million.
constexpr int kTooManyBlocks = -1;

}  // namespace dspark

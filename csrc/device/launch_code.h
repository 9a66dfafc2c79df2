// What a launch sequence returns besides 0 and the error codes of the vendor.
#pragma once

namespace dspark {

// More blocks than a grid can have, some 16 million.
constexpr int kTooManyBlocks = -1;

}  // namespace dspark

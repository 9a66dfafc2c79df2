// A string argument of an operator.
#pragma once

#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <string>

namespace dspark::host {

// Operators take it in place of std::string: torch's conversion to that leaves a copy behind at
// every call.
struct Text : std::string {
    using std::string::string;
};

}  // namespace dspark::host

template <>
struct torch::stable::detail::ToImpl<dspark::host::Text> {
    // Takes over the string.
    static dspark::host::Text call(StableIValue value, uint64_t, bool) {
        const auto handle = torch::stable::detail::to<StringHandle>(value);
        size_t length = 0;
        const char* data = nullptr;
        STABLE_TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
        STABLE_TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
        dspark::host::Text text(data, length);
        STABLE_TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
        return text;
    }
};

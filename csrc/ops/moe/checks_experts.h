// From tensors to the argument structs of the expert kernels: every check of the family.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "host/check.h"
#include "host/tensor.h"
#include "ops/moe/args_experts.h"
#include "ops/moe/checks.h"

namespace dspark::experts {

using host::Arg;
using host::fail;
using host::ScalarType;
using host::Tensor;
using moe::OptionalTensor;

constexpr const char* kGemm = "grouped_gemm";
constexpr const char* kSwiglu = "swiglu";
constexpr int64_t kMostColumns = int64_t{1} << 30;  // of weights and of what comes out

inline void check_float(const char* op, const char* name, ScalarType dtype) {
    if (dtype == ScalarType::Float || dtype == ScalarType::BFloat16 || dtype == ScalarType::Half) {
        return;
    }
    fail(op, name,
         std::string("expected float32 or bfloat16 or float16, got ") + host::dtype_name(dtype));
}

inline FloatType float_type(ScalarType dtype) {
    return dtype == ScalarType::Float      ? FloatType::kFloat32
           : dtype == ScalarType::BFloat16 ? FloatType::kBFloat16
                                           : FloatType::kFloat16;
}

// ---- weights ------------------------------------------------------------------------------------

// The format of plain numbers or of codes, by its name; no name for plain numbers.
inline WeightFormat weight_format(const Tensor& weight, const std::string& format) {
    if (format.empty()) {
        const ScalarType dtype = weight.scalar_type();
        if (dtype == ScalarType::Float) return WeightFormat::kFloat32;
        if (dtype == ScalarType::BFloat16) return WeightFormat::kBFloat16;
        if (dtype == ScalarType::Half) return WeightFormat::kFloat16;
        fail(kGemm, "format",
             std::string("expected the format of the codes, fp8_e4m3, fp8_e4m3fnuz or mxfp4, for a "
                         "weight of dtype ") +
                 host::dtype_name(dtype));
    }
    const bool is_known = format == "fp8_e4m3" || format == "fp8_e4m3fnuz" || format == "mxfp4";
    if (!is_known) {
        fail(kGemm, "format", "expected fp8_e4m3, fp8_e4m3fnuz or mxfp4, got " + format);
    }
    Arg(kGemm, "weight", weight).dtype({ScalarType::Byte});
    if (format == "fp8_e4m3") return WeightFormat::kFp8E4M3;
    return format == "mxfp4" ? WeightFormat::kMxFp4 : WeightFormat::kFp8E4M3Fnuz;
}

inline bool has_codes(WeightFormat format) {
    return format == WeightFormat::kFp8E4M3 || format == WeightFormat::kFp8E4M3Fnuz ||
           format == WeightFormat::kMxFp4;
}

// How the weights are stored, as the operator is told. `size` is [N, K] for prepared weights.
struct WeightStorage {
    const std::string& format;
    const std::vector<int64_t>& block;
    const std::string& layout;
    const std::vector<int64_t>& size;
};

inline void check_scale(const Tensor& weight, const OptionalTensor& scale,
                        const std::vector<int64_t>& block, ExpertWeights& out) {
    if (!has_codes(out.format)) {
        if (scale) {
            fail(kGemm, "scales",
                 std::string("expected none for weights of dtype ") +
                     host::dtype_name(weight.scalar_type()));
        }
        return;
    }
    if (!scale) fail(kGemm, "scales", "expected the scales of the blocks, got none");
    if (block.size() != 2) fail(kGemm, "block", "expected two numbers, rows and columns");
    for (const int64_t size : block) moe::check_range(kGemm, "block", size, 1, kMostColumns);
    if (out.format == WeightFormat::kMxFp4 && block[1] % 2 != 0) {
        fail(kGemm, "block", "expected an even number of columns, as two fp4 share a byte");
    }
    if (out.layout == WeightLayout::kPairs && block[1] % 32 != 0) {
        fail(kGemm, "block", "expected a multiple of 32 columns for weights in pairs");
    }
    out.block_rows = block[0];
    out.block_columns = block[1];
    out.scale_rows = (out.rows + block[0] - 1) / block[0];
    out.scale_columns = (out.columns + block[1] - 1) / block[1];
    Arg arg(kGemm, "scales", *scale);
    arg.on_device_of(weight).dtype({ScalarType::Float, ScalarType::Byte});
    if (out.layout == WeightLayout::kPanels && out.format == WeightFormat::kMxFp4) {
        if (block[0] != 1 || block[1] != 32) {
            fail(kGemm, "block", "expected (1, 32) for mxfp4 in panels");
        }
        arg.dtype({ScalarType::Byte})
            .shape({{"E", out.num_experts},
                    {"panels", (out.rows + 63) / 64},
                    {"steps", (out.columns + 255) / 256},
                    {"rows", 64},
                    {"blocks", 8}});
    } else {
        arg.shape({{"E", out.num_experts},
                   {"blocks of rows", out.scale_rows},
                   {"blocks of columns", out.scale_columns}});
    }
    arg.dense();
    out.scale = scale->const_data_ptr();
    out.scale_is_e8m0 = scale->scalar_type() == ScalarType::Byte;
}

inline WeightLayout weight_layout(const std::string& layout) {
    if (layout == "rows") return WeightLayout::kRows;
    if (layout == "panels") return WeightLayout::kPanels;
    if (layout == "pairs") return WeightLayout::kPairs;
    fail(kGemm, "layout", "expected rows, panels or pairs, got " + layout);
}

// N and K of weights in rows, from their shape.
inline void check_rows_layout(const Tensor& weight, ExpertWeights& out) {
    Arg(kGemm, "weight", weight).shape({{"E"}, {"N"}, {"bytes or K"}});
    out.rows = weight.size(1);
    out.columns = weight.size(2) * (out.format == WeightFormat::kMxFp4 ? 2 : 1);
    out.row_bytes = weight.size(2) * weight.element_size();
}

// N and K as given, and a shape that fits them.
inline void check_prepared_layout(const Tensor& weight, const std::vector<int64_t>& size,
                                  ExpertWeights& out) {
    if (out.format == WeightFormat::kFloat32) {
        fail(kGemm, "layout", "expected rows for weights of dtype float32");
    }
    for (const int64_t n : size) moe::check_range(kGemm, "size", n, 0, kMostColumns);
    out.rows = size[0];
    out.columns = size[1];
    const int64_t element = weight.element_size();
    if (out.format == WeightFormat::kMxFp4 && out.columns % 2 != 0) {
        fail(kGemm, "size", "expected an even K, as two fp4 share a byte");
    }
    out.row_bytes = out.format == WeightFormat::kMxFp4 ? out.columns / 2 : out.columns * element;
    Arg arg(kGemm, "weight", weight);
    if (out.layout == WeightLayout::kPanels) {
        arg.shape({{"E"},
                   {"panels", (out.rows + 63) / 64},
                   {"steps", (out.row_bytes + 127) / 128},
                   {"octets", 8},
                   {"chunks", 8},
                   {"rows", 8},
                   {"elements", 16 / element}});
    } else {
        const int64_t padded = (out.columns + 31) / 32 * 32;
        const int64_t bytes = out.format == WeightFormat::kMxFp4 ? padded / 2 : padded * element;
        arg.shape({{"E"},
                   {"panels", (out.rows + 15) / 16},
                   {"words", bytes / 4},
                   {"rows", 16},
                   {"elements", 4 / element}});
    }
}

inline ExpertWeights check_weight(const Tensor& weight, const OptionalTensor& scale,
                                  const WeightStorage& storage) {
    ExpertWeights out = {};
    out.format = weight_format(weight, storage.format);
    out.layout = weight_layout(storage.layout);
    const bool is_prepared = out.layout != WeightLayout::kRows;
    if (storage.size.size() != (is_prepared ? 2u : 0u)) {
        fail(kGemm, "size",
             is_prepared ? "expected [N, K] for weights in " + storage.layout
                         : std::string("expected none for weights in rows, whose shape tells it"));
    }
    if (is_prepared) {
        check_prepared_layout(weight, storage.size, out);
    } else {
        check_rows_layout(weight, out);
    }
    Arg(kGemm, "weight", weight).dense();
    out.data = weight.const_data_ptr();
    out.num_experts = weight.size(0);
    moe::check_range(kGemm, "weight: E", out.num_experts, 0, moe::kMostExperts);
    moe::check_range(kGemm, "weight: N", out.rows, 0, kMostColumns);
    moe::check_range(kGemm, "weight: K", out.columns, 0, kMostColumns);
    moe::CommonUnit unit;
    unit.add(weight.const_data_ptr());
    if (!is_prepared) unit.add(out.row_bytes);
    out.is_aligned = unit.bytes() == 16;
    check_scale(weight, scale, storage.block, out);
    return out;
}

// ---- grouped_gemm -------------------------------------------------------------------------------

struct PlanTensors {
    const Tensor& sorted;
    const Tensor& inverse;
    const Tensor& tile_expert;
    const Tensor& tile_row;
    const Tensor& tile_size;
};

inline TileTable check_tiles(const PlanTensors& plan, const Tensor& like) {
    const int64_t count = plan.tile_expert.numel();
    const auto check = [&](const char* name, const Tensor& tensor, ScalarType dtype) {
        Arg(kGemm, name, tensor)
            .on_device_of(like)
            .dtype({dtype})
            .shape({{"tiles", count}})
            .dense();
    };
    check("tile_expert", plan.tile_expert, ScalarType::Int);
    check("tile_row", plan.tile_row, ScalarType::Long);
    check("tile_size", plan.tile_size, ScalarType::Int);
    if (count == 0 && plan.inverse.numel() > 0) {
        fail(kGemm, "plan", "expected a plan with tiles: moe.plan(..., tile_rows=64)");
    }
    TileTable tiles = {};
    tiles.expert = static_cast<const int32_t*>(plan.tile_expert.const_data_ptr());
    tiles.row = static_cast<const int64_t*>(plan.tile_row.const_data_ptr());
    tiles.size = static_cast<const int32_t*>(plan.tile_size.const_data_ptr());
    tiles.count = count;
    return tiles;
}

// How the products are summed and what becomes of them, as the operator is told.
struct Epilogue {
    bool exact;
    const std::string& activation;
    std::optional<double> limit;
};

inline float check_limit(const char* op, std::optional<double> limit) {
    if (limit && !(*limit > 0.0)) {
        fail(op, "limit", "expected a number above 0, got " + std::to_string(*limit));
    }
    return limit ? static_cast<float>(*limit) : HUGE_VALF;
}

inline Activation activation_of(const std::string& activation) {
    if (activation.empty()) return Activation::kNone;
    if (activation == "swiglu") return Activation::kSwiglu;
    if (activation == "swiglu_interleaved") return Activation::kSwigluInterleaved;
    fail(kGemm, "activation", "expected swiglu, swiglu_interleaved or none, got " + activation);
}

inline void check_epilogue(const Epilogue& epilogue, GroupedGemmArgs& args) {
    args.activation = activation_of(epilogue.activation);
    if (args.activation == Activation::kNone && epilogue.limit) {
        fail(kGemm, "limit", "expected none without an activation");
    }
    args.limit = check_limit(kGemm, epilogue.limit);
    if (args.activation != Activation::kNone && args.weight.rows % 2 != 0) {
        fail(kGemm, "activation",
             "expected an even number of rows, gates and ups, got N=" +
                 std::to_string(args.weight.rows));
    }
    args.exact = epilogue.exact;
    if (args.exact && args.weight.layout != WeightLayout::kRows) {
        fail(kGemm, "layout", "expected rows for exact sums");
    }
}

// `x` has dense rows.
inline GroupedGemmArgs check_grouped_gemm(const Tensor& x, const ExpertWeights& weight,
                                          const PlanTensors& plan, bool gather, ScalarType dtype,
                                          const Epilogue& epilogue) {
    GroupedGemmArgs args = {};
    args.rows = moe::check_inverse(kGemm, plan.inverse, x);
    Arg(kGemm, "sorted", plan.sorted)
        .on_device_of(x)
        .dtype({ScalarType::Long})
        .shape({{"capacity"}})
        .dense();
    args.rows.sorted = static_cast<const int64_t*>(plan.sorted.const_data_ptr());
    args.rows.capacity = plan.sorted.size(0);
    args.gather = gather;
    Arg(kGemm, "x", x)
        .dtype({ScalarType::Float, ScalarType::BFloat16, ScalarType::Half})
        .shape({gather ? host::Dim{"T", args.rows.num_tokens}
                       : host::Dim{"capacity", args.rows.capacity},
                {"K", weight.columns}});
    args.x = {x.const_data_ptr(), moe::row_stride(x)};
    args.x_dtype = host::float_type(x);
    args.tiles = check_tiles(plan, x);
    args.weight = weight;
    check_float(kGemm, "dtype", dtype);
    args.out_dtype = float_type(dtype);
    check_epilogue(epilogue, args);
    return args;
}

// ---- swiglu -------------------------------------------------------------------------------------

// `gate_up` has dense rows.
inline SwigluArgs check_swiglu(const Tensor& gate_up, std::optional<double> limit,
                               bool interleaved) {
    Arg(kSwiglu, "gate_up", gate_up)
        .dtype({ScalarType::Float, ScalarType::BFloat16, ScalarType::Half})
        .shape({{"rows"}, {"2 * width"}});
    if (gate_up.size(1) % 2 != 0) {
        fail(kSwiglu, "gate_up",
             "expected an even number of columns, got " + host::shape_text(gate_up));
    }
    SwigluArgs args = {};
    args.limit = check_limit(kSwiglu, limit);
    args.gate_up = {gate_up.const_data_ptr(), moe::row_stride(gate_up)};
    args.dtype = host::float_type(gate_up);
    args.num_rows = gate_up.size(0);
    args.width = gate_up.size(1) / 2;
    args.interleaved = interleaved;
    return args;
}

}  // namespace dspark::experts

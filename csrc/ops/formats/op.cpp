// Checks, allocation and dispatch of the formats family.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <string>
#include <vector>

#include "host/check.h"
#include "host/tensor.h"
#include "ops/formats/cpu.h"

namespace dspark {
namespace {

using host::Arg;
using host::fail;
using host::ScalarType;
using host::Tensor;

constexpr int64_t kMinCodesPerThread = 1 << 15;

std::vector<int64_t> sizes_of(const Tensor& tensor) {
    return {tensor.sizes().begin(), tensor.sizes().end()};
}

CodeFormat code_format(const char* op, const std::string& format) {
    if (format == "fp8_e4m3") return CodeFormat::kFp8E4M3;
    if (format == "fp8_e4m3fnuz") return CodeFormat::kFp8E4M3Fnuz;
    if (format == "fp4_e2m1") return CodeFormat::kFp4E2M1;
    if (format == "e8m0" && std::string(op) == "decode") return CodeFormat::kE8M0;
    fail(op, "format",
         std::string("expected fp8_e4m3, fp8_e4m3fnuz") +
             (std::string(op) == "decode" ? ", fp4_e2m1 or e8m0" : " or fp4_e2m1") + ", got " +
             format);
}

void check_has_rows(const char* op, const char* name, const Tensor& tensor) {
    if (tensor.dim() < 1) fail(op, name, "expected at least one dimension, got []");
}

Tensor decode(const Tensor& codes, host::Text format) {
    Arg("decode", "codes", codes).on_cpu().dtype({ScalarType::Byte});
    DecodeArgs args{};
    args.format = code_format("decode", format);
    check_has_rows("decode", "codes", codes);
    std::vector<int64_t> shape = sizes_of(codes);
    if (args.format == CodeFormat::kFp4E2M1) shape.back() *= 2;
    const Tensor source = host::dense(codes);
    Tensor values = host::new_tensor(codes, shape, ScalarType::Float);
    args.codes = source.const_data_ptr<uint8_t>();
    args.values = values.mutable_data_ptr<float>();
    torch::stable::parallel_for(
        0, codes.numel(), kMinCodesPerThread,
        [&](int64_t begin, int64_t end) { DSPARK_CPU_DISPATCH(decode_codes, args, begin, end); });
    return values;
}

Tensor encode(const Tensor& values, host::Text format) {
    Arg("encode", "values", values).on_cpu().dtype({ScalarType::Float});
    EncodeArgs args{};
    args.format = code_format("encode", format);
    check_has_rows("encode", "values", values);
    std::vector<int64_t> shape = sizes_of(values);
    if (args.format == CodeFormat::kFp4E2M1) {
        if (shape.back() % 2 != 0) {
            fail("encode", "values",
                 "expected an even last dimension, as two fp4 share a byte, got " +
                     host::shape_text(values));
        }
        shape.back() /= 2;
    }
    const Tensor source = host::dense(values);
    Tensor codes = host::new_tensor(values, shape, ScalarType::Byte);
    args.values = source.const_data_ptr<float>();
    args.codes = codes.mutable_data_ptr<uint8_t>();
    torch::stable::parallel_for(
        0, codes.numel(), kMinCodesPerThread,
        [&](int64_t begin, int64_t end) { DSPARK_CPU_DISPATCH(encode_codes, args, begin, end); });
    return codes;
}

CodeFormat weight_format(const std::string& format) {
    if (format == "fp8_e4m3") return CodeFormat::kFp8E4M3;
    if (format == "fp8_e4m3fnuz") return CodeFormat::kFp8E4M3Fnuz;
    if (format == "mxfp4") return CodeFormat::kFp4E2M1;
    fail("dequantize", "format", "expected fp8_e4m3, fp8_e4m3fnuz or mxfp4, got " + format);
}

// Shape of the scales that belong to weights of shape [..., rows, columns].
std::vector<int64_t> scale_shape(std::vector<int64_t> shape, int64_t block_rows,
                                 int64_t block_columns) {
    int64_t& rows = shape[shape.size() - 2];
    int64_t& columns = shape[shape.size() - 1];
    rows = (rows + block_rows - 1) / block_rows;
    columns = (columns + block_columns - 1) / block_columns;
    return shape;
}

void check_scale(const Tensor& scale, const std::vector<int64_t>& expected) {
    Arg("dequantize", "scale", scale).on_cpu().dtype({ScalarType::Float, ScalarType::Byte});
    if (sizes_of(scale) == expected) return;
    std::string text;
    for (int64_t size : expected) text += (text.empty() ? "" : ", ") + std::to_string(size);
    fail("dequantize", "scale",
         "expected shape [" + text + "], one for each block, got " + host::shape_text(scale));
}

Tensor dequantize(const Tensor& weight, const Tensor& scale, host::Text format,
                  std::vector<int64_t> block, ScalarType dtype) {
    constexpr const char* kOp = "dequantize";
    Arg(kOp, "weight", weight).on_cpu().dtype({ScalarType::Byte});
    DequantizeArgs args{};
    args.format = weight_format(format);
    if (weight.dim() < 2) {
        fail(kOp, "weight", "expected shape [..., rows, columns], got " + host::shape_text(weight));
    }
    if (block.size() != 2 || block[0] < 1 || block[1] < 1) {
        fail(kOp, "block", "expected two positive numbers, rows and columns");
    }
    std::vector<int64_t> shape = sizes_of(weight);
    if (args.format == CodeFormat::kFp4E2M1) {
        if (block[1] % 2 != 0) {
            fail(kOp, "block", "expected an even number of columns, as two fp4 share a byte");
        }
        shape.back() *= 2;
    }
    check_scale(scale, scale_shape(shape, block[0], block[1]));
    if (dtype != ScalarType::Float && dtype != ScalarType::BFloat16 && dtype != ScalarType::Half) {
        fail(
            kOp, "dtype",
            std::string("expected float32 or bfloat16 or float16, got ") + host::dtype_name(dtype));
    }
    const Tensor codes = host::dense(weight);
    const Tensor scales = host::dense(scale);
    Tensor out = host::new_tensor(weight, shape, dtype);
    args.weight = codes.const_data_ptr<uint8_t>();
    args.scale = scales.const_data_ptr();
    args.out = out.mutable_data_ptr();
    args.rows = shape[shape.size() - 2];
    args.columns = shape.back();
    args.block_rows = block[0];
    args.block_columns = block[1];
    args.scale_is_e8m0 = scale.scalar_type() == ScalarType::Byte;
    args.out_type = host::float_type(out);
    if (out.numel() == 0) return out;
    torch::stable::parallel_for(0, out.numel() / args.columns,
                                kMinCodesPerThread / args.columns + 1,
                                [&](int64_t begin, int64_t end) {
                                    DSPARK_CPU_DISPATCH(dequantize_rows, args, begin, end);
                                });
    return out;
}

}  // namespace
}  // namespace dspark

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    m.impl("decode", TORCH_BOX(&dspark::decode));
    m.impl("encode", TORCH_BOX(&dspark::encode));
    m.impl("dequantize", TORCH_BOX(&dspark::dequantize));
}

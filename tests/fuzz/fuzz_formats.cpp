// Codes of weights, any bytes: decoding never leaves its arrays, and encoding what was decoded
// gives the same number.
#include <cmath>

#include "fuzzed.h"
#include "ops/formats/cpu.h"

namespace {

using namespace dspark;
using namespace fuzzed;

constexpr CodeFormat kFormats[] = {CodeFormat::kFp8E4M3, CodeFormat::kFp8E4M3Fnuz,
                                   CodeFormat::kFp4E2M1, CodeFormat::kE8M0};

void fuzz_codes(FuzzedDataProvider& in) {
    const CodeFormat format = kFormats[in.ConsumeIntegralInRange<int>(0, 3)];
    const int64_t count = in.ConsumeIntegralInRange<int64_t>(0, 70);
    const int64_t values = format == CodeFormat::kFp4E2M1 ? 2 * count : count;
    const auto codes = numbers<uint8_t>(in, count, 0, 255);
    const Array<float> decoded(values), again(values);
    baseline::decode_codes({codes, decoded, format}, 0, count);
    if (format == CodeFormat::kE8M0) return;
    const Array<uint8_t> encoded(count);
    baseline::encode_codes({decoded, encoded, format}, 0, count);
    baseline::decode_codes({encoded, again, format}, 0, count);
    for (int64_t i = 0; i < values; ++i) {
        const bool same = std::isnan(decoded[i]) ? std::isnan(again[i]) : decoded[i] == again[i];
        require(same, "a number of the format is not its own nearest");
    }
    const auto any = floats(in, values);
    baseline::encode_codes({any, encoded, format}, 0, count);
    baseline::decode_codes({encoded, again, format}, 0, count);
    for (int64_t i = 0; i < values; ++i) {
        const bool is_number = format == CodeFormat::kFp4E2M1 || !std::isnan(any[i]);
        require(std::isfinite(again[i]) == is_number, "a number became none, or NaN a number");
    }
}

void fuzz_dequantize(FuzzedDataProvider& in) {
    DequantizeArgs args = {};
    args.format = kFormats[in.ConsumeIntegralInRange<int>(0, 2)];
    const bool is_fp4 = args.format == CodeFormat::kFp4E2M1;
    const int64_t matrices = in.ConsumeIntegralInRange<int64_t>(0, 3);
    args.rows = in.ConsumeIntegralInRange<int64_t>(0, 9);
    args.columns = in.ConsumeIntegralInRange<int64_t>(1, 35) * 2;
    args.block_rows = in.ConsumeIntegralInRange<int64_t>(1, 9);
    args.block_columns = in.ConsumeIntegralInRange<int64_t>(1, 20) * 2;
    const int64_t scales = matrices * ((args.rows + args.block_rows - 1) / args.block_rows) *
                           ((args.columns + args.block_columns - 1) / args.block_columns);
    const auto codes =
        numbers<uint8_t>(in, matrices * args.rows * args.columns / (is_fp4 ? 2 : 1), 0, 255);
    const auto bytes = numbers<uint8_t>(in, scales, 0, 255);
    const auto numbers_of_blocks = floats(in, scales);
    args.weight = codes;
    args.scale_is_e8m0 = in.ConsumeBool();
    args.scale = args.scale_is_e8m0 ? static_cast<const void*>(bytes.data.get())
                                    : static_cast<const void*>(numbers_of_blocks.data.get());
    constexpr FloatType kTypes[] = {FloatType::kFloat32, FloatType::kBFloat16, FloatType::kFloat16};
    args.out_type = kTypes[in.ConsumeIntegralInRange<int>(0, 2)];
    const int64_t size = args.out_type == FloatType::kFloat32 ? 4 : 2;
    const Array<uint8_t> out(matrices * args.rows * args.columns * size);
    args.out = out.data.get();
    baseline::dequantize_rows(args, 0, matrices * args.rows);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    FuzzedDataProvider in(data, size);
    if (in.ConsumeBool()) {
        fuzz_codes(in);
    } else {
        fuzz_dequantize(in);
    }
    return 0;
}

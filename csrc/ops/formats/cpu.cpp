// CPU kernels of the formats family; compiled once per instruction set, in namespace
// dspark::DSPARK_ISA. The loops are plain, so that the compiler turns them into vectors.
#include "ops/formats/cpu.h"

#include "backends/cpu/codes.h"

namespace dspark::DSPARK_ISA {

using namespace codes;

namespace {

template <class Code>
void decode_range(const DecodeArgs& args, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) args.values[i] = to_float(Code{args.codes[i]});
}

// One code a byte. The pointers are parameters because bytes may alias the members of the
// arguments, which would then be read again for every code.
template <class Code>
void encode_values(const float* __restrict values, uint8_t* __restrict codes, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        Code code;
        narrow(values[i], &code);
        codes[i] = code.bits;
    }
}

template <class Code>
void encode_range(const EncodeArgs& args, int64_t begin, int64_t end) {
    encode_values<Code>(args.values + begin, args.codes + begin, end - begin);
}

// Two codes a byte, by way of a chunk of one code a byte.
void encode_pairs(const float* values, uint8_t* __restrict pairs, int64_t count) {
    constexpr int64_t kPairs = 64;
    uint8_t each[2 * kPairs];
    for (int64_t done = 0; done < count; done += kPairs) {
        const int64_t left = count - done;
        const int64_t size = left < kPairs ? left : kPairs;
        encode_values<Fp4E2M1>(values + 2 * done, each, 2 * size);
        for (int64_t i = 0; i < size; ++i) {
            pairs[done + i] = pack_pair({each[2 * i]}, {each[2 * i + 1]});
        }
    }
}

float scale_at(const DequantizeArgs& args, int64_t index) {
    return args.scale_is_e8m0 ? to_float(E8M0{static_cast<const uint8_t*>(args.scale)[index]})
                              : static_cast<const float*>(args.scale)[index];
}

template <class Codes, class Out>
void dequantize_all(const DequantizeArgs& args, int64_t row_begin, int64_t row_end) {
    const int64_t scale_rows = (args.rows + args.block_rows - 1) / args.block_rows;
    const int64_t scale_columns = (args.columns + args.block_columns - 1) / args.block_columns;
    for (int64_t row = row_begin; row < row_end; ++row) {
        const int64_t matrix = row / args.rows;
        const int64_t scale_row = matrix * scale_rows + row % args.rows / args.block_rows;
        const uint8_t* codes = args.weight + row * args.columns / Codes::kPerByte;
        Out* out = static_cast<Out*>(args.out) + row * args.columns;
        for (int64_t block = 0; block < scale_columns; ++block) {
            const int64_t first = block * args.block_columns;
            const int64_t left = args.columns - first;
            const int64_t count = left < args.block_columns ? left : args.block_columns;
            scale_run<Codes>(codes + first / Codes::kPerByte,
                             scale_at(args, scale_row * scale_columns + block), out + first, count);
        }
    }
}

template <class Codes>
void dequantize_as(const DequantizeArgs& args, int64_t row_begin, int64_t row_end) {
    switch (args.out_type) {
        case FloatType::kFloat32:
            return dequantize_all<Codes, float>(args, row_begin, row_end);
        case FloatType::kBFloat16:
            return dequantize_all<Codes, BFloat16>(args, row_begin, row_end);
        case FloatType::kFloat16:
            return dequantize_all<Codes, Float16>(args, row_begin, row_end);
    }
}

}  // namespace

void decode_codes(const DecodeArgs& args, int64_t begin, int64_t end) {
    switch (args.format) {
        case CodeFormat::kFp8E4M3:
            return decode_range<Fp8E4M3>(args, begin, end);
        case CodeFormat::kFp8E4M3Fnuz:
            return decode_range<Fp8E4M3Fnuz>(args, begin, end);
        case CodeFormat::kE8M0:
            return decode_range<E8M0>(args, begin, end);
        case CodeFormat::kFp4E2M1:
            for (int64_t i = begin; i < end; ++i) {
                args.values[2 * i] = to_float(low_half(args.codes[i]));
                args.values[2 * i + 1] = to_float(high_half(args.codes[i]));
            }
    }
}

void encode_codes(const EncodeArgs& args, int64_t begin, int64_t end) {
    switch (args.format) {
        case CodeFormat::kFp8E4M3:
            return encode_range<Fp8E4M3>(args, begin, end);
        case CodeFormat::kFp8E4M3Fnuz:
            return encode_range<Fp8E4M3Fnuz>(args, begin, end);
        case CodeFormat::kE8M0:
            return;  // refused by the caller: a scale is chosen, not rounded to
        case CodeFormat::kFp4E2M1:
            return encode_pairs(args.values + 2 * begin, args.codes + begin, end - begin);
    }
}

void dequantize_rows(const DequantizeArgs& args, int64_t row_begin, int64_t row_end) {
    switch (args.format) {
        case CodeFormat::kFp8E4M3:
            return dequantize_as<CodeBytes<Fp8E4M3>>(args, row_begin, row_end);
        case CodeFormat::kFp8E4M3Fnuz:
            return dequantize_as<CodeBytes<Fp8E4M3Fnuz>>(args, row_begin, row_end);
        case CodeFormat::kFp4E2M1:
            return dequantize_as<CodePairs>(args, row_begin, row_end);
        case CodeFormat::kE8M0:
            return;  // refused by the caller
    }
}

}  // namespace dspark::DSPARK_ISA

// CPU kernels of the formats family; compiled once per instruction set, in namespace
// dspark::DSPARK_ISA. The loops are plain, so that the compiler turns them into vectors.
#include "ops/formats/cpu.h"

#include "device/formats.h"
#include "device/narrow.h"

namespace dspark::DSPARK_ISA {
namespace {

template <class Code>
void decode_range(const DecodeArgs& args, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) args.values[i] = to_float(Code{args.codes[i]});
}

template <class Code>
void encode_range(const EncodeArgs& args, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
        Code code;
        narrow(args.values[i], &code);
        args.codes[i] = code.bits;
    }
}

// Weights are unpacked to one code a byte, this many at a time: a fixed number makes vectors.
constexpr int kChunk = 32;

// Codes of one byte each.
template <class Code_>
struct Bytes {
    using Code = Code_;
    static constexpr int64_t kPerByte = 1;
    static Code at(const uint8_t* codes, int64_t i) { return {codes[i]}; }
    static const uint8_t* unpack(const uint8_t* codes, uint8_t*) { return codes; }
};

// And two in a byte.
struct Pairs {
    using Code = Fp4E2M1;
    static constexpr int64_t kPerByte = 2;
    static Code at(const uint8_t* codes, int64_t i) {
        return i % 2 == 0 ? low_half(codes[i / 2]) : high_half(codes[i / 2]);
    }
    static const uint8_t* unpack(const uint8_t* codes, uint8_t* each) {
        for (int i = 0; i < kChunk / 2; ++i) {
            each[2 * i] = low_half(codes[i]).bits;
            each[2 * i + 1] = high_half(codes[i]).bits;
        }
        return each;
    }
};

// A run of `count` weights that share a scale.
template <class Codes, class Out>
void scale_run(const uint8_t* codes, float scale, Out* out, int64_t count) {
    using Code = typename Codes::Code;
    uint8_t each[kChunk];
    int64_t done = 0;
    for (; done + kChunk <= count; done += kChunk) {
        const uint8_t* chunk = Codes::unpack(codes + done / Codes::kPerByte, each);
        for (int i = 0; i < kChunk; ++i) {
            narrow(to_float(Code{chunk[i]}) * scale, &out[done + i]);
        }
    }
    for (; done < count; ++done) narrow(to_float(Codes::at(codes, done)) * scale, &out[done]);
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
            for (int64_t i = begin; i < end; ++i) {
                Fp4E2M1 low, high;
                narrow(args.values[2 * i], &low);
                narrow(args.values[2 * i + 1], &high);
                args.codes[i] = pack_pair(low, high);
            }
    }
}

void dequantize_rows(const DequantizeArgs& args, int64_t row_begin, int64_t row_end) {
    switch (args.format) {
        case CodeFormat::kFp8E4M3:
            return dequantize_as<Bytes<Fp8E4M3>>(args, row_begin, row_end);
        case CodeFormat::kFp8E4M3Fnuz:
            return dequantize_as<Bytes<Fp8E4M3Fnuz>>(args, row_begin, row_end);
        case CodeFormat::kFp4E2M1:
            return dequantize_as<Pairs>(args, row_begin, row_end);
        case CodeFormat::kE8M0:
            return;  // refused by the caller
    }
}

}  // namespace dspark::DSPARK_ISA

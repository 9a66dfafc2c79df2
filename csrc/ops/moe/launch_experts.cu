// The launch sequences of the expert layer: one text for every device compiler and the emulator.
#include "ops/moe/launch_experts.h"
#include "ops/moe/launch_wgmma.h"

#include "device/sequence.h"
#include "ops/moe/kernel_experts.h"
#include "ops/moe/kernel_matrix_experts.h"

namespace dspark::DSPARK_ISA {
namespace {

using namespace experts;
using dspark::experts::blocks_of_multiprocessor;
using dspark::experts::has_aligned_rows;
using dspark::experts::has_scale_words;
using dspark::experts::is_fp8;
using dspark::experts::most_item_tiles;
using dspark::experts::suits_matrix_units;
using dspark::experts::takes_wide_tiles;

// Blocks of a grid that goes through more items than that.
constexpr int64_t kMostBlocks = int64_t{1} << 20;

int64_t ceil_div_of(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

int64_t blocks_for(int64_t items) {
    return items < kMostBlocks ? items : kMostBlocks;
}

template <int W>
void launch_gemm(Sequence& sequence, const GemmLaunch& launch) {
    const char* const name = "grouped_gemm";
    const int64_t blocks = blocks_for(launch.items);
    switch (launch.args.weight.format) {
        case WeightFormat::kFloat32:
            return sequence.run(name, grouped_gemm_kernel<W, Float32Decoder>, blocks, launch);
        case WeightFormat::kBFloat16:
            return sequence.run(name, grouped_gemm_kernel<W, HalfDecoder<BFloat16>>, blocks,
                                launch);
        case WeightFormat::kFloat16:
            return sequence.run(name, grouped_gemm_kernel<W, HalfDecoder<Float16>>, blocks, launch);
        case WeightFormat::kFp8E4M3:
            return sequence.run(name, grouped_gemm_kernel<W, ByteDecoder<Fp8E4M3>>, blocks, launch);
        case WeightFormat::kFp8E4M3Fnuz:
            return sequence.run(name, grouped_gemm_kernel<W, ByteDecoder<Fp8E4M3Fnuz>>, blocks,
                                launch);
        case WeightFormat::kMxFp4:
            return sequence.run(name, grouped_gemm_kernel<W, Fp4Decoder>, blocks, launch);
    }
}

// Whether weights of so many bits go by wide instructions where warps have W lanes.
template <int W>
constexpr bool is_wide(int bits) {
    return kCanHaveWideMatrixUnit<W> && takes_wide_tiles(bits);
}
template <int W, class Half, int kBits>
using TilesOf = std::conditional_t<is_wide<W>(kBits), WideTiles<Half>, NarrowTiles<Half>>;

template <int W, class Half>
void (*matrix_kernel(const ExpertWeights& weight))(MatrixLaunch) {
    using Tiles = TilesOf<W, Half, 8>;
    switch (weight.format) {
        case WeightFormat::kFp8E4M3:
            // Of its own, since hardware that multiplies them as they are has another kernel.
            if constexpr (is_wide<W>(8) && std::is_same_v<Half, BFloat16>) {
                if (weight.scale_is_e8m0) {
                    return matrix_gemm_kernel<W, Fp8Weights<Fp8E4M3, Half, Tiles, true>,
                                              ByteDecoder<Fp8E4M3>>;
                }
            }
            return matrix_gemm_kernel<W, Fp8Weights<Fp8E4M3, Half, Tiles>, ByteDecoder<Fp8E4M3>>;
        case WeightFormat::kFp8E4M3Fnuz:
            return matrix_gemm_kernel<W, Fp8Weights<Fp8E4M3Fnuz, Half, Tiles>,
                                      ByteDecoder<Fp8E4M3Fnuz>>;
        case WeightFormat::kMxFp4:
            return matrix_gemm_kernel<W, Fp4Weights<Half, TilesOf<W, Half, 4>>, Fp4Decoder>;
        default:
            return matrix_gemm_kernel<W, PlainWeights<Half>, HalfDecoder<Half>>;
    }
}

int bits_of(WeightFormat format) {
    if (format == WeightFormat::kMxFp4) return 4;
    return is_fp8(format) ? 8 : 16;
}

// By matrix units, in one wave of blocks.
template <int W>
void launch_matrix(Sequence& sequence, const GemmLaunch& lanes) {
    const GroupedGemmArgs& args = lanes.args;
    const int bits = bits_of(args.weight.format);
    const int64_t ranges = ceil_div_of(args.weight.rows, kItemRows);
    const int64_t most_items = args.tiles.count * ranges + ceil_div_of(args.rows.capacity, kGroups);
    const int64_t most_blocks = int64_t{blocks_of_multiprocessor(bits)} * multiprocessors();
    const int64_t blocks = most_items < most_blocks ? most_items : most_blocks;
    const MatrixLaunch launch = {lanes,
                                 static_cast<int>(ranges),
                                 static_cast<int>(blocks / ranges),
                                 static_cast<int>(blocks % ranges),
                                 16 * most_item_tiles(bits, is_wide<W>(bits)),
                                 has_aligned_rows(args.x),
                                 has_scale_words(args.weight)};
    sequence.run("grouped_gemm",
                 args.x_dtype == FloatType::kBFloat16 ? matrix_kernel<W, BFloat16>(args.weight)
                                                      : matrix_kernel<W, Float16>(args.weight),
                 blocks, launch);
}

template <int W>
void launch_any(Sequence& sequence, const GemmLaunch& lanes) {
    if constexpr (kCanHaveMatrixUnit<W>) {
        if (suits_matrix_units(lanes.args)) return launch_matrix<W>(sequence, lanes);
    }
    launch_gemm<W>(sequence, lanes);
}

int grouped_gemm(const GroupedGemmArgs& args, LaunchTarget& target) {
    if (takes_warpgroups(args)) return grouped_gemm_on_warpgroups(args, target);
    const bool has_gates = args.activation != Activation::kNone;
    const int64_t block_columns = has_gates ? kBlockWeights / 2 : kBlockWeights;
    const int64_t columns = out_columns(args.activation, args.weight.rows);
    GemmLaunch launch = {args, ceil_div_of(columns, block_columns), 0, 0};
    launch.tile_items = args.tiles.count * launch.ranges;
    launch.items = launch.tile_items + ceil_div_of(args.rows.capacity, kGroups);
    return with_warp_size([&](auto warp_size) {
        Sequence sequence(target);
        launch_any<warp_size>(sequence, launch);
        return sequence.code();
    });
}

int swiglu(const SwigluArgs& args, LaunchTarget& target) {
    SwigluLaunch launch = {args, ceil_div_of(args.width, kThreads), 0};
    launch.items = args.num_rows * launch.pieces;
    return with_warp_size([&](auto warp_size) {
        Sequence sequence(target);
        sequence.run("swiglu", swiglu_kernel<warp_size>, blocks_for(launch.items), launch);
        return sequence.code();
    });
}

}  // namespace

const ExpertsLaunch& experts_launch() {
    static const ExpertsLaunch functions = {grouped_gemm, swiglu};
    return functions;
}

}  // namespace dspark::DSPARK_ISA

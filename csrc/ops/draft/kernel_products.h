// Products of vocabulary rows with the inputs of requests, in the fixed order of docs/numerics.md
// section 10: kBiasLanes chains of fma, each in index order, then a halving tree.
//
// Rows and inputs lie in shared memory in quads: entry j of four rows (or requests) side by side,
// so that one access brings a thread the same entry of all of them. A team of threads shares the
// lanes of a product; each keeps its chains for rows_of_team rows times kRequests requests in
// registers, over all chunks of a row.
#pragma once

#include "device/block_tile.h"
#include "device/warp_tile.h"
#include "ops/draft/tuning.h"

namespace dspark::DSPARK_ISA::draft {

using dspark::draft::LogitsPlan;

template <int W>
constexpr int kTeamThreads = dspark::draft::team_threads(W);
template <int W>
constexpr int kTeamRows = dspark::draft::rows_of_team(W);
template <int W>
constexpr int kLaneParts = kBiasLanes / kTeamThreads<W>;  // lanes of a thread
constexpr int kMaxRequests = 8;                           // of a team

template <int W>
struct ProductShared {
    SharedArray<float, dspark::draft::arena_floats(W)> arena;  // inputs, then rows
    SharedArray<float, kThreads / kTeamThreads<W> * kTeamRows<W> * kMaxRequests> bias;
};

// Where entry j of a quad lies: rotated within groups of 8, so that threads that bring in entries 8
// apart use different banks.
DSPARK_DEVICE int quad_place(int j) {
    return j ^ ((j >> 3) & 7);
}

// ---- from device memory into quads --------------------------------------------------------------

// 16 bytes of each of four rows, from the same entry on.
struct RowPieces {
    Bytes16 row[4];
};

template <class T>
constexpr int kPieceEntries = 16 / static_cast<int>(sizeof(T));

DSPARK_DEVICE int piece_entries(FloatType type) {
    return type == FloatType::kFloat32 ? kPieceEntries<float> : kPieceEntries<BFloat16>;
}

// A piece of a row of `count` entries, zeros behind them; of no row: zeros.
DSPARK_DEVICE Bytes16 load_piece(Global<const void> row, FloatType type, int first, int count,
                                 Reading reading) {
    if (row == nullptr) return {};
    const bool is_aligned = bit_cast<uint64_t>(row) % 16 == 0;
    if (type == FloatType::kFloat32) {
        return load_elements(global_cast<const float>(row), first, count, 0, is_aligned, reading);
    }
    return load_elements(global_cast<const BFloat16>(row), first, count, 0, is_aligned, reading);
}

template <class Half>
DSPARK_DEVICE float piece_entry(const Bytes16& piece, int i, Half*) {
    const uint32_t pair = piece.word[i / 2];
    return to_float(Half{static_cast<uint16_t>(i % 2 == 0 ? pair : pair >> 16)});
}
DSPARK_DEVICE float piece_entry(const Bytes16& piece, int i, float*) {
    return bit_cast<float>(piece.word[i]);
}

// Stores entries j .. of four rows as quads; `begin` is where entry 0 of the quad lies.
template <int W, class T>
DSPARK_DEVICE void store_quads(const RowPieces& pieces, int begin, int j, T*,
                               ProductShared<W>& shared) {
    for (int i = 0; i < kPieceEntries<T>; ++i) {
        float x[4];
        for (int r = 0; r < 4; ++r) x[r] = piece_entry(pieces.row[r], i, static_cast<T*>(nullptr));
        shared.arena.store4(begin + 4 * quad_place(j + i), x[0], x[1], x[2], x[3]);
    }
}

template <int W>
DSPARK_DEVICE void store_pieces(const RowPieces& pieces, FloatType type, int begin, int j,
                                ProductShared<W>& shared) {
    switch (type) {
        case FloatType::kBFloat16:
            return store_quads<W>(pieces, begin, j, static_cast<BFloat16*>(nullptr), shared);
        case FloatType::kFloat16:
            return store_quads<W>(pieces, begin, j, static_cast<Float16*>(nullptr), shared);
        case FloatType::kFloat32:
            break;
    }
    store_quads<W>(pieces, begin, j, static_cast<float*>(nullptr), shared);
}

// Inputs that are exact in bfloat16: eight requests to a quad, each its 16 bits. Stores those of
// four requests, the first or the second half.
template <int W>
DSPARK_DEVICE void store_narrow_pieces(const RowPieces& pieces, int begin, int half, int j,
                                       ProductShared<W>& shared) {
    for (int i = 0; i < kPieceEntries<BFloat16>; ++i) {
        for (int pair = 0; pair < 2; ++pair) {
            const uint32_t low = pieces.row[2 * pair].word[i / 2] >> 16 * (i % 2);
            const uint32_t high = pieces.row[2 * pair + 1].word[i / 2] >> 16 * (i % 2);
            shared.arena[begin + 4 * quad_place(j + i) + 2 * half + pair] =
                bit_cast<float>((low & 0xFFFFu) | high << 16);
        }
    }
}

// ---- the products -------------------------------------------------------------------------------

// The chains of one thread. kRequests is 1, 4 or 8; kNarrow: inputs of 16 bits.
template <int W, int kRequests, bool kNarrow>
class ExactProducts {
  public:
    // Which rows of a pass and which requests of the group the team has.
    DSPARK_DEVICE explicit ExactProducts(const LogitsPlan& plan)
        : first_request_(team() % plan.request_teams * kRequests),
          first_row_(team() / plan.request_teams * kTeamRows<W>),
          size_(plan.size),
          chunk_(plan.chunk),
          pass_rows_(plan.pass_rows) {
        clear();
    }

    DSPARK_DEVICE void clear() {
        for (auto& part : sum_) {
            for (auto& row : part) {
                for (float& x : row) x = 0.0f;
            }
        }
    }

    // Goes on with entries first .. first + count - 1; both are multiples of kBiasLanes. `rows` is
    // where the rows of the pass lie in the arena, from entry `first` on.
    DSPARK_DEVICE void add(const ProductShared<W>& shared, int rows, int first, int count) {
        for (int begin = 0; begin < count; begin += kBiasLanes) {
            for (int part = 0; part < kLaneParts<W>; ++part) {
                const int j = begin + lane() + part * kTeamThreads<W>;
                float u[kRequests];
                load_inputs(shared, first + j, u);
                float w[kTeamRows<W>];
                for (int quad = 0; quad < kTeamRows<W> / 4; ++quad) {
                    const int row = first_row_ / 4 + quad;
                    shared.arena.load4(rows + 4 * (row * chunk_ + quad_place(j)), w[4 * quad],
                                       w[4 * quad + 1], w[4 * quad + 2], w[4 * quad + 3]);
                }
                for (int q = 0; q < kRequests; ++q) {
                    for (int r = 0; r < kTeamRows<W>; ++r) {
                        sum_[part][q][r] = fma(w[r], u[q], sum_[part][q][r]);
                    }
                }
            }
        }
    }

    // Sums the lanes and stores the products: those of request q of the group with row r of the
    // pass go to shared.bias[q * pass_rows + r].
    DSPARK_DEVICE void store(ProductShared<W>& shared) {
        for (int part = kLaneParts<W> / 2; part > 0; part /= 2) {
            for (int other = 0; other < part; ++other) {
                for (int q = 0; q < kRequests; ++q) {
                    for (int r = 0; r < kTeamRows<W>; ++r) {
                        sum_[other][q][r] += sum_[other + part][q][r];
                    }
                }
            }
        }
        float folded[kProducts];
        for (int q = 0; q < kRequests; ++q) {
            for (int r = 0; r < kTeamRows<W>; ++r) folded[q * kTeamRows<W> + r] = sum_[0][q][r];
        }
        fold<kTeamThreads<W> / 2, kProducts>(folded, 0, true, shared);
    }

  private:
    static constexpr int kProducts = kRequests * kTeamRows<W>;

    DSPARK_DEVICE static int team() { return thread_idx() / kTeamThreads<W>; }
    DSPARK_DEVICE static int lane() { return thread_idx() % kTeamThreads<W>; }

    DSPARK_DEVICE void load_inputs(const ProductShared<W>& shared, int j,
                                   float (&u)[kRequests]) const {
        const int place = quad_place(j);
        if constexpr (kNarrow) {
            float pair[4];
            shared.arena.load4(4 * (first_request_ / 8 * size_ + place), pair[0], pair[1], pair[2],
                               pair[3]);
            for (int q = 0; q < kRequests; ++q) {
                const uint32_t bits = bit_cast<uint32_t>(pair[q / 2]);
                u[q] = bit_cast<float>(q % 2 == 0 ? bits << 16 : bits & 0xFFFF0000u);
            }
        } else if constexpr (kRequests == 1) {
            u[0] = shared.arena[4 * place];
        } else {
            for (int quad = 0; quad < kRequests / 4; ++quad) {
                const int request = first_request_ / 4 + quad;
                shared.arena.load4(4 * (request * size_ + place), u[4 * quad], u[4 * quad + 1],
                                   u[4 * quad + 2], u[4 * quad + 3]);
            }
        }
    }

    // A step of the halving tree for kCount products at once: the lanes of a pair split them, each
    // sends what the other sums. x[i] is product first + i.
    template <int kDistance, int kCount>
    DSPARK_DEVICE void fold(float (&x)[kProducts], int first, bool is_owner,
                            ProductShared<W>& shared) {
        if constexpr (kDistance > 0) {
            const bool is_upper = (lane() & kDistance) != 0;
            if constexpr (kCount == 1) {
                x[0] += shuffle_xor<W>(x[0], kDistance);
                fold<kDistance / 2, 1>(x, first, is_owner && !is_upper, shared);
            } else {
                constexpr int kHalf = kCount / 2;
                for (int i = 0; i < kHalf; ++i) {
                    const float low = x[i];
                    const float high = x[i + kHalf];
                    const float other = shuffle_xor<W>(is_upper ? low : high, kDistance);
                    x[i] = (is_upper ? high : low) + other;
                }
                fold<kDistance / 2, kHalf>(x, is_upper ? first + kHalf : first, is_owner, shared);
            }
        } else if (is_owner) {
            for (int i = 0; i < kCount; ++i) {
                const int request = first_request_ + (first + i) / kTeamRows<W>;
                const int row = first_row_ + (first + i) % kTeamRows<W>;
                shared.bias[request * pass_rows_ + row] = x[i];
            }
        }
    }

    float sum_[kLaneParts<W>][kRequests][kTeamRows<W>];
    int first_request_;
    int first_row_;
    int size_;
    int chunk_;
    int pass_rows_;
};

}  // namespace dspark::DSPARK_ISA::draft

// CPU kernels of the sampling family; compiled once per instruction set, in namespace
// dspark::DSPARK_ISA.
#include "ops/sampling/cpu.h"

#include "ops/sampling/cpu_request.h"

namespace dspark::DSPARK_ISA {

using namespace sampling;

namespace {

// A law of its own memory, for ops that look at one row at a time.
class RowLaw {
  public:
    explicit RowLaw(int64_t vocab) : tables_(vocab) { tables_.attach(law_, vocab); }

    const Law& fill(const RowsView& logits, const LawArgs& args, int64_t row,
                    Workspace& workspace) {
        fill_law(law_, row_at(logits, 0, row), logits, args.temperature[row], workspace);
        filter_law(law_, args, row, workspace);
        return law_;
    }

  private:
    LawTables tables_;
    Law law_ = {};
};

void write_probs(const Law& law, float* probs, Workspace& workspace) {
    if (law.is_empty || law.is_greedy) {
        for (int i = 0; i < law.vocab; ++i) probs[i] = 0.0f;
        if (!law.is_empty) probs[law.argmax] = 1.0f;
        return;
    }
    for (int t = 0; t < num_tiles(law.vocab); ++t) {
        float* out = probs + static_cast<int64_t>(t) * kTile;
        const int count = tile_size(law.vocab, t);
        if (law.tile_sum[t] == 0.0f) {
            for (int i = 0; i < count; ++i) out[i] = 0.0f;
            continue;
        }
        store_entries(kept_weights(law, t, workspace.target_tile), workspace.weights);
        for (int i = 0; i < count; ++i) {
            const double weight = static_cast<double>(workspace.weights[i]);
            out[i] = static_cast<float>(weight * law.tile_scale[t] / law.total);
        }
    }
}

}  // namespace

void target_probs(const TargetProbsArgs& args, int64_t begin, int64_t end) {
    Workspace workspace(args.logits.vocab, 0);
    RowLaw law(args.logits.vocab);
    for (int64_t row = begin; row < end; ++row) {
        write_probs(law.fill(args.logits, args.law, row, workspace),
                    args.probs + row * args.logits.vocab, workspace);
    }
}

void sample(const SampleArgs& args, int64_t begin, int64_t end) {
    Workspace workspace(args.logits.vocab, 0);
    RowLaw memory(args.logits.vocab);
    const Stream stream = args.draft_stream ? Stream::kDraft : Stream::kResample;
    for (int64_t row = begin; row < end; ++row) {
        const Law& law = memory.fill(args.logits, args.law, row, workspace);
        const int32_t slot = args.slots != nullptr ? static_cast<int32_t>(args.slots[row]) : 0;
        const double u = args.uniforms != nullptr
                             ? args.uniforms[row]
                             : uniform(args.seeds[row], args.positions[row], stream, slot);
        args.ids[row] = draw(law, u, workspace);
        args.logprobs[row] = log_probability(law, args.ids[row]);
    }
}

void prepare_laws(const VerifyArgs& args, int64_t begin, int64_t end) {
    Workspace workspace(args.target_logits.vocab, args.num_drafts);
    LazyLaws laws(args, workspace);
    const int64_t rows = args.batch * (args.num_drafts + 1);
    for (int64_t i = begin; i < end; ++i) {
        if (i < rows) {
            const int64_t b = i / (args.num_drafts + 1);
            const int64_t row = i % (args.num_drafts + 1);
            const int64_t count = args.query_start_loc[b + 1] - args.query_start_loc[b];
            if (row < count) laws.target(b, row);
            continue;
        }
        const int64_t b = (i - rows) / args.num_drafts;
        const int64_t slot = (i - rows) % args.num_drafts;
        const int64_t count = args.query_start_loc[b + 1] - args.query_start_loc[b];
        const bool is_used = args.draft_logits.data != nullptr && slot + 1 < count &&
                             target_temperature(args, b) != 0.0f &&
                             args.draft_temperature[b] != 0.0f;
        if (is_used) laws.draft(b, slot);
    }
}

void rejection_sample(const VerifyArgs& args, int64_t begin, int64_t end) {
    Workspace workspace(args.target_logits.vocab, args.num_drafts);
    for (int64_t b = begin; b < end; ++b) RequestVerifier(args, b, workspace).rejection_sample();
}

void block_acceptance(const VerifyArgs& args, int64_t begin, int64_t end) {
    Workspace workspace(args.target_logits.vocab, args.num_drafts);
    for (int64_t b = begin; b < end; ++b) RequestVerifier(args, b, workspace).block_acceptance();
}

void evaluate_exp2_nonpositive(const float* z, float* out, int64_t count) {
    int64_t i = 0;
    for (; i + FloatVector::kWidth <= count; i += FloatVector::kWidth) {
        store(out + i, exp2_nonpositive(load(z + i)));
    }
    for (; i < count; ++i) out[i] = exp2_nonpositive(z[i]);
}

double evaluate_exp2_double(double z) {
    return exp2_double(z);
}

double evaluate_log2_double(double y) {
    return log2_double(y);
}

double evaluate_uniform(int64_t seed, int64_t position, uint32_t stream, int32_t slot) {
    return uniform(seed, position, static_cast<Stream>(stream), slot);
}

void evaluate_philox4x32(const uint32_t* counter, const uint32_t* key, uint32_t* out) {
    const PhiloxCounter result =
        philox4x32({{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
    for (int i = 0; i < 4; ++i) out[i] = result.word[i];
}

}  // namespace dspark::DSPARK_ISA

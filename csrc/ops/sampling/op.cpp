// Checks, allocation and dispatch of the sampling family.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <string>
#include <tuple>
#include <vector>

#include "backends/cpu/isa.h"
#include "ops/sampling/checks.h"
#include "ops/sampling/cpu.h"

namespace dspark::sampling {
namespace {

// Items per thread at least, so that a thread has some ten microseconds of work: 2^17 logits.
int64_t grain(int64_t logits_per_item) {
    return 1 + (int64_t{1} << 17) / (logits_per_item + 1);
}

// ---- target_probs -------------------------------------------------------------------------------

void target_probs_out(const Tensor& logits, const Tensor& temperature, const OptionalTensor& top_k,
                      const OptionalTensor& top_p, const OptionalTensor& min_p,
                      const Tensor& probs) {
    const char* op = "target_probs";
    TargetProbsArgs args = {};
    args.logits = check_logits(op, "logits", logits, {{"N"}, {"V"}});
    args.rows = logits.size(0);
    args.law = check_law(op, {"N", args.rows}, temperature, top_k, top_p, min_p);
    args.probs = check_output<float>(op, "probs", probs, ScalarType::Float,
                                     {{"N", args.rows}, {"V", args.logits.vocab}});
    torch::stable::parallel_for(
        0, args.rows, grain(args.logits.vocab),
        [&](int64_t begin, int64_t end) { DSPARK_CPU_DISPATCH(target_probs, args, begin, end); });
}

Tensor target_probs(const Tensor& logits, const Tensor& temperature, const OptionalTensor& top_k,
                    const OptionalTensor& top_p, const OptionalTensor& min_p) {
    check_logits("target_probs", "logits", logits, {{"N"}, {"V"}});
    Tensor probs = torch::stable::empty({logits.size(0), logits.size(1)}, ScalarType::Float);
    target_probs_out(logits, temperature, top_k, top_p, min_p, probs);
    return probs;
}

// ---- sample -------------------------------------------------------------------------------------

bool is_draft_stream(const std::string& stream) {
    if (stream == "draft") return true;
    if (stream == "resample") return false;
    fail("sample", "stream", "expected 'resample' or 'draft', got '" + stream + "'");
}

void sample_out(const Tensor& logits, const Tensor& temperature, const OptionalTensor& top_k,
                const OptionalTensor& top_p, const OptionalTensor& min_p, const Tensor& seeds,
                const Tensor& positions, std::string stream, const OptionalTensor& uniforms,
                const OptionalTensor& slots, const Tensor& ids, const Tensor& logprobs) {
    const char* op = "sample";
    SampleArgs args = {};
    args.logits = check_logits(op, "logits", logits, {{"N"}, {"V"}});
    args.rows = logits.size(0);
    const host::Dim size = {"N", args.rows};
    args.law = check_law(op, size, temperature, top_k, top_p, min_p);
    args.seeds = check_vector<int64_t>(op, "seeds", seeds, ScalarType::Long, {size});
    args.positions = check_vector<int64_t>(op, "positions", positions, ScalarType::Long, {size});
    args.draft_stream = is_draft_stream(stream);
    if (uniforms) {
        args.uniforms = check_vector<double>(op, "uniforms", *uniforms, ScalarType::Double, {size});
    }
    if (slots) {
        if (!args.draft_stream) fail(op, "slots", "expected none with stream 'resample'");
        args.slots = check_vector<int64_t>(op, "slots", *slots, ScalarType::Long, {size});
    }
    args.ids = check_output<int64_t>(op, "ids", ids, ScalarType::Long, {size});
    args.logprobs = check_output<float>(op, "logprobs", logprobs, ScalarType::Float, {size});
    torch::stable::parallel_for(
        0, args.rows, grain(args.logits.vocab),
        [&](int64_t begin, int64_t end) { DSPARK_CPU_DISPATCH(sample, args, begin, end); });
}

std::tuple<Tensor, Tensor> sample(const Tensor& logits, const Tensor& temperature,
                                  const OptionalTensor& top_k, const OptionalTensor& top_p,
                                  const OptionalTensor& min_p, const Tensor& seeds,
                                  const Tensor& positions, std::string stream,
                                  const OptionalTensor& uniforms, const OptionalTensor& slots) {
    check_logits("sample", "logits", logits, {{"N"}, {"V"}});
    Tensor ids = torch::stable::empty({logits.size(0)}, ScalarType::Long);
    Tensor logprobs = torch::stable::empty({logits.size(0)}, ScalarType::Float);
    sample_out(logits, temperature, top_k, top_p, min_p, seeds, positions, stream, uniforms, slots,
               ids, logprobs);
    return {ids, logprobs};
}

// ---- rejection_sample, block_acceptance ---------------------------------------------------------

// Room for the laws of every row: 16 bytes per tile of 4096 entries.
class LawTable {
  public:
    LawTable(int64_t laws, int64_t vocab) {
        const int64_t tiles = (vocab + 4095) / 4096;
        laws_.resize(static_cast<size_t>(laws), Law{});
        floats_.resize(static_cast<size_t>(2 * laws * tiles));
        doubles_.resize(static_cast<size_t>(laws * tiles));
        for (int64_t i = 0; i < laws; ++i) {
            Law& law = laws_[static_cast<size_t>(i)];
            law.tile_max = floats_.data() + 2 * i * tiles;
            law.tile_sum = law.tile_max + tiles;
            law.tile_scale = doubles_.data() + i * tiles;
        }
    }
    Law* data() { return laws_.data(); }

  private:
    std::vector<Law> laws_;
    std::vector<float> floats_;
    std::vector<double> doubles_;
};

// Runs a verification kernel over all requests. With fewer requests than threads, the rows' laws
// are filled first, in parallel over rows.
template <class Kernel>
void verify_in_parallel(VerifyArgs& args, Kernel kernel) {
    const int64_t draft_rows = args.draft_logits.data != nullptr ? args.batch * args.num_drafts : 0;
    const int64_t target_rows = args.batch * (args.num_drafts + 1);
    LawTable table(target_rows + draft_rows, args.target_logits.vocab);
    args.target_laws = table.data();
    args.draft_laws = table.data() + target_rows;
    if (args.batch < static_cast<int64_t>(torch::stable::get_num_threads())) {
        torch::stable::parallel_for(0, target_rows + draft_rows, grain(args.target_logits.vocab),
                                    [&](int64_t begin, int64_t end) {
                                        DSPARK_CPU_DISPATCH(prepare_laws, args, begin, end);
                                    });
    }
    const int64_t logits_per_request =
        2 * (args.num_drafts + 1) * int64_t{args.target_logits.vocab};
    torch::stable::parallel_for(0, args.batch, grain(logits_per_request), kernel);
}

void rejection_sample_out(const Tensor& target_logits, const Tensor& draft_token_ids,
                          const OptionalTensor& draft_logits, const OptionalTensor& draft_probs,
                          const Tensor& query_start_loc, std::string method,
                          const Tensor& temperature, const OptionalTensor& draft_temperature,
                          const OptionalTensor& top_k, const OptionalTensor& top_p,
                          const OptionalTensor& min_p, const Tensor& seeds, const Tensor& positions,
                          const OptionalTensor& synthetic_acceptance_rates,
                          const OptionalTensor& uniforms, const Tensor& token_ids,
                          const Tensor& num_accepted, const Tensor& num_emitted,
                          const Tensor& last_token, const Tensor& status,
                          const OptionalTensor& logprobs) {
    const char* op = "rejection_sample";
    VerifyArgs args =
        check_verify(op, {target_logits, draft_token_ids, draft_logits, draft_probs,
                          query_start_loc, temperature, draft_temperature, top_k, top_p, min_p});
    args.method = method_of(method);
    check_randomness(args, seeds, positions, synthetic_acceptance_rates, uniforms);
    const host::Dim batch = {"B", args.batch};
    const host::Dim emitted = {"K + 1", args.num_drafts + 1};
    args.token_ids =
        check_output<int64_t>(op, "token_ids", token_ids, ScalarType::Long, {batch, emitted});
    args.num_accepted =
        check_output<int32_t>(op, "num_accepted", num_accepted, ScalarType::Int, {batch});
    args.num_emitted =
        check_output<int32_t>(op, "num_emitted", num_emitted, ScalarType::Int, {batch});
    args.last_token =
        check_output<int64_t>(op, "last_token", last_token, ScalarType::Long, {batch});
    args.status = check_output<int32_t>(op, "status", status, ScalarType::Int, {batch});
    if (logprobs) {
        args.logprobs =
            check_output<float>(op, "logprobs", *logprobs, ScalarType::Float, {batch, emitted});
    }
    verify_in_parallel(args, [&](int64_t begin, int64_t end) {
        DSPARK_CPU_DISPATCH(rejection_sample, args, begin, end);
    });
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> rejection_sample(
    const Tensor& target_logits, const Tensor& draft_token_ids, const OptionalTensor& draft_logits,
    const OptionalTensor& draft_probs, const Tensor& query_start_loc, std::string method,
    const Tensor& temperature, const OptionalTensor& draft_temperature, const OptionalTensor& top_k,
    const OptionalTensor& top_p, const OptionalTensor& min_p, const Tensor& seeds,
    const Tensor& positions, const OptionalTensor& synthetic_acceptance_rates,
    const OptionalTensor& uniforms, bool return_logprobs) {
    Arg("rejection_sample", "draft_token_ids", draft_token_ids).shape({{"B"}, {"K"}});
    const int64_t batch = draft_token_ids.size(0);
    const int64_t emitted = draft_token_ids.size(1) + 1;
    Tensor token_ids = torch::stable::empty({batch, emitted}, ScalarType::Long);
    Tensor num_accepted = torch::stable::empty({batch}, ScalarType::Int);
    Tensor num_emitted = torch::stable::empty({batch}, ScalarType::Int);
    Tensor last_token = torch::stable::empty({batch}, ScalarType::Long);
    Tensor status = torch::stable::empty({batch}, ScalarType::Int);
    Tensor logprobs =
        torch::stable::empty({return_logprobs ? batch : 0, emitted}, ScalarType::Float);
    rejection_sample_out(target_logits, draft_token_ids, draft_logits, draft_probs, query_start_loc,
                         method, temperature, draft_temperature, top_k, top_p, min_p, seeds,
                         positions, synthetic_acceptance_rates, uniforms, token_ids, num_accepted,
                         num_emitted, last_token, status,
                         return_logprobs ? OptionalTensor(logprobs) : std::nullopt);
    return {token_ids, num_accepted, num_emitted, last_token, status, logprobs};
}

std::tuple<Tensor, Tensor, Tensor> block_acceptance(
    const Tensor& target_logits, const Tensor& draft_token_ids, const OptionalTensor& draft_logits,
    const OptionalTensor& draft_probs, const Tensor& query_start_loc, const Tensor& temperature,
    const OptionalTensor& draft_temperature, const OptionalTensor& top_k,
    const OptionalTensor& top_p, const OptionalTensor& min_p) {
    VerifyArgs args = check_verify(
        "block_acceptance", {target_logits, draft_token_ids, draft_logits, draft_probs,
                             query_start_loc, temperature, draft_temperature, top_k, top_p, min_p});
    args.method = Method::kBlock;
    const auto make = [&] {
        return torch::stable::empty({args.batch, args.num_drafts}, ScalarType::Double);
    };
    Tensor prefix_prob = make();
    Tensor residual_mass = make();
    Tensor accept_prob = make();
    args.prefix_prob = static_cast<double*>(prefix_prob.mutable_data_ptr());
    args.residual_mass = static_cast<double*>(residual_mass.mutable_data_ptr());
    args.accept_prob = static_cast<double*>(accept_prob.mutable_data_ptr());
    verify_in_parallel(args, [&](int64_t begin, int64_t end) {
        DSPARK_CPU_DISPATCH(block_acceptance, args, begin, end);
    });
    return {prefix_prob, residual_mass, accept_prob};
}

}  // namespace
}  // namespace dspark::sampling

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    m.impl("target_probs", TORCH_BOX(&dspark::sampling::target_probs));
    m.impl("target_probs.out", TORCH_BOX(&dspark::sampling::target_probs_out));
    m.impl("sample", TORCH_BOX(&dspark::sampling::sample));
    m.impl("sample.out", TORCH_BOX(&dspark::sampling::sample_out));
    m.impl("rejection_sample", TORCH_BOX(&dspark::sampling::rejection_sample));
    m.impl("rejection_sample.out", TORCH_BOX(&dspark::sampling::rejection_sample_out));
    m.impl("block_acceptance", TORCH_BOX(&dspark::sampling::block_acceptance));
}

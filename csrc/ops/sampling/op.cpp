// Checks, allocation and dispatch of the sampling family.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "backends/cpu/isa.h"
#include "host/check.h"
#include "ops/sampling/args.h"
#include "ops/sampling/cpu.h"

namespace dspark {
namespace {

using host::Arg;
using host::fail;
using host::ScalarType;
using host::Tensor;
using OptionalTensor = std::optional<Tensor>;

FloatType float_type(const Tensor& tensor) {
    switch (tensor.scalar_type()) {
        case ScalarType::BFloat16:
            return FloatType::kBFloat16;
        case ScalarType::Half:
            return FloatType::kFloat16;
        default:
            return FloatType::kFloat32;
    }
}

IndexView index_view(const Tensor& tensor) {
    return {tensor.const_data_ptr(), tensor.scalar_type() == ScalarType::Long};
}

// [N, V] or [B, K, V]; the vocabulary must fit an int32 and hold something to draw.
RowsView rows_view(const char* op, const char* name, const Tensor& tensor) {
    const int64_t last = tensor.dim() - 1;
    const int64_t vocab = tensor.size(last);
    if (vocab < 1 || vocab > INT32_MAX - 4096) {
        fail(op, name, "expected a vocabulary of 1 to 2^31 entries, got " + std::to_string(vocab));
    }
    return {tensor.const_data_ptr(), float_type(tensor), last == 2 ? tensor.stride(0) : 0,
            tensor.stride(last - 1), static_cast<int32_t>(vocab)};
}

RowsView check_logits(const char* op, const char* name, const Tensor& tensor,
                      std::initializer_list<host::Dim> shape) {
    Arg(op, name, tensor)
        .on_cpu()
        .dtype({ScalarType::Float, ScalarType::BFloat16, ScalarType::Half})
        .shape(shape)
        .dense_rows();
    return rows_view(op, name, tensor);
}

template <class T>
const T* check_vector(const char* op, const char* name, const Tensor& tensor, ScalarType dtype,
                      std::initializer_list<host::Dim> shape) {
    Arg(op, name, tensor).on_cpu().dtype({dtype}).shape(shape).dense();
    return static_cast<const T*>(tensor.const_data_ptr());
}

const float* check_temperature(const char* op, const char* name, const Tensor& tensor,
                               host::Dim size) {
    const auto* values = check_vector<float>(op, name, tensor, ScalarType::Float, {size});
    for (int64_t i = 0; i < size.size; ++i) {
        if (!(values[i] >= 0.0f) || std::isinf(values[i])) {
            fail(op, name,
                 "expected finite values >= 0, got " + std::to_string(values[i]) + " at index " +
                     std::to_string(i));
        }
    }
    return values;
}

const float* check_filter(const char* op, const char* name, const OptionalTensor& tensor,
                          host::Dim size) {
    if (!tensor) return nullptr;
    const auto* values = check_vector<float>(op, name, *tensor, ScalarType::Float, {size});
    for (int64_t i = 0; i < size.size; ++i) {
        if (std::isnan(values[i]))
            fail(op, name, "expected numbers, got NaN at index " + std::to_string(i));
    }
    return values;
}

LawArgs check_law(const char* op, host::Dim size, const Tensor& temperature,
                  const OptionalTensor& top_k, const OptionalTensor& top_p,
                  const OptionalTensor& min_p) {
    LawArgs law = {};
    law.temperature = check_temperature(op, "temperature", temperature, size);
    if (top_k) {
        Arg(op, "top_k", *top_k)
            .on_cpu()
            .dtype({ScalarType::Int, ScalarType::Long})
            .shape({size})
            .dense();
        law.top_k = index_view(*top_k);
    }
    law.top_p = check_filter(op, "top_p", top_p, size);
    law.min_p = check_filter(op, "min_p", min_p, size);
    return law;
}

template <class T>
T* check_output(const char* op, const char* name, const Tensor& tensor, ScalarType dtype,
                std::initializer_list<host::Dim> shape) {
    Arg(op, name, tensor).on_cpu().dtype({dtype}).shape(shape).dense();
    return static_cast<T*>(tensor.mutable_data_ptr());
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
    torch::stable::parallel_for(0, args.rows, 1, [&](int64_t begin, int64_t end) {
        DSPARK_CPU_DISPATCH(target_probs, args, begin, end);
    });
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
                const Tensor& ids, const Tensor& logprobs) {
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
    args.ids = check_output<int64_t>(op, "ids", ids, ScalarType::Long, {size});
    args.logprobs = check_output<float>(op, "logprobs", logprobs, ScalarType::Float, {size});
    torch::stable::parallel_for(0, args.rows, 1, [&](int64_t begin, int64_t end) {
        DSPARK_CPU_DISPATCH(sample, args, begin, end);
    });
}

std::tuple<Tensor, Tensor> sample(const Tensor& logits, const Tensor& temperature,
                                  const OptionalTensor& top_k, const OptionalTensor& top_p,
                                  const OptionalTensor& min_p, const Tensor& seeds,
                                  const Tensor& positions, std::string stream,
                                  const OptionalTensor& uniforms) {
    check_logits("sample", "logits", logits, {{"N"}, {"V"}});
    Tensor ids = torch::stable::empty({logits.size(0)}, ScalarType::Long);
    Tensor logprobs = torch::stable::empty({logits.size(0)}, ScalarType::Float);
    sample_out(logits, temperature, top_k, top_p, min_p, seeds, positions, stream, uniforms, ids,
               logprobs);
    return {ids, logprobs};
}

// ---- rejection_sample, block_acceptance ---------------------------------------------------------

Method method_of(const std::string& method) {
    if (method == "block") return Method::kBlock;
    if (method == "token" || method == "standard") return Method::kToken;
    if (method == "greedy") return Method::kGreedy;
    if (method == "synthetic") return Method::kSynthetic;
    fail(
        "rejection_sample", "method",
        "expected 'block', 'token' (or 'standard'), 'greedy' or 'synthetic', got '" + method + "'");
}

// What all verification ops are given.
struct VerifyInputs {
    const Tensor& target_logits;
    const Tensor& draft_token_ids;
    const OptionalTensor& draft_logits;
    const OptionalTensor& draft_probs;
    const Tensor& query_start_loc;
    const Tensor& temperature;
    const OptionalTensor& draft_temperature;
    const OptionalTensor& top_k;
    const OptionalTensor& top_p;
    const OptionalTensor& min_p;
};

void check_query_start_loc(const char* op, const VerifyArgs& args) {
    const char* name = "query_start_loc";
    if (args.query_start_loc[0] != 0) {
        fail(op, name, "expected to start at 0, got " + std::to_string(args.query_start_loc[0]));
    }
    for (int64_t b = 0; b < args.batch; ++b) {
        const int64_t rows = args.query_start_loc[b + 1] - args.query_start_loc[b];
        if (rows < 1 || rows > args.num_drafts + 1) {
            fail(op, name,
                 "expected 1 to K + 1 = " + std::to_string(args.num_drafts + 1) +
                     " rows per request, got " + std::to_string(rows) + " for request " +
                     std::to_string(b));
        }
    }
    if (args.query_start_loc[args.batch] > args.target_rows) {
        fail(op, name,
             "expected at most N=" + std::to_string(args.target_rows) + " rows, got " +
                 std::to_string(args.query_start_loc[args.batch]));
    }
}

void check_draft(const char* op, const VerifyInputs& in, VerifyArgs& args) {
    const host::Dim batch = {"B", args.batch};
    const host::Dim drafts = {"K", args.num_drafts};
    if (in.draft_logits && in.draft_probs) {
        fail(op, "draft_probs", "expected at most one of draft_logits and draft_probs");
    }
    if (in.draft_logits) {
        args.draft_logits =
            check_logits(op, "draft_logits", *in.draft_logits, {batch, drafts, {"V_draft"}});
    }
    if (in.draft_probs) {
        Arg(op, "draft_probs", *in.draft_probs).on_cpu().dtype({ScalarType::Float});
        args.draft_probs =
            check_logits(op, "draft_probs", *in.draft_probs, {batch, drafts, {"V_draft"}});
    }
    const RowsView& draft = in.draft_logits ? args.draft_logits : args.draft_probs;
    if (draft.vocab > args.target_logits.vocab) {
        fail(op, in.draft_logits ? "draft_logits" : "draft_probs",
             "expected at most the target's vocabulary V=" +
                 std::to_string(args.target_logits.vocab) + ", got " + std::to_string(draft.vocab));
    }
    args.draft_temperature = in.draft_temperature ? check_temperature(op, "draft_temperature",
                                                                      *in.draft_temperature, batch)
                                                  : args.law.temperature;
}

VerifyArgs check_verify(const char* op, const VerifyInputs& in) {
    VerifyArgs args = {};
    args.target_logits = check_logits(op, "target_logits", in.target_logits, {{"N"}, {"V"}});
    args.target_rows = in.target_logits.size(0);
    Arg(op, "draft_token_ids", in.draft_token_ids)
        .on_cpu()
        .dtype({ScalarType::Long, ScalarType::Int})
        .shape({{"B"}, {"K"}})
        .dense_rows();
    args.batch = in.draft_token_ids.size(0);
    args.num_drafts = static_cast<int32_t>(in.draft_token_ids.size(1));
    args.draft_token_ids = index_view(in.draft_token_ids);
    args.draft_ids_stride = in.draft_token_ids.stride(0);
    Arg(op, "query_start_loc", in.query_start_loc)
        .on_cpu()
        .dtype({ScalarType::Int, ScalarType::Long})
        .shape({{"B + 1", args.batch + 1}})
        .dense();
    args.query_start_loc = index_view(in.query_start_loc);
    check_query_start_loc(op, args);
    args.law = check_law(op, {"B", args.batch}, in.temperature, in.top_k, in.top_p, in.min_p);
    check_draft(op, in, args);
    return args;
}

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
    LawTable table(args.target_rows + draft_rows, args.target_logits.vocab);
    args.target_laws = table.data();
    args.draft_laws = table.data() + args.target_rows;
    if (args.batch < static_cast<int64_t>(torch::stable::get_num_threads())) {
        const int64_t rows = args.target_rows + draft_rows;
        torch::stable::parallel_for(0, rows, 1, [&](int64_t begin, int64_t end) {
            DSPARK_CPU_DISPATCH(prepare_laws, args, begin, end);
        });
    }
    torch::stable::parallel_for(0, args.batch, 1, kernel);
}

void check_randomness(VerifyArgs& args, const Tensor& seeds, const Tensor& positions,
                      const OptionalTensor& rates, const OptionalTensor& uniforms) {
    const char* op = "rejection_sample";
    const host::Dim batch = {"B", args.batch};
    args.seeds = check_vector<int64_t>(op, "seeds", seeds, ScalarType::Long, {batch});
    args.positions = check_vector<int64_t>(op, "positions", positions, ScalarType::Long, {batch});
    if (uniforms) {
        args.uniforms = check_vector<double>(op, "uniforms", *uniforms, ScalarType::Double,
                                             {batch, {"K + 1", args.num_drafts + 1}});
    }
    if (args.method == Method::kSynthetic) {
        if (!rates) fail(op, "synthetic_acceptance_rates", "method 'synthetic' needs them");
        args.synthetic_rates = check_vector<float>(op, "synthetic_acceptance_rates", *rates,
                                                   ScalarType::Float, {{"K", args.num_drafts}});
    } else if (rates) {
        fail(op, "synthetic_acceptance_rates", "only method 'synthetic' takes them");
    }
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
}  // namespace dspark

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    m.impl("target_probs", TORCH_BOX(&dspark::target_probs));
    m.impl("target_probs.out", TORCH_BOX(&dspark::target_probs_out));
    m.impl("sample", TORCH_BOX(&dspark::sample));
    m.impl("sample.out", TORCH_BOX(&dspark::sample_out));
    m.impl("rejection_sample", TORCH_BOX(&dspark::rejection_sample));
    m.impl("rejection_sample.out", TORCH_BOX(&dspark::rejection_sample_out));
    m.impl("block_acceptance", TORCH_BOX(&dspark::block_acceptance));
}

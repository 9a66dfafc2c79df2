// The operators of the router family: checks and allocation, then the kernels of a backend.
//
// A Backend is a struct of static members:
//     check_device(tensor)     fails unless the backend serves the tensor's device
//     run(args, like)          `like` is on the device
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <string>
#include <tuple>

#include "ops/router/checks.h"

namespace dspark::router {

template <class Backend>
struct Operators {
    static std::tuple<Tensor, Tensor, Tensor> route(const Tensor& logits, int64_t k,
                                                    host::Text scoring, const OptionalTensor& bias,
                                                    int64_t num_groups, int64_t topk_groups,
                                                    bool renormalize, double scale,
                                                    const OptionalTensor& hash_ids,
                                                    const OptionalTensor& hash_table,
                                                    std::optional<double> shared_expert_weight) {
        Backend::check_device(logits);
        const Tensor rows = host::with_dense_rows(logits);
        const OptionalTensor dense_inputs[] = {dense(bias), dense(hash_ids), dense(hash_table)};
        RouteArgs args =
            check_route({rows, k, scoring, dense_inputs[0], num_groups, topk_groups, renormalize,
                         scale, dense_inputs[1], dense_inputs[2], shared_expert_weight});
        const int64_t slots = k + (args.has_shared_expert ? 1 : 0);
        Tensor ids = host::new_tensor(logits, {args.num_tokens, slots}, ScalarType::Int);
        Tensor weights = host::new_tensor(logits, {args.num_tokens, slots}, ScalarType::Float);
        Tensor status = host::new_tensor(logits, {args.num_tokens}, ScalarType::Int);
        args.ids = ids.mutable_data_ptr<int32_t>();
        args.weights = weights.mutable_data_ptr<float>();
        args.status = status.mutable_data_ptr<int32_t>();
        if (args.num_tokens > 0) Backend::run(args, logits);
        return {ids, weights, status};
    }

    // For a dispatch key whose tensors the backend serves.
    template <class Library>
    static void implement(Library& m) {
        m.impl("route", TORCH_BOX(&route));
    }
};

}  // namespace dspark::router

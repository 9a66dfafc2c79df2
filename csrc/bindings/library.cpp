// Every operator of dspark_ext, one schema each. The meaning of each argument (shape, dtype, units)
// stands in the docstring of the Python function of the same name; the implementation in
// csrc/ops/<family>/op.cpp registers itself for its dispatch key.
//
// A functional form allocates its outputs; the overload `.out` writes into the caller's. Nothing
// else is mutated.
#include <torch/csrc/stable/library.h>

// clang-format off
STABLE_TORCH_LIBRARY(dspark_ext, m) {
    // sampling: target law, draws, rejection sampling (csrc/ops/sampling)
    m.def("rejection_sample("
          "Tensor target_logits, Tensor draft_token_ids, Tensor? draft_logits, Tensor? draft_probs, "
          "Tensor query_start_loc, str method, Tensor temperature, Tensor? draft_temperature, "
          "Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor seeds, Tensor positions, "
          "Tensor? synthetic_acceptance_rates, Tensor? uniforms, Tensor[] draft_statistics, "
          "bool return_logprobs) -> "
          "(Tensor token_ids, Tensor num_accepted, Tensor num_emitted, Tensor last_token, "
          "Tensor status, Tensor logprobs)");
    m.def("rejection_sample.out("
          "Tensor target_logits, Tensor draft_token_ids, Tensor? draft_logits, Tensor? draft_probs, "
          "Tensor query_start_loc, str method, Tensor temperature, Tensor? draft_temperature, "
          "Tensor? top_k, Tensor? top_p, Tensor? min_p, Tensor seeds, Tensor positions, "
          "Tensor? synthetic_acceptance_rates, Tensor? uniforms, Tensor[] draft_statistics, *, "
          "Tensor(a!) token_ids, Tensor(b!) num_accepted, Tensor(c!) num_emitted, "
          "Tensor(d!) last_token, Tensor(e!) status, Tensor(f!)? logprobs) -> ()");
    m.def("target_probs(Tensor logits, Tensor temperature, Tensor? top_k, Tensor? top_p, "
          "Tensor? min_p) -> Tensor");
    m.def("target_probs.out(Tensor logits, Tensor temperature, Tensor? top_k, Tensor? top_p, "
          "Tensor? min_p, *, Tensor(a!) probs) -> ()");
    m.def("sample(Tensor logits, Tensor temperature, Tensor? top_k, Tensor? top_p, Tensor? min_p, "
          "Tensor seeds, Tensor positions, str stream, Tensor? uniforms, Tensor? slots=None) -> "
          "(Tensor ids, Tensor logprobs)");
    m.def("sample.out(Tensor logits, Tensor temperature, Tensor? top_k, Tensor? top_p, "
          "Tensor? min_p, Tensor seeds, Tensor positions, str stream, Tensor? uniforms, "
          "Tensor? slots=None, *, "
          "Tensor(a!) ids, Tensor(b!) logprobs) -> ()");
    m.def("block_acceptance("
          "Tensor target_logits, Tensor draft_token_ids, Tensor? draft_logits, Tensor? draft_probs, "
          "Tensor query_start_loc, Tensor temperature, Tensor? draft_temperature, Tensor? top_k, "
          "Tensor? top_p, Tensor? min_p) -> "
          "(Tensor prefix_prob, Tensor residual_mass, Tensor accept_prob)");

    // verify: how much of each draft to verify, the ragged batch, what is kept (csrc/ops/verify)
    m.def("schedule(Tensor? confidence, str mode, Tensor? capacity, Tensor? cost, Tensor? budget, "
          "Tensor? lagged_confidence, Tensor? num_requests, float threshold, int num_drafts, "
          "int min_drafts, int max_rows, int num_other_rows) -> "
          "(Tensor verify_lens, Tensor query_start_loc, Tensor num_rows, Tensor expected_tokens)");
    m.def("pack(Tensor anchor, Tensor draft_token_ids, Tensor seq_lens, Tensor verify_lens, "
          "Tensor query_start_loc, int max_rows, Tensor? block_table, int block_size, "
          "int rows_per_request=0) -> (Tensor input_ids, Tensor positions, Tensor request_ids, "
          "Tensor slot_mapping, Tensor sample_rows)");
    m.def("unpack(Tensor rows, Tensor fill, Tensor query_start_loc, int num_drafts, "
          "int rows_per_request=0) -> Tensor");
    m.def("commit(Tensor num_emitted, Tensor last_token, Tensor seq_lens, Tensor query_start_loc, "
          "int num_rows, int rows_per_request=0) -> "
          "(Tensor new_seq_lens, Tensor anchor, Tensor row_kept, Tensor num_rejected)");
    m.def("accumulate_stats(Tensor verify_lens, Tensor num_accepted, Tensor? request_ids, "
          "Tensor(a!) verified, Tensor(b!) reached, Tensor(c!) histogram) -> ()");

    // draft: Markov block sampling, confidences (csrc/ops/draft)
    m.def("markov_sample(Tensor base_logits, Tensor anchor, Tensor w1, Tensor w2, str head, "
          "Tensor? hidden, Tensor? head_weight, Tensor? head_bias, str method, Tensor temperature, "
          "Tensor seeds, Tensor positions, Tensor? d2t, int num_drafts, int vocab_size, bool exact) -> "
          "(Tensor token_ids, Tensor logits, Tensor prev_embed, Tensor row_temperature, "
          "Tensor tile_max, Tensor tile_sum, Tensor tile_nan)");
    m.def("markov_logits(Tensor base_logits, Tensor anchor, Tensor w1, Tensor w2, str head, "
          "Tensor? hidden, Tensor? head_weight, Tensor? head_bias, Tensor? state, bool exact) -> "
          "(Tensor logits, Tensor prev_embed, Tensor next_state)");
    m.def("row_statistics(Tensor logits, Tensor temperature) -> "
          "(Tensor tile_max, Tensor tile_sum, Tensor tile_nan)");
    m.def("draw_shard(Tensor logits, int first_tile, Tensor tile_max, Tensor tile_sum, "
          "Tensor temperature, Tensor seeds, Tensor positions, int slot) -> Tensor");
    m.def("confidence(Tensor hidden, Tensor prev_embed, Tensor weight, Tensor? bias, "
          "Tensor? temperatures) -> Tensor");
    m.def("calibrate(Tensor conf_logits, Tensor temperatures) -> Tensor");

    // formats: number formats of weights and their block scales (csrc/ops/formats)
    m.def("decode(Tensor codes, str format) -> Tensor");
    m.def("encode(Tensor values, str format) -> Tensor");
    m.def("dequantize(Tensor weight, Tensor scale, str format, int[] block, ScalarType dtype) -> "
          "Tensor");

    // router: which experts a token goes to (csrc/ops/router)
    m.def("route(Tensor logits, int k, str scoring, Tensor? bias, int num_groups, int topk_groups, "
          "bool renormalize, float scale, Tensor? hash_ids, Tensor? hash_table, "
          "float? shared_expert_weight) -> (Tensor ids, Tensor weights, Tensor status)");

    // moe: dispatch of tokens to experts and back (csrc/ops/moe)
    m.def("plan(Tensor ids, int num_experts, int alignment, Tensor? expert_map, int tile_rows) -> "
          "(Tensor counts, Tensor offsets, Tensor sorted, Tensor inverse, Tensor total, "
          "Tensor tile_expert, Tensor tile_row, Tensor tile_size, Tensor num_tiles)");
    m.def("permute(Tensor x, Tensor sorted, Tensor inverse) -> Tensor");
    m.def("combine(Tensor y, Tensor inverse, Tensor weights, Tensor? shared, Tensor? residual) -> "
          "Tensor");

    // the expert layer between (csrc/ops/moe)
    m.def("grouped_gemm(Tensor x, Tensor weight, Tensor? scales, str format, int[] block, "
          "str layout, int[] size, "
          "Tensor sorted, Tensor inverse, Tensor tile_expert, Tensor tile_row, Tensor tile_size, "
          "bool gather, ScalarType dtype, bool exact, str activation, float? limit) -> Tensor");
    m.def("swiglu(Tensor gate_up, float? limit, bool interleaved) -> Tensor");

    // linear, attention: row-invariant building blocks for decoding on a CPU (csrc/ops/linear, attention)
    m.def("pack_linear(Tensor weight) -> Tensor");
    m.def("linear(Tensor x, Tensor packed_weight, Tensor? bias, int out_features) -> Tensor");
    m.def("attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor slots, "
          "Tensor key_start, Tensor key_end, float scale) -> Tensor");

    // decoder: what lies between the linears of a decoder layer, row-invariant too (csrc/ops/decoder)
    m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
    m.def("silu_mul(Tensor gate_up) -> Tensor");
    m.def("routed_silu_mul(Tensor gate_up, Tensor router_logits, Tensor router_bias, "
          "int expert_size, int top_k, float scaling, float limit) -> Tensor");
    m.def("rope_store(Tensor qkv, Tensor cos, Tensor sin, Tensor positions, Tensor slots, "
          "Tensor(a!) key_cache, Tensor(b!) value_cache, int num_heads, Tensor? query_norm, "
          "Tensor? key_norm, float eps) -> Tensor");
}
// clang-format on

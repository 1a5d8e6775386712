#include "forge_barrier.h"

#include "ggml-cpu.h"
#include "llama-context.h"
#include "llama-ext.h"

forge_status forge_context_new(llama_model * model, llama_context_params params, llama_context ** out,
                               forge_error * error) {
    return forge_barrier(error, [&] {
        *out = llama_init_from_model(model, params);
        return *out != nullptr ? FORGE_OK : FORGE_FAILED;
    });
}

forge_status forge_decode(llama_context * context, llama_batch batch, int32_t * result, forge_error * error) {
    return forge_barrier(error, [&] {
        *result = llama_decode(context, batch);
        return FORGE_OK;
    });
}

forge_status forge_graph_reserve(llama_context * context, uint32_t tokens, uint32_t outputs,
                                 ggml_cgraph ** out, forge_error * error) {
    return forge_barrier(error, [&] {
        *out = llama_graph_reserve(context, tokens, 1, outputs);
        return *out != nullptr ? FORGE_OK : FORGE_FAILED;
    });
}

bool forge_is_causal(const llama_context * context) {
    return context->get_cparams().causal_attn;
}

forge_status forge_work_bytes(const llama_context * context, int threads, uint64_t * out, forge_error * error) {
    return forge_barrier(error, [&] {
        const ggml_cgraph * graph = context->get_gf_res_reserve()->get_gf();
        *out = ggml_graph_plan(graph, threads, nullptr).work_size;
        return FORGE_OK;
    });
}

forge_status forge_memory_breakdown(const llama_context * context, forge_memory * out, size_t capacity,
                                    size_t * count, forge_error * error) {
    return forge_barrier(error, [&] {
        const auto breakdown = llama_get_memory_breakdown(context);
        *count               = breakdown.size();
        size_t i             = 0;
        for (const auto & [type, bytes] : breakdown) {
            if (i == capacity) {
                break;
            }
            if (out[i].size != sizeof(forge_memory)) {
                return forge_invalid(error, "forge_memory has another size");
            }
            out[i].buffer_name = ggml_backend_buft_name(type);
            out[i].model       = bytes.model;
            out[i].context     = bytes.context;
            out[i].compute     = bytes.compute;
            out[i].host        = ggml_backend_buft_is_host(type);
            i++;
        }
        return FORGE_OK;
    });
}

#include "forge_barrier.h"
#include "forge_load.h"

#include "llama-arch.h"
#include "llama-model.h"

#include <cstring>
#include <vector>

forge_status forge_model_load(const char * const * paths, size_t n_paths, llama_model_params params,
                              bool prefetch, llama_model ** out, forge_error * error) {
    return forge_barrier(error, [&] {
        *out = nullptr;
        if (n_paths == 0) {
            return forge_invalid(error, "no model file was named");
        }
        forge_load_scope scope(prefetch);
        if (n_paths == 1) {
            *out = llama_model_load_from_file(paths[0], params);
        } else {
            std::vector<const char *> splits(paths, paths + n_paths);
            *out = llama_model_load_from_splits(splits.data(), splits.size(), params);
        }
        return *out != nullptr ? FORGE_OK : FORGE_FAILED;
    });
}

forge_status forge_model_tensor_count(const llama_model * model, size_t * out, forge_error * error) {
    return forge_barrier(error, [&] {
        *out = llama_internal_get_tensor_map(model).size();
        return FORGE_OK;
    });
}

forge_status forge_model_tensor_at(const llama_model * model, size_t index, forge_tensor * out,
                                   forge_error * error) {
    return forge_barrier(error, [&] {
        if (out->size != sizeof(forge_tensor)) {
            return forge_invalid(error, "forge_tensor has another size");
        }
        const auto & tensors = llama_internal_get_tensor_map(model);
        if (index >= tensors.size()) {
            return forge_invalid(error, "tensor index out of range");
        }
        const ggml_tensor * tensor = tensors[index].second;
        out->name                  = tensors[index].first.c_str();
        out->data                  = tensor->data;
        out->bytes                 = ggml_nbytes(tensor);
        out->type                  = tensor->type;
        for (int i = 0; i < GGML_MAX_DIMS; i++) {
            out->ne[i] = tensor->ne[i];
        }
        out->buffer_name = nullptr;
        out->host_ptr    = false;
        if (tensor->buffer != nullptr) {
            const char * buffer = ggml_backend_buffer_name(tensor->buffer);
            out->buffer_name    = buffer;
            // Buffers made from a host pointer are the file mappings; upstream names them so.
            const size_t length = strlen(buffer);
            const char * suffix = "_Mapped";
            out->host_ptr       = length >= strlen(suffix) && strcmp(buffer + length - strlen(suffix), suffix) == 0;
        }
        return FORGE_OK;
    });
}

forge_status forge_architecture_at(size_t index, const char ** out, forge_error * error) {
    return forge_barrier(error, [&] {
        const auto all = llm_arch_all();
        *out           = index < all.size() ? llm_arch_name(all[index]) : nullptr;
        return FORGE_OK;
    });
}

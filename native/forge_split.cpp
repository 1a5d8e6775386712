#include "forge_barrier.h"
#include "forge_split.h"

#include "llama-model.h"

#include <algorithm>
#include <vector>

// The rows of a piece are kept with the matrix, in the last of the parameters that an operation has: a matrix
// that was loaded is the result of none, so nothing else uses them.
static constexpr int ROWS_PARAM = GGML_MAX_OP_PARAMS / sizeof(int32_t) - 1;

static int32_t piece_rows(const ggml_tensor * matrix) {
    return matrix->op == GGML_OP_NONE ? matrix->op_params[ROWS_PARAM] : 0;
}

// Whether products with the matrix get a precision of their own, which pieces of it would miss. Versions of
// llama.cpp without such precisions have no such member.
template <typename model_t>
static auto has_precision(const model_t & model, const ggml_tensor * matrix, int)
    -> decltype(model.prec_policy.prec_src1.count(matrix) > 0) {
    return model.prec_policy.prec_src1.count(matrix) > 0;
}

template <typename model_t> static bool has_precision(const model_t &, const ggml_tensor *, long) {
    return false;
}

forge_status forge_model_split_matrix(llama_model * model, const void * data, int32_t rows, bool * split,
                                      forge_error * error) {
    return forge_barrier(error, [&] {
        *split = false;
        if (rows <= 0) {
            return forge_invalid(error, "a piece has at least one row");
        }
        for (const auto & [name, tensor] : llama_internal_get_tensor_map(model)) {
            // build_lora_mm treats products with NVFP4 specially, after they are built.
            const bool plain  = tensor->type != GGML_TYPE_NVFP4 && !has_precision(*model, tensor, 0);
            const bool matrix = tensor->ne[2] == 1 && tensor->ne[3] == 1 && tensor->ne[1] > rows;
            if (tensor->data == data && data != nullptr && plain && matrix && ggml_is_contiguous(tensor)) {
                tensor->op_params[ROWS_PARAM] = rows;
                *split                        = true;
            }
        }
        return FORGE_OK;
    });
}

const ggml_tensor * forge_shown(const ggml_tensor * tensor) {
    const ggml_tensor * shown = tensor->view_src;
    return shown == nullptr || piece_rows(shown) > 0 ? tensor : shown;
}

ggml_tensor * forge_mul_mat(ggml_context * context, ggml_tensor * matrix, ggml_tensor * x) {
    const int64_t rows = piece_rows(matrix);
    if (rows == 0) {
        return ggml_mul_mat(context, matrix, x);
    }
    std::vector<ggml_tensor *> parts;
    for (int64_t first = 0; first < matrix->ne[1]; first += rows) {
        const int64_t count = std::min(rows, matrix->ne[1] - first);
        ggml_tensor * piece =
            ggml_view_2d(context, matrix, matrix->ne[0], count, matrix->nb[1], first * matrix->nb[1]);
        ggml_format_name(piece, "%s_rows-%d", matrix->name, int(first));
        ggml_tensor * part = ggml_mul_mat(context, piece, x);
        ggml_format_name(part, "forge_part-%d", int(first));
        parts.push_back(part);
    }
    // In pairs, so that a result is copied as often as the logarithm of the number of pieces says.
    while (parts.size() > 1) {
        std::vector<ggml_tensor *> joined;
        for (size_t i = 0; i + 1 < parts.size(); i += 2) {
            joined.push_back(ggml_concat(context, parts[i], parts[i + 1], 0));
        }
        if (parts.size() % 2 == 1) {
            joined.push_back(parts.back());
        }
        parts = std::move(joined);
    }
    return parts[0];
}

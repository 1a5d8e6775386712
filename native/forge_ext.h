// The C ABI that RAMforge adds to llama.cpp. Three kinds of function live here:
//  - barriers: a llama.cpp function that can throw, behind a status and a message;
//  - facts that upstream has only as C++ (tensor map, memory breakdown, architectures);
//  - settings that a patch's call site reads (forge_load.h).
//
// Every function returns a forge_status and never lets a C++ exception out. Structures that cross carry
// their size in `size`, set by the caller, so that a caller built against another layout is refused.
#pragma once

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum forge_status {
    FORGE_OK        = 0,
    FORGE_FAILED    = 1, // upstream returned a failure; its reason went to the log
    FORGE_EXCEPTION = 2, // upstream threw; the text is in forge_error
    FORGE_INVALID   = 3, // an argument of the caller is wrong; the text is in forge_error
} forge_status;

typedef struct forge_error {
    size_t size;          // sizeof(forge_error)
    char   message[1024]; // NUL-terminated, empty unless the status says otherwise
} forge_error;

// --- model ---

// Loads the model whose shards are `paths`, in order. `prefetch` false maps the files without asking the
// kernel to read them ahead. `*out` is NULL unless FORGE_OK.
forge_status forge_model_load(const char * const * paths, size_t n_paths, struct llama_model_params params,
                              bool prefetch, struct llama_model ** out, forge_error * error);

// One tensor of a loaded model as the native library holds it.
typedef struct forge_tensor {
    size_t       size;        // sizeof(forge_tensor)
    const char * name;        // owned by the model
    const char * buffer_name; // buffer type's name, NULL while the tensor has no buffer
    const void * data;        // address of the first byte, NULL when nothing is allocated
    uint64_t     bytes;       // ggml_nbytes
    int64_t      ne[4];       // elements in each dimension, innermost first
    int32_t      type;        // enum ggml_type
    bool         host_ptr;    // the buffer wraps memory it does not own: a file mapping
} forge_tensor;

// Number of tensors the model holds.
forge_status forge_model_tensor_count(const struct llama_model * model, size_t * out, forge_error * error);

// Fills `out` with the tensor at `index`, in the order of creation.
forge_status forge_model_tensor_at(const struct llama_model * model, size_t index, forge_tensor * out,
                                   forge_error * error);

// Has every product with the matrix at address `data` computed in pieces of `rows` rows, in contexts that are
// made from now on. `*split` is false when no matrix is there, it has no more rows than that, or its products
// are special. What is computed stays the same, bit for bit.
forge_status forge_model_split_matrix(struct llama_model * model, const void * data, int32_t rows, bool * split,
                                      forge_error * error);

// What a source of a graph's node shows: the tensor it is a view of, or itself; a piece of a split matrix is
// itself. Cannot throw.
const struct ggml_tensor * forge_shown(const struct ggml_tensor * tensor);

// --- context ---

forge_status forge_context_new(struct llama_model * model, struct llama_context_params params,
                               struct llama_context ** out, forge_error * error);

// Whether a token sees only those before it; otherwise a batch must be one micro-batch. Cannot throw.
bool forge_is_causal(const struct llama_context * context);

// `*result` is what llama_decode returned.
forge_status forge_decode(struct llama_context * context, struct llama_batch batch, int32_t * result,
                          forge_error * error);

// Builds the graph that a batch of `tokens` tokens with `outputs` outputs would compute, without computing
// it, and reserves its buffers. `*out` belongs to the context and is valid until the next call that builds
// a graph.
forge_status forge_graph_reserve(struct llama_context * context, uint32_t tokens, uint32_t outputs,
                                 struct ggml_cgraph ** out, forge_error * error);

// Bytes of one buffer type, as the native library sizes or allocated them.
typedef struct forge_memory {
    size_t       size;        // sizeof(forge_memory)
    const char * buffer_name; // owned by the library
    uint64_t     model;       // weights
    uint64_t     context;     // KV cache or recurrent state
    uint64_t     compute;     // graph buffers
    bool         host;        // ordinary memory of this machine
} forge_memory;

// Bytes of scratch memory that `threads` threads take to compute the graph the context has reserved, the
// largest it computes. No buffer of forge_memory_breakdown has them: they are allocated by the computation.
forge_status forge_work_bytes(const struct llama_context * context, int threads, uint64_t * out,
                              forge_error * error);

// Fills up to `capacity` entries; `*count` is how many there are.
forge_status forge_memory_breakdown(const struct llama_context * context, forge_memory * out,
                                    size_t capacity, size_t * count, forge_error * error);

// --- vocabulary ---

// `*result` is what llama_tokenize returned: the count, or minus the count that would be needed.
forge_status forge_tokenize(const struct llama_vocab * vocab, const char * text, int32_t text_len,
                            llama_token * tokens, int32_t capacity, bool add_special, bool parse_special,
                            int32_t * result, forge_error * error);

// `*result` is what llama_token_to_piece returned: the length, or minus the length needed.
forge_status forge_token_to_piece(const struct llama_vocab * vocab, llama_token token, char * buffer,
                                  int32_t length, bool special, int32_t * result, forge_error * error);

// --- sampling ---

// `*out` is NULL with FORGE_FAILED when the grammar does not parse.
forge_status forge_sampler_grammar(const struct llama_vocab * vocab, const char * grammar,
                                   const char * root, struct llama_sampler ** out, forge_error * error);

// Samples from the logits of output `index` and accepts the token.
forge_status forge_sampler_sample(struct llama_sampler * chain, struct llama_context * context,
                                  int32_t index, llama_token * out, forge_error * error);

// --- architectures ---

// Name of the architecture at `index`, NULL past the end.
forge_status forge_architecture_at(size_t index, const char ** out, forge_error * error);

#ifdef __cplusplus
}
#endif

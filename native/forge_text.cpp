// Vocabulary and sampling: what turns text into tokens and logits into the next one.
#include "forge_barrier.h"

forge_status forge_tokenize(const llama_vocab * vocab, const char * text, int32_t text_len,
                            llama_token * tokens, int32_t capacity, bool add_special, bool parse_special,
                            int32_t * result, forge_error * error) {
    return forge_barrier(error, [&] {
        *result = llama_tokenize(vocab, text, text_len, tokens, capacity, add_special, parse_special);
        return FORGE_OK;
    });
}

forge_status forge_token_to_piece(const llama_vocab * vocab, llama_token token, char * buffer, int32_t length,
                                  bool special, int32_t * result, forge_error * error) {
    return forge_barrier(error, [&] {
        *result = llama_token_to_piece(vocab, token, buffer, length, 0, special);
        return FORGE_OK;
    });
}

forge_status forge_sampler_grammar(const llama_vocab * vocab, const char * grammar, const char * root,
                                   llama_sampler ** out, forge_error * error) {
    return forge_barrier(error, [&] {
        *out = llama_sampler_init_grammar(vocab, grammar, root);
        return *out != nullptr ? FORGE_OK : FORGE_FAILED;
    });
}

forge_status forge_sampler_sample(llama_sampler * chain, llama_context * context, int32_t index,
                                  llama_token * out, forge_error * error) {
    return forge_barrier(error, [&] {
        *out = llama_sampler_sample(chain, context, index);
        return FORGE_OK;
    });
}

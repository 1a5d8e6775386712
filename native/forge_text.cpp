// Vocabulary and sampling: what turns text into tokens and logits into the next one.
#include "forge_barrier.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

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

// Follows a grammar. Upstream chooses one of the candidates even when the grammar has rejected all of them, and
// aborts when that one happens to end the text.
static const char * forge_allowed_name(const llama_sampler *) { return "allowed"; }

static void forge_allowed_apply(llama_sampler *, llama_token_data_array * candidates) {
    const auto allowed = [](const llama_token_data & candidate) { return candidate.logit != -INFINITY; };
    if (std::none_of(candidates->data, candidates->data + candidates->size, allowed)) {
        throw std::runtime_error("the grammar allows none of the candidates");
    }
}

forge_status forge_sampler_grammar(const llama_vocab * vocab, const char * grammar, const char * root,
                                   llama_sampler ** out, forge_error * error) {
    return forge_barrier(error, [&] {
        llama_sampler * parsed = llama_sampler_init_grammar(vocab, grammar, root);
        if (parsed == nullptr) {
            return FORGE_FAILED;
        }
        static llama_sampler_i allowed = [] {
            llama_sampler_i interface = {};
            interface.name            = forge_allowed_name;
            interface.apply           = forge_allowed_apply;
            return interface;
        }();
        *out = llama_sampler_chain_init(llama_sampler_chain_default_params());
        llama_sampler_chain_add(*out, parsed);
        llama_sampler_chain_add(*out, llama_sampler_init(&allowed, nullptr));
        return FORGE_OK;
    });
}

forge_status forge_sampler_sample(llama_sampler * chain, llama_context * context, int32_t index,
                                  llama_token * out, forge_error * error) {
    return forge_barrier(error, [&] {
        *out = llama_sampler_sample(chain, context, index);
        return FORGE_OK;
    });
}

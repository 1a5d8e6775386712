//! Logits against those that forward passes independent of llama.cpp gave (`oracle/`).

use std::path::PathBuf;

use forge_core::{Backend, Batch, Context, ContextParams, Model, ModelParams, Threads, Token};
use ramforge_tests::oracle::Recorded;
use ramforge_tests::{cache, real, shapes};

/// Cosine of the angle between two lists of logits.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum() };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Every prompt of `recorded` on the model at `path`: the same top token, and a cosine of at least `least`.
fn agrees(path: PathBuf, extra_buffers: bool, recorded: &Recorded, least: f64) {
    let params = ModelParams { extra_buffers, ..ModelParams::default() };
    let model = Model::load(Backend::init(), &[path], params, None).unwrap();
    // Tests run side by side, and threads that spin while they wait for each other stand in each other's way.
    let threads = Threads { decode: 1, prompt: 1, ..Threads::default() };
    let params = ContextParams { context_tokens: 512, threads, ..ContextParams::default() };
    let mut context = Context::new(&model, &params).unwrap();
    let mut batch = Batch::new(context.sizes().batch_tokens as usize, 1);
    for (number, prompt) in recorded.prompts.iter().enumerate() {
        context.clear();
        batch.clear();
        for (position, &token) in (0..).zip(&prompt.tokens) {
            let last = position as usize + 1 == prompt.tokens.len();
            batch.push(Token(token), position, &[0], last).unwrap();
        }
        context.decode(&mut batch).unwrap();
        let logits = context.logits(batch.len() - 1).unwrap();
        assert_eq!(logits.best(), Some(Token(prompt.top_token)), "prompt {number}");
        let cosine = cosine(&logits, &prompt.logits);
        println!("prompt {number}: cosine {cosine:.8}");
        assert!(cosine >= least, "prompt {number}: cosine {cosine}");
    }
}

/// llama.cpp tokenizes the recorded texts as the oracle did.
fn tokenizes(path: PathBuf, recorded: &Recorded) {
    let params = ModelParams { vocab_only: true, ..ModelParams::default() };
    let model = Model::load(Backend::init(), &[path], params, None).unwrap();
    for prompt in &recorded.prompts {
        let text = prompt.text.as_ref().expect("the prompts of a real model have a text");
        let tokens = model.vocab().encode(text, true, true).unwrap();
        assert_eq!(tokens.iter().map(|token| token.0).collect::<Vec<_>>(), prompt.tokens, "{text}");
    }
}

#[test]
fn smollm2_tokenizes_as_the_oracle_does() {
    tokenizes(real::smollm2().unwrap(), &Recorded::smollm2_chat().unwrap());
    tokenizes(real::smollm2().unwrap(), &Recorded::smollm2_text().unwrap());
}

#[test]
fn smollm2_agrees_with_the_oracle() {
    for extra_buffers in [false, true] {
        agrees(real::smollm2().unwrap(), extra_buffers, &Recorded::smollm2_chat().unwrap(), 0.9999);
    }
}

#[test]
fn gptneox_agrees_with_the_oracle() {
    for extra_buffers in [false, true] {
        let path = cache::model(&shapes::pythia_70m_shape()).unwrap();
        agrees(path, extra_buffers, &Recorded::pythia_70m_shape().unwrap(), 0.9999);
    }
}

#[test]
fn smollm2_in_exact_weights_agrees_with_the_oracle_closely() {
    let path = cache::f32_copy(&real::smollm2().unwrap()).unwrap();
    agrees(path.clone(), true, &Recorded::smollm2_chat().unwrap(), 0.99999);
    agrees(path, true, &Recorded::smollm2_text().unwrap(), 0.99999);
}

#[test]
fn gptneox_in_exact_weights_agrees_with_the_oracle_closely() {
    let path = cache::f32_copy(&cache::model(&shapes::pythia_70m_shape()).unwrap()).unwrap();
    agrees(path, true, &Recorded::pythia_70m_shape().unwrap(), 0.99999);
}

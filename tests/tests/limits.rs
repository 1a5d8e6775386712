//! What would abort the process in llama.cpp is refused with an error: this process lives to say so.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use forge_core::{
    Backend, Batch, Context, ContextParams, Error, ErrorKind, KvType, LoadMode, Model, ModelParams,
    SamplerChain, Threads, Token,
};
use ramforge::residency::streaming::Budget;
use ramforge_tests::gguf_writer::{Data, Value};
use ramforge_tests::programs::ramforge;
use ramforge_tests::shapes::ModelSpec;
use ramforge_tests::{cache, shapes};

fn path() -> PathBuf {
    cache::model(&shapes::tiny_llama()).unwrap()
}

fn load(params: ModelParams) -> Model {
    Model::load(Backend::init(), &[path()], params, None).unwrap()
}

static MODEL: LazyLock<Model> = LazyLock::new(|| load(ModelParams::default()));

fn small() -> ContextParams {
    ContextParams {
        context_tokens: 256,
        batch_tokens: 64,
        micro_batch_tokens: 32,
        outputs: 2,
        sequences: 2,
        threads: Threads { decode: 1, prompt: 1, ..Threads::default() },
        ..ContextParams::default()
    }
}

fn context(params: &ContextParams) -> Context<'static> {
    Context::new(&MODEL, params).unwrap()
}

/// A batch of `(token, position, sequence, output)`.
fn batch(tokens: impl IntoIterator<Item = (i32, u32, u32, bool)>) -> Batch {
    let mut batch = Batch::new(4096, 2);
    for (token, position, sequence, output) in tokens {
        batch.push(Token(token), position, &[sequence], output).unwrap();
    }
    batch
}

#[track_caller]
fn refused<T>(result: Result<T, Error>, kind: ErrorKind, says: &str) {
    let error = result.err().expect("this is to be refused");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

/// A decode that is refused leaves the context as it was: the next good one works and gives logits.
#[track_caller]
fn decode_refused(params: &ContextParams, mut bad: Batch, kind: ErrorKind, says: &str) {
    let mut context = context(params);
    refused(context.decode(&mut bad), kind, says);
    assert!(context.logits(0).is_err(), "no logits after a refused decode");
    context.decode(&mut batch([(5, 0, 0, true)])).unwrap();
    assert!(context.logits(0).unwrap().iter().all(|score| score.is_finite()));
}

#[test]
fn an_empty_batch_is_refused() {
    decode_refused(&small(), Batch::new(4, 1), ErrorKind::Limit, "empty");
}

#[test]
fn a_batch_larger_than_the_contexts_is_refused() {
    let tokens = (0..65).map(|position| (5, position, 0, position == 64));
    decode_refused(&small(), batch(tokens), ErrorKind::Limit, "65 tokens");
    // Without sizes of its own a batch is as large as the context, not as large as was asked for.
    let params = ContextParams { batch_tokens: 4096, ..small() };
    assert_eq!(context(&params).sizes().batch_tokens, 256);
    let tokens = (0..257).map(|position| (5, position, 0, position == 256));
    decode_refused(&params, batch(tokens), ErrorKind::Limit, "257 tokens");
}

#[test]
fn more_outputs_than_the_context_has_are_refused() {
    let tokens = (0..3).map(|position| (5, position, 0, true));
    decode_refused(&small(), batch(tokens), ErrorKind::Limit, "3 outputs");

    let mut context = context(&ContextParams { outputs: 0, ..small() });
    context.decode(&mut batch((0..64).map(|position| (5, position, 0, true)))).unwrap();
    for index in 0..64 {
        assert!(context.logits(index).unwrap().iter().all(|score| score.is_finite()));
    }
}

#[test]
fn outputs_beyond_the_batch_are_harmless() {
    let mut context = context(&ContextParams { outputs: 100_000, ..small() });
    context.decode(&mut batch((0..64).map(|position| (5, position, 0, true)))).unwrap();
    assert!(context.logits(63).is_ok());
}

#[test]
fn sequences_that_do_not_exist_are_refused() {
    for sequence in [2, 255, 256, i32::MAX.cast_unsigned()] {
        decode_refused(&small(), batch([(5, 0, sequence, true)]), ErrorKind::Limit, "does not exist");
    }
    let mut context = context(&small());
    refused(context.forget_from(2, 0), ErrorKind::Limit, "does not exist");
    refused(context.forget_from(0, u32::MAX), ErrorKind::Limit, "too large");
    assert!(Batch::new(1, 1).push(Token(5), 0, &[u32::MAX], true).is_err());
}

#[test]
fn contexts_with_too_many_sequences_are_refused() {
    for sequences in [257, u32::MAX] {
        let result = Context::new(&MODEL, &ContextParams { sequences, outputs: sequences, ..small() });
        refused(result, ErrorKind::Native, "256");
    }
}

#[test]
fn contexts_with_fewer_outputs_than_sequences_are_refused() {
    for params in [
        ContextParams { sequences: 2, ..ContextParams::default() },
        ContextParams { outputs: 0, batch_tokens: 1, ..small() },
        ContextParams { outputs: 0, context_tokens: 1, ..small() },
    ] {
        refused(Context::new(&MODEL, &params), ErrorKind::Limit, "an output for each");
    }
}

#[test]
fn models_that_do_not_generate_token_by_token_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("diffusion.gguf");
    // Dream is a Qwen2 that computes a whole text at once.
    let mut contents = shapes::tiny_qwen2().contents().unwrap();
    for (key, value) in &mut contents.metadata {
        *key = key.replace("qwen2.", "dream.");
        if key == "general.architecture" {
            *value = Value::String("dream".to_owned());
        }
    }
    contents.write(&path, Data::Sparse).unwrap();
    let load = |params| Model::load(Backend::init(), std::slice::from_ref(&path), params, None).unwrap();
    refused(Context::new(&load(ModelParams::default()), &small()), ErrorKind::Limit, "token by token");
    let sizing = ModelParams { no_alloc: true, load_mode: LoadMode::Read, ..ModelParams::default() };
    assert!(Context::new(&load(sizing), &small()).is_ok());

    let run = ramforge().unwrap().arg("run").arg(&path).args(["--prompt", "a"]).output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.code() == Some(1) && said.contains("token by token"), "{}: {said}", run.status);
}

#[test]
fn keys_whose_blocks_do_not_fill_a_head_are_refused_with_a_way_out() {
    let spec = ModelSpec { name: "narrow-heads", heads: 16, head_dim: 16, ..shapes::tiny_llama() };
    let path = cache::model(&spec).unwrap();
    let model = Model::load(Backend::init(), &[path], ModelParams::default(), None).unwrap();
    let error = Context::new(&model, &ContextParams { key_type: KvType::Q8_0, ..small() }).unwrap_err();
    assert_eq!(ramforge::Error::from(error).hints(), ["use --kv-type f16"]);
}

#[test]
fn the_scratch_memory_of_the_threads_is_taken_from_the_budget() {
    let context = context(&small());
    let budget = Budget::measure(1 << 30, &context, 0).unwrap();
    let scratch = budget.terms.iter().find(|term| term.name == "scratch memory of the threads").unwrap();
    assert_eq!(scratch.bytes, Some(context.work_bytes().unwrap()));
}

#[test]
fn a_token_of_several_sequences_is_refused_by_a_context_that_keeps_them_apart() {
    for sequences in [[0, 1], [0, 0]] {
        let mut shared = Batch::new(4, 2);
        shared.push(Token(5), 0, &sequences, true).unwrap();
        decode_refused(&small(), shared, ErrorKind::Limit, "several sequences");
    }
}

#[test]
fn tokens_outside_the_vocabulary_are_refused() {
    let vocab = i32::try_from(MODEL.vocab().len()).unwrap();
    for token in [-1, i32::MIN, vocab, i32::MAX] {
        decode_refused(&small(), batch([(token, 0, 0, true)]), ErrorKind::Native, "");
        refused(MODEL.vocab().decode(Token(token), true, &mut Vec::new()), ErrorKind::Limit, "vocabulary");
        assert!(!MODEL.vocab().ends_generation(Token(token)));
    }
}

#[test]
fn positions_out_of_order_are_refused() {
    let gap = batch([(5, 0, 0, false), (6, 2, 0, true)]);
    decode_refused(&small(), gap, ErrorKind::Native, "not continuous");
    let backwards = batch([(5, 1, 0, false), (6, 0, 0, true)]);
    decode_refused(&small(), backwards, ErrorKind::Native, "decreasing");
    assert!(Batch::new(1, 1).push(Token(5), i32::MAX.cast_unsigned() + 1, &[0], true).is_err());

    let mut context = context(&small());
    context.decode(&mut batch([(5, 0, 0, true)])).unwrap();
    for position in [0, 2, i32::MAX.cast_unsigned()] {
        refused(context.decode(&mut batch([(6, position, 0, true)])), ErrorKind::Native, "position");
    }
    context.decode(&mut batch([(6, 1, 0, true)])).unwrap();
}

#[test]
fn the_largest_position_does_not_abort() {
    let mut context = context(&small());
    let last = i32::MAX.cast_unsigned();
    let _ = context.decode(&mut batch([(5, last, 0, true)]));
    let _ = context.decode(&mut batch([(5, last, 0, true)]));
    context.clear();
    context.decode(&mut batch([(5, 0, 0, true)])).unwrap();
}

#[test]
fn a_full_context_says_so_and_goes_on_after_forgetting() {
    let params = ContextParams { sequences: 1, ..small() };
    let mut context = context(&params);
    assert_eq!(context.sizes().sequence_tokens, 256);
    for start in (0..256).step_by(64) {
        context.decode(&mut batch((start..start + 64).map(|at| (5, at, 0, at == 255)))).unwrap();
    }
    assert!(context.logits(63).is_ok());
    refused(context.decode(&mut batch([(5, 256, 0, true)])), ErrorKind::ContextFull, "no room");
    assert!(context.forget_from(0, 200).unwrap());
    context.decode(&mut batch([(5, 200, 0, true)])).unwrap();
    context.clear();
    context.decode(&mut batch([(5, 0, 0, true)])).unwrap();
}

#[test]
fn logits_that_nobody_asked_for_are_refused() {
    let mut context = context(&small());
    let mut sampler = SamplerChain::new(MODEL.vocab()).unwrap().greedy().unwrap();
    refused(context.logits(0), ErrorKind::Limit, "no logits");
    refused(sampler.sample(&mut context, 0), ErrorKind::Limit, "no logits");

    context.decode(&mut batch([(5, 0, 0, false), (6, 1, 0, true)])).unwrap();
    for index in [0, 2, 3, usize::MAX] {
        refused(context.logits(index), ErrorKind::Limit, "no logits");
        refused(sampler.sample(&mut context, index), ErrorKind::Limit, "no logits");
    }
    let best = context.logits(1).unwrap().best().unwrap();
    assert_eq!(sampler.sample(&mut context, 1).unwrap(), best);

    context.decode(&mut batch([(5, 2, 0, false)])).unwrap();
    refused(context.logits(0), ErrorKind::Limit, "no logits");
    refused(sampler.sample(&mut context, 0), ErrorKind::Limit, "no logits");
}

#[test]
fn models_without_weights_decode_nothing() {
    let sizing = load(ModelParams { no_alloc: true, load_mode: LoadMode::Read, ..ModelParams::default() });
    let mut context = Context::new(&sizing, &small()).unwrap();
    assert!(context.memory_breakdown().unwrap().context_bytes() > 0);
    refused(context.decode(&mut batch([(5, 0, 0, true)])), ErrorKind::Limit, "sizing only");

    for load_mode in [LoadMode::Mmap, LoadMode::MmapLocked] {
        let params = ModelParams { no_alloc: true, load_mode, ..ModelParams::default() };
        refused(Model::load(Backend::init(), &[path()], params, None), ErrorKind::Limit, "without a mapping");
    }

    let vocabulary = load(ModelParams { vocab_only: true, ..ModelParams::default() });
    refused(Context::new(&vocabulary, &small()), ErrorKind::Limit, "vocabulary only");
}

#[test]
fn impossible_sizes_are_refused() {
    for (batch_tokens, micro_batch_tokens) in [(0, 32), (64, 0), (0, 0)] {
        let params = ContextParams { batch_tokens, micro_batch_tokens, ..small() };
        refused(Context::new(&MODEL, &params), ErrorKind::Limit, "at least one token");
    }
    for count in [0, 513, 100_000, u32::MAX] {
        let one = Threads { decode: 1, prompt: 1, ..Threads::default() };
        for threads in [Threads { decode: count, ..one }, Threads { prompt: count, ..one }] {
            let params = ContextParams { threads, ..small() };
            refused(Context::new(&MODEL, &params), ErrorKind::Limit, "threads");
        }
    }
}

#[test]
fn grammars_that_do_not_parse_are_refused() {
    let chain = || SamplerChain::new(MODEL.vocab()).unwrap();
    for grammar in ["root ::= (", "root ::= missing", "other ::= \"a\"", "root ::= root \"a\""] {
        refused(chain().grammar(grammar, "root"), ErrorKind::Native, "grammar does not parse");
    }
    refused(chain().grammar("", "root"), ErrorKind::Limit, "empty");
    refused(chain().grammar("root ::= \"a\"\0", "root"), ErrorKind::NulByte, "NUL");
    refused(chain().grammar("root ::= \"a\"", "ro\0ot"), ErrorKind::NulByte, "NUL");
}

#[test]
fn a_grammar_allows_its_own_texts_only() {
    let mut context = context(&small());
    context.decode(&mut batch([(5, 0, 0, true)])).unwrap();
    let chain = SamplerChain::new(MODEL.vocab()).unwrap();
    let mut sampler = chain.grammar("root ::= \"yes\"", "root").unwrap().greedy().unwrap();
    for _ in 0..2 {
        let mut text = Vec::new();
        loop {
            let token = sampler.sample(&mut context, 0).unwrap();
            if MODEL.vocab().ends_generation(token) {
                break;
            }
            MODEL.vocab().decode(token, false, &mut text).unwrap();
        }
        assert_eq!(text, b"yes");
        sampler.reset();
    }
}

#[test]
fn a_grammar_that_rejects_every_token_is_an_error() {
    let mut context = context(&small());
    context.decode(&mut batch([(5, 0, 0, true)])).unwrap();
    // A character that is none of all characters.
    let grammar = "root ::= [^\\x00-\\UFFFFFFFF]";
    let chain = || SamplerChain::new(MODEL.vocab()).unwrap().grammar(grammar, "root").unwrap();
    for mut sampler in [chain().greedy().unwrap(), chain().temperature(0.8).unwrap().seeded(1).unwrap()] {
        // The first bytes of a character may still become any; the last ones cannot.
        let error = (0..5).find_map(|_| sampler.sample(&mut context, 0).err()).expect("no character fits");
        assert_eq!(error.kind(), ErrorKind::Exception, "{error}");
    }
}

#[test]
fn sampling_settings_that_are_no_numbers_are_refused() {
    let chain = || SamplerChain::new(MODEL.vocab()).unwrap();
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, 0.0] {
        refused(chain().temperature(value), ErrorKind::Limit, "temperature");
        refused(chain().repetition_penalty(64, value), ErrorKind::Limit, "penalty");
    }
    refused(chain().repetition_penalty(u32::MAX, 1.1), ErrorKind::Limit, "look back");
    for value in [f32::NAN, f32::INFINITY, -0.1, 1.1] {
        refused(chain().top_p(value), ErrorKind::Limit, "top-p");
        refused(chain().min_p(value), ErrorKind::Limit, "min-p");
    }
}

#[test]
fn extreme_sampling_settings_choose_a_token() {
    let mut context = context(&small());
    context.decode(&mut batch([(5, 0, 0, true)])).unwrap();
    let chain = || SamplerChain::new(MODEL.vocab()).unwrap();
    for chain in [
        chain().top_k(u32::MAX).unwrap(),
        chain().top_p(0.0).unwrap(),
        chain().min_p(1.0).unwrap(),
        chain().temperature(f32::MIN_POSITIVE).unwrap(),
        chain().temperature(f32::MAX).unwrap(),
        chain().repetition_penalty(0, 1.1).unwrap(),
    ] {
        let token = chain.seeded(u32::MAX).unwrap().sample(&mut context, 0).unwrap();
        assert!((token.0 as usize) < MODEL.vocab().len());
    }
}

#[test]
fn every_seed_draws_the_same_tokens_again() {
    let mut context = context(&small());
    context.decode(&mut batch([(5, 0, 0, true)])).unwrap();
    for seed in [0, u32::MAX] {
        let mut drawn = || {
            let mut sampler = SamplerChain::new(MODEL.vocab()).unwrap().seeded(seed).unwrap();
            (0..32).map(|_| sampler.sample(&mut context, 0).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(drawn(), drawn());
    }
}

/// The logits after each of `tokens`, alone in a context.
fn alone(params: &ContextParams, tokens: &[i32]) -> Vec<f32> {
    let mut context = context(params);
    let last = tokens.len() - 1;
    let tokens = (0..).zip(tokens).map(|(position, &token)| (token, position, 0, position as usize == last));
    context.decode(&mut batch(tokens)).unwrap();
    context.logits(last).unwrap().to_vec()
}

#[test]
fn sequences_in_one_batch_get_the_logits_of_each_alone() {
    let params = small();
    let texts: [Vec<i32>; 2] = [(300..312).collect(), (1000..1009).rev().collect()];
    let mut context = context(&params);
    let mut both = Batch::new(64, 2);
    let mut outputs = Vec::new();
    // In turn, as a server would mix them.
    for position in 0..12 {
        for (sequence, text) in (0..).zip(&texts) {
            if let Some(&token) = text.get(position as usize) {
                let last = position as usize + 1 == text.len();
                both.push(Token(token), position, &[sequence], last).unwrap();
                if last {
                    outputs.push((sequence as usize, both.len() - 1));
                }
            }
        }
    }
    context.decode(&mut both).unwrap();
    assert_eq!(outputs.len(), 2);
    for (sequence, index) in outputs {
        let together = context.logits(index).unwrap();
        let alone = alone(&params, &texts[sequence]);
        let best = (0..alone.len()).max_by(|&a, &b| alone[a].total_cmp(&alone[b])).unwrap();
        assert_eq!(together.best().unwrap().0 as usize, best);
        let scale = alone.iter().fold(0.0_f32, |most, score| most.max(score.abs()));
        for (a, b) in together.iter().zip(&alone) {
            assert!((a - b).abs() <= 1e-3 * scale, "{a} {b}");
        }
    }
}

#[test]
fn a_sequence_does_not_see_another() {
    let mut context = context(&small());
    context.decode(&mut batch((0_u32..20).map(|at| (400 + at.cast_signed(), at, 1, false)))).unwrap();
    context.decode(&mut batch((0_u32..20).map(|at| (300 + at.cast_signed(), at, 0, at == 19)))).unwrap();
    let alone = alone(&small(), &(300..320).collect::<Vec<_>>());
    assert_eq!(context.logits(19).unwrap().as_slice(), alone);
}

#[test]
fn a_load_can_be_cancelled() {
    let mut calls = 0;
    let mut cancel = |_share| {
        calls += 1;
        ControlFlow::Break(())
    };
    let result = Model::load(Backend::init(), &[path()], ModelParams::default(), Some(&mut cancel));
    refused(result, ErrorKind::Cancelled, "cancelled");
    assert_eq!(calls, 1, "asked again after it said no");

    let mut shares = Vec::new();
    let mut watch = |share| {
        shares.push(share);
        ControlFlow::Continue(())
    };
    Model::load(Backend::init(), &[path()], ModelParams::default(), Some(&mut watch)).unwrap();
    assert!(shares.is_sorted() && shares.last() == Some(&1.0), "{shares:?}");
}

#[test]
fn a_panic_in_the_progress_callback_comes_out_as_a_panic() {
    let mut progress = |_share| panic!("the callback's own words");
    let load = || Model::load(Backend::init(), &[path()], ModelParams::default(), Some(&mut progress));
    let payload = catch_unwind(AssertUnwindSafe(load)).expect_err("the panic goes on");
    assert_eq!(payload.downcast_ref::<&str>(), Some(&"the callback's own words"));
    // And nothing of it is left for the next call.
    load_and_decode();
}

fn load_and_decode() {
    let model = load(ModelParams::default());
    let mut context = Context::new(&model, &small()).unwrap();
    context.decode(&mut batch([(5, 0, 0, true)])).unwrap();
}

#[test]
fn a_flag_stops_a_decode() {
    let cancel = Arc::new(AtomicBool::new(true));
    let mut context = context(&ContextParams { cancel: Some(Arc::clone(&cancel)), ..small() });
    let mut prompt = batch((0..64).map(|at| (5, at, 0, at == 63)));
    refused(context.decode(&mut prompt), ErrorKind::Cancelled, "cancelled");
    assert!(context.logits(63).is_err(), "there is no trusting the logits of half a decode");
    cancel.store(false, Ordering::Relaxed);
    context.clear();
    context.decode(&mut prompt).unwrap();
    assert!(context.logits(63).is_ok());
}

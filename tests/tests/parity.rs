//! What `ramforge run` computes is what llama.cpp computes: the same tokens as a loop written directly against
//! its C API, and the same bits however the weights got into memory. And its text reaches the reader whole.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use forge_core::{Backend, Batch, Context, ContextParams, LoadMode, Model, ModelParams, Threads};
use ramforge_tests::programs::{direct, fingerprint, ramforge, ramforge_with_report};
use ramforge_tests::shapes::{self, ModelSpec};
use ramforge_tests::{cache, real};

/// Tests run side by side, and threads that spin while they wait for each other stand in the way of all of them.
const ONE_THREAD: [&str; 2] = ["--threads", "1"];

fn text(path: &Path) -> &str {
    path.to_str().expect("the path of a test model is text")
}

/// Runs both programs on `model` and compares tokens and text; `direct_model` is how the direct loop names it.
fn same_tokens(model: &Path, direct_model: &Path, prompt: &str, options: &[&str]) {
    let shared = [&["--prompt", prompt, "-n", "24"], options].concat();
    let theirs = direct(&[&[text(direct_model)], &shared[..]].concat()).unwrap();
    let (ours, report) = ramforge_with_report(&[&["run", text(model)], &shared[..]].concat()).unwrap();

    assert!(ours.status.success(), "{}", String::from_utf8_lossy(&ours.stderr));
    // One token would be the prompt's work alone.
    assert!(theirs.tokens.len() > 8, "too few tokens to compare: {:?}", theirs.tokens);
    let output = &report["output"];
    assert_eq!(output["prompt_tokens"], theirs.prompt_tokens);
    assert_eq!(output["generated_tokens"], theirs.tokens.len() as u64);
    assert_eq!(String::from_utf8(ours.stdout).unwrap(), theirs.text);
    assert_eq!(output["token_fingerprint"], fingerprint(&theirs.tokens));
}

fn generated(spec: &ModelSpec) -> PathBuf {
    cache::model(spec).unwrap()
}

#[test]
fn smollm2_gives_the_tokens_of_the_direct_loop() {
    let model = real::smollm2().unwrap();
    for prompt in ["The capital of France is", "fn main() {\n", "Zwölf Boxkämpfer jagen Viktor"] {
        same_tokens(&model, &model, prompt, &ONE_THREAD);
        same_tokens(&model, &model, prompt, &[&ONE_THREAD[..], &["--no-repack"]].concat());
    }
}

#[test]
fn a_prompt_of_several_batches_gives_the_tokens_of_the_direct_loop() {
    let model = generated(&shapes::tiny_qwen2());
    let prompt: String = (1..180).map(|number| format!("{number}, ")).collect();
    same_tokens(&model, &model, &prompt, &ONE_THREAD);
}

#[test]
fn gemma3_gives_the_tokens_of_the_direct_loop() {
    let model = real::gemma3().unwrap();
    for prompt in ["The capital of France is", "1, 2, 3, 4,"] {
        same_tokens(&model, &model, prompt, &ONE_THREAD);
        same_tokens(&model, &model, prompt, &[&ONE_THREAD[..], &["--no-repack"]].concat());
    }
}

#[test]
fn generated_models_give_the_tokens_of_the_direct_loop() {
    for spec in [shapes::tiny_llama(), shapes::tiny_qwen2(), shapes::tiny_gptneox(), shapes::tiny_moe()] {
        let model = generated(&spec);
        for prompt in ["hello world", "a"] {
            same_tokens(&model, &model, prompt, &ONE_THREAD);
            same_tokens(&model, &model, prompt, &[&ONE_THREAD[..], &["--no-repack"]].concat());
        }
    }
}

#[test]
fn two_threads_give_the_tokens_of_the_direct_loop() {
    for spec in [shapes::tiny_llama(), shapes::tiny_moe()] {
        let model = generated(&spec);
        same_tokens(&model, &model, "hello world", &["--threads", "2"]);
    }
}

#[test]
fn shards_give_the_tokens_of_the_direct_loop_and_of_the_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let spec = shapes::tiny_qwen2();
    let shards = spec.write_shards(&folder.path().join("shards"), 3).unwrap();
    let whole = generated(&spec);
    for named in [&shards[0], &shards[1], &shards[2], &folder.path().to_path_buf()] {
        same_tokens(named, &shards[0], "hello world", &ONE_THREAD);
        same_tokens(named, &whole, "hello world", &ONE_THREAD);
    }
}

/// `ramforge run MODEL` on one thread with `options`.
fn command(model: &Path, options: &[&str]) -> Command {
    let mut command = ramforge().unwrap();
    command.args(["run", text(model)]).args(ONE_THREAD).args(options);
    command
}

/// Runs the command, which must succeed.
fn run(model: &Path, options: &[&str]) -> Output {
    let output = command(model, options).output().unwrap();
    assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn answer(model: &Path, options: &[&str]) -> String {
    String::from_utf8(run(model, options).stdout).expect("the text is UTF-8")
}

#[test]
fn greedy_runs_are_identical() {
    let model = real::smollm2().unwrap();
    let options = ["--prompt", "Once upon a time", "-n", "64"];
    assert_eq!(answer(&model, &options), answer(&model, &options));
}

#[test]
fn real_models_write_sense_in_both_layouts() {
    let smollm2 = real::smollm2().unwrap();
    let gemma3 = real::gemma3().unwrap();
    let question = ["--chat", "--prompt", "What is gravity?"];
    for layout in [&[][..], &["--no-repack"]] {
        for (model, prompt, continuation) in [
            (&smollm2, &["--prompt", "The capital of France is"][..], "Paris"),
            (&smollm2, &question[..], "Gravity is"),
            (&gemma3, &["--prompt", "France's capital city is called"][..], "Paris"),
            (&gemma3, &["--prompt", "Monday, Tuesday, Wednesday,"][..], "Thursday, Friday, Saturday"),
        ] {
            let answer = answer(model, &[prompt, &["-n", "16"], layout].concat());
            assert!(answer.contains(continuation), "{prompt:?}: {answer}");
        }
    }
    // This file of Gemma's has no chat template, and none is made up for it.
    let refused = command(&gemma3, &question).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stdout.is_empty());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(said.matches("error: the model has no chat template").count(), 1, "{said}");
}

#[test]
fn the_seed_decides_what_is_drawn() {
    let model = real::smollm2().unwrap();
    let drawn = |seed| {
        let options =
            ["--prompt", "My favourite animal is", "-n", "24", "--temperature", "1.2", "--seed", seed];
        answer(&model, &options)
    };
    let first = drawn("1");
    assert_eq!(drawn("1"), first);
    assert_ne!(drawn("2"), first);
}

#[test]
fn a_prompt_is_the_same_wherever_it_comes_from() {
    let model = real::smollm2().unwrap();
    let prompt = "Zwölf Boxkämpfer jagen\nViktor quer über";
    let options = ["-n", "16"];
    let from_option = answer(&model, &[&["--prompt", prompt], &options[..]].concat());
    assert!(!from_option.is_empty());

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt");
    fs::write(&file, prompt).unwrap();
    assert_eq!(answer(&model, &[&["--prompt-file", text(&file)], &options[..]].concat()), from_option);

    let piped = command(&model, &options).stdin(File::open(&file).unwrap()).output().unwrap();
    assert!(piped.status.success());
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), from_option);
}

#[test]
fn standard_output_has_the_text_and_nothing_else() {
    let model = real::smollm2().unwrap();
    let prompt = ["--prompt", "The capital of France is", "-n", "16"];
    let quiet = run(&model, &prompt);
    assert_eq!(String::from_utf8_lossy(&quiet.stderr), "");
    let loud = run(&model, &[&prompt[..], &["--verbose", "--profile", "--memory-report"]].concat());
    assert_eq!(loud.stdout, quiet.stdout);
    assert!(!loud.stderr.is_empty());
}

#[test]
fn a_reader_that_leaves_early_ends_the_run_quietly() {
    let model = real::smollm2().unwrap();
    let mut child = command(&model, &["-n", "2000", "--prompt", "1, 2, 3,"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    // The pipe is closed here, long before 2000 tokens are out.
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn characters_arrive_whole() {
    let model = real::smollm2().unwrap();
    // Characters that SmolLM2 has no token for: it writes each as several tokens.
    let prompt = "🦊🐻🐼🐨🐯🦁🐮🐷🐸🐵🦊🐻🐼🐨🐯🦁🐮🐷🐸🐵🦊🐻🐼🐨🐯";
    let mut child =
        command(&model, &["-n", "48", "--prompt", prompt]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut pieces = Vec::new();
    let mut buffer = [0; 65_536];
    loop {
        let count = stdout.read(&mut buffer).unwrap();
        if count == 0 {
            break;
        }
        pieces.push(
            std::str::from_utf8(&buffer[..count]).expect("no piece ends inside a character").to_owned(),
        );
    }
    assert!(child.wait().unwrap().success());
    let text = pieces.concat();
    assert!(text.chars().filter(|c| c.len_utf8() == 4).count() > 4, "{text}");
    assert!(!text.contains(char::REPLACEMENT_CHARACTER), "{text}");
}

/// The bits of the logits after a prompt that is decoded in two batches, and after one token more.
fn logits(context: &mut Context<'_>, tokens: &[i32]) -> Vec<u32> {
    let mut batch = Batch::new(context.sizes().batch_tokens as usize, 1);
    let mut bits = Vec::new();
    let (last, prompt) = tokens.split_last().unwrap();
    let (head, tail) = prompt.split_at(prompt.len() / 2);
    let mut position = 0;
    for part in [head, tail, &[*last]] {
        batch.clear();
        for (index, &token) in part.iter().enumerate() {
            batch.push(forge_core::Token(token), position, &[0], index + 1 == part.len()).unwrap();
            position += 1;
        }
        context.decode(&mut batch).unwrap();
        let scores = context.logits(part.len() - 1).unwrap();
        bits.extend(scores.iter().map(|score| score.to_bits()));
    }
    bits
}

#[test]
fn logits_do_not_depend_on_how_the_weights_got_into_memory() {
    let backend = Backend::init();
    let params = ContextParams {
        context_tokens: 256,
        threads: Threads { decode: 1, prompt: 1, ..Threads::default() },
        ..ContextParams::default()
    };
    let tokens: Vec<i32> = (0..40).map(|index| 300 + index * 37 % 1500).collect();
    let models = [
        real::smollm2().unwrap(),
        real::gemma3().unwrap(),
        generated(&shapes::tiny_qwen2()),
        generated(&shapes::tiny_gptneox()),
        generated(&shapes::tiny_moe()),
    ];
    for path in models {
        let files = [path];
        for extra_buffers in [false, true] {
            let mapped = ModelParams { extra_buffers, ..ModelParams::default() };
            let model = Model::load(backend, &files, mapped, None).unwrap();
            let mut context = Context::new(&model, &params).unwrap();
            let expected = logits(&mut context, &tokens);
            assert!(expected.iter().all(|&bits| f32::from_bits(bits).is_finite()));

            let mut second = Context::new(&model, &params).unwrap();
            assert!(logits(&mut second, &tokens) == expected, "a second context of {:?}", files[0]);
            context.clear();
            assert!(logits(&mut context, &tokens) == expected, "a cleared context of {:?}", files[0]);

            let others = [
                ModelParams { prefetch: false, ..mapped },
                ModelParams { load_mode: LoadMode::Read, ..mapped },
                ModelParams { load_mode: LoadMode::DirectIo, ..mapped },
            ];
            for other in others {
                let model = Model::load(backend, &files, other, None).unwrap();
                let mut context = Context::new(&model, &params).unwrap();
                assert!(logits(&mut context, &tokens) == expected, "{other:?} of {:?}", files[0]);
            }
        }
    }
}

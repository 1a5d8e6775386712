//! A chat template of a model, and what it is rendered with.
//!
//! The input is the template's text and the messages, each behind a byte 0x1e: a letter for the role and the
//! text. What a template can do to the process that renders it is done to a process of its own, as `ramforge run`
//! has it: `RAMFORGE` is the program.
#![no_main]

use std::path::Path;
use std::time::{Duration, Instant};

use libfuzzer_sys::{Corpus, fuzz_target};
use ramforge::engine::rendering::{self, Conversation};
use ramforge::engine::{Message, Role, Template};
use ramforge_fuzz::{assert_printable, bounded};

/// What a template may cost: text for each of its steps, some of it several times.
const MOST_BYTES: usize = 512 << 20;
/// What a template may say: 64 bytes for each of its steps, and what it writes itself.
const MOST_OUTPUT: usize = 16 << 20;
/// How long the process may take, on a machine that is busy with something else.
const MOST_TIME: Duration = Duration::from_secs(20);

const SEPARATOR: char = '\x1e';

fuzz_target!(|input: &str| -> Corpus {
    let mut parts = input.split(SEPARATOR);
    let template = parts.next().unwrap_or_default().to_owned();
    let messages: Option<Vec<Message>> = parts.map(message).collect();
    let Some(messages) = messages else {
        return Corpus::Reject;
    };
    let (bos, eos) = ("<s>".to_owned(), "</s>".to_owned());
    let rendered = if needs_a_process(&template) {
        let program = std::env::var_os("RAMFORGE").expect("RAMFORGE is the program");
        let started = Instant::now();
        let rendered = rendering::render(Path::new(&program), &Conversation { template, messages, bos, eos });
        assert!(started.elapsed() < MOST_TIME, "{:?}", started.elapsed());
        rendered
    } else {
        bounded(MOST_BYTES, || {
            Template::parse(template).and_then(|template| template.render(&messages, &bos, &eos))
        })
    };
    match rendered {
        Ok(text) => assert!(text.len() <= MOST_OUTPUT, "{} bytes", text.len()),
        Err(error) => assert_printable(&error.to_string()),
    }
    Corpus::Keep
});

fn message(part: &str) -> Option<Message> {
    let mut characters = part.chars();
    let role = match characters.next()? {
        's' => Role::System,
        'u' => Role::User,
        'a' => Role::Assistant,
        _ => return None,
    };
    Some(Message { role, content: characters.as_str().to_owned() })
}

/// Whether `template` may do what no number of steps bounds: work on large numbers, and values in values without
/// end, which take a namespace to build.
fn needs_a_process(template: &str) -> bool {
    let digits = template.split(|character: char| !character.is_ascii_digit()).map(str::len);
    template.contains("namespace") || digits.max() > Some(4) || template.matches('*').count() > 1
}

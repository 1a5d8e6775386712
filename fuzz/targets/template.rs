//! A chat template of a model, and what it is rendered with.
//!
//! The input is the template's text and the messages, each behind a byte 0x1e: a letter for the role and the
//! text.
#![no_main]

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use libfuzzer_sys::{Corpus, fuzz_target};
use ramforge::engine::{Message, Template};
use ramforge_fuzz::{assert_printable, bounded};

/// What a template may cost: more than the renderer allows, which looks every few milliseconds.
const MOST_BYTES: usize = 512 << 20;
/// What a template may say: 64 bytes for each of its steps, and what it writes itself.
const MOST_OUTPUT: usize = 16 << 20;

const SEPARATOR: char = '\x1e';

/// Whether a template has been given up. It goes on in its thread, and would count against the inputs that
/// come after it.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

fuzz_target!(|input: &str| -> Corpus {
    let mut parts = input.split(SEPARATOR);
    let template = parts.next().unwrap_or_default().to_owned();
    let messages: Option<Vec<Message>> = parts.map(message).collect();
    let Some(messages) = messages.filter(|_| !only_the_watch_stops(&template)) else {
        return Corpus::Reject;
    };
    match GIVEN_UP.load(Relaxed) {
        false => bounded(MOST_BYTES, || check(template, &messages)),
        true => check(template, &messages),
    }
    Corpus::Keep
});

fn message(part: &str) -> Option<Message> {
    let mut characters = part.chars();
    let role = match characters.next()? {
        's' => "system",
        'u' => "user",
        'a' => "assistant",
        _ => return None,
    };
    Some(Message { role, content: characters.as_str().to_owned() })
}

/// Whether `template` may do what is stopped by the clock, or by the end of the process, and so would end the
/// fuzzing: work on large numbers, and lists in lists without end, which take a namespace to build. The tests
/// beside the renderer have such templates.
fn only_the_watch_stops(template: &str) -> bool {
    let digits = template.split(|character: char| !character.is_ascii_digit()).map(str::len);
    template.contains("namespace") || digits.max() > Some(4) || template.matches('*').count() > 1
}

fn check(template: String, messages: &[Message]) {
    let rendered = Template::parse(template).and_then(|template| template.render(messages, "<s>", "</s>"));
    match rendered {
        Ok(text) => assert!(text.len() <= MOST_OUTPUT, "{} bytes", text.len()),
        Err(error) => {
            let error = error.to_string();
            assert_printable(&error);
            if error.contains("does not come to an end") || error.contains("too much memory") {
                GIVEN_UP.store(true, Relaxed);
            }
        }
    }
}

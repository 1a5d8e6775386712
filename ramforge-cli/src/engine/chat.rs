//! The model's own chat template, rendered as the Python library that such templates are written for does.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind as JinjaErrorKind, Value, context};

use crate::gguf::printable;
use crate::observe::process::{Process, Which};
use crate::{Error, Result};

/// Steps a template may take, and besides one for each byte of the messages. A template of a real model takes a
/// few thousand. A step also pays for 64 bytes of text that is made, so this is 64 copies of every message.
const FUEL: u64 = 100_000;

/// What no step pays for: a list whose two halves are the same list, forty times over, is small and has more
/// elements than can be compared in a lifetime, and a number is padded to any width at once. So there is an end
/// to time and to anonymous memory, too.
const PATIENCE: Duration = Duration::from_secs(5);
const MOST_BYTES: u64 = 256 << 20;
/// How often to look.
const LOOK: Duration = Duration::from_millis(5);

/// Lists in lists are dropped and printed recursively, as deep as there are steps to nest them.
const STACK_BYTES: usize = 64 << 20;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// The text.
    pub content: String,
}

/// A parsed chat template.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
}

/// The name templates are registered under.
const NAME: &str = "chat template";

impl Template {
    /// Parses `source`, the `tokenizer.chat_template` of a model.
    ///
    /// # Errors
    /// When it uses a construct that is not supported; the message says which and where.
    pub fn parse(source: String) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_syntax(python_whitespace()?);
        environment.set_recursion_limit(64);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(JinjaErrorKind::InvalidOperation, message))
        });
        environment.add_template_owned(NAME, source).map_err(|error| unusable("parse", &error))?;
        Ok(Self { environment })
    }

    /// The text for `messages`, ending where the assistant's answer begins.
    ///
    /// # Errors
    /// When the template refuses the messages, fails, or does not come to an end. In that case it goes on in
    /// a thread of its own: the process should end soon.
    pub fn render(&self, messages: &[Message], bos: &str, eos: &str) -> Result<String> {
        let mut environment = self.environment.clone();
        let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
        environment.set_fuel(Some(FUEL + bytes as u64));
        let (messages, bos, eos) = (messages.to_vec(), bos.to_owned(), eos.to_owned());
        watched(move || render(&environment, &messages, &bos, &eos))?
    }
}

fn render(environment: &Environment<'_>, messages: &[Message], bos: &str, eos: &str) -> Result<String> {
    let template = environment.get_template(NAME).map_err(|error| unusable("find", &error))?;
    let messages: Value = messages
        .iter()
        .map(|message| context! { role => message.role, content => message.content.as_str() })
        .collect();
    template
        .render(context! {
            messages => messages,
            add_generation_prompt => true,
            bos_token => bos,
            eos_token => eos,
        })
        .map_err(|error| unusable("render", &error))
}

/// The result of `work`, or the error that it takes too long or too much memory.
fn watched<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let started = Instant::now();
    let before = anonymous_bytes()?;
    let (sender, result) = mpsc::channel();
    thread::Builder::new()
        .name("chat template".to_owned())
        .stack_size(STACK_BYTES)
        // Nobody listens any more when it has been given up.
        .spawn(move || drop(sender.send(work())))
        .map_err(|error| Error::failed("cannot start a thread for the chat template").caused_by(error))?;
    loop {
        match result.recv_timeout(LOOK) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => return Err(cannot("render", "it ended the renderer")),
            Err(RecvTimeoutError::Timeout) if started.elapsed() > PATIENCE => {
                return Err(cannot("render", "it does not come to an end"));
            }
            Err(RecvTimeoutError::Timeout) if anonymous_bytes()?.saturating_sub(before) > MOST_BYTES => {
                return Err(cannot("render", "it takes too much memory"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

fn anonymous_bytes() -> Result<u64> {
    Ok(Process::sample(Path::new("/proc"), Which::Own)?.rss_anonymous_bytes.unwrap_or(0))
}

/// Block tags leave no blank lines and no indentation behind.
fn python_whitespace() -> Result<SyntaxConfig> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    syntax.map_err(|error| unusable("prepare", &error))
}

fn unusable(what: &str, error: &minijinja::Error) -> Error {
    // The cause is often where the template speaks: raise_exception("...").
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    cannot(what, &text)
}

/// `why` may quote the template or a message.
fn cannot(what: &str, why: &str) -> Error {
    Error::failed(format!("cannot {what} the model's chat template: {}", printable(why)))
        .hint("leave out --chat and write the prompt in the model's own format")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(content: &str) -> Vec<Message> {
        vec![Message { role: "user", content: content.to_owned() }]
    }

    fn render(source: &str, messages: &[Message]) -> Result<String> {
        Template::parse(source.to_owned())?.render(messages, "<s>", "</s>")
    }

    #[test]
    fn a_chatml_template_ends_where_the_answer_begins() {
        let source = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
            {{ '<|im_start|>system\nBe kind<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' \
            + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}\
            {{ '<|im_start|>assistant\n' }}{% endif %}";
        assert_eq!(
            render(source, &user("Hello")).unwrap(),
            "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
        );
    }

    #[test]
    fn python_methods_and_block_trimming_work_as_in_python() {
        let source = "{{ bos_token }}\n{%- for m in messages %}\n    {% if m.content.strip().startswith('H') %}\n\
            {{ m.content.strip().upper() }}\n    {% endif %}\n{% endfor %}";
        assert_eq!(render(source, &user("  Hello ")).unwrap(), "<s>HELLO\n");
    }

    #[test]
    fn what_the_template_says_is_in_the_error() {
        let error = render("{{ raise_exception('no system role') }}", &user("x")).unwrap_err();
        assert!(error.to_string().contains("no system role"), "{error}");
        let error = render("{% frobnicate %}", &user("x")).unwrap_err();
        assert!(error.to_string().contains("frobnicate"), "{error}");
    }

    #[test]
    fn what_the_template_says_cannot_steer_a_terminal() {
        let error = render(r"{{ raise_exception('\x1b[2J') }}", &user("x")).unwrap_err();
        assert!(error.to_string().contains(r"\u{1b}[2J"), "{error}");
    }

    /// `changes` to a variable that keeps its value from one turn of a loop to the next.
    fn forty_times(changes: &str, then: &str) -> String {
        format!(
            "{{% set ns = namespace(x='12345678', y=[1], z=[1]) %}}{{% for i in range(40) %}}{changes}{{% endfor %}}\
             {{{{ {then} }}}}"
        )
    }

    #[test]
    fn a_template_without_end_is_stopped() {
        let double = "{% set ns.y = [ns.y, ns.y] %}{% set ns.z = [ns.z, ns.z] %}";
        let endless = [
            "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}".to_owned(),
            "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}"
                .to_owned(),
            forty_times("{% set ns.x = ns.x ~ ns.x %}", "ns.x"),
            forty_times(double, "ns.y == ns.z"),
            "{{ 'x' * 100000000 }}".to_owned(),
            "{{ '{:1000000000}'.format(1) }}".to_owned(),
        ];
        let started = Instant::now();
        for source in &endless {
            let error = render(source, &user("x")).unwrap_err().to_string();
            assert!(error.len() < 400, "{error}");
        }
        // One of them takes all the time there is.
        assert!(started.elapsed() < 2 * PATIENCE, "{:?}", started.elapsed());
    }

    #[test]
    fn a_long_message_pays_for_its_copies() {
        let long = "word ".repeat(4 << 20);
        let source = "{% for m in messages %}{{ ('<' ~ m.content.strip() ~ '>').replace('word', 'WORD') }}{% endfor %}";
        assert_eq!(render(source, &user(&long)).unwrap().len(), long.len() + 1);
    }

    #[test]
    fn deep_lists_do_not_overflow_the_stack() {
        let source = "{% set ns = namespace(x=[]) %}{% for a in range(200) %}{% for b in range(200) %}\
            {% set ns.x = [ns.x] %}{% endfor %}{% endfor %}";
        // Whether the steps suffice does not matter here.
        let _ = render(source, &user("x"));
    }
}

//! The model's own chat template, rendered as the Python library that such templates are written for does.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind as JinjaErrorKind, Value, context};
use serde::{Deserialize, Serialize};

use crate::gguf::printable;
use crate::{Error, Result};

/// Steps a template may take, and besides one for each byte of the messages. A template of a real model takes a
/// few thousand. A step also pays for 64 bytes of text that is made, so this is 64 copies of every message.
const FUEL: u64 = 100_000;

/// Who says a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Whoever sets up the conversation.
    System,
    /// Who asks.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// What templates call it.
    fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Who says it.
    pub role: Role,
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
    /// The steps are bounded, but a step can take any time and memory, and values in values are compared,
    /// printed and dropped recursively: a namespace that contains itself overflows the stack. So a template of
    /// a model is rendered [in a process of its own](super::rendering).
    ///
    /// # Errors
    /// When the template refuses the messages, fails, or takes too many steps.
    pub fn render(&self, messages: &[Message], bos: &str, eos: &str) -> Result<String> {
        let mut environment = self.environment.clone();
        let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
        environment.set_fuel(Some(FUEL + bytes as u64));
        let messages: Value = messages
            .iter()
            .map(|message| context! { role => message.role.name(), content => message.content.as_str() })
            .collect();
        let template = environment.get_template(NAME).map_err(|error| unusable("find", &error))?;
        template
            .render(context! {
                messages => messages,
                add_generation_prompt => true,
                bos_token => bos,
                eos_token => eos,
            })
            .map_err(|error| unusable("render", &error))
    }
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

/// The error of a template; `why` may quote it, or a message.
pub(super) fn cannot(what: &str, why: &str) -> Error {
    Error::failed(format!("cannot {what} tokenizer.chat_template: {}", printable(why)))
        .hint("leave out --chat and write the prompt in the model's own format")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(content: &str) -> Vec<Message> {
        vec![Message { role: Role::User, content: content.to_owned() }]
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

    #[test]
    fn a_template_without_end_is_stopped() {
        let endless = [
            "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
            "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}",
            "{% set ns = namespace(x='12345678') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        ];
        for source in endless {
            let error = render(source, &user("x")).unwrap_err().to_string();
            assert!(error.len() < 400, "{error}");
        }
    }

    #[test]
    fn a_long_message_pays_for_its_copies() {
        let long = "word ".repeat(4 << 20);
        let source = "{% for m in messages %}{{ ('<' ~ m.content.strip() ~ '>').replace('word', 'WORD') }}{% endfor %}";
        assert_eq!(render(source, &user(&long)).unwrap().len(), long.len() + 1);
    }
}

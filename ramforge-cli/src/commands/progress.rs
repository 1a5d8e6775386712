//! Progress bars on standard error, where somebody sees them.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::engine::Progress;

/// A bar for the part that runs now; nothing when it is not shown.
pub struct Bars {
    shown: bool,
    bar: Option<(Part, ProgressBar)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Loading,
    Prompt,
}

/// Steps of the loading bar, whose share is a fraction.
const LOADING_STEPS: u64 = 1000;

impl Bars {
    /// Bars that appear when `shown`.
    pub const fn new(shown: bool) -> Self {
        Self { shown, bar: None }
    }

    fn show(&mut self, part: Part, position: u64, length: u64) {
        if !self.shown {
            return;
        }
        if self.bar.as_ref().is_none_or(|(current, _)| *current != part) {
            self.clear();
            let (message, template) = match part {
                Part::Loading => ("loading model", "{msg:15} {bar:32} {percent:>3} %"),
                Part::Prompt => ("reading prompt", "{msg:15} {bar:32} {pos}/{len} tokens, {eta} left"),
            };
            let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
            // The templates are constants of this file, and a bar without style is a bar all the same.
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.set_message(message);
            self.bar = Some((part, bar));
        }
        if let Some((_, bar)) = &self.bar {
            bar.set_position(position);
        }
    }
}

impl Progress for Bars {
    fn loading(&mut self, share: f32) {
        let steps = f64::from(share.clamp(0.0, 1.0)) * LOADING_STEPS as f64;
        self.show(Part::Loading, steps as u64, LOADING_STEPS);
    }

    fn prompt(&mut self, done: usize, total: usize) {
        self.show(Part::Prompt, done as u64, total as u64);
    }

    fn clear(&mut self) {
        if let Some((_, bar)) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.clear();
    }
}

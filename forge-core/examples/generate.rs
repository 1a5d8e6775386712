//! The hello world: `cargo run --release --example generate MODEL.gguf "The capital of France is"`.

use std::io::{Write, stdout};

use forge_core::{Backend, Batch, Context, ContextParams, Model, ModelParams, SamplerChain};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(prompt)) = (arguments.next(), arguments.next()) else {
        return Err("usage: generate MODEL.gguf PROMPT".into());
    };

    let backend = Backend::init();
    let model = Model::load(backend, &[path.into()], ModelParams::default(), None)?;
    let vocab = model.vocab();
    let mut context = Context::new(&model, &ContextParams::default())?;
    let mut sampler = SamplerChain::new(vocab)?.greedy()?;

    let prompt = vocab.encode(&prompt, true, false)?;
    let mut batch = Batch::new(prompt.len(), 1);
    let mut position = 0;
    for (index, &token) in prompt.iter().enumerate() {
        batch.push(token, position, &[0], index + 1 == prompt.len())?;
        position += 1;
    }

    for _ in 0..32 {
        let last = batch.len() - 1;
        context.decode(&mut batch)?;
        let token = sampler.sample(&mut context, last)?;
        if vocab.ends_generation(token) {
            break;
        }
        let mut bytes = Vec::new();
        vocab.decode(token, false, &mut bytes)?;
        stdout().write_all(&bytes)?;
        stdout().flush()?;
        batch.clear();
        batch.push(token, position, &[0], true)?;
        position += 1;
    }
    println!();
    Ok(())
}

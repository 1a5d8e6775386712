"""Computes the logits that follow a few prompts and puts them into recorded/, where the tests find them.

    python3 -m pip install numpy
    cargo run --release -p ramforge-tests --bin generate-model -- pythia-70m-shape pythia.gguf
    python3 tests/oracle/record.py "$(build-scripts/fetch-model smollm2)" pythia.gguf

recorded/NAME.json holds the prompts, their tokens, the top token and the name of the file of logits:
one little-endian 16-bit float for each entry of the vocabulary.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

import gptneox
import llama
from bpe import Bpe
from gguf_file import GgufFile

RECORDED = Path(__file__).parent / "recorded"

# Of the questions tried, ones with a clear first word of the answer and a high mean of the logits, so that
# the rounding inside llama.cpp's quantized kernels, which no two machines need do alike, cannot matter.
QUESTIONS = [
    "What is 7 times 8?",
    "What does a compiler do?",
    "Was ist ein Fahrrad?",
    "List five animals that live in the sea.",
    "Give three reasons to learn to swim.",
    "Explain how a refrigerator works.",
]

TEXTS = [
    "The capital of France is",
    "Once upon a time, in 1987, there were 12 children who",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "It's 20 °C in München, so the café's tables are outside; we'll sit",
    "A computer keeps the pages it used last in memory and the others on the disk. When a program touches a "
    "page that is not in memory, the kernel stops it, reads the page, and lets it go on. If there is no room "
    "left, another page has to go first. The oldest page is a good choice as long as a program comes back to "
    "what it used a moment ago. It is the worst choice for a program that walks through all its data again "
    "and again in the same order, because",
]


def chat(question):
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def random_tokens(count, vocabulary, state):
    """Any tokens will do for random weights; these come from a small generator with a fixed start."""
    tokens = []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        tokens.append(state // 8 % vocabulary)
    return tokens


def record(name, path, prompts, last_logits):
    file = GgufFile(path)
    entries = []
    for index, prompt in enumerate(prompts(file.metadata)):
        logits = last_logits(file, prompt["tokens"])
        stored = f"{name}-{index}.f16"
        logits.astype("<f2").tofile(RECORDED / stored)
        entries.append({**prompt, "top_token": int(np.argmax(logits)), "logits": stored})
        print(f"{name} {index}: {len(prompt['tokens'])} tokens, top {entries[-1]['top_token']}", file=sys.stderr)
    lines = ",\n".join("    " + json.dumps(entry, ensure_ascii=False) for entry in entries)
    document = f'{{\n  "model_sha256": "{sha256(path)}",\n  "prompts": [\n{lines}\n  ]\n}}\n'
    (RECORDED / f"{name}.json").write_text(document, encoding="utf-8")


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def texts(texts):
    def prompts(metadata):
        tokenizer = Bpe(metadata)
        return [{"text": text, "tokens": tokenizer.encode(text)} for text in texts]

    return prompts


def arbitrary_tokens(metadata):
    # Lengths at which no second token comes near the top one.
    vocabulary = metadata["gptneox.vocab_size"]
    return [{"tokens": random_tokens(count, vocabulary, count)} for count in (1, 5, 33, 96, 240)]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: record.py SMOLLM2 PYTHIA_70M_SHAPE")
    _, smollm2, pythia = sys.argv
    RECORDED.mkdir(exist_ok=True)
    record("smollm2-chat", smollm2, texts(map(chat, QUESTIONS)), llama.last_logits)
    record("smollm2-text", smollm2, texts(TEXTS), llama.last_logits)
    record("pythia-70m-shape", pythia, arbitrary_tokens, gptneox.last_logits)

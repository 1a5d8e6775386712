"""Byte-level BPE in the manner of GPT-2, with SmolLM2's rule that every digit stands alone."""

import re
import unicodedata

CONTRACTION = re.compile(r"'(?:s|t|re|ve|m|ll|d)")
# Over classes: letters L, numbers N, others O, space itself, other white space W.
PIECE = re.compile(r" ?L+| ?N+| ?O+|[ W]+(?![^ W])|[ W]+")


def byte_symbols():
    """The character that stands for each byte: itself where it can be seen, else one from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = (byte for byte in range(256) if byte not in visible)
    return {**{b: chr(b) for b in visible}, **{b: chr(0x100 + i) for i, b in enumerate(hidden)}}


def character_class(character):
    if character.isspace():
        return " " if character == " " else "W"
    category = unicodedata.category(character)[0]
    return category if category in "LN" else "O"


def pieces(text):
    for chunk in re.split(r"(\d)", text):
        classes = "".join(map(character_class, chunk))
        at = 0
        while at < len(chunk):
            end = (CONTRACTION.match(chunk, at) or PIECE.match(classes, at)).end()
            yield chunk[at:end]
            at = end


class Bpe:
    """The tokenizer of a GGUF file with `tokenizer.ggml.pre` smollm."""

    def __init__(self, metadata):
        get = lambda name: metadata["tokenizer.ggml." + name]
        if (get("model"), get("pre")) != ("gpt2", "smollm"):
            raise ValueError("only SmolLM2's tokenizer is known here")
        tokens = get("tokens")
        self.ids = {token: number for number, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(get("merges"))}
        control = [re.escape(token) for token, kind in zip(tokens, get("token_type")) if kind == 3]
        self.control = re.compile("(" + "|".join(control) + ")")
        self.symbols = byte_symbols()

    def encode(self, text):
        """The ids of `text`, in which control tokens may be spelled out."""
        ids = []
        for index, part in enumerate(self.control.split(text)):
            if index % 2:
                ids.append(self.ids[part])
            else:
                for piece in pieces(part):
                    word = [self.symbols[byte] for byte in piece.encode()]
                    ids.extend(self.ids[token] for token in self.merge(word))
        return ids

    def merge(self, word):
        while len(word) > 1:
            pair = min(zip(word, word[1:]), key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if pair not in self.ranks:
                break
            merged, at = [], 0
            while at < len(word):
                joined = tuple(word[at : at + 2]) == pair
                merged.append("".join(pair) if joined else word[at])
                at += 2 if joined else 1
            word = merged
        return word

"""Where a hunk fits in another version of its file, and what moved when it does not."""

import difflib


class Placement:
    """A hunk fits at line `at` (from 1), `offset` lines from where it was, without `dropped` context lines."""

    def __init__(self, at, offset, lead, trail, candidates):
        self.at, self.offset, self.candidates = at, offset, candidates
        self.lead, self.trail = lead, trail
        self.dropped = lead + trail

    def clean(self):
        return self.offset == 0 and self.dropped == 0

    def describe(self):
        parts = [f"offset {self.offset:+} lines, now line {self.at}" if self.offset else f"line {self.at}"]
        if self.dropped:
            parts.append(f"context reduced by {self.dropped} line{'s' * (self.dropped > 1)}")
        if self.candidates > 1:
            parts.append(f"the nearest of {self.candidates} places that match")
        return "; ".join(parts)


def place(hunk, lines, shift):
    """Looks for the hunk near its own line plus `shift`: with all of its context first, then without the line
    before, the line after, and both. What is left must hold more than blank lines, and with context
    dropped it must fit in one place only. None when nothing fits."""
    old = [line.text for line in hunk.old()]
    lead, trail = hunk.context()
    expected = hunk.old_at - 1 + shift
    for before, after in [(0, 0), (lead, 0), (0, trail), (lead, trail)]:
        block = old[before : len(old) - after]
        if not any(text.strip() for text in block):
            continue
        starts = [at - before for at in positions(block, lines)]
        found = [at for at in starts if 0 <= at <= len(lines) - len(old)]
        if found and (before + after == 0 or len(found) == 1):
            at = min(found, key=lambda found: abs(found - expected))
            return Placement(at + 1, at + 1 - hunk.old_at, before, after, len(found))
    return None


def positions(block, lines):
    return [at for at in range(len(lines) - len(block) + 1) if lines[at : at + len(block)] == block]


def apply(hunk, placement, lines):
    """The file with the hunk in place; context that did not match stays as the file has it."""
    start = placement.at - 1
    end = start + len(hunk.old())
    kept_before = lines[start : start + placement.lead]
    kept_after = lines[end - placement.trail : end]
    new = hunk.new()
    return lines[:start] + kept_before + new[placement.lead : len(new) - placement.trail] + kept_after + lines[end:]


def differences(hunk, lines, shift, others):
    """(line number in the patch, text) for every old line of the hunk that the file no longer has where the
    rest of the hunk fits best. `others` yields (path, lines) of the tree's other files."""
    old = hunk.old()
    start = best_alignment(old, lines, hunk.old_at - 1 + shift)
    for at, line in enumerate(old, start):
        there = lines[at] if 0 <= at < len(lines) else None
        if there != line.text:
            now = whereabouts(line.text, lines, at, others)
            yield line.number, f"expected at {hunk.path}:{at + 1}: {line.text!r}; {now}"


def best_alignment(old, lines, expected):
    """The position where most lines of the hunk match, the nearest of equals; blank lines count little."""
    best, best_score = expected, (0, 0)
    weights = [10 if line.text.strip() else 1 for line in old]
    for start in range(-len(old) + 1, len(lines)):
        score = sum(
            weight
            for at, (line, weight) in enumerate(zip(old, weights), start)
            if 0 <= at < len(lines) and lines[at] == line.text
        )
        if score > 1 and (score, -abs(start - expected)) > best_score:
            best, best_score = start, (score, -abs(start - expected))
    return best


def whereabouts(text, lines, near, others):
    """What became of an old line: where it is now, or what it turned into."""
    there = f"there is now {lines[near]!r}" if 0 <= near < len(lines) else "the file is shorter now"
    if not text.strip():
        return there
    found = positions([text], lines)
    if found:
        return f"{there}; the line moved to {min(found, key=lambda at: abs(at - near)) + 1}"
    # Lines near by are the likely ones, so they may differ more.
    for window, cutoff in [(60, 0.6), (len(lines), 0.75)]:
        first = max(near - window, 0)
        stripped = [line.strip() for line in lines[first : near + window]]
        close = difflib.get_close_matches(text.strip(), stripped, 1, cutoff)
        if close:
            found = [at for at, line in enumerate(stripped, first) if line == close[0]]
            at = min(found, key=lambda at: abs(at - near))
            return f"the closest is now line {at + 1}: {lines[at]!r}"
    for path, other in others():
        if text in other:
            return f"{there}; the line is now at {path}:{other.index(text) + 1}"
    return f"{there}; the line is gone"

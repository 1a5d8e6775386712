"""The patch series as text: parsing, writing, and the rules of patches/README.md."""

import re

from .source import Failure, read_text

FIELDS = ("Subject", "Description", "Why-not-native", "Forwarded", "Remove-when")
MOST_PATCHES = 5
MOST_LINES = 120

NAME = re.compile(r"[0-9]{4}-[a-z0-9]+(-[a-z0-9]+)*\.patch")
HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)")
INCLUDE = re.compile(r'\s*#\s*include\s+"forge_\w+\.h"\s*')
IDENTIFIER = re.compile(r"\bforge_\w+")
NOT_CODE = re.compile(r'//.*|/\*.*?\*/|"(?:\\.|[^"\\])*"')
BRACKETS = re.compile(r"[\s(){}\[\];,]*")


class Line:
    """A line of a hunk: its sign (space, minus or plus), its text, and its number in the patch file."""

    def __init__(self, sign, text, number):
        self.sign, self.text, self.number = sign, text, number


class Hunk:
    """A hunk of one file. `old_at` and `new_at` are line numbers before and after the patch, from 1."""

    def __init__(self, path, number, old_at, new_at):
        self.path, self.number, self.old_at, self.new_at = path, number, old_at, new_at
        self.lines = []

    def old(self):
        return [line for line in self.lines if line.sign != "+"]

    def new(self):
        return [line.text for line in self.lines if line.sign != "-"]

    def context(self):
        """How many lines of context lead and trail the hunk."""
        signs = "".join(line.sign for line in self.lines)
        return len(signs) - len(signs.lstrip(" ")), len(signs) - len(signs.rstrip(" "))


class Patch:
    """One patch file. `problems` are (line number, text) of what cannot be read."""

    def __init__(self, path):
        self.path = path
        self.name = path.name
        self.text = read_text(path)
        self.header, self.hunks, self.problems = [], [], []
        self.parse(self.text.split("\n")[:-1])

    def parse(self, lines):
        at = 0
        while at < len(lines) and lines[at] != "":
            self.header.append(lines[at])
            at += 1
        at += 1
        path = None
        while at < len(lines):
            hunk = HUNK.fullmatch(lines[at])
            if lines[at].startswith("--- ") and lines[at + 1 : at + 2] and lines[at + 1].startswith("+++ "):
                path = lines[at][6:]
                if lines[at] != f"--- a/{path}" or lines[at + 1] != f"+++ b/{path}":
                    self.problems.append((at + 1, "a patch changes files; it does not add, delete or rename them"))
                at += 2
            elif hunk and path:
                at = self.parse_hunk(lines, at, hunk, path)
            else:
                self.problems.append((at + 1, f"neither a file name nor a hunk: {lines[at]!r}"))
                return

    def parse_hunk(self, lines, at, match, path):
        old, new = (int(match[group] or 1) for group in (2, 4))
        hunk = Hunk(path, at + 1, int(match[1]), int(match[3]))
        if match[5]:
            self.problems.append((at + 1, "the hunk header names a function; export writes it without"))
        self.hunks.append(hunk)
        at += 1
        while at < len(lines) and (old > 0 or new > 0 or lines[at].startswith("\\")):
            sign, text = lines[at][:1] or " ", lines[at][1:]
            if sign in " -+":
                hunk.lines.append(Line(sign, text, at + 1))
            old -= sign in " -"
            new -= sign in " +"
            at += 1
        if old or new:
            self.problems.append((hunk.number, "the hunk has other line counts than its header says"))
        return at

    def changed_lines(self):
        return sum(line.sign != " " for hunk in self.hunks for line in hunk.lines)

    def message(self):
        """The commit message that carries the header and the file's name."""
        subject = field(self.header, "Subject") or self.name
        rest = [line for line in self.header if not line.startswith("Subject:")]
        return "\n".join([subject, "", *rest, f"Patch: {self.name}", ""])


class Series:
    """The patches that `series` in `folder` lists, in order."""

    def __init__(self, folder):
        self.folder = folder
        if not (folder / "series").is_file():
            raise Failure(f"{folder} has no file named series")
        self.names = read_text(folder / "series").splitlines()
        self.patches = [Patch(folder / name) for name in self.names if (folder / name).is_file()]

    def malformed(self):
        """What keeps the series from being read, as `file:line: what`."""
        found = [f"{self.folder / 'series'}:{line}: {text}" for line, text in self.list_problems()]
        return found + [f"{patch.path}:{line}: {text}" for patch in self.patches for line, text in patch.problems]

    def problems(self):
        """Every rule broken, as `file:line: what`."""
        found = self.malformed()
        for patch in self.patches:
            problems = sorted([*header_problems(patch), *hunk_problems(patch)])
            found += [f"{patch.path}:{line}: {text}" for line, text in problems]
        changed = sum(patch.changed_lines() for patch in self.patches)
        if changed > MOST_LINES:
            found.append(f"{self.folder}: {changed} changed lines; at most {MOST_LINES} are allowed in all")
        return found

    def list_problems(self):
        for number, name in enumerate(self.names, 1):
            if not NAME.fullmatch(name):
                yield number, f"{name!r} is no patch name; it must read NNNN-words-with-hyphens.patch"
            elif name in self.names[: number - 1]:
                yield number, f"{name} is listed twice"
            elif not (self.folder / name).is_file():
                yield number, f"{name} is listed and not there"
        for path in sorted(self.folder.glob("*.patch")):
            if path.name not in self.names:
                yield len(self.names), f"{path.name} is there and not listed"
        if len(self.names) > MOST_PATCHES:
            yield MOST_PATCHES + 1, f"{len(self.names)} patches; at most {MOST_PATCHES} are allowed"


def field(header, name):
    """The value of a header field on one line, empty when it is missing."""
    for at, line in enumerate(header):
        if line.startswith(f"{name}:"):
            value = [line.split(":", 1)[1].strip()]
            for more in header[at + 1 :]:
                if not more.startswith(" "):
                    break
                value.append(more.strip())
            return " ".join(value).strip()
    return ""


def header_problems(patch):
    for name in FIELDS:
        if not field(patch.header, name):
            yield 1, f"the header field {name} is missing or empty"
    for number, line in enumerate(patch.header, 1):
        name = line.split(":", 1)[0]
        if not line.startswith(" ") and name not in FIELDS:
            yield number, f"{name!r} is no header field; continue a field's text on a line that begins with a space"
    if not patch.hunks:
        yield 1, "the patch changes nothing"


def hunk_problems(patch):
    """The rule that a patch holds call sites only, and one line of context."""
    for hunk in patch.hunks:
        if max(hunk.context()) > 1:
            yield hunk.number, "the hunk has more than one line of context"
        for block in blocks(hunk):
            added = [line for line in block if line.sign == "+"]
            if len(block) > 2 * len(added):
                yield block[0].number, "upstream lines are removed, not replaced by a call of ours"
            if not any(is_call_site(line.text) for line in added):
                yield block[0].number, "the change neither includes a forge_*.h nor names a forge_ identifier"
                continue
            for line in added:
                if not is_call_site(line.text) and not BRACKETS.fullmatch(line.text):
                    yield line.number, "the added line is no call site: it names no forge_ identifier"


def blocks(hunk):
    """Runs of removed and added lines."""
    block = []
    for line in [*hunk.lines, Line(" ", "", 0)]:
        if line.sign != " ":
            block.append(line)
        elif block:
            yield block
            block = []


def is_call_site(text):
    return bool(INCLUDE.fullmatch(text) or IDENTIFIER.search(NOT_CODE.sub(" ", text)))

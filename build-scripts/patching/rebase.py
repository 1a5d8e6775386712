"""The series against another version of the source: patch by patch, clean, fuzzy or conflict."""

import pathlib
import shutil
import tempfile

from . import placement
from .source import Failure, read_text, write_text
from .tree import Tree

CLEAN, FUZZY, CONFLICT = "clean", "fuzzy", "conflict"


class Result:
    """What happened to one patch; `notes` are lines that say where, `files` what it leaves (path → lines)."""

    def __init__(self, patch):
        self.patch = patch
        self.verdict = CLEAN
        self.notes = []
        self.files = {}


def rebase(patches, source):
    """Places every patch on `source` in order. A patch in conflict is left out for the ones after it."""
    now = {}
    results = []
    for patch in patches:
        result = rebase_patch(patch, source, now)
        if result.verdict != CONFLICT:
            now |= result.files
        results.append(result)
    return results


def rebase_patch(patch, source, before):
    result = Result(patch)
    for path in dict.fromkeys(hunk.path for hunk in patch.hunks):
        hunks = [hunk for hunk in patch.hunks if hunk.path == path]
        lines = before.get(path) or source.read(path)
        if lines is None:
            note(result, CONFLICT, hunks[0].number, f"{path} is gone; its lines: {homes(hunks, source)}")
        else:
            result.files[path] = rebase_file(result, hunks, lines, source)
    return result


def rebase_file(result, hunks, lines, source):
    """The file with the hunks that fit. All are placed before one is applied: line numbers are the file's own."""
    others = lambda: ((path, source.read(path)) for path in source.relatives() if path != hunks[0].path)
    placed, shift = [], 0
    for hunk in hunks:
        place = placement.place(hunk, lines, shift)
        if place is None:
            note(result, CONFLICT, hunk.number, f"{hunk.path}: no place fits")
        else:
            placed.append((hunk, place))
            shift = place.offset
            if not place.clean():
                note(result, FUZZY, hunk.number, f"{hunk.path}: {place.describe()}")
        if place is None or place.dropped:
            for number, text in placement.differences(hunk, lines, shift, others):
                result.notes.append(f"{result.patch.path}:{number}: {text}")
    for hunk, place in sorted(placed, key=lambda pair: pair[1].at, reverse=True):
        lines = placement.apply(hunk, place, lines)
    return lines


def note(result, verdict, number, text):
    if result.verdict != CONFLICT:
        result.verdict = verdict
    result.notes.append(f"{result.patch.path}:{number}: {text}")


def homes(hunks, source):
    """Where the lines of a vanished file went."""
    wanted = [line.text for hunk in hunks for line in hunk.old() if len(line.text.strip()) > 4]
    found = []
    for path in source.relatives():
        lines = source.read(path)
        found += [f"{text!r} is at {path}:{lines.index(text) + 1}" for text in wanted if text in lines]
    return "; ".join(found[:6]) or "in no other file"


def leave(folder, source, results):
    """Makes `folder` the work tree of the patches that fit. A tree that is so already is not touched, so that
    a build of it stays valid; one that carries somebody's work is refused."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rebase-", dir=folder.parent) as scratch:
        new = Tree.create(pathlib.Path(scratch) / "llama.cpp", source)
        for result in results:
            if result.verdict == CONFLICT:
                new.keep_message(result.patch)
            else:
                new.write(result.files, result.patch.message())
        head = new.git("rev-parse", "HEAD")
        write_text(new.path / ".git/MADE", head)
        old = Tree.open(folder)
        if old:
            old.require_clean()
            if old.git("rev-parse", "HEAD") == head:
                return
            made = old.path / ".git/MADE"
            if not made.is_file() or read_text(made) != old.git("rev-parse", "HEAD"):
                raise Failure(f"{folder} carries commits of yours; export them, or name another folder")
            shutil.rmtree(old.path)
        elif folder.is_dir() and any(folder.iterdir()):
            raise Failure(f"{folder} is not empty and was not made by `patches rebase`; name another folder")
        new.path.rename(folder)

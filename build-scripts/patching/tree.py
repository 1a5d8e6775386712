"""A git work tree with the pristine source as its first commit and one commit a patch on top."""

import os
import pathlib
import re
import shutil
import subprocess

from .series import HUNK
from .source import Failure, read_text, write_text

PRISTINE = "pristine"
# Said for every command, so that neither the user's settings nor those of the tree change a byte.
SETTINGS = {
    "apply.ignoreWhitespace": "no",
    "core.attributesFile": "/dev/null",
    "core.autocrlf": "false",
    "core.excludesFile": "/dev/null",
    "core.hooksPath": "/dev/null",
    "commit.gpgSign": "false",
    "diff.suppressBlankEmpty": "false",
    "gc.auto": "0",
    "user.name": "RAMforge",
    "user.email": "patches@ramforge.invalid",
}
DIFF = (
    "diff-tree -p -U1 --inter-hunk-context=0 --diff-algorithm=myers --indent-heuristic --no-renames --no-ext-diff "
    "--no-textconv --no-color --text --full-index --src-prefix=a/ --dst-prefix=b/ -O/dev/null"
).split()


class Tree:
    """A work tree made by `create`."""

    def __init__(self, path):
        self.path = pathlib.Path(path).resolve()

    @classmethod
    def create(cls, path, source):
        """Copies `source` to `path`, which must be absent or empty, and commits it."""
        tree = cls(path)
        if tree.path.is_dir() and any(tree.path.iterdir()):
            raise Failure(f"{path} is not empty and was not made by `patches apply`; name another folder")
        shutil.copytree(source.path, tree.path, dirs_exist_ok=True)
        tree.git("init", "--quiet", "--template=", "--initial-branch=patched", ".")
        tree.commit_all(f"{PRISTINE}\n\n{source.name}\n")
        return tree

    @classmethod
    def open(cls, path):
        """The tree at `path`, or None when there is none: absent, empty, or not ours."""
        tree = cls(path)
        if not (tree.path / ".git/HEAD").is_file():
            return None
        roots = tree.git("rev-list", "--max-parents=0", "HEAD", check=False).split()
        if len(roots) != 1 or tree.message(roots[0]).split("\n")[0] != PRISTINE:
            return None
        return tree

    def git(self, *arguments, check=True, text=None):
        """Runs git on this tree and no other: the folder is named, never searched for."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environment |= {"GIT_DIR": str(self.path / ".git"), "GIT_WORK_TREE": str(self.path)}
        environment |= {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
        # Fixed dates: the same series on the same source has the same commits.
        environment |= {"GIT_AUTHOR_DATE": "@0 +0000", "GIT_COMMITTER_DATE": "@0 +0000", "LC_ALL": "C"}
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        done = subprocess.run(
            ["git", *settings, *arguments],
            cwd=self.path,
            env=environment,
            input=None if text is None else text.encode("utf-8", "surrogateescape"),
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
        )
        if check and done.returncode != 0:
            reason = done.stderr.decode("utf-8", "replace").strip()
            raise Failure(f"git {arguments[0]} failed in {self.path}: {reason}")
        return done.stdout.decode("utf-8", "surrogateescape") if check or done.returncode == 0 else ""

    def commit_all(self, message):
        # Forced: the source carries .gitignore files of its own.
        self.git("add", "--all", "--force", ".")
        self.git("commit", "--quiet", "--allow-empty", "--no-verify", "--cleanup=verbatim", "-F", "-", text=message)

    def message(self, commit):
        return self.git("show", "--no-patch", "--format=%B", commit).rstrip("\n") + "\n"

    def origin(self):
        """The name of the source the tree was made from."""
        (root,) = self.git("rev-list", "--max-parents=0", "HEAD").split()
        return self.message(root).split("\n")[2]

    def commits(self):
        """The patches' commits, oldest first."""
        return self.git("rev-list", "--reverse", "HEAD").split()[1:]

    def require_clean(self):
        if self.git("status", "--porcelain", "--untracked-files=all"):
            raise Failure(f"{self.path} has changes that are not committed; commit or discard them")

    def apply(self, patch):
        """Applies a patch as the build does and commits it. False when git refuses; nothing is changed then."""
        try:
            for options in (["--check"], []):
                self.git("apply", "--whitespace=nowarn", *options, str(patch.path.resolve()))
        except Failure:
            return False
        self.commit_all(patch.message())
        return True

    def keep_message(self, patch):
        """Keeps the message for whoever makes the patch's change by hand; returns its path in the tree."""
        path = f".git/{patch.path.stem}.message"
        write_text(self.path / path, patch.message())
        return path

    def write(self, files, message):
        """Writes whole files (path → lines) and commits them."""
        for path, lines in files.items():
            write_text(self.path / path, "\n".join(lines))
        self.commit_all(message)

    def exported(self):
        """The series as it would be written: file name → text, in order, with `series` last."""
        self.require_clean()
        files = {}
        for commit in self.commits():
            name, header = header_of(self.message(commit), files)
            if name in files:
                raise Failure(f"two commits of {self.path} are named {name} in their Patch: line")
            files[name] = header + "\n" + self.changes(commit, name)
        files["series"] = "".join(f"{name}\n" for name in files)
        return files

    def changes(self, commit, name):
        """The commit's diff without ids, dates and function names."""
        kept = []
        for line in self.git(*DIFF, f"{commit}^", commit).split("\n")[:-1]:
            if line.startswith(("diff --git ", "index ")):
                continue
            hunk = HUNK.fullmatch(line)
            if not hunk and not line.startswith(("--- a/", "+++ b/", " ", "-", "+", "\\")):
                raise Failure(f"{name}: a patch changes lines of files that are there; this commit says {line!r}")
            kept.append(line[: -len(hunk[5])] if hunk and hunk[5] else line)
        return "\n".join([*kept, ""])

    def export(self, folder):
        """Writes the series to `folder`; returns the names that were written, changed or removed."""
        files = self.exported()
        changed = []
        for name, text in files.items():
            path = folder / name
            if not path.is_file() or read_text(path) != text:
                write_text(path, text)
                changed.append(f"{name} written")
        for path in sorted(folder.glob("*.patch")):
            if path.name not in files:
                path.unlink()
                changed.append(f"{path.name} removed")
        return changed


def header_of(message, earlier):
    """The patch's file name and header from a commit message. A commit that names no patch, being a new one,
    gets the number after the highest before it and its subject's words."""
    subject, _, body = message.partition("\n\n")
    fields = [line for line in body.split("\n") if line.strip()]
    names = [line.split(":", 1)[1].strip() for line in fields if line.startswith("Patch:")]
    if names:
        name = names[-1]
    else:
        number = max((int(other[:4]) for other in earlier), default=0) + 1
        name = f"{number:04}-{'-'.join(re.findall('[a-z0-9]+', subject.lower()))}.patch"
    fields = [line for line in fields if not line.startswith("Patch:")]
    return name, "\n".join([f"Subject: {' '.join(subject.split())}", *fields, ""])


def compare(files, folder):
    """`file:line: difference` for every file of an exported series that `folder` holds otherwise."""
    for name, text in files.items():
        there = read_text(folder / name).split("\n")
        for number, (has, written) in enumerate(zip(there, text.split("\n")), 1):
            if has != written:
                yield f"{folder / name}:{number}: the file has {has!r}, export writes {written!r}"
                break
        else:
            if len(there) != len(text.split("\n")):
                yield f"{folder / name}:{number}: the file ends otherwise than export writes it"

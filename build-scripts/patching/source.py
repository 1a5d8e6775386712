"""Where pristine llama.cpp sources come from: the pinned package, another version of it, or a folder."""

import json
import os
import pathlib
import subprocess
import tempfile

CARRIER = "llama-cpp-sys-2"
ROOT = pathlib.Path(__file__).resolve().parents[2]


class Failure(Exception):
    """What went wrong, where, and what to do, in one message."""


class Source:
    """A pristine tree and its name."""

    def __init__(self, path, name):
        self.path = pathlib.Path(path).resolve()
        self.name = name
        if not (self.path / "include/llama.h").is_file():
            raise Failure(f"{path} holds no llama.cpp tree: include/llama.h is missing")

    def read(self, path):
        """The lines of the file `path` of the tree without their ends, or None when there is no such file."""
        file = self.path / path
        return read_text(file).split("\n") if file.is_file() else None

    def relatives(self):
        """Paths of the C and C++ files of the libraries, relative to the tree."""
        for folder in ("src", "include", "ggml/src", "ggml/include"):
            for file in sorted((self.path / folder).rglob("*")):
                if file.suffix in (".c", ".cpp", ".h"):
                    yield str(file.relative_to(self.path))


def read_text(path):
    """Text whose bytes survive being written back, whatever its encoding and line ends."""
    return pathlib.Path(path).read_bytes().decode("utf-8", "surrogateescape")


def write_text(path, text):
    pathlib.Path(path).write_bytes(text.encode("utf-8", "surrogateescape"))


def folder(path):
    return Source(path, f"the tree in {pathlib.Path(path).resolve()}")


def pinned():
    """The version that Cargo.lock pins."""
    return carried(ROOT, "--locked")


def version(number):
    """Any version of the package, through a scratch project, so that the repository stays as it is."""
    with tempfile.TemporaryDirectory(prefix="patches-fetch-") as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "src").mkdir()
        (scratch / "src/lib.rs").write_text("")
        (scratch / "Cargo.toml").write_text(
            '[package]\nname = "scratch"\nversion = "0.0.0"\nedition = "2024"\n[workspace]\n'
            f'[target.\'cfg(any())\'.dependencies]\n{CARRIER} = "={number}"\n'
        )
        try:
            # What was downloaded before needs no network.
            return carried(scratch, "--offline")
        except Failure:
            return carried(scratch)


def carried(project, *options):
    """Asks Cargo where the package lies that `project` depends on; Cargo downloads and verifies it."""
    cargo = os.environ.get("CARGO", "cargo")
    command = [cargo, "metadata", "--quiet", "--format-version", "1", *options]
    try:
        done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    except FileNotFoundError:
        raise Failure(f"{cargo} is not installed") from None
    if done.returncode != 0:
        raise Failure(f"cargo metadata failed: {done.stderr.strip()}")
    for package in json.loads(done.stdout)["packages"]:
        if package["name"] == CARRIER:
            path = pathlib.Path(package["manifest_path"]).with_name("llama.cpp")
            return Source(path, f"{CARRIER} {package['version']}")
    raise Failure(f"{project} does not depend on {CARRIER}")

"""What the headers declare of the part that forge-sys binds, and how two versions differ in it."""

import difflib
import os
import re
import subprocess

from .source import ROOT, Failure, read_text

ARRAY = re.compile(r"const \w+: &\[&str\] = &\[(.*?)\];", re.DOTALL)
VARIABLES = re.compile(r'allowlist_var\("([^"]*)"\)')
MARKER = re.compile(r'# \d+ "([^"]*)"')
WORD = re.compile(r"[A-Za-z_]\w*")
BODY = re.compile(r"^[\w ]+?\b(\w+)\([^;{}]*\) *\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
DEFAULTS = re.compile(r".*_(default_)?params(_init)?")


def allowlist():
    """The names that forge-sys/build/bindgen.rs binds: expressions for functions and for macros."""
    text = read_text(ROOT / "forge-sys/build/bindgen.rs")
    functions = [name for array in ARRAY.findall(text) for name in re.findall(r'"([^"]+)"', array)]
    if not functions:
        raise Failure("forge-sys/build/bindgen.rs holds no allowlist of functions")
    return re.compile("|".join(functions)), re.compile("|".join(VARIABLES.findall(text)))


def preprocess(source, *options):
    command = [os.environ.get("CC", "cc"), "-E", *options, "-I", str(source.path / "include")]
    command += ["-I", str(source.path / "ggml/include"), "-x", "c", str(source.path / "include/llama.h")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"{command[0]} cannot preprocess the headers of {source.name}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def declarations(source):
    """Name → declaration on one line, of every top-level declaration in the tree's own headers."""
    kept, ours = [], False
    for line in preprocess(source):
        marker = MARKER.match(line)
        if marker:
            ours = marker[1].startswith(str(source.path))
        elif ours:
            kept.append(line)
    text = re.sub(r"__attribute__ *\(\((deprecated)?.*?\)\)(?=[\s;])", lambda found: found[1] or "", " ".join(kept))
    found = {}
    # One spacing for all, so that only the words count.
    for pattern, replacement in [(r"\s+", " "), (r" ?([()]) ?", r"\1"), (r" ?, ?", ", "), (r"\)(?=\w)", ") ")]:
        text = re.sub(pattern, replacement, text)
    for chunk in top_level(text):
        name = declared_name(chunk)
        # A forward declaration must not hide the definition.
        if name and ("{" in chunk or "{" not in found.get(name, "")):
            found[name] = chunk
    return found


def top_level(text):
    """The declarations between semicolons outside braces."""
    depth, start = 0, 0
    for at, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if character == ";" and depth == 0:
            yield re.sub(r"^(extern|__extension__) ", "", text[start:at].strip())
            start = at + 1


def declared_name(chunk):
    body = re.match(r"(?:typedef )?(?:struct|enum|union) (\w+)? ?\{.*\} ?(\w+)?$", chunk)
    if body:
        return body[1] or body[2]
    chunk = chunk.split(" = ")[0]
    pointer = re.search(r"\( ?\* ?(\w+) ?\) ?\(", chunk)
    if chunk.startswith("typedef"):
        return pointer[1] if pointer else WORD.findall(chunk)[-1]
    function = re.search(r"(\w+) ?\(", chunk)
    return function[1] if function else (WORD.findall(chunk) or [None])[-1]


def bound(source):
    """Name → declaration of the bound functions, the types they use, the types those use, and the macros."""
    functions, variables = allowlist()
    every = declarations(source)
    # What our own functions take is bound too.
    ours = WORD.findall(read_text(ROOT / "native/forge_ext.h"))
    wanted = [name for name in every if functions.fullmatch(name) or (name in ours and "(" not in every[name])]
    found = {}
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = every[name]
            wanted += [word for word in WORD.findall(every[name]) if word in every]
    for line in preprocess(source, "-dM"):
        macro = line.split(" ", 2)
        if variables.fullmatch(macro[1]):
            found[macro[1]] = " ".join(macro)
    return found


def parts(declaration):
    """A declaration as lines to compare: the fields of a structure, the values of an enum."""
    body = re.match(r"(.*?)\{(.*)\}", declaration)
    if not body:
        return [declaration]
    if re.match(r"(typedef )?enum\b", declaration):
        return list(enumerators(body[2]))
    return [field.strip() for field in body[2].split(";") if field.strip()]


def enumerators(body):
    """`NAME = value`, with the values that C gives where none is written."""
    value, after = "", -1
    for entry in filter(None, map(str.strip, body.split(","))):
        name, _, written = map(str.strip, entry.partition("="))
        if written:
            value, after = written, 0
        else:
            after += 1
        try:
            yield f"{name} = {int(value or '0', 0) + after}"
        except ValueError:
            yield f"{name} = {value}" + (f" + {after}" if after else "")


def defaults(source):
    """Function → lines of its body, for the functions that fill a structure with defaults."""
    functions, _ = allowlist()
    found = {}
    for path in source.relatives():
        if not path.endswith((".c", ".cpp")):
            continue
        for match in BODY.finditer("\n".join(source.read(path))):
            if DEFAULTS.fullmatch(match[1]) and functions.fullmatch(match[1]):
                found[match[1]] = [line.strip() for line in match[2].split("\n") if line.strip()]
    return found


def report(old, new):
    """Lines that say what differs, and how much was compared."""
    before, after = bound(old), bound(new)
    yield f"- {old.name}: {len(before)} bound declarations"
    yield f"+ {new.name}: {len(after)} bound declarations"
    for name in sorted(before.keys() | after.keys()):
        yield from difference(name, *(parts(side[name]) if name in side else [] for side in (before, after)))
    before, after = defaults(old), defaults(new)
    for name in sorted(before.keys() | after.keys()):
        yield from difference(f"{name}, its body", before.get(name, []), after.get(name, []))


def difference(name, old, new):
    if old == new:
        return
    yield ""
    yield name if old and new else f"{name}: {'new' if new else 'gone'}"
    changes = [line for line in difflib.ndiff(old, new) if line[0] in "-+"]
    # A value that only has another number says less than how many have.
    values = [[line[2:].split(" = ", 1) for line in changes if line[0] == sign] for sign in "-+"]
    before, after = (dict(pair for pair in side if len(pair) == 2) for side in values)
    renumbered = [value for value in before if value in after]
    yield from (f"  {line}" for line in changes if line[2:].split(" = ")[0] not in renumbered)
    if renumbered:
        first = renumbered[0]
        yield f"  {len(renumbered)} with other values, the first {first}: {before[first]} → {after[first]}"

"""A run directory with all streams, and ways to damage it, by accident or on purpose.

By accident: bytes and files change, and checksums say so. On purpose: somebody writes other values, and the checksums
that belong to them.
"""

import json
import os
import shutil

import jax.numpy as jnp
import numpy as np
from internals import checked_line_of, sha256_of, write_array

import ntkdiag
from ntkdiag.monitor import Monitor

STEPS = (0, 10, 100)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 4, 4)).astype(np.float32)  # no images: their sides are too short
Y = np.arange(6) % 2
X_HELD_OUT = RNG.normal(size=(5, 4, 4)).astype(np.float32)
Y_HELD_OUT = np.array([1, 0, 1, 1, 0])
PARAMS = {
    "w": RNG.normal(size=(16, 3)).astype(np.float32),
    "v": RNG.normal(size=(3, 2)).astype(np.float32),
}


def model(params, x):
    return jnp.tanh(x.reshape(len(x), -1) @ params["w"]) @ params["v"]


def checkpoints():
    return {
        step: {name: np.float32(leaf * (1 + step / 50)) for name, leaf in PARAMS.items()}
        for step in STEPS
    }


def tracked(out):
    """`track` on the same checkpoints, which goes on with what is there."""
    return ntkdiag.track(
        checkpoints(),
        model=model,
        train=(X, Y),
        held_out=(X_HELD_OUT, Y_HELD_OUT),
        loss="mse",
        descent=0.1,
        out=out,
    )


def write_run(root):
    """The streams "track", "probe" and "watch", each by its own writer."""
    tracked(root)
    params = {name: jnp.asarray(leaf) for name, leaf in PARAMS.items()}
    with Monitor(
        model, train=(X, Y), loss="mse", every=1, time_share=None, top_k=2, out=root
    ) as monitor:
        for step in range(3):
            monitor(step, params, gradient=params)
            params = {name: 0.9 * leaf for name, leaf in params.items()}


# By accident.


def files_in(root, ending=""):
    paths = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    return sorted(path for path in paths if path.name.endswith(ending))


def _changed(path, change):
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(bytes(content))


def flip(root, draw):
    """Some bits of a file."""
    path = draw.choice(files_in(root))
    if path.stat().st_size == 0:
        return

    def change(content):
        for _ in range(draw.choice((1, 1, 1, 5, 50))):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)

    _changed(path, change)


def overwrite(root, draw):
    """A stretch of a file by zeros, or by noise."""
    path = draw.choice(files_in(root))

    def change(content):
        begin = draw.randrange(len(content) + 1)
        length = draw.choice((1, 8, 100, 512, 4096))
        noise = draw.randbytes(length) if draw.random() < 0.5 else bytes(length)
        content[begin : begin + length] = noise[: len(content) - begin]

    _changed(path, change)


def truncate(root, draw):
    """A file that ends too early."""
    path = draw.choice(files_in(root))
    os.truncate(path, draw.randrange(path.stat().st_size + 1))


def extend(root, draw):
    """A file that does not end: with noise, or with zeros that take no room."""
    path = draw.choice(files_in(root))
    if draw.random() < 0.7:
        with path.open("ab") as file:
            file.write(draw.randbytes(draw.choice((1, 100, 5000))))
    else:
        os.truncate(path, path.stat().st_size + draw.choice((1, 10**6, 10**8, 10**12)))


def delete(root, draw):
    """A file or a folder that is gone."""
    path = draw.choice(sorted(root.rglob("*")))
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def exchange(root, draw):
    """Two files in each other's place."""
    ending = draw.choice((".npy", ".jsonl"))
    one, other = draw.choice(files_in(root, ending)), draw.choice(files_in(root, ending))
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def reorder(root, draw):
    """The lines of a file in another order, twice, or some of them."""
    path = draw.choice(files_in(root, ".jsonl"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(draw.choices(lines, k=draw.randrange(2 * len(lines) + 1))))


def something_else(root, draw):
    """A folder, a pipe or a link in the place of a file."""
    path = draw.choice(files_in(root))
    path.unlink()
    kind = draw.choice(("folder", "pipe", "dangling", "device", "loop", "other file"))
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        target = {"dangling": root / "nothing", "device": "/dev/zero", "loop": path}
        path.symlink_to(target.get(kind, draw.choice(files_in(root))))


BY_ACCIDENT = (flip, overwrite, truncate, extend, delete, exchange, reorder, something_else)


# On purpose.

HOSTILE = (
    *(None, True, False, -1, 0, 1, 2**31, 2**53 + 1, 10**19, 10**25, 1e308, -1e308, 5e-324, 0.5),
    *(
        float("inf"),
        float("nan"),
        "",
        "text",
        "x" * 5000,
        "../../x",
        "\ud800",
        "$\\frac",
        "</script>",
        "=1+1",
    ),
    *(
        [],
        {},
        [[]],
        [None],
        [1, "a"],
        [[1], [2, 3]],
        {"a": 1},
        {"": []},
        ["a"] * 1000,
        list(range(1000)),
    ),
)


def places_in(value, path=()):
    """The path of everything inside JSON values."""
    yield path
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield from places_in(item, (*path, key))


def _at(value, path):
    for key in path:
        value = value[key]
    return value


def _line(content):
    """A line with the checksum that belongs to it, also of what JSON does not have."""
    try:
        return checked_line_of(content)
    except (TypeError, ValueError, RecursionError):
        return json.dumps(content)


def _lines(path):
    contents = [json.loads(line) for line in path.read_text().splitlines()]
    for content in contents:
        content.pop("crc32", None)
    return contents


def rewrite(root, draw):
    """Some values of the lines of a file: others, gone, under another name, or once more."""
    path = draw.choice(files_in(root, ".jsonl"))
    contents = _lines(path)
    for _ in range(draw.choice((1, 1, 2, 4))):
        content = draw.choice(contents)
        places = list(places_in(content))[1:]
        if not places:
            continue
        *parent, key = draw.choice(places)
        holder = _at(content, parent)
        how = draw.random()
        if how < 0.6 or isinstance(holder, list):
            holder[key] = draw.choice(HOSTILE)
        elif how < 0.8:
            del holder[key]
        else:
            holder[draw.choice(("step", "record", "arrays", "dims", "x"))] = holder.pop(key)
    path.write_text(
        "\n".join(map(_line, contents)) + "\n", encoding="utf-8", errors="surrogatepass"
    )


def _arrays(draw, array):
    """Another array in the place of one."""
    shapes = (
        (),
        (0,),
        (1,),
        (7,),
        (3, 3),
        (6, 6),
        (6, 2, 6, 2),
        (5, 6, 7, 1),
        (2,) * 12,
        (0, 10**6),
    )
    dtypes = (
        "bool",
        "int8",
        "uint8",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
    )
    if draw.random() < 0.4:
        filled = np.full(array.shape, draw.choice((np.nan, np.inf, -1.0, 0.0, 1e300)))
        with np.errstate(all="ignore"):
            return filled.astype(array.dtype)
    return np.ones(draw.choice(shapes), draw.choice(dtypes))


def replace_array(root, draw):
    """Some arrays by others, with the hashes and checksums that belong to them."""
    for _ in range(draw.choice((1, 1, 3))):
        path = draw.choice(files_in(root, ".npy"))
        stream, step, key = path.parts[-3], int(path.parts[-2]), path.stem
        array = _arrays(draw, np.load(path, allow_pickle=False))
        write_array(path, array)
        lines = root / f"{stream}.jsonl"
        contents = _lines(lines)
        for content in contents:
            if content.get("step") == step:
                content["arrays"][key] = sha256_of(array)
        lines.write_text("\n".join(map(_line, contents)) + "\n")


class Payload:
    """Runs a command where it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def pickle_array(root, draw):
    """An array of objects in the place of one, which would run code."""
    path = draw.choice(files_in(root, ".npy"))
    np.save(path, np.array([Payload(f"touch {root / 'executed'}")], object), allow_pickle=True)


def entries_of_numpy(root, draw):
    """A header that NumPy's own reader would take."""
    path = draw.choice(files_in(root, ".npy"))
    shape = draw.choice(("(10**9,)", "(2**63, 4)", "(3, 3)", "()", "(" * 500 + ")" * 500, "('x',)"))
    descr = draw.choice(
        ("'<f4'", "'|O'", "[('a', '<f4')]", "'<U100000000'", "__import__('os').abort()")
    )
    text = f"{{'descr': {descr}, 'fortran_order': {draw.choice(('True', 'False'))}, 'shape': {shape}, }}\n"
    begin = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little")
    path.write_bytes(begin + text.encode() + path.read_bytes()[128:])


ON_PURPOSE = (
    rewrite,
    rewrite,
    rewrite,
    replace_array,
    replace_array,
    pickle_array,
    entries_of_numpy,
)

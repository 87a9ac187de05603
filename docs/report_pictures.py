"""The pictures of the report of a run: `python docs/report_pictures.py` takes them anew.

A small convolutional network is trained on digits, watched and tracked. Chromium takes a picture of
its report, and of the comparison of its first and last checkpoint. About a minute and a half on two
cores.
"""

import pathlib
import subprocess
import tempfile

import jax
import numpy as np
import optax
from flax import linen as nn
from PIL import Image

import ntkdiag
from ntkdiag.demo import first_of_each_class, load_digits

DOCS = pathlib.Path(__file__).parent
IMAGES = DOCS / "images"
STEPS = (0, 2, 4, 8, 16, 32, 64, 100, 150, 200, 250, 300)
CHROMIUM = (
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--hide-scrollbars",
)


class Network(nn.Module):
    """Images [n 8 8 1] -> classes [n 10]."""

    @nn.compact
    def __call__(self, x):
        for width in (8, 16):
            x = nn.relu(nn.Conv(width, (3, 3))(x))
            x = nn.avg_pool(x, (2, 2), (2, 2))
        return nn.Dense(10)(x.reshape(x.shape[0], -1))


def tracked_run(folder: pathlib.Path) -> ntkdiag.Run:
    """Train with a monitor, track the checkpoints into the same folder, and compare its ends.

    The page of the comparison lies beside the folder.
    """
    digits = load_digits(0)
    model = Network()
    variables = model.init(jax.random.key(0), digits.x_train[:1])
    f, params = ntkdiag.functionalize(model, variables)
    folder.mkdir()
    optimizer = ntkdiag.watch(
        optax.sgd(0.1),
        ntkdiag.functionalize(model, variables),
        train=first_of_each_class(digits.x_train, digits.y_train, 4),
        held_out=first_of_each_class(digits.x_test, digits.y_test, 4),
        every=16,
        instruments=("kernel", "margin", "step_error", "norms"),
        loss="cross_entropy",
        out=folder,
    )

    @jax.jit
    def gradient(params, x, y):
        def loss(params):
            losses = optax.softmax_cross_entropy_with_integer_labels(
                f(params, x), y
            )
            return losses.mean()

        return jax.grad(loss)(params)

    rng = np.random.default_rng(0)
    state = optimizer.init(params)
    checkpoints = {}
    for step in range(max(STEPS) + 1):
        if step in STEPS:
            checkpoints[step] = params
        batch = rng.integers(0, len(digits.x_train), 128)
        x, y = digits.x_train[batch], digits.y_train[batch]
        updates, state = optimizer.update(gradient(params, x, y), state, params)
        params = optax.apply_updates(params, updates)
    jax.effects_barrier()  # every measurement is written

    measured = {
        "model": ntkdiag.functionalize(model, variables),
        "train": first_of_each_class(digits.x_train, digits.y_train, 6),
        "held_out": first_of_each_class(digits.x_test, digits.y_test, 6),
        "loss": "cross_entropy",
        "descent": 0.1,
    }
    ntkdiag.track(checkpoints, out=folder, **measured)
    last = max(STEPS)
    compared = ntkdiag.compare(
        checkpoints[0],
        checkpoints[last],
        **measured,
    )
    compared.save(folder.parent / "comparison.html")
    return ntkdiag.open_run(folder)


def save_picture(page: pathlib.Path, name: str, size: str) -> None:
    """A picture of the top of a page, in few colours."""
    path = IMAGES / f"{name}.png"
    options = (f"--window-size={size}", f"--screenshot={path}", page.as_uri())
    subprocess.run([*CHROMIUM, *options], check=True, capture_output=True)
    picture = Image.open(path).convert("RGB").quantize(96)
    picture.save(path, optimize=True)


def main() -> None:
    """Make the report, and the pictures of it."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        report = tracked_run(root / "digits").save(root / "report.html")
        save_picture(report, "report_of_a_run", "1280,1400")
        save_picture(root / "comparison.html", "report", "960,1728")


if __name__ == "__main__":
    main()

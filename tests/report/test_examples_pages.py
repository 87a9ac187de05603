"""The pages of influences and interferences: examples with labels and pictures, e1, findings, and nothing loaded."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from internals import load_digits

import ntkdiag
from ntkdiag.errors import InvalidInputError
from ntkdiag.gradients import Influence
from ntkdiag.losses import Weighted

N, WRONG = 60, 3
DIGITS = load_digits(0)
X, Y = DIGITS.x_train[: N + 20].astype(np.float32), DIGITS.y_train[: N + 20].copy()
Y[WRONG] = (Y[WRONG] + 1) % 10
TRAIN, TEST = (X[:N], Y[:N]), (X[N:], Y[N:])


def f(params, x):
    return jnp.tanh(x.reshape(len(x), -1) @ params["a"]) @ params["b"]


@pytest.fixture(scope="module")
def params():
    keys = jax.random.split(jax.random.key(0))
    params = {
        "a": jax.random.normal(keys[0], (64, 32)) / 8,
        "b": jax.random.normal(keys[1], (32, 10)) / 32**0.5,
    }

    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(f(params, TRAIN[0]), TRAIN[1]).mean()

    gradient = jax.jit(jax.grad(loss))
    for _ in range(30):
        params = jax.tree.map(lambda p, g: p - 0.3 * g, params, gradient(params))
    return params


@pytest.fixture(scope="module")
def found(params):
    rows = np.arange(2, 32)
    return ntkdiag.influence(f, params, TRAIN, TEST, loss="cross_entropy", ridge=1.0, left_out=rows)


@pytest.fixture(scope="module")
def harm(params):
    is_old = Y < 5
    old, new = (X[is_old], Y[is_old]), (X[~is_old], Y[~is_old])
    found = ntkdiag.interference(
        f, params, old=old, new=new, loss="cross_entropy", optimizer=optax.adam(1e-3), steps=3
    )
    return found, old


def numbers_in(page):
    text = re.search(r'<script type="application/json" id="numbers">(.*?)</script>', page)[1]
    return json.loads(text)


def examples_in(part):
    """(name, value, whether it has a picture) of each example that is shown."""
    items = re.findall(r"<li>(<img [^>]*>)?<span>([^<]*)</span><b>([^<]*)</b></li>", part)
    return [
        (name, value, image.startswith('<img src="data:image/png')) for image, name, value in items
    ]


def lines_of(page):
    """The examples in the cells of each line of the table."""
    table = page[page.index('<table class="pictured">') :].partition("</table>")[0]
    lines = table.split("<tr>")[2:]
    return [[examples_in(cell) for cell in line.split("<td>")[1:]] for line in lines]


def test_a_table_says_who_helped_and_who_hurt(found, tmp_path):
    page = found.save(tmp_path / "new" / "influence.html", train=TRAIN, test=TEST).read_text()
    lines = lines_of(page)
    change = np.asarray(found.loss)
    first = np.argsort(-np.abs(change).max(axis=0), kind="stable")
    assert len(lines) == 12
    for column, (of_test, helped, hurt) in zip(first.tolist(), lines, strict=False):
        assert of_test == [(f"test example {column}, label {TEST[1][column]}", "", True)]
        order = np.argsort(-change[:, column], kind="stable")
        for shown, rows in ((helped, order[:4]), (hurt, order[::-1][:4])):
            numbers = found.left_out[rows].tolist()
            assert [name for name, _, _ in shown] == [f"example {k}, label {Y[k]}" for k in numbers]
            assert all(has_image for _, _, has_image in shown)
        values = [float(value) for _, value, _ in helped + hurt]
        want = change[np.concatenate([order[:4], order[::-1][:4]]), column]
        np.testing.assert_allclose(values, want, rtol=6e-3)


def test_the_mean_over_test_examples_is_drawn_and_named(found, tmp_path):
    page = found.save(tmp_path / "influence.html", train=TRAIN, test=TEST).read_text()
    mean = np.asarray(found.loss).mean(axis=1)
    columns = numbers_in(page)["influence"]["columns"]
    np.testing.assert_allclose(columns["value"], np.sort(mean), rtol=1e-6)
    worst = found.most_harmful(1)[0]
    assert f"Without example {worst} the mean test loss falls by" in page
    hurt = examples_in(page[page.index("<h3>Hurt most</h3>") : page.index("<h3>Helped most</h3>")])
    assert hurt[0][0] == f"example {worst}, label {Y[worst]}"
    assert len(hurt) == min(12, int((mean < 0).sum()))


@pytest.mark.parametrize(
    ("e1", "said"),
    [
        (0.05, "follows the linearized model nearly"),
        (0.3, "follows the linearized model in part"),
        (0.7, "does not follow"),
        (np.nan, "does not follow"),
    ],
)
def test_e1_says_how_far_to_trust_it(e1, said, tmp_path):
    one = np.ones((2, 1))
    influence = Influence(one[..., None], -one, np.ones((1, 1)), e1, 1.0, np.arange(2))
    page = influence.save(tmp_path / "influence.html").read_text()
    assert f"The network {said}" in page
    assert "<dt>e1</dt>" in page


def test_without_examples_they_are_named_by_number(found, tmp_path):
    page = found.save(tmp_path / "influence.html").read_text()
    [of_test], helped, _ = lines_of(page)[0]
    assert re.fullmatch(r"test example \d+", of_test[0])
    assert re.fullmatch(r"example \d+", helped[0][0])
    assert "<img" not in page


def test_nobody_who_hurts_is_said_so(tmp_path):
    one = np.ones((2, 1))
    influence = Influence(one[..., None], one, np.ones((1, 1)), 0.0, 1.0, np.arange(2))
    page = influence.save(tmp_path / "influence.html").read_text()
    assert "No training example hurts the mean test loss." in page


def test_interference_has_its_finding_and_those_hit_hardest(harm, tmp_path):
    found, old = harm
    assert found.lower > 0
    page = found.save(tmp_path / "interference.html", old=old).read_text()
    [finding] = found.findings
    assert finding.sentence in page
    assert finding.do in page
    assert "Training on the new examples raises the mean loss on the old ones" in page
    hit = examples_in(page[page.index("<h3>Hit hardest</h3>") : page.index("<h3>Helped most</h3>")])
    want = [f"example {k}, label {old[1][k]}" for k in found.most_harmed(20).tolist()]
    assert [name for name, _, _ in hit] == want
    assert all(has_image for _, _, has_image in hit)
    columns = numbers_in(page)["interference"]["columns"]
    np.testing.assert_allclose(columns["value"], np.sort(found.by_example), rtol=1e-6)
    for text in ("<dt>e1 on the old examples</dt>", "<dt>its 95 % interval</dt>", "after 3 steps"):
        assert text in page


def test_what_is_not_resolved_is_open_and_slopes_have_their_unit(harm, tmp_path):
    found, _ = harm
    kwargs = {name: getattr(found, name) for name in ("of_network", "of_new", "e1", "e1_of_new")}
    open_one = type(found)(0.1, -0.1, 0.3, np.array([0.3, -0.1]), steps=0, per_rate=True, **kwargs)
    page = open_one.save(tmp_path / "interference.html").read_text()
    assert "may raise or lower the mean loss" in page
    assert "+0.1 (-0.1 to +0.3) per unit of the learning rate" in page
    assert "Findings" not in page
    lower = type(found)(-0.2, -0.3, -0.1, np.array([-0.2, -0.2]), steps=1, **kwargs)
    page = lower.save(tmp_path / "interference.html").read_text()
    assert "Training on the new examples lowers the mean loss" in page
    assert "after 1 step." in page


def test_a_json_file_has_the_numbers(found, harm, tmp_path):
    for result in (found, harm[0]):
        text = result.save(tmp_path / "numbers.json").read_text()
        assert json.loads(text) == json.loads(json.dumps(result.to_dict()))


def test_it_loads_nothing(found, harm, tmp_path):
    pages = [
        found.save(tmp_path / "influence.html", train=TRAIN, test=(X[N:], Weighted(Y[N:], Y[N:]))),
        harm[0].save(tmp_path / "interference.html", old=harm[1]),
    ]
    for path in pages:
        page = path.read_text()
        assert not re.search(r"""(src|href)=["'](?!#|data:image/png)""", page)
        assert page.count("<script") == 2
    assert "label" in lines_of(pages[0].read_text())[0][0][0][0]  # labels that have weights


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("argument", "pair", "expected", "got"),
    [
        ("test", (X[:3], Y[:3]), "the 20 test examples of the call", "x of shape (3, 8, 8, 1)"),
        ("train", (X[:3], Y[:3]), "the training examples of the call, 32 or more", "x of shape"),
        ("train", X, "the training examples of the call", "a ndarray"),
    ],
)
def test_other_examples_are_refused(found, tmp_path, argument, pair, expected, got):
    with pytest.raises(InvalidInputError) as caught:
        found.save(tmp_path / "influence.html", **{argument: pair})
    message = str(caught.value)
    assert f"expected {expected}" in message
    assert f"got {got}" in message
    assert f"Pass {argument}=(x, y) as it was in the call" in message


def test_other_old_examples_are_refused(harm, tmp_path):
    with pytest.raises(InvalidInputError, match=r"expected the \d+ old examples of the call"):
        harm[0].save(tmp_path / "interference.html", old=(X[:2], Y[:2]))


def test_other_endings_are_refused(found, tmp_path):
    with pytest.raises(InvalidInputError, match=r"ends in \.html or \.json"):
        found.save(tmp_path / "influence.pdf")

"""The page of a run in a real browser: drawn at every width, in light and dark, moved, filtered and saved."""

import csv
import io
import math

import chromium
import numpy as np
import pytest
from internals import RUN_FIGURES, RunSubject
from synthetic_run import HOSTILE, write_tracked, write_watched

import ntkdiag

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.executable() is None, reason="no Chromium on this machine"),
]

STEPS = [0, 3, 10, 40, 160]
MARGINS = [0.2, 0.61, 0.93, 0.72, 0.8125]
E1 = np.where(
    np.eye(5, dtype=bool), math.nan, np.random.default_rng(0).uniform(0.1, 0.9, (5, 5))
).tolist()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs") / HOSTILE.replace("/", "")
    root.mkdir()
    write_tracked(root, steps=STEPS, margins=MARGINS, e1=E1, leaves=("first", HOSTILE, "=1+1"))
    write_watched(root, [0.3, 0.5, 0.7, 0.6])
    return ntkdiag.open_run(root)


@pytest.fixture(scope="module")
def there(run):
    subject = RunSubject.of(run.tracked, run)
    return [name for name, what in RUN_FIGURES.items() if what.is_there(subject)]


@pytest.fixture(scope="module")
def report(run, tmp_path_factory):
    return run.save(tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = chromium.Chromium(tmp_path_factory.mktemp("chromium"))
    yield made
    made.close()


@pytest.fixture
def page(browser, report):
    """The report, freshly opened; nothing it does is complained about, and nothing is loaded."""
    browser.events.clear()
    browser.colours("light")
    browser.size(1600)
    browser.open(report)
    yield browser
    browser.run("1")  # what the page still had to say
    assert browser.complaints() == []
    for address in browser.requests():
        assert address.startswith(("file:", "data:", "blob:")), address


def open_tab(page, name):
    page.run(f"document.getElementById('tab-{name}').click()")


# Of every figure of the open page whether it is drawn, within the window, with none of its texts cut off.
DRAWN = """[...document.querySelectorAll('.page.chosen .drawing')].map(figure => {
  const svg = figure.querySelector('svg'), box = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect());
  const inside = texts.every(text => text.left > box.left - 2 && text.right < box.right + 2
                                     && text.top > box.top - 2 && text.bottom < box.bottom + 2);
  const apart = box.left >= 0 && box.right <= innerWidth && box.width > 200 && box.height > 120;
  return [figure.dataset.name, inside && apart && svg.checkVisibility()];
})"""


@pytest.mark.parametrize("width", [390, 700, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_is_seen(page, there, width, scheme):
    page.size(width)
    page.colours(scheme)
    seen = {}
    for name in page.run("[...document.querySelectorAll('.tabs a')].map(tab => tab.id.slice(4))"):
        open_tab(page, name)
        seen |= dict(page.run(DRAWN))
        assert page.run("document.documentElement.scrollWidth <= innerWidth"), name
    assert seen == dict.fromkeys(there, True)
    ink, paper = page.run(
        "['color', 'backgroundColor'].map(name => getComputedStyle(document.body)[name])"
    )
    brightness = [np.mean([int(part) for part in text[4:-1].split(",")]) for text in (ink, paper)]
    assert (brightness[0] < 70 and brightness[1] > 230) == (scheme == "light")
    assert (brightness[0] > 200 and brightness[1] < 40) == (scheme == "dark")


def test_open_tables_do_not_widen_the_page(page):
    page.size(390)
    for name in ("training", "regime", "kernel", "conditions"):
        open_tab(page, name)
        page.run(
            "document.querySelectorAll('.page.chosen details').forEach(part => part.open = true)"
        )
        assert page.run("document.documentElement.scrollWidth <= innerWidth"), name


SHOWN = """[...document.querySelectorAll('#figure-spectrum svg [id*="-curve-"]')].filter(
  curve => curve.style.display !== 'none' && curve.style.opacity === '').map(curve => curve.id)"""


def test_the_slider_moves(page):
    open_tab(page, "kernel")
    assert page.run(SHOWN) == ["run-spectrum-curve-4"]
    page.run("document.querySelector('#figure-spectrum input').focus()")
    page.press("ArrowLeft", 37)
    page.press("ArrowLeft", 37)
    assert page.run(SHOWN) == ["run-spectrum-curve-2"]
    assert page.run("document.querySelector('#figure-spectrum output').textContent") == "step 10"
    said = "document.querySelector('#figure-spectrum input').getAttribute('aria-valuetext')"
    assert page.run(said) == "step 10"
    # What is seen is another line, not another name for it.
    paths = page.run(
        "[2, 4].map(k => document.querySelector(`[id='run-spectrum-curve-${k}'] path`).getAttribute('d'))"
    )
    assert paths[0] != paths[1]


def test_the_legend_hides_a_series(page):
    visible = (
        "document.querySelector('[id=run-margin-curve-1] path').getBoundingClientRect().width > 0"
    )
    button = "document.querySelector('#figure-margin [data-curve=\"1\"]')"
    assert page.run(visible)
    page.run(f"{button}.click()")
    assert not page.run(visible)
    assert page.run(f"{button}.getAttribute('aria-pressed')") == "false"
    page.run(f"{button}.click()")
    assert page.run(visible)


def test_tabs_go_by_keys(page):
    chosen = "[...document.querySelectorAll('.page')].filter(part => part.checkVisibility()).map(part => part.id)"
    assert page.run(chosen) == ["page-training"]
    page.run("document.getElementById('tab-training').focus()")
    page.press("ArrowRight", 39)
    assert page.run(chosen) == ["page-regime"]
    assert page.run("document.activeElement.id") == "tab-regime"
    page.press("Home", 36)
    page.press("ArrowLeft", 37)
    assert page.run(chosen) == ["page-conditions"]


def test_the_number_beside_the_pointer(page):
    place = page.run("""(() => {
      const box = document.querySelector('#figure-margin .canvas').getBoundingClientRect();
      const numbers = JSON.parse(document.getElementById('numbers').textContent).margin;
      const [left, top] = numbers.points.at(-1);
      return [box.left + left / 100 * box.width, box.top + top / 100 * box.height];
    })()""")
    page.move(*place)
    tip = "document.querySelector('#figure-margin .tip')"
    assert page.run(f"{tip}.textContent") == "checkpoints, full batch: step 160, 0.8125"
    assert page.run(f"{tip}.checkVisibility()")
    # It stands where the curve is drawn: the last point of the path lies under the pointer.
    end = page.run("""(() => {
      const path = document.querySelector('[id=run-margin-curve-1] path');
      const point = path.getPointAtLength(path.getTotalLength()).matrixTransform(path.getScreenCTM());
      return [point.x, point.y];
    })()""")
    np.testing.assert_allclose(end, place, atol=2)


def test_numbers_are_saved_as_csv(page):
    page.run("document.querySelector('#figure-margin [data-save=csv]').click()")
    lines = list(csv.DictReader(io.StringIO(page.downloaded("margin.csv"))))
    of_checkpoints = [line for line in lines if line["series"] == "checkpoints, full batch"]
    assert [float(line["value"]) for line in of_checkpoints] == MARGINS
    assert [int(line["step"]) for line in of_checkpoints] == STEPS
    open_tab(page, "layers")
    page.run("document.querySelector('#figure-leaf_shares [data-save=csv]').click()")
    lines = list(csv.DictReader(io.StringIO(page.downloaded("leaf_shares.csv"))))
    # No spreadsheet computes a name.
    assert {line["series"] for line in lines} == {"first", HOSTILE, "'=1+1"}


def test_drawings_are_saved_as_svg(page, browser, tmp_path):
    page.colours("dark")
    open_tab(page, "regime")
    page.run("document.querySelector('#figure-e1 [data-save=svg]').click()")
    text = page.downloaded("e1.svg")
    assert "var(" not in text
    path = tmp_path / "e1.svg"
    path.write_text(text)
    page.open(path)
    assert page.run("document.documentElement.tagName") == "svg"
    assert page.run("document.querySelector('image').getBoundingClientRect().width") > 100


def test_what_users_wrote_is_text(page):
    assert page.run("document.querySelectorAll('script').length") == 2
    assert HOSTILE in page.run("document.querySelector('#figure-leaf_shares .legend').textContent")
    assert HOSTILE.replace("/", "") == page.run("document.querySelector('h1').textContent")
    assert HOSTILE.replace("/", "") in page.run("document.title")


def test_paper_has_all_pages(page):
    page("Emulation.setEmulatedMedia", media="print")
    hidden = page.run(
        "[...document.querySelectorAll('.page, .drawing')].filter(part => !part.checkVisibility()).length"
    )
    tabs = page.run("document.querySelector('.tabs').checkVisibility()")
    page("Emulation.setEmulatedMedia", media="")
    assert (hidden, tabs) == (0, False)


def test_without_the_script_it_is_one_long_page(page, there):
    page("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.open(page.run("location.pathname"))
        seen = page.run(
            "[...document.querySelectorAll('.drawing svg')].filter(e => e.checkVisibility()).length"
        )
        assert seen == len(there)
        assert not page.run("document.querySelector('.tools').checkVisibility()")
        assert not page.run("document.querySelector('.states').checkVisibility()")
    finally:
        page("Emulation.setScriptExecutionDisabled", value=False)


def test_everything_that_can_be_pressed_has_a_name(page):
    tree = page("Accessibility.getFullAXTree")["nodes"]
    nameless = []
    for node in tree:
        role = node.get("role", {}).get("value")
        is_meant = role in ("button", "slider", "tab", "img", "image") and not node.get("ignored")
        if is_meant and not node.get("name", {}).get("value"):
            nameless.append(node)
    assert nameless == []
    roles = [node.get("role", {}).get("value") for node in tree]
    assert roles.count("tab") == 7


def test_on_paper_ink_is_dark_and_headings_stay_with_what_follows(browser, report):
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.size(1600)
    browser.open(report)
    try:
        browser("Emulation.setEmulatedMedia", media="print", features=features)
        ink = browser.run("getComputedStyle(document.body).color")
        after = browser.run(
            "[...document.querySelectorAll('h2, h3')].map(part => getComputedStyle(part).breakAfter)"
        )
        inside = browser.run(
            "[...document.querySelectorAll('figure')].map(part => getComputedStyle(part).breakInside)"
        )
    finally:
        browser("Emulation.setEmulatedMedia", media="", features=[])
    assert np.mean([int(part) for part in ink[4:-1].split(",")]) < 70
    assert set(after) == set(inside) == {"avoid"}


def test_a_comparison_is_read_on_a_narrow_screen(browser, tmp_path):
    w = np.array([[0.5, -1.0], [1.5, 0.2]], np.float32)
    x, held_out = np.random.default_rng(0).normal(size=(2, 6, 2)).astype(np.float32)
    y = np.eye(2, dtype=np.float32)[[0, 1, 0, 1, 0, 1]]
    compared = ntkdiag.compare(
        w, 2 * w, model=lambda w, x: x @ w, train=(x, y), held_out=(held_out, y), loss="mse"
    )
    browser.size(390)
    browser.open(compared.save(tmp_path / "comparison.html"))
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    # Both sides and their ratio are on the screen.
    ends = browser.run(
        "[...document.querySelectorAll('thead th:nth-child(4)')]"
        ".filter(part => part.textContent === 'B / A').map(part => part.getBoundingClientRect().right)"
    )
    assert ends
    assert max(ends) <= 390

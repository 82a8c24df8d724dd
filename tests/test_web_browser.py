"""`fleetgrad serve` in a browser: a newcomer's path, by mouse and by keyboard alone; nothing leaves the machine."""

import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from serving_page import REASON

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
START = (
    "import sys; sys.argv = ['fleetgrad', 'serve', '--port', '0', '--data-dir', {!r}]; import optim.cli as c; c.main()"
)
COMPILE_MS = 300_000
JOB_MS = 600_000
TRACE = "timestamp,input_tokens,output_tokens\n" + "".join(
    f"{at / 20},{200 + 13 * at % 3000},80\n" for at in range(400)
)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no Chromium on this machine: apt install chromium")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    for name in ("fastapi", "uvicorn"):
        pytest.importorskip(name, reason=REASON)
    folder = tmp_path_factory.mktemp("serve")
    words = [sys.executable, "-c", START.format(str(folder / "data"))]
    given = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=given) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()
        process.wait(60)


@pytest.fixture
def page(browser, address):
    """A page whose requests all go to the server, and whose console stays empty."""
    with browser.new_context(accept_downloads=True) as context:
        opened = context.new_page()
        wrong = []
        opened.on("request", lambda one: wrong.append(one.url) if not one.url.startswith((address, "data:")) else None)
        opened.on("console", lambda one: wrong.append(one.text) if one.type in ("error", "warning") else None)
        opened.on("pageerror", lambda error: wrong.append(str(error)))
        opened.goto(address)
        opened.wait_for_selector("body[data-ready=true]", timeout=COMPILE_MS)
        yield opened
        assert wrong == []


def until(page, expression, arg=None, timeout=30_000):
    """Wait for a function of the page to be true; the page's own policy forbids a script that would watch it."""
    end = time.monotonic() + timeout / 1e3
    while not page.evaluate(expression, arg):
        assert time.monotonic() < end, f"{expression} with {arg}: {page.locator('#verdict').inner_text()}"
        page.wait_for_timeout(50)


def cost(page):
    return page.locator("#cards div").first.locator("dd").evaluate("dd => dd.firstChild.textContent")


def settled(page, text):
    """Wait until the verdict begins like this and the spoken answer has followed."""
    until(page, "t => document.getElementById('verdict').textContent.startsWith(t)", arg=text, timeout=COMPILE_MS)
    until(page, "t => document.getElementById('announce').textContent.startsWith(t)", arg=text, timeout=COMPILE_MS)


def changed(page, before):
    until(page, "c => document.querySelector('#cards dd')?.firstChild.textContent !== c", arg=before)


def newest_done(page, kind, count):
    done = page.locator(f"#jobs li[data-state=done] h3:text-matches('^{kind}')")
    end = time.monotonic() + JOB_MS / 1e3
    while done.count() < count:
        assert not page.locator("#jobs li[data-state=failed]").count(), page.locator("#jobs").inner_text()
        assert time.monotonic() < end, page.locator("#jobs").inner_text()
        page.wait_for_timeout(300)


def fetched(page, press):
    with page.expect_download() as found:
        press()
    return Path(found.value.path()).read_text(encoding="utf-8")


def test_a_newcomer_with_a_mouse(page, tmp_path):
    page.select_option("#workload", label="azure")
    page.select_option("#model", "kimura")
    for at, pool in enumerate(page.locator("#pools > fieldset").all()):
        field = pool.locator("input[list]")
        field.fill("h100-80gb")
        field.dispatch_event("change")
        pool.get_by_label("Replicas", exact=True).fill(str(5 + at))
    page.get_by_label("Requests per second", exact=True).fill("60")
    page.get_by_label("Objective on P99 TTFT, ms", exact=True).fill("800")
    page.locator("#max-context").fill("8192")
    settled(page, "Feasible")
    assert page.locator("#cards").inner_text().count("met") == 2
    page.wait_for_selector("#curve:not([hidden]) svg", timeout=COMPILE_MS)

    before = cost(page)
    slider = page.locator("input[type=range][aria-label='Replicas, slider']").first
    box = slider.bounding_box()
    page.mouse.move(box["x"] + 0.14 * box["width"], box["y"] + box["height"] / 2)
    page.mouse.down()
    for step in range(8):
        page.mouse.move(box["x"] + (0.2 + 0.05 * step) * box["width"], box["y"] + box["height"] / 2)
    page.mouse.up()
    changed(page, before)
    page.get_by_label("Requests per second", exact=True).fill("5000")
    settled(page, "Overloaded")
    page.get_by_label("Requests per second", exact=True).fill("60")
    settled(page, "Feasible")

    page.click("#plan")
    newest_done(page, "Plan", 1)
    page.click("#verify")
    newest_done(page, "Verification", 1)
    plan = page.locator("#jobs li").filter(has_text="Plan:")
    toml = fetched(page, lambda: plan.get_by_text("plan.toml").click())
    assert tomllib.loads(toml)["fleet"]["profiles"] == ["h100-80gb"]
    document = json.loads(fetched(page, lambda: plan.get_by_text("JSON").click()))
    assert document["kind"] == "plan" and document["status"] == "verified"
    assert "<html" in fetched(page, lambda: plan.get_by_text("report.html").click())
    for item in page.locator("#jobs li").all():
        item.get_by_label("compare").check()
    table = page.locator("#compare table")
    assert table.locator("thead th").count() == 3
    assert f"${document['cost_usd_per_hour']:,.2f}" in table.inner_text()

    plan.get_by_role("button", name="Put on the sliders").click()
    wanted = f"${document['cost_usd_per_hour']:,.2f}/h"
    until(page, "c => document.querySelector('#cards dd')?.firstChild.textContent === c", wanted)

    with page.context.expect_page() as opened:
        plan.get_by_text("Open report").click()
    opened.value.wait_for_load_state()
    assert "azure" in opened.value.title() or "azure" in opened.value.locator("h1").inner_text()

    trace = tmp_path / "ours.csv"
    trace.write_text(TRACE, encoding="utf-8")
    page.locator("#upload-details > summary").click()
    page.set_input_files("#file", trace)
    page.click("#upload")
    until(page, "() => document.getElementById('upload-state').textContent === 'Read ours.csv.'")
    assert page.locator("#workload").evaluate("s => s.selectedOptions[0].textContent") == "ours.csv"
    until(page, "() => document.getElementById('workload-facts').textContent.includes('ours.csv')")
    until(page, "() => document.querySelectorAll('#cards div').length === 4", timeout=COMPILE_MS)


def test_a_newcomer_with_a_keyboard(page):
    keys = page.keyboard

    def active():
        return page.evaluate("document.activeElement.id || document.activeElement.getAttribute('aria-label') || ''")

    def tab_to(name, most=120):
        """With nothing but Tab; a name that ends in - or : is the beginning of one."""
        for _ in range(most):
            keys.press("Tab")
            if active() == name or (name[-1] in "-:" and active().startswith(name)):
                outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none", f"{name} has no visible focus"
                return
        raise AssertionError(f"{name} is not reached by Tab")

    def typed(name, text):
        tab_to(name)
        keys.press("Control+A")
        keys.type(text)

    page.evaluate("document.activeElement.blur()")
    tab_to("workload")
    for _ in range(10):
        if page.locator("#workload").input_value() == "name:azure":
            break
        keys.press("ArrowDown")
    assert page.locator("#workload").input_value() == "name:azure"
    typed("rate", "60")
    tab_to("ttft-slider")
    before = page.locator("#ttft").input_value()
    keys.press("ArrowLeft")
    assert page.locator("#ttft").input_value() != before
    assert "milliseconds" in page.locator("#ttft-slider").get_attribute("aria-valuetext")
    typed("max-context", "8192")
    tab_to("model")
    keys.press("ArrowDown")
    assert page.locator("#model").input_value() == "kimura"
    typed("profile-", "h100-80gb")
    tab_to("replicas-")
    first = page.locator("#pools > fieldset").first.locator("input[id^=replicas][type=range]")
    value = int(first.evaluate("r => r.parentElement.querySelector('input[type=number]').value"))
    for _ in range(40):
        keys.press("ArrowRight")
    assert int(first.evaluate("r => r.parentElement.querySelector('input[type=number]').value")) > value
    tab_to("Remove pool 1")
    keys.press("Enter")
    assert page.locator("#pools > fieldset").count() == 1
    settled(page, "Feasible")

    jobs = page.locator("#jobs li").count()
    tab_to("plan-profile")
    keys.type("h100-80gb")
    keys.press("Enter")
    until(page, "() => document.querySelector('#plan-profiles button') !== null")
    tab_to("plan")
    keys.press("Enter")
    until(page, "n => document.querySelectorAll('#jobs li').length > n", arg=jobs)
    tab_to("verify")
    keys.press("Enter")
    until(page, "n => document.querySelectorAll('#jobs li').length > n + 1", arg=jobs)
    tab_to("Cancel: Verification:")
    keys.press("Enter")
    page.wait_for_selector("#jobs li[data-state=cancelled]")
    page.wait_for_selector(
        "#jobs li[data-state=running], #jobs li[data-state=queued]", state="detached", timeout=JOB_MS
    )
    tab_to("plan.toml: Plan:")
    toml = tomllib.loads(fetched(page, lambda: keys.press("Enter")))
    assert toml["fleet"]["model"] == "kimura"
    assert "azure, 60 req/s" in page.locator("#job-state").inner_text()

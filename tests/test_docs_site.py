"""The documentation site: builds without a warning, asks no network for anything, and quotes commands that exist."""

import importlib
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.main import get_command

from optim.cli import app

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
FETCHING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
FETCHED_LINKS = {"stylesheet", "preload", "prefetch", "preconnect", "dns-prefetch", "icon", "manifest", "modulepreload"}
ELSEWHERE = re.compile(r"^(?:[a-z]+:)?//", re.IGNORECASE)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` builds it."""
    for needed in ("mkdocs", "material", "mkdocstrings"):
        if find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed; pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder


class Fetched(HTMLParser):
    """What a browser would fetch from elsewhere to show a page; links to follow are not that."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        address = given.get(FETCHING.get(tag, ""), "")
        if tag == "link" and FETCHED_LINKS & set(given.get("rel", "").split()):
            address = given.get("href", "")
        if ELSEWHERE.match(address):
            self.found.append(address)
        if "mermaid" in given.get("class", "").split():
            self.found.append("mermaid, which the theme loads from a CDN")
        self.found += elsewhere_in_css(given.get("style", ""))


def elsewhere_in_css(text):
    """Addresses on other hosts that a style sheet imports or shows."""
    urls = re.findall(r"""(?:url\(\s*|@import\s+)["']?([^"')\s;]+)""", text)
    return [url for url in urls if ELSEWHERE.match(url)]


def fetched(html):
    parser = Fetched()
    parser.feed(html)
    styles = re.findall(r"<style[^>]*>(.*?)</style>", html, re.DOTALL)
    return parser.found + [url for style in styles for url in elsewhere_in_css(style)]


def test_every_page_is_in_the_site(site):
    for page in PAGES:
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file(), page


def test_no_page_fetches_anything_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        assert fetched(page.read_text(encoding="utf-8")) == [], page.name
    for sheet in site.rglob("*.css"):
        assert elsewhere_in_css(sheet.read_text(encoding="utf-8")) == [], sheet.name


def test_an_address_elsewhere_would_be_seen():
    assert fetched('<script src="https://a.example/x.js"></script>') == ["https://a.example/x.js"]
    assert fetched('<link rel="preload stylesheet" href="//a.example/x.css">') == ["//a.example/x.css"]
    assert fetched("<style>@font-face{src:url('https://a.example/f.woff2')}</style>") == ["https://a.example/f.woff2"]
    assert len(fetched('<pre class="mermaid">a</pre>')) == 1
    assert fetched('<a href="https://a.example/">read</a><link rel="canonical" href="https://a.example/">') == []


@pytest.mark.parametrize("module", ["jaxsim", "jaxsim.queueing", "des", "optim"])
def test_the_api_pages_have_the_public_names(site, module):
    """Every name of `__all__`, so that no page is an empty one."""
    page, public = module.split(".")[-1], importlib.import_module(module).__all__
    assert public
    html = (site / "api" / f"{page}.html").read_text(encoding="utf-8")
    shown = set(re.findall(r'id="([\w.]+)"', html))
    modules = {name: getattr(importlib.import_module(module), name).__module__ for name in public}
    missing = [name for name in public if not {f"{module}.{name}", f"{modules[name]}.{name}"} & shown]
    assert missing == []


COMMAND = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?fleetgrad ([a-z][a-z-]*)((?: .*)?)$")


def commands():
    """Lines of code blocks that call the command line, continued lines joined."""
    for page in PAGES:
        blocks = re.findall(r"```(?:sh|console)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
            found = COMMAND.match(line.strip())
            if found:
                yield page.name, found[1], found[2]


def test_the_commands_of_the_pages_exist_with_their_options():
    known = {
        name: {option for each in command.params for option in each.opts}
        for name, command in get_command(app).commands.items()
    }
    seen = set()
    for page, name, rest in commands():
        assert name in known, f"{page}: fleetgrad {name}"
        options = re.findall(r"(?<=\s)--[a-z0-9-]+", rest.split(" #")[0])
        assert set(options) <= known[name] | {"--help"}, f"{page}: fleetgrad {name} {options}"
        seen.add(name)
    assert {"trace", "plan", "export", "pareto", "disagg", "sensitivity", "robust", "schedule", "power", "fit"} <= seen


def test_the_files_that_the_pages_name_exist():
    """Scripts, tests, modules and examples, by the paths in code."""
    pattern = re.compile(r"\b((?:benchmarks|tests|examples|jaxsim|des|optim|scripts)/[\w/.-]+\.(?:py|toml|sh|ipynb))")
    named = {(page.name, path) for page in PAGES for path in pattern.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 20
    assert sorted((page, path) for page, path in named if not (ROOT / path).is_file()) == []

"""The page in a browser: what it shows, what a person without a mouse does with it, on a narrow screen too."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import jjq
from jjq.server.settings import tokens_in
from jjq.server.tokens import TokenFile
from tests.browser import Browser, browsing, is_installed
from tests.fronts import Front, Fronting
from tests.stores import without_active_file

pytestmark = [
    pytest.mark.skipif(not is_installed(), reason="chromium and chromedriver are not installed"),
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

SHOWN = "return [...document.querySelectorAll(arguments[0])].some((each) => each.innerText.includes(arguments[1]))"
FOCUS = "document.querySelector(arguments[0]).focus(); return true"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("browser")) as opened:
        yield opened
        opened.open("about:blank")


@pytest.fixture
def shown(front: Front, browser: Browser) -> Iterator[Front]:
    """A front whose page is open, and closed again before the front stops."""
    front.store.create_topic("orders", partitions=2).push_many([b"order %d" % i for i in range(60)], partition=0)
    front.store.create_subscriber("orders", "billing").pop()
    with front.store.channel("orders", "workers", create=True, max_attempts=1) as channel:
        (poison,) = channel.receive()
        poison.requeue()
    browser.resize(1200, 1400)
    browser.open(front.url)
    browser.until(SHOWN, "#topics a", "orders")
    yield front
    browser.open("about:blank")


def test_topics_and_consumers_are_shown_and_what_changes_is(shown: Front, browser: Browser) -> None:
    browser.until(SHOWN, "#subscribers tr", "billing")
    browser.until(SHOWN, "#channels tr", "workers")
    shown.store.create_topic("later").push(b"x")
    browser.until(SHOWN, "#topics a", "later")
    shown.store.topic("orders").push_many([b"x"] * 940)
    browser.until(SHOWN, "#topics tr", "1,000")


def test_everything_comes_from_the_broker(shown: Front, browser: Browser) -> None:
    names = browser.run("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert names
    assert all(name.startswith(shown.url) for name in names)
    browser.open(shown.url + "/docs")
    browser.until(SHOWN, "#operations summary", "/api/events")


@pytest.mark.parametrize("page", ["/", "/#/topic/orders", "/docs"])
def test_it_fits_a_screen_of_400_pixels(shown: Front, browser: Browser, page: str) -> None:
    browser.resize(400, 900)
    browser.open("about:blank")
    browser.open(shown.url + page)
    browser.until(
        SHOWN, "#operations summary" if page == "/docs" else "main td", "order" if page != "/docs" else "/pub"
    )
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")


def test_a_topic_is_browsed_searched_and_pushed_to_by_keyboard(shown: Front, browser: Browser) -> None:
    browser.run(FOCUS, "#topics a[href$='orders']")
    browser.keys("Enter")
    browser.until(SHOWN, "#records tr", "order 59")
    browser.run(FOCUS, "#browse input[name=start]")
    browser.keys("0:3,1:0", "Enter")
    browser.until("return document.querySelector('#records td:nth-child(2)')?.innerText === '3'")
    browser.run(FOCUS, "#browse input[name=start]")
    browser.run("document.querySelector('#browse input[name=start]').value = ''; return true")
    browser.keys("Tab", "Tab", "order 42", "Enter")
    browser.until("return document.querySelectorAll('#records tr').length === 1")
    assert browser.run(SHOWN, "#records tr", "order 42")
    browser.run(FOCUS, "#topic details summary")
    browser.keys("Enter", "Tab", "pushed here", "Tab", "key", "Tab", "Enter")
    browser.until(SHOWN, "#message", "Pushed")
    records = shown.json("GET", "/api/topics/orders/search?contains=pushed")["records"]
    assert [(each["key"], each["value"]) for each in records] == [("key", "pushed here")]


def wait_for_follower(shown: Front) -> None:
    """Until a stream of records knows where it begins."""
    while not any(each.request.arguments.get("topic") == "orders" for each in list(shown.http._parts.hub.streams)):
        threading.Event().wait(0.01)


def test_records_are_followed_as_they_come(shown: Front, browser: Browser) -> None:
    browser.open(shown.url + "/#/topic/orders")
    browser.until(SHOWN, "#records tr", "order 59")
    browser.run(FOCUS, "#follow")
    browser.keys("Space")
    browser.until(SHOWN, "#records-note", "waiting")
    wait_for_follower(shown)
    shown.store.topic("orders").push(b"<img src=x onerror=alert(1)>")
    browser.until(SHOWN, "#records tr.new", "<img src=x")
    assert browser.run("return document.querySelectorAll('#records img').length") == 0


def test_pausing_and_giving_dead_letters_back(shown: Front, browser: Browser) -> None:
    browser.until(SHOWN, "#channels button", "Requeue dead letters")
    browser.run(FOCUS, "#channels button")
    browser.keys("Enter")
    browser.until(SHOWN, "#channels tr", "(paused)")
    assert shown.store.channel("orders", "workers").paused
    browser.keys("Enter")  # the focus stayed where it was
    browser.until("return !document.querySelector('#channels').innerText.includes('(paused)')")
    browser.keys("Tab", "Enter")
    browser.until(SHOWN, "#message", "1 dead letter is back")


def test_what_needs_somebody_is_said_above_everything(shown: Front, browser: Browser) -> None:
    browser.until(SHOWN, "#trouble", "1 with dead letters: workers of orders")
    shown.store.topic("orders").pause()
    browser.until(SHOWN, "#trouble", "1 paused: orders")
    browser.run("document.querySelectorAll('#channels button')[1].click(); return true")
    shown.store.topic("orders").unpause()
    browser.until("return document.getElementById('trouble').hidden")
    with without_active_file(shown.store.path, shown.store.topic("orders").id):
        browser.until(SHOWN, "#trouble", "1 damaged (stop the broker and run jjq repair): orders")


def test_topics_are_ordered_and_the_focus_goes_with_its_row(shown: Front, browser: Browser) -> None:
    first = "return document.querySelector('#topics a').innerText === arguments[0]"
    shown.store.create_topic("busy").push_many([b"x"] * 100)
    browser.until(first, "busy")  # by name
    browser.run(FOCUS, "#topics a[href$='orders']")
    shown.store.topic("orders").push_many([b"x"] * 200)
    browser.run(
        "const order = document.getElementById('topic-order'); order.value = 'records';"
        "order.dispatchEvent(new Event('change')); return true"
    )
    browser.until(first, "orders")
    assert browser.run("return document.activeElement.innerText") == "orders"
    browser.run("window.scrollTo(0, document.body.scrollHeight); return true")
    browser.keys("Enter")
    browser.until(SHOWN, "#topic-title", "orders")
    assert browser.run("return [window.scrollY, document.activeElement.id]") == [0, "main"]


def test_a_topic_that_is_faster_than_the_eye_is_followed_at_its_end(shown: Front, browser: Browser) -> None:
    browser.open(shown.url + "/#/topic/orders")
    browser.until(SHOWN, "#records tr", "order 59")
    browser.run(FOCUS, "#follow")
    browser.keys("Space")
    wait_for_follower(shown)
    shown.store.topic("orders").push_many([b"fast %d" % i for i in range(3000)], partition=0)
    browser.until(SHOWN, "#records tr.new:first-child", "fast 2999")
    assert browser.run("return document.querySelectorAll('#records tr').length") == 500


def test_an_event_source_of_a_browser_follows_and_resumes(shown: Front, browser: Browser) -> None:
    first = shown.event("order.created", b"one\ntwo")
    browser.run(
        "window.got = []; window.source = new EventSource('/api/events?start=earliest');"
        "source.addEventListener('order.created', (e) => got.push([e.lastEventId, e.data])); return true"
    )
    assert browser.until("return got.length === 1 && got") == [[first, "one\ntwo"]]
    last = shown.event("order.created", b"three")
    assert browser.until("return got.length === 2 && got[1]") == [last, "three"]
    browser.run("source.close(); return true")


def test_a_person_logs_in_with_a_token(serve: Fronting, browser: Browser, tmp_path: Path) -> None:
    jjq.open(tmp_path / "locked").close()
    secret = TokenFile(tokens_in(tmp_path / "locked")).create("operator", admin=("*",))[0]
    front = serve("locked")
    front.store.create_topic("orders")
    assert front.code("GET", "/api/topics") == (401, "unauthorized")
    browser.open(front.url)
    browser.until("return !document.getElementById('login').hidden")
    browser.keys("wrong", "Enter")
    browser.until(SHOWN, "#message", "token")
    browser.run("document.querySelector('#login input').value = ''; return true")
    browser.run(FOCUS, "#login input")
    browser.keys(secret, "Enter")
    browser.until(SHOWN, "#topics a", "orders")
    assert browser.run("return document.cookie") == ""
    browser.run(FOCUS, "#new-topic input[name=name]")
    browser.keys("made", "Enter")
    browser.until(SHOWN, "#topic-title", "made")
    browser.run(FOCUS, "#log-out")
    browser.keys("Enter")
    browser.until("return !document.getElementById('login').hidden")
    browser.open("about:blank")

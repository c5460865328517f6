"""Explore in a real Chromium: LogQL with completion, facets, histogram, series and live tail."""

import shlex
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from support.console_pages import CHROMIUM, accessibility, explored, log_in, open_place, watch
from support.console_world import AGENT, ConsoleWorld, frame, served_console
from support.documented_blocks import check_command
from support.query_lake import log_batch
from support.spark_lake import Deployment

from sluice_protocol.units import NS_PER_S
from sluice_protocol.values import BooleanText, FloatText, IntegerText, JsonText

pytestmark = [
    pytest.mark.console,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing: run `make test-console`"),
]


def test_explore_searches_zooms_and_filters(browser: Browser, world: ConsoleWorld) -> None:
    page = log_in(browser.new_context(), world)
    errors = watch(page)
    open_place(page, world, "explore?from=1h")
    expect(page.locator(".summary strong")).to_have_text("31", timeout=20_000)
    query = page.get_by_role("combobox", name="Query")
    query.fill('{} |= "orders/16"')
    page.keyboard.press("Enter")
    expect(page.locator(".summary strong")).to_have_text("1", timeout=20_000)
    expect(page.locator(".lines mark")).to_have_text("orders/16")
    page.locator(".line").click()
    expect(page.get_by_role("region", name="Record", exact=True)).to_contain_text("b1")
    page.get_by_role("button", name="Lines around it").click()
    expect(page.locator(".around .here")).to_contain_text("orders/16")
    expect(page.locator(".around div")).to_have_count(15)
    page.get_by_role("button", name="Include agent_id").click()
    expect(query).to_have_value(f'{{agent_id="{AGENT}"}} |= "orders/16"')
    shown = page.locator(".command code").inner_text()
    assert shlex.split(shown)[1:3] == ["query", f'{{agent_id="{AGENT}"}} |= "orders/16"']
    check_command(shlex.split(shown)[1:])
    shared = page.url
    other = page.context.new_page()
    other.goto(shared)
    expect(other.locator(".summary strong")).to_have_text("1", timeout=20_000)
    page.get_by_role("link", name="Batch of the record").click()
    expect(page.get_by_role("heading", name=f"{AGENT}/b1/15-17")).to_be_visible()
    assert errors == []
    page.context.close()


WATCH_LINES = """
new MutationObserver(() => {
  const line = !window.firstLineMs && document.querySelector(".line");
  if (line) window.firstLineMs = performance.now();
}).observe(document, { childList: true, subtree: true });
"""
STREAM = """() => {
  const found = performance.getEntriesByType("resource")
    .find((one) => one.name.includes("query/stream"));
  return { asked: found.requestStart, first: found.responseStart, last: found.responseEnd,
    shown: window.firstLineMs };
}"""
WAITING = 1_000


def test_the_first_records_are_shown_within_300_ms(browser: Browser, tmp_path: Path) -> None:
    """Of a search over many batches that are not in the lake yet; counted from its first byte."""
    with served_console(tmp_path, trouble=False) as world:
        at_ns = time.time_ns() - NS_PER_S
        batches = [
            log_batch(
                ["a waiting line"] * 20,
                agent=f"host-{n % 50}",
                start=n // 50 * 20,
                from_ns=at_ns - n * 10**6,
                step_ns=10**5,
                at_ns=at_ns,
            )
            for n in range(WAITING)
        ]
        with ThreadPoolExecutor(1) as thread:
            thread.submit(Deployment(root=world.store_folder).deliver, batches).result()
        context = browser.new_context()
        page = log_in(context, world)
        measured = []
        for _ in range(3):
            page = context.new_page()
            page.add_init_script(WATCH_LINES)
            open_place(page, world, "explore?from=1h")
            expect(page.locator(".summary strong")).to_have_text("2,000")
            measured.append(page.evaluate(STREAM))
            page.close()
        took_ms = [one["shown"] - one["first"] for one in measured]
        print(f"first records after the first byte: {took_ms} ms; all times: {measured}")
        assert min(took_ms) < 300
        # The first records do not wait for the last ones.
        assert min(one["shown"] - one["last"] for one in measured) < 0
        context.close()


TYPED = {
    "status": (IntegerText("500"), "500"),
    "code": ("500", '"500"'),
    "large": (IntegerText("9223372036854775809"), "9223372036854775809"),
    "ratio": (FloatText("1.50"), "1.50"),
    "ok": (BooleanText("true"), "true"),
    "word": ("slow", "slow"),
    "map": (JsonText('{"b":9223372036854775809}'), '{"b":9223372036854775809}'),
}


def test_a_record_shows_its_values_with_their_types_and_digits(
    browser: Browser, tmp_path: Path
) -> None:
    """A filter of a number finds the record, so it has the digits that were sent."""
    with served_console(tmp_path, trouble=False) as world:
        sent = {key: value for key, (value, _) in TYPED.items()}
        at_ns = time.time_ns() - NS_PER_S
        batch = log_batch(["typed"], agent="typed-1", from_ns=at_ns, at_ns=at_ns, attributes=sent)
        with ThreadPoolExecutor(1) as thread:
            thread.submit(Deployment(root=world.store_folder).deliver, [batch]).result()
        page = log_in(browser.new_context(), world)
        open_place(page, world, explored('{} |= "typed"'))
        page.locator(".line").click(timeout=20_000)
        facts = page.locator(".detail .facts")
        for key, (_, shown) in TYPED.items():
            value = facts.locator("dt", has_text=f"attributes.{key}").locator("+ dd")
            expect(value).to_contain_text(f"{shown} +")
        page.get_by_role("button", name="Include attributes.ratio").click()
        query = page.get_by_role("combobox", name="Query")
        expect(query).to_have_value('{ratio="1.50"} |= "typed"')
        expect(page.locator(".summary strong")).to_have_text("1", timeout=20_000)
        page.context.close()


def test_the_histogram_zooms_by_dragging(browser: Browser, world: ConsoleWorld) -> None:
    page = log_in(browser.new_context(), world)
    open_place(page, world, "explore?from=1h")
    chart = page.locator(".histogram svg")
    expect(chart).to_be_visible(timeout=20_000)
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 20)
    page.mouse.up()
    expect(page.locator(".chips")).to_contain_text(" to ")
    assert "to=" in page.url
    page.context.close()


def test_facets_count_values_and_a_click_selects_them(
    browser: Browser, world: ConsoleWorld
) -> None:
    page = log_in(browser.new_context(), world)
    open_place(page, world, "explore?from=1h")
    query = page.get_by_role("combobox", name="Query")
    total = page.locator(".summary strong")
    facets = page.get_by_role("complementary", name="Facets")
    facets.get_by_role("button", name="agent_id", exact=True).click()
    page.get_by_role("button", name="Exclude agent_id db-2").click(timeout=20_000)
    expect(total).to_have_text("23", timeout=20_000)
    expect(query).to_have_value('{agent_id!="db-2"}')
    page.go_back()
    expect(total).to_have_text("31", timeout=20_000)
    value = facets.get_by_role("button", name="db-2", exact=True)
    if not value.count():
        facets.get_by_role("button", name="agent_id", exact=True).click()
    value.click(timeout=20_000)
    expect(total).to_have_text("8", timeout=20_000)
    expect(query).to_have_value('{agent_id="db-2"}')
    expect(value).to_have_attribute("aria-pressed", "true", timeout=20_000)
    facets.get_by_role("button", name=AGENT, exact=True).click(timeout=20_000)
    expect(query).to_have_value(f'{{agent_id=~"db-2|{AGENT}"}}')
    expect(total).to_have_text("23", timeout=20_000)
    facets.get_by_role("button", name=AGENT, exact=True).click(timeout=20_000)
    value.click(timeout=20_000)
    expect(query).to_have_value("")
    expect(total).to_have_text("31", timeout=20_000)
    page.context.close()


EDITS = """async () => {
  const { toggleValue, toggleExcluded, withoutChoice, chosenValues } =
    await import("./static/logql.js");
  return [
    toggleValue("", "level", "error"),
    toggleValue('{level="error"}', "level", "error"),
    toggleValue('{level="error"} |= "}"', "level", "warn"),
    toggleValue('{level=~"error|warn"}', "level", "error"),
    toggleValue('{path="/a.b"}', "path", "c|d"),
    chosenValues(toggleValue('{path="/a.b"}', "path", "c|d"), "path").join(" "),
    toggleValue('{a=~"err.*"}', "a", "x"),
    toggleValue('sum(rate({a=`1`} [5m]))', "b", 'say "hi"'),
    toggleExcluded("{}", "a", "x"),
    toggleExcluded('{a!="x"} | json', "a", "x"),
    withoutChoice('{level="error", b="1"} | json', "level"),
    toggleValue('{a=1}', "a", "x"),
  ];
}"""


def test_a_click_edits_the_selector_only(browser: Browser, world: ConsoleWorld) -> None:
    page = log_in(browser.new_context(), world)
    assert page.evaluate(EDITS) == [
        '{level="error"}',
        "",
        '{level=~"error|warn"} |= "}"',
        '{level="warn"}',
        r"""{path=~"/a\\.b|c\\|d"}""",
        "/a.b c|d",
        '{a=~"err.*", a="x"}',
        r"""sum(rate({a=`1`, b="say \"hi\""} [5m]))""",
        '{a!="x"}',
        "{} | json",
        '{b="1"} | json',
        None,
    ]
    page.context.close()


def test_the_query_is_completed_from_the_keyboard(browser: Browser, world: ConsoleWorld) -> None:
    page = log_in(browser.new_context(), world)
    errors = watch(page)
    open_place(page, world, "explore?from=1h")
    query = page.get_by_role("combobox", name="Query")
    options = page.get_by_role("listbox", name="Suggestions").get_by_role("option")
    query.press_sequentially("{agen")
    expect(options).to_have_text(["agent_idlabel"], timeout=20_000)
    page.keyboard.press("Tab")
    expect(query).to_have_value("{agent_id")
    query.press_sequentially("=")
    expect(options.filter(has_text='"db-2"')).to_be_visible(timeout=20_000)
    query.press_sequentially('"db')
    expect(options).to_have_count(1, timeout=20_000)
    assert accessibility(page) == []
    page.keyboard.press("Escape")
    expect(options).to_have_count(0)
    page.keyboard.press("ArrowDown")
    expect(options).to_have_count(1, timeout=20_000)
    page.keyboard.press("ArrowDown")
    expect(query).to_have_attribute("aria-activedescendant", "logql-option-0")
    page.keyboard.press("Enter")
    expect(query).to_have_value('{agent_id="db-2"')
    query.press_sequentially("}")
    page.keyboard.press("Enter")
    expect(page.locator(".summary strong")).to_have_text("8", timeout=20_000)
    assert errors == []
    page.context.close()


def test_an_error_is_shown_under_its_word(browser: Browser, world: ConsoleWorld) -> None:
    page = log_in(browser.new_context(), world)
    open_place(page, world, "explore?from=1h")
    query = page.get_by_role("combobox", name="Query")
    query.fill('{agent_id="db-2"} | distinct')
    page.keyboard.press("Enter")
    problem = page.get_by_role("alert")
    expect(problem).to_contain_text("column=`21`", timeout=20_000)
    expect(problem).to_contain_text("sum by (label) (count_over_time(")
    expect(problem.locator("mark")).to_have_text("distinct")
    expect(query).to_have_attribute("aria-invalid", "true")
    assert accessibility(page) == []
    query.fill("orders/16")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Search for this text").click(timeout=20_000)
    expect(query).to_have_value('{} |= "orders/16"')
    expect(page.locator(".summary strong")).to_have_text("1", timeout=20_000)
    page.context.close()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{agnt_id!="db-2"}', "agnt_id"),
        ("sum by (agnt_id) (count_over_time({} [5m]))", "agnt_id"),
    ],
)
def test_an_unknown_label_is_marked_above_the_answer(
    browser: Browser, world: ConsoleWorld, text: str, word: str
) -> None:
    page = log_in(browser.new_context(), world)
    open_place(page, world, explored(text))
    hint = page.locator(".notice.wrong")
    expect(hint).to_contain_text("no record has this label", timeout=20_000)
    expect(hint).to_contain_text("write `agent_id`")
    expect(hint.locator("mark")).to_have_text(word)
    expect(page.locator(".summary")).to_contain_text("series" if "sum" in text else "31 records")
    assert accessibility(page) == []
    page.context.close()


def test_a_metric_query_is_drawn(browser: Browser, world: ConsoleWorld) -> None:
    page = log_in(browser.new_context(), world)
    errors = watch(page)
    text = "sum by (agent_id) (count_over_time({} [5m]))"
    open_place(page, world, explored(text))
    expect(page.locator(".chart canvas")).to_be_visible(timeout=20_000)
    rows = page.get_by_role("region", name="Series").locator("tbody tr")
    expect(rows.filter(has_text="agent_id=db-2")).to_have_count(1)
    expect(page.locator(".summary")).to_contain_text("3 series")
    shown = shlex.split(page.locator(".command code").inner_text())
    assert shown[:4] == ["sluice", "query", text, "--plot"]
    check_command(shown[1:])
    assert accessibility(page) == []
    assert errors == []
    page.context.close()


def test_the_live_tail_shows_new_records_and_pauses(browser: Browser, tmp_path: Path) -> None:
    with served_console(tmp_path) as world:
        page = log_in(browser.new_context(), world)
        open_place(page, world, explored('{} |= "later"'))
        page.get_by_role("button", name="Live tail").click()
        expect(page.get_by_text("Waiting for records")).to_be_visible()
        world.accept(frame("late-1", 0, ["first later line"], at_ns=time.time_ns()))
        expect(page.locator(".line")).to_have_count(1, timeout=30_000)
        page.get_by_role("button", name="Pause").click()
        world.accept(frame("late-1", 1, ["second later line"], at_ns=time.time_ns()))
        page.wait_for_timeout(3000)
        expect(page.locator(".line")).to_have_count(1)
        page.get_by_role("button", name="Continue").click()
        expect(page.locator(".line")).to_have_count(2, timeout=30_000)
        page.context.close()

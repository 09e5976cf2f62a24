"""The page's API in memory: access, changes and orders."""

import gzip
import json
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.fake_web_pool import GIB, HOSTILE, FakePool
from tests.web_visitor import PORT, Page

from gpupool.monitoring.web.assets import load_assets
from gpupool.monitoring.web.health_words import findings_of, findings_table
from gpupool.monitoring.web.live_book import Book, Document
from gpupool.monitoring.web.live_documents import Memory, summary, work
from gpupool.pool.model.ids import Milliseconds
from gpupool.pool.telemetry import Finding, Health
from gpupool.pool.view import SilenceView
from gpupool.remoting.protocol import messages as m

NEVER = Milliseconds(2**52)
ROOT = Path(__file__).resolve().parents[3]
WEB = ROOT / "monitoring" / "web"


@pytest.fixture
def pool() -> FakePool:
    return FakePool(servers=4, gpus=2, leases=5, waiting=3, time_s=100.0)


@pytest.fixture
async def page(pool: FakePool) -> Page:
    made = Page(pool)
    await made.enter()
    return made


def put_together(have: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Merge an answer as store.js does."""
    base: dict[str, Any] = {"values": {}, "tables": {}} if answer["full"] else have
    values = {**base["values"], **answer["values"]}
    tables = dict(base["tables"])
    for name, part in answer["tables"].items():
        cols = dict(tables.get(name, {})) if part["n"] == len_of(tables.get(name, {})) else {}
        cols |= part["cols"]
        for title, (steps, changed) in part["at"].items():
            column, at = list(cols[title]), 0
            for step, value in zip(steps, changed, strict=True):
                at += step
                column[at] = value
            cols[title] = column
        tables[name] = cols
    return {"values": values, "tables": tables}


def len_of(table: dict[str, list[object]]) -> int:
    return max((len(each) for each in table.values()), default=0)


# --- who is let in --------------------------------------------------------------------------------


async def test_nothing_is_told_to_strangers(pool: FakePool) -> None:
    page = Page(pool)
    for path in (
        "live",
        "work",
        "usage",
        "audit",
        "policy",
        "recent",
        "day",
        "checks?since=0&until=1",
        "capacity",
        "server/x",
        "lease/1",
    ):
        assert (await page.client.get(f"/api/v1/{path}")).status_code == 401, path
    for path in ("end-lease", "drain", "undrain", "silence", "unsilence"):
        assert (await page.order(path)).status_code == 401
    assert not pool.orders


async def test_a_key_is_good_once_and_a_newer_one_takes_its_place(pool: FakePool) -> None:
    page = Page(pool)
    old, new = page.gate.new_key(), page.gate.new_key()
    assert (await page.client.post("/api/v1/login", json_body={"key": old})).status_code == 401
    answer = await page.client.post("/api/v1/login", json_body={"key": new})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert (await page.client.get("/api/v1/live")).status_code == 200
    assert (await page.client.post("/api/v1/login", json_body={"key": new})).status_code == 401
    for body in (b"", b"[]", b"{", b'{"key": 1}', b"x" * 70_000):
        assert (await page.client.post("/api/v1/login", content=body)).status_code == 401


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1:7471", True),
        ("localhost:9000", True),  # through a tunnel
        ("[::1]:7471", True),
        ("localhost", True),
        ("evil.example:7471", False),
        ("127.0.0.1.evil.example", False),
        ("localhost:7471@evil.example", False),
        ("", False),
    ],
)
async def test_foreign_host_names_are_refused(page: Page, host: str, ours: bool) -> None:
    for path in ("/", "/static/main.js", "/api/v1/live"):
        answer = await page.client.get(path, headers={"host": host})
        assert (answer.status_code == 200) is ours, path
        assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_every_answer_has_the_headers_that_keep_others_out(page: Page) -> None:
    for path in ("/", "/servers/node-0", "/static/style.css", "/api/v1/live", "/no-such-page"):
        headers = (await page.client.get(path)).headers
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert policy.startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"


async def test_files_outside_of_the_page_are_not_served(page: Page) -> None:
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/vendor/SHA256SUMS", "/static/"):
        assert (await page.client.get(path)).status_code == 404, path


async def test_our_own_files_are_sent_without_comments_and_the_vendors_as_they_are(
    page: Page,
) -> None:
    for path, kept in (("pages/overview.js", "export function"), ("style.css", "@media print{")):
        source = (WEB / "static" / path).read_text("utf-8")
        sent = (await page.client.get(f"/static/{path}")).text
        assert kept in sent and len(sent) < len(source)
        assert not re.search(r"^\s*(//|/\*)|^[ \t]", sent, re.MULTILINE)
    library = (WEB / "vendor" / "lit-html.js").read_bytes()
    assert (await page.client.get("/vendor/lit-html.js")).content == library


async def test_a_file_that_the_browser_has_is_not_sent_again(page: Page) -> None:
    first = await page.client.get("/static/main.js")
    again = await page.client.get(
        "/static/main.js", headers={"if-none-match": first.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")


async def test_a_page_that_the_browser_has_keeps_its_policy(page: Page) -> None:
    first = await page.client.get("/")
    again = await page.client.get("/", headers={"if-none-match": first.headers["etag"]})
    name = "content-security-policy"  # a browser puts the headers of a 304 in the place of its own
    assert again.status_code == 304 and again.headers[name] == first.headers[name]


# --- what changes ---------------------------------------------------------------------------------


async def test_changes_make_of_an_old_document_the_new_one(page: Page) -> None:
    pool = page.pool
    for name in ("live", "work"):
        have = put_together({}, await page.get(f"{name}?since=0"))
        version = (await page.get(f"{name}?since=0"))["v"]
        for step in range(6):
            pool.time_s += 1.0 + step
            pool.drained = {1} if step > 1 else set()
            pool.ended = {2} if step > 3 else set()
            answer = await page.get(f"{name}?since={version}")
            assert not answer["full"]
            have, version = put_together(have, answer), answer["v"]
            assert have == put_together({}, await page.get(f"{name}?since=0"))


async def test_what_does_not_change_is_not_sent(page: Page) -> None:
    pool = page.pool
    first = await page.get("live?since=0")
    assert (await page.get(f"live?since={first['v']}"))["tables"] == {}
    pool.time_s += 2
    answer = await page.get(f"live?since={first['v']}")
    changed = {t for part in answer["tables"].values() for t in (*part["cols"], *part["at"])}
    assert "busy" in changed and not changed & {"name", "model", "capacity", "labels"}


async def test_a_version_of_another_run_gets_the_whole_document(page: Page) -> None:
    for since in ("12345", "-1", "x", "9" * 40, ""):
        assert (await page.get(f"live?since={since}"))["full"]


def test_only_the_last_versions_are_kept() -> None:
    book = Book(1)
    for n in range(40):
        book.put(Document(tables={"t": {"a": [n, 1, 2], "b": [0, 0, 0]}}))
    assert json.loads(book.answer(1).plain)["full"]
    last = json.loads(book.answer(39).plain)
    assert last["tables"] == {"t": {"n": 3, "cols": {}, "at": {"a": [[0], [39]]}}}
    book.put(Document(tables={"t": {"a": [39, 1, 2], "b": [0, 0, 0]}}))
    assert book.version == 40


async def test_a_large_answer_is_compressed_where_the_browser_takes_it(page: Page) -> None:
    plain = await page.client.get("/api/v1/live", headers={"accept-encoding": "identity"})
    small = await page.client.get("/api/v1/live", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers and small.headers["content-encoding"] == "gzip"
    assert small.content == plain.content
    assert len(gzip.compress(plain.content)) < len(plain.content) / 3


# --- old data -------------------------------------------------------------------------------------


def test_a_silent_server_is_old_with_its_time_and_keeps_its_last_values(pool: FakePool) -> None:
    memory = Memory()
    before = summary(pool.latest(), pool.now(), memory, {})
    assert before.tables["servers"]["stale"] == [0, 0, 0, 0]
    pool.dead = {2}
    pool.time_s += 1
    pool.latest()
    pool.time_s += 5
    after = summary(pool.latest(), pool.now(), memory, {})
    stale = after.tables["servers"]["stale"]
    assert [bool(each) for each in stale] == [False, False, True, False]
    assert int(str(stale[2])) == 1_795_370_400_000 + 101_000
    value = after.values["pool"]
    assert isinstance(value, dict)
    assert value["level"] == "fail"
    assert value["sentence"] == "node-2 does not answer: 2 GPUs cannot be granted."
    assert after.tables["gpus"]["busy"][4] is not None


def test_the_sentence_of_a_pool_that_is_well_names_its_size(pool: FakePool) -> None:
    document = summary(pool.latest(), pool.now(), Memory(), {})
    value = document.values["pool"]
    assert isinstance(value, dict)
    assert (value["level"], value["sentence"]) == (
        "warn",
        "Healthy, with 1 warning.",
    )


# --- leases ---------------------------------------------------------------------------------------


def test_rates_come_from_counters_and_are_unknown_at_first(pool: FakePool) -> None:
    leases: dict[str, list[object]] = {}
    for step in range(5):
        pool.time_s = 100.0 + step
        leases = work(pool.latest()).tables["leases"]
        if not step:
            assert leases["in"] == [None] * 5
    number = 0x1000
    assert leases["in"][0] == pytest.approx(2e6 + number * 1000)
    assert leases["waits"][0] == pytest.approx(40 + number % 900)
    assert leases["wire"][0] == pytest.approx(
        (40 + number % 900) * (180 + number % 250) / 1e6, abs=0.01
    )
    assert leases["used"][0] == (4 + number % 30) * GIB >> 20


async def test_waiting_requests_do_not_change_while_they_wait(page: Page) -> None:
    first = await page.get("work?since=0")
    page.pool.time_s += 7
    answer = await page.get(f"work?since={first['v']}")
    assert "waiting" not in answer["tables"]


# --- orders ---------------------------------------------------------------------------------------


async def test_an_order_needs_a_reason_and_is_marked(page: Page) -> None:
    assert (await page.order("end-lease", lease="1000", reason=" ")).status_code == 400
    assert (await page.order("end-lease", lease="1000", reason="x" * 200)).status_code == 400
    assert (await page.order("end-lease", lease="zz", reason="too long")).status_code == 400
    answer = await page.order("end-lease", lease="1000", reason="it hangs")
    assert answer.json() == {"done": "lease 1000 is ending"}
    [order] = page.pool.orders
    assert isinstance(order, m.EndLease)
    assert order.reason == "it hangs (web)"


async def test_drain_and_undrain_are_the_orders_of_the_command_line(page: Page) -> None:
    answer = await page.order("drain", server="node-1", reason="new fan")
    assert answer.json() == {"done": "node-1 is drained; what runs there goes on"}
    answer = await page.order("undrain", server="node-1")
    assert answer.json() == {"done": "node-1 takes leases again"}
    first, second = page.pool.orders
    assert first == m.DrainServer("node-1", "new fan (web)")
    assert second == m.DrainServer("node-1", None)


async def findings(page: Page) -> list[dict[str, Any]]:
    columns = put_together({}, await page.get("live"))["tables"]["findings"]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


async def test_a_finding_is_silenced_and_heard_again(page: Page) -> None:
    page.pool.dead = {1}
    known = {each["check"]: each for each in await findings(page)}
    assert known["disk"]["key"] == ["disk", "node-2", "/var/lib/gpupool"]
    assert known["answer"]["key"] == ["answer", "node-1", "node-1"]
    assert known["clock"]["key"] is None, "what passes is not silenced"
    for check, hours in (("disk", "4"), ("answer", 24)):
        body = {"key": known[check]["key"], "hours": hours}
        assert (await page.order("silence", **body)).status_code == 400, "no reason"
        answer = await page.order("silence", **body, reason="new disk")
        assert answer.status_code == 200, answer.text
    assert page.pool.orders[0] == m.SetSilence(
        "disk", "node-2", "/var/lib/gpupool", "new disk (web)", 4 * 3600.0
    )
    page.pool.time_s += 2
    known = {each["check"]: each for each in await findings(page)}
    assert known["disk"]["silence"] == "silenced for another 3 h 59 min by ada: new disk (web)"
    assert known["answer"]["silence"]
    assert known["disk"]["key"] == ["disk", "node-2", "/var/lib/gpupool"]
    assert (await page.order("unsilence", key=known["disk"]["key"])).status_code == 200
    page.pool.time_s += 2
    assert {each["check"]: each for each in await findings(page)}["disk"]["silence"] == ""


async def test_a_silence_says_what_it_is_of_and_for_how_long(page: Page) -> None:
    good = {"key": ["disk", "", ""], "hours": 4, "reason": "why"}
    for wrong in (
        {"key": ["disk", ""]},
        {"key": ["", "", ""]},
        {"key": ["disk", "", 7]},
        {"key": "disk"},
        {"hours": 0},
        {"hours": 24 * 90 + 1},
        {"hours": "1e9"},
        {"hours": None},
    ):
        assert (await page.order("silence", **(good | wrong))).status_code == 400, wrong
    assert (await page.order("unsilence", key=[])).status_code == 400
    assert not page.pool.orders


async def test_a_silence_of_a_gpu_names_it_by_its_id(page: Page) -> None:
    page.pool.silences = (SilenceView("disk", "", "", NEVER, "all disks", "ada", NEVER),)
    page.pool.time_s += 2
    disk = next(each for each in await findings(page) if each["check"] == "disk")
    assert disk["key"] == ["disk", "", ""], "as it was silenced"
    snapshot = page.pool.latest()
    server = snapshot.view.servers[0]
    lost = Finding("gpu-fault", server.gpus[0].id, Health.FAIL, NEVER, "GPU 0: lost")
    told = replace(snapshot.telemetry[server.id], findings=(lost,))
    snapshot = replace(snapshot, telemetry={server.id: told})
    found = findings_table(snapshot, findings_of(snapshot))
    at = found["check"].index("gpu-fault")
    assert found["subject"][at] == "GPU 0"
    assert found["key"][at] == ["gpu-fault", "node-0", server.gpus[0].id]


async def test_an_order_comes_from_the_page_itself(page: Page) -> None:
    body = {"lease": "1000", "reason": "x"}
    origin = f"http://127.0.0.1:{PORT}"
    for headers in (
        {},  # the cookie alone
        {"x-gpupool": "wrong", "origin": origin},
        {"x-gpupool": page.secret, "origin": "http://127.0.0.1:8000"},
        {"x-gpupool": page.secret, "origin": "null"},
    ):
        answer = await page.client.post("/api/v1/end-lease", json_body=body, headers=headers)
        assert answer.status_code == 401
    assert not page.pool.orders
    assert (await page.client.get("/api/v1/end-lease")).status_code == 405


async def test_a_readonly_page_gives_no_orders(pool: FakePool) -> None:
    page = Page(pool, readonly=True)
    await page.enter()
    assert (await page.order("end-lease", lease="1000", reason="x")).status_code == 403
    assert not pool.orders
    assert (await page.get("live"))["values"]["viewer"]["readonly"] is True


async def test_what_the_pool_refuses_is_told_in_its_words(page: Page) -> None:
    page.pool.operator = False
    answer = await page.order("drain", server="node-1", reason="x")
    assert answer.status_code == 403
    assert answer.json()["error"]["what"] == "only operators may do that"


# --- reports --------------------------------------------------------------------------------------


async def test_usage_is_told_by_key_and_as_csv(page: Page) -> None:
    report = await page.get("usage?by=user&since=0")
    assert report["total"]["gpu_hours"] == pytest.approx(
        sum(row["gpu_hours"] for row in report["rows"])
    )
    answer = await page.client.get("/api/v1/usage?by=user&since=0&format=csv")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.text.splitlines()[0].startswith("user,leases [count],usage [GPU h]")
    for wrong in ("by=colour", "since=x", "until=-1", "since=" + "9" * 30):
        assert (await page.client.get(f"/api/v1/usage?{wrong}")).status_code == 400


async def test_users_see_no_records_of_others(page: Page) -> None:
    page.pool.operator = False
    live = [n for n in range(5) if page.pool.latest().view.leases[n].user != "ada"]
    name = page.pool.latest().view.leases[live[0]].name
    assert (await page.client.get(f"/api/v1/lease/{name}")).status_code == 400


async def test_one_server_is_told_with_all_that_it_measures(page: Page) -> None:
    told = await page.get("server/node-1")
    assert told["server"]["gpus"][0]["id"] == "GPU-1-0"
    assert told["telemetry"]["host"]["memory_total"] == 512 * GIB
    assert (await page.client.get("/api/v1/server/nobody")).status_code == 400


async def test_the_last_hour_is_there_for_charts(page: Page) -> None:
    for _ in range(5):
        page.pool.time_s += 5
        await page.get("live")
    for where in ("", "&server=node-0", "&server=node-0&gpu=1"):
        told = await page.get(f"recent?metrics=busy,power{where}")
        assert len(told["t"]) == 5 and told["t"][1] - told["t"][0] == 5000
        assert all(each is not None for each in told["series"]["power"])
    assert (await page.client.get("/api/v1/recent?metrics=secret")).status_code == 400


async def test_what_servers_have_kept_is_told_by_the_words_of_gpupool_history(page: Page) -> None:
    day = "since=1795300000000&until=1795370400000"
    told = await page.get(f"history?of=node-1&metric=power&{day}")
    assert told["title"] == "node-1" and told["unit"] == "W" and "busy" in told["metrics"]
    [line] = told["lines"]
    assert len(line["t"]) == len(line["values"]) > 200
    assert "granted" in (await page.get(f"history?{day}"))["metrics"]
    for wrong in (
        "of=node-1&metric=x",
        "since=5&until=4",
        "since=x",
        "of=" + "x" * 300,
    ):
        answer = await page.client.get(f"/api/v1/history?{day}&{wrong}")
        assert answer.status_code == 400, wrong


async def test_what_checks_found_before_is_told_by_gpu_and_of_the_pool_once(page: Page) -> None:
    week = "since=1794760000000&until=1795370400000"
    told = await page.get(f"checks?{week}")
    rows = [(e["check"], e["server"], e["subject"], e["level"]) for e in told["rows"]]
    assert rows == [
        ("disk", "node-1", "free", "warn"),
        ("temperature", "node-1", "GPU 0", "fail"),
        ("silent", "", "node-3", "fail"),
    ], "the newest first; both servers say the last one"
    disk, heat, _ = told["rows"]
    assert (disk["ended"], heat["ended"] - heat["began"]) == (0, 1_500_000)
    assert set(told["unknown"]) == {"node-0", "node-1"} and not told["more"]
    for wrong in ("since=5&until=4", "since=x&until=4", "since=1"):
        assert (await page.client.get(f"/api/v1/checks?{wrong}")).status_code == 400, wrong


async def test_audit_and_policy_are_told(page: Page) -> None:
    assert (await page.get("audit"))["acts"][0]["number"] == 8  # the latest first
    assert "[class.students]" in (await page.get("policy"))["text"]


async def test_hostile_texts_stay_texts(pool: FakePool) -> None:
    pool.hostile = True
    page = Page(pool)
    await page.enter()
    told = await page.get("work")
    assert HOSTILE in told["tables"]["leases"]["cols"]["program"]
    answer = await page.client.get("/api/v1/work")
    assert answer.headers["content-type"] == "application/json"


# --- files ----------------------------------------------------------------------------------------


def test_vendored_files_are_those_that_were_recorded() -> None:
    sums = dict(
        line.split("  ")[::-1] for line in (WEB / "vendor/SHA256SUMS").read_text().splitlines()
    )
    here = {path.name for path in (WEB / "vendor").iterdir()} - {"SHA256SUMS"}
    assert here == set(sums)
    for name, expected in sums.items():
        assert sha256((WEB / "vendor" / name).read_bytes()).hexdigest() == expected


def test_the_page_has_nothing_inline_and_nothing_of_others() -> None:
    for path in (*(WEB / "static").rglob("*.js"), *(WEB / "static").rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        for word in ("innerHTML", "insertAdjacentHTML", "unsafeHTML", "document.write", "eval("):
            assert word not in text, f"{path.name} has {word}"
        assert 'style="' not in text and "onclick=" not in text, path.name
        own = text.replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in own and "https:" not in own, path.name


def test_own_code_is_small() -> None:
    """All pages together, as they are sent: without comments and indentation."""
    sent = [
        asset.body.plain
        for path, asset in load_assets().items()
        if path.startswith("/static/") and path.endswith((".js", ".css", ".html"))
    ]
    assert sum(len(gzip.compress(each)) for each in sent) <= 60_000

"""The values of a policy's document, at the edges of accepted and refused; and its prices."""

from datetime import UTC, date, datetime, time
from decimal import Decimal

import pytest

from gpupool.pool.model.policy import NO_LIMIT, Rule
from gpupool.pool.policy.policy_values import (
    WrongValueError,
    contradictions,
    duration_ms,
    moment,
    rule_value,
    word_list,
)
from gpupool.pool.policy.prices import Price, Prices, check_entry, price_of, prices_of

DAY_MS = 86_400_000
SHORT = Decimal("0.000001")


@pytest.mark.parametrize(
    ("key", "value", "number", "words"),
    [
        ("gpus", ["*A100*", "*H200*"], 0, ("*A100*", "*H200*")),
        ("servers", "rack=2", 0, ("rack=2",)),
        ("servers", ["rack=2", "name=a*"], 0, ("rack=2", "name=a*")),
        ("data_encryption", "tls", 0, ("tls",)),
        ("data_encryption", "off", 0, ("off",)),
        ("department", "p", 0, ("p",)),
        ("department", "p" * 64, 0, ("p" * 64,)),
        ("priority", -1000, -1000, ()),
        ("priority", 1000, 1000, ()),
        ("preemptible", True, 1, ()),
        ("preemptible", False, 0, ()),
        ("min_run_time", "0s", 0, ()),
        ("guarantee", 0, 0, ()),
        ("guarantee", 2, 2000, ()),
        ("weight", Decimal("0.1"), 100, ()),
        ("weight", 10, 10_000, ()),
        ("max_gpus", "none", NO_LIMIT, ()),
        ("max_gpus", 0, 0, ()),
        ("max_gpus", 1_000_000, 1_000_000_000, ()),
        ("max_gpus_per_user", Decimal("0.001"), 1, ()),
        ("max_memory", "1KiB", 1024, ()),
        ("max_memory_per_user", "none", NO_LIMIT, ()),
        ("max_leases", 0, 0, ()),
        ("max_leases", 1_000_000, 1_000_000, ()),
        ("max_leases_per_user", 3, 3, ()),
        ("idle_timeout", "2s", 2000, ()),
        ("max_lease_time", "none", NO_LIMIT, ()),
        ("max_suspended", "4h", 14_400_000, ()),
    ],
)
def test_the_first_and_the_last_value_of_a_rule_are_taken(
    key: str, value: object, number: int, words: tuple[str, ...]
) -> None:
    assert rule_value(key, value) == (number, words)


GPUS = 'write a number of GPUs such as 2.5, or "none"'
GUARANTEE = "write a number of GPUs such as 2.5"
WEIGHT = "write a number from 0.1 to 10, such as 2.5"
LEASES = 'write a whole number, or "none"'
PRIORITY = "write a whole number from -1000 to 1000"
DEPARTMENT = "write a name of 1 to 64 characters"
DURATION = 'write a duration such as "30m", "1h30m" or "7d"'
WORDS = 'write a list of words, such as ["a", "b*"]'
LABELS = 'write labels as "key=value", or "name=server-*"'


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("gpus", [], "the list is empty, which would allow nothing"),
        ("servers", [], "the list is empty, which would allow nothing"),
        ("servers", ["rack=2", "a"], LABELS),
        ("data_encryption", "TLS", 'write "tls" or "off"'),
        ("department", "", DEPARTMENT),
        ("department", "p" * 65, DEPARTMENT),
        ("department", 7, DEPARTMENT),
        ("department", "a\tb", "write a name without control characters"),
        ("priority", -1001, PRIORITY),
        ("priority", 1001, PRIORITY),
        ("priority", True, PRIORITY),
        ("priority", Decimal(5), PRIORITY),
        ("preemptible", "true", "write true or false"),
        ("guarantee", "none", GUARANTEE),
        ("guarantee", -1, GUARANTEE),
        ("weight", Decimal("0.099"), WEIGHT),
        ("weight", Decimal("10.001"), WEIGHT),
        ("max_gpus", -SHORT, GPUS),
        ("max_gpus", 1_000_000 + Decimal("0.001"), GPUS),
        ("max_gpus", 1_000_001, GPUS),
        ("max_gpus", Decimal("nan"), GPUS),
        ("max_gpus", "2", GPUS),
        ("max_gpus", True, GPUS),
        ("max_gpus", Decimal("0.0001"), "write three decimals at most"),
        ("max_memory", 8, 'write a size such as "80GiB", "80GB" or "512M", or "none"'),
        ("max_leases", -1, LEASES),
        ("max_leases", 1_000_001, LEASES),
        ("max_leases", True, LEASES),
        ("idle_timeout", "1s", 'write at least 2s, or "none"'),
        ("max_suspended", 4, DURATION),
    ],
)
def test_what_is_next_to_the_values_of_a_rule_is_refused(key: str, value: object, why: str) -> None:
    with pytest.raises(WrongValueError) as caught:
        rule_value(key, value)
    assert str(caught.value) == why


def test_a_size_that_is_none_says_what_else_can_be_written() -> None:
    with pytest.raises(WrongValueError, match=r"'80' is not a size: .*; or \"none\"$"):
        rule_value("max_memory", "80")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0s", 0),
        ("1s", 1000),
        ("1m", 60_000),
        ("1h", 3_600_000),
        ("1d", DAY_MS),
        ("1w", 7 * DAY_MS),
        ("1w2d3h4m5s", 9 * DAY_MS + 11_045_000),
        ("1m1m", 120_000),
        ("36600d", 36_600 * DAY_MS),
        ("0" * 17 + "12m", 720_000),
    ],
)
def test_a_duration_is_the_sum_of_its_parts(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("36600d1s", "that is longer than a hundred years"),
        ("36601d", "that is longer than a hundred years"),
        ("9" * 19 + "s", "that is longer than a hundred years"),
        ("0" * 18 + "12m", DURATION),
        ("0" * 19 + "12m", DURATION),
        ("", DURATION),
        ("1", DURATION),
        ("1y", DURATION),
        ("1.5h", DURATION),
        (30, DURATION),
    ],
)
def test_what_is_no_duration_or_too_long_is_refused(value: object, why: str) -> None:
    with pytest.raises(WrongValueError) as caught:
        duration_ms(value)
    assert str(caught.value) == why


def test_words_are_a_list_or_one_without_brackets() -> None:
    assert word_list("a") == ("a",)
    assert word_list([]) == ()
    assert word_list(["b", "a" * 200]) == ("b", "a" * 200)
    assert word_list(["a"] * 64) == ("a",) * 64


@pytest.mark.parametrize("value", ["", [""], ["a", ""], "a" * 201, [7], ["a", ["b"]], 7, None, {}])
def test_what_is_no_list_of_words_is_refused(value: object) -> None:
    with pytest.raises(WrongValueError) as caught:
        word_list(value)
    assert str(caught.value) == WORDS


def test_at_most_sixty_four_words_are_listed() -> None:
    with pytest.raises(WrongValueError, match="at most 64 can be listed"):
        word_list(["a"] * 65)


@pytest.mark.parametrize(
    ("value", "ms", "once", "zone"),
    [
        ("0:00", 0, False, "Here"),
        ("24:00", DAY_MS, False, "Here"),
        ("23:59:59", DAY_MS - 1000, False, "Here"),
        ("1:02:03", 3_723_000, False, "Here"),
        (time(1, 2, 3), 3_723_000, False, "Here"),
        (date(1970, 1, 2), DAY_MS, True, "Here"),
        (datetime(1970, 1, 2, 1, 0, 1), DAY_MS + 3_601_000, True, "Here"),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), 1000, True, "UTC"),
        (date(1970, 1, 1), 0, True, "Here"),
        (date(1969, 12, 31), 0, True, "Here"),
    ],
)
def test_a_moment_is_a_time_of_day_or_a_date(value: object, ms: int, once: bool, zone: str) -> None:
    assert moment(value, "Here") == (ms, once, zone)


@pytest.mark.parametrize("text", ["24:00:01", "24:01", "25:00", "0:60", "0:00:60"])
def test_a_time_that_no_day_has_is_refused(text: str) -> None:
    with pytest.raises(WrongValueError, match=f"^{text} is no time of day$"):
        moment(text, "Here")


@pytest.mark.parametrize("value", ["noon", "1:5", "001:00", None, 8])
def test_what_is_no_time_at_all_is_refused(value: object) -> None:
    with pytest.raises(WrongValueError, match="write a time of day such as "):
        moment(value, "Here")


# --- guarantees -----------------------------------------------------------------------------------


def guarantee(name: str, thousandths: int, line: int = 1) -> Rule:
    return Rule("class", name, "guarantee", line, thousandths)


def limit(name: str, thousandths: int, line: int = 9) -> Rule:
    return Rule("class" if name else "pool", name, "max_gpus", line, thousandths)


@pytest.mark.parametrize("most", [NO_LIMIT, 2000, 2001])
def test_a_guarantee_that_rules_let_a_class_have_is_none_too_many(most: int) -> None:
    assert list(contradictions([guarantee("x", 2000), limit("x", most)], ())) == []
    assert list(contradictions([guarantee("x", 2000), limit("", most)], ())) == []
    assert list(contradictions([guarantee("x", 2000), limit("y", 0)], ())) == []


@pytest.mark.parametrize(("most", "text"), [(0, "0"), (1, "0.001"), (1999, "1.999")])
def test_a_guarantee_that_rules_let_nobody_have_is_named(most: int, text: str) -> None:
    of_class = f"guarantee: it is 2 GPUs, and class x may hold {text} GPUs (line 9)"
    of_all = f"guarantee: all classes together have 2 GPUs, and all users may hold {text} (line 9)"
    assert list(contradictions([guarantee("x", 2000), limit("x", most)], ())) == [(1, of_class)]
    assert list(contradictions([guarantee("x", 2000), limit("", most)], ())) == [(1, of_all)]


def test_guarantees_of_nothing_contradict_no_limit() -> None:
    assert list(contradictions([guarantee("x", 0), limit("x", 0), limit("", 0)], ())) == []
    assert list(contradictions([limit("x", 0), limit("", 0)], ())) == []


def test_a_window_is_judged_by_what_it_brings_only() -> None:
    base = [guarantee("x", 2000, 1), limit("x", 1000, 2), guarantee("y", 500, 3), limit("", 1, 4)]
    assert len(list(contradictions(base, ()))) == 2
    assert list(contradictions(base, [limit("y", 500, 7)])) == []
    [(line, text)] = contradictions(base, [limit("x", 1500, 7)])
    assert (line, text.partition("and ")[2]) == (1, "class x may hold 1.5 GPUs (line 7)")
    [(line, text)] = contradictions(base, [limit("", 2499, 7)])
    assert (line, text.partition("and ")[2]) == (3, "all users may hold 2.499 (line 7)")
    assert list(contradictions(base, [limit("", 2500, 7)])) == []
    both = list(contradictions(base, [guarantee("x", 1500, 8)]))
    assert [line for line, _ in both] == [8, 8]


# --- prices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "micro"),
    [
        (0, 0),
        (2, 2_000_000),
        (SHORT, 1),
        (Decimal("2.10"), 2_100_000),
        (1_000_000, 1_000_000_000_000),
        (1_000_000 - SHORT, 999_999_999_999),
    ],
)
def test_a_price_is_counted_in_millionths(value: object, micro: int) -> None:
    assert price_of(value) == micro


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (-SHORT, "a price is between 0 and 1000000"),
        (1_000_000 + SHORT, "a price is between 0 and 1000000"),
        (Decimal("nan"), "a price is between 0 and 1000000"),
        (Decimal("inf"), "a price is between 0 and 1000000"),
        (SHORT / 10, "a price has at most 6 decimals"),
        (True, "a price is a number, such as 2.10"),
        ("2.10", "a price is a number, such as 2.10"),
    ],
)
def test_what_is_no_price_is_refused(value: object, why: str) -> None:
    with pytest.raises(WrongValueError) as caught:
        price_of(value)
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("currency", "", "a currency is a word of at most 8 characters"),
        ("currency", "c" * 9, "a currency is a word of at most 8 characters"),
        ("currency", 1, "a currency is a word of at most 8 characters"),
        ("", 1, "a model has 1 to 64 characters"),
        ("m" * 65, 1, "a model has 1 to 64 characters"),
        ("m", -1, "a price is between 0 and 1000000"),
    ],
)
def test_an_entry_that_is_neither_price_nor_currency_is_refused_and_passed_over(
    key: str, value: object, why: str
) -> None:
    with pytest.raises(WrongValueError) as caught:
        check_entry(key, value)
    assert str(caught.value) == why
    plain = f'"{value}"' if isinstance(value, str) else value
    text = f'[prices]\n"{key}" = {plain}\nlast = 1\n'
    assert prices_of(text) == Prices((Price("last", 1_000_000),))


@pytest.mark.parametrize(
    ("key", "value"), [("currency", "c"), ("currency", "c" * 8), ("m", 1), ("m" * 64, 0)]
)
def test_the_shortest_and_the_longest_entries_are_taken(key: str, value: object) -> None:
    check_entry(key, value)


def test_prices_keep_their_order_and_the_first_that_fits_holds() -> None:
    prices = prices_of('[prices]\ncurrency = "EUR"\n"*h200*" = 0\n"*" = 2.5\n"*A100*" = 9\n')
    assert prices.currency == "EUR"
    assert prices.of("NVIDIA H200") == 0
    assert prices.of("NVIDIA A100") == 2_500_000
    assert Prices(prices.prices[:1]).of("NVIDIA A100") is None


@pytest.mark.parametrize("text", ["", "prices = 3", "[prices", "[prices]"])
def test_a_document_without_prices_has_none(text: str) -> None:
    assert prices_of(text) == Prices()

"""Prices of GPU-hours: the table ``[prices]`` of a policy, by the GPUs' models.

The table of the pool keeps them as part of the document's text. Nothing is granted or refused by
them: reports of usage read the texts of the policies that were in force.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import Any, cast

from gpupool.pool.policy.policy_values import NAME_LENGTH_MAX, WrongValueError

MICRO = 1_000_000
"""Prices are counted in millionths, in integers."""

PRICE_MAX = 1_000_000
PRICE_COUNT_MAX = 64
CURRENCY_LENGTH_MAX = 8
CURRENCY = "currency"


@dataclass(frozen=True, slots=True)
class Price:
    """The price of an hour of one whole GPU, of models that match a glob."""

    models: str
    micro: int


@dataclass(frozen=True, slots=True)
class Prices:
    """The prices of one policy, in their order: the first that fits holds."""

    prices: tuple[Price, ...] = ()
    currency: str = ""

    def of(self, model: str) -> int | None:
        """Return the price of a model in millionths, or None when there is none."""
        for each in self.prices:
            if fnmatchcase(model.lower(), each.models.lower()):
                return each.micro
        return None


def price_of(value: object) -> int:
    """Return a price in millionths.

    Raises:
        WrongValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise WrongValueError("a price is a number, such as 2.10")
    number = Decimal(value)
    if not number.is_finite() or not 0 <= number <= PRICE_MAX:
        raise WrongValueError(f"a price is between 0 and {PRICE_MAX}")
    micro = number * MICRO
    if micro != micro.to_integral_value():
        raise WrongValueError("a price has at most 6 decimals")
    return int(micro)


def check_entry(key: str, value: object) -> None:
    """Refuse an entry that is no price and no currency.

    Raises:
        WrongValueError: with what would be one.
    """
    if key == CURRENCY:
        if not isinstance(value, str) or not 0 < len(value) <= CURRENCY_LENGTH_MAX:
            text = f"a currency is a word of at most {CURRENCY_LENGTH_MAX} characters"
            raise WrongValueError(text)
        return
    if not 0 < len(key) <= NAME_LENGTH_MAX:
        raise WrongValueError(f"a model has 1 to {NAME_LENGTH_MAX} characters")
    price_of(value)


def prices_of(text: str) -> Prices:
    """Return the prices of a document that a pool has taken; of any other one, none."""
    try:
        document = tomllib.loads(text, parse_float=Decimal)
    except ValueError:
        return Prices()
    table = document.get("prices")
    if not isinstance(table, Mapping):
        return Prices()
    found: list[Price] = []
    currency = ""
    for key, value in cast("Mapping[str, Any]", table).items():
        try:
            check_entry(key, value)
        except WrongValueError:
            continue
        if key == CURRENCY:
            currency = value
        else:
            found.append(Price(key, price_of(value)))
    return Prices(tuple(found), currency)

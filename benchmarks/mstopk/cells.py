"""How the tables of both devices write times, sizes and k."""

import math


def microseconds(value: float) -> str:
    return f"{value:,.0f} µs" if value < 1e4 else f"{value / 1e3:,.1f} ms"


def size(n: int) -> str:
    return f"2^{round(math.log2(n))}"


def share(record: dict) -> str:
    """Of a record with n and k, in percent."""
    return f"{100 * record['k'] / record['n']:.1f} %"

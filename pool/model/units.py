"""Units of size and time that several rooms count in."""

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HOUR_S, DAY_S = 3600, 86_400
HOUR_MS, DAY_MS = HOUR_S * 1000, DAY_S * 1000

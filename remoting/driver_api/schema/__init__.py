"""The tables of driver calls and records, and the generators that read them."""

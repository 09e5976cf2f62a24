"""The live view: screen, keys and the collector behind them."""

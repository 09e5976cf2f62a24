"""The control and data protocols as pure code: framing, messages, state machines; no trio."""

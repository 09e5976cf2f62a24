"""The policy's rules: parsing a document, and judging a request by it."""

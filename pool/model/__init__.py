"""The replicated table as data: identifiers, state, commands, results and their codec."""

"""Parts that commands share: options, values, output, paths, settings, rows and columns."""

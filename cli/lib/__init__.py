"""What several commands share: options, values, output, paths and settings."""

"""Reports: results as tables, files and plots. Nothing here computes a figure of its own."""

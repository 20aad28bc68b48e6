"""Reports: what a replay found, as a table, as files and as pictures. Nothing here computes a number of its own."""
